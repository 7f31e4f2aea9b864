//! The program as users run it: processes, arguments, files, sockets on the loopback interface.

mod bench_irq;
mod between_hosts;
mod browser;
mod captured;
mod carrier;
mod containers;
mod cp_node;
mod daemon;
mod demo;
mod deploy;
mod doctor;
mod documented;
mod emulated;
mod exit_codes;
mod installed;
mod irq;
mod irq_preload;
mod irq_programs;
mod irq_steer;
mod irq_tune;
mod measured;
mod memcached;
mod nodes;
mod planted;
mod program;
mod raw;
mod run;
mod run_differ;
mod run_trust;
mod run_waits;
#[path = "../../src/samples/shell.rs"]
mod shell;
mod shown;
mod simulated;
#[path = "../../../apus-net/tests/skipped/mod.rs"]
mod skipped;
mod stat;
mod top;
mod traces;
mod wrong_use;
