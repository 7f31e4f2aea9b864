//! Measurements of Apus, with their loads and rivals.
//!
//! Every measurement takes its options, which are also arguments of a command line, a [`Progress`](apus_load::progress::Progress)
//! and a [`ResultFile`](apus_load::ResultFile), to which it adds rows, curves and warnings. [`record`](apus_load::record::record)
//! creates that file and adds warnings about the machine.
//!
//! * [`rtt`], [`rate`], [`stream`], [`mix`]: Apus beside TCP, unix sockets and floors, with two processes on this machine;
//!   [`comparison`] has their common options;
//! * [`delivery`]: a key-value server under every way of packet delivery; [`handoffs`]: wake-ups per message; [`scale`]: the cost
//!   of a call with many outstanding calls or many peers;
//! * [`sockets`]: a program with ordinary sockets, plain and under `apus run`;
//! * [`irq`]: the experiment of the kernel's IRQ suspension series, with the load generator of `apus-memcached`;
//! * [`calls`]: the calls of a load generator with a single thread;
//! * [`transport`]: Apus, its rivals and the floors behind one pair of traits of `apus-node`;
//! * [`report`]: conventions of names in results, special tables, and verdicts about Apus;
//! * [`peer`]: the other process of a measurement, which is the same program under a hidden command ([`roles`]); [`child`]: a
//!   process that is controlled line by line.
//!
//! Runs are interleaved (A B C A B C …), so that drift of the machine affects all alike. Each run of a transport is one row.
//! [`apus_load::report`] computes medians, spread and ratios.
//!
//! This crate prints nothing, writes no file except packet captures, and handles no signal: the calling program does that.

#![forbid(unsafe_code)]

pub mod calls;
pub mod child;
mod closed_loop;
pub mod comparison;
pub mod delivery;
mod floor;
pub mod handoffs;
pub mod irq;
pub mod mix;
mod open_loop;
pub mod peer;
pub mod pin;
pub mod rate;
pub mod report;
pub mod roles;
pub mod rtt;
pub mod runner;
pub mod scale;
mod server;
pub mod sockets;
pub mod stream;
mod throughput;
pub mod transport;
