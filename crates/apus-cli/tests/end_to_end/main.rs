//! The program as people use it: processes, arguments, files, sockets on the loopback interface.

mod browser;
mod cp_node;
mod daemon;
mod demo;
mod deploy;
mod emulated;
mod measured;
mod nodes;
mod program;
mod raw;
mod run;
mod shown;
#[path = "../../../apus-net/tests/skipped/mod.rs"]
mod skipped;
mod wrong_use;
