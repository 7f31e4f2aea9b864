//! Measurements of Apus, and the load and the rivals they need.
//!
//! Every measurement takes its options, which are arguments of a command line too, a [`Progress`](progress::Progress) and a [`ResultFile`](apus_load::ResultFile),
//! to which it adds rows, curves and warnings. [`record`](record::record) makes that file and notes what may be wrong
//! with the run.
//!
//! * [`rtt`], [`rate`], [`stream`], [`mix`]: Apus beside TCP, unix sockets and floors, two processes on this machine; [`comparison`] has
//!   the options that they share;
//! * [`delivery`]: a key-value server under every way of packet delivery; [`handoffs`]: wake-ups per message;
//!   [`scale`]: the cost of a call when many are outstanding, or when there are many peers;
//! * [`sockets`]: a program with ordinary sockets, plain and under `apus run`;
//! * [`memcached`]: a load generator for memcached and Redis; [`irq`]: the experiment of the kernel's IRQ suspension series with it;
//! * [`node`]: a load generator and a server for real hosts;
//! * [`pace`]: when calls start, for every load generator here and in the lab; [`calls`]: the calls of one with a single thread;
//! * [`transport`]: Apus, its rivals and the floors behind one pair of traits; [`message`]: the messages they carry, and beside it messages of
//!   which every byte is checked (`verify`) and those of the module's load generator (`cp_node`);
//! * [`report`]: what names in results mean, tables of their own form, and verdicts about Apus;
//! * [`peer`]: the other process of a measurement, which is the same program under a hidden command ([`roles`]); [`child`]: a
//!   process that is led line by line;
//! * [`stop`]: the request to stop; [`arguments`]: how values of options are read; [`capture`]: where packets
//!   are written; [`misuse`]: options that cannot be meant.
//!
//! Runs are interleaved (A B C A B C …), so that drift of the machine affects all alike. Each run of a transport is one
//! row; medians, spread and ratios are made by [`apus_load::report`].
//!
//! This crate prints nothing, writes no file but a packet capture, and handles no signal: tables, files and Ctrl-C are
//! the business of the program that calls it.

#![forbid(unsafe_code)]

pub mod arguments;
mod as_text;
pub mod calls;
pub mod capture;
pub mod child;
mod closed_loop;
pub mod comparison;
mod cp_node;
pub mod delivery;
pub mod handoffs;
pub mod irq;
pub mod memcached;
pub mod message;
pub mod misuse;
pub mod mix;
pub mod node;
mod open_loop;
pub mod pace;
pub mod peer;
pub mod pin;
pub mod progress;
pub mod rate;
pub mod record;
pub mod report;
pub mod roles;
pub mod rtt;
pub mod runner;
pub mod scale;
mod server;
mod slots;
pub mod sockets;
pub mod stop;
pub mod stream;
mod throughput;
pub mod traffic;
pub mod transport;
mod verify;
