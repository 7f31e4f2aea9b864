//! Measurements of Apus, and the load and the rivals they need.
//!
//! Every measurement takes its options, which are arguments of a command line too, a [`Progress`](apus_load::progress::Progress) and a [`ResultFile`](apus_load::ResultFile),
//! to which it adds rows, curves and warnings. [`record`](apus_load::record::record) makes that file and notes what may be wrong
//! with the run.
//!
//! * [`rtt`], [`rate`], [`stream`], [`mix`]: Apus beside TCP, unix sockets and floors, two processes on this machine; [`comparison`] has
//!   the options that they share;
//! * [`delivery`]: a key-value server under every way of packet delivery; [`handoffs`]: wake-ups per message;
//!   [`scale`]: the cost of a call when many are outstanding, or when there are many peers;
//! * [`sockets`]: a program with ordinary sockets, plain and under `apus run`;
//! * [`irq`]: the experiment of the kernel's IRQ suspension series, with the load generator of `apus-memcached`;
//! * [`calls`]: the calls of a load generator with a single thread;
//! * [`transport`]: Apus, its rivals and the floors behind one pair of traits, that of `apus-node`;
//! * [`report`]: what names in results mean, tables of their own form, and verdicts about Apus;
//! * [`peer`]: the other process of a measurement, which is the same program under a hidden command ([`roles`]); [`child`]: a
//!   process that is led line by line.
//!
//! Runs are interleaved (A B C A B C …), so that drift of the machine affects all alike. Each run of a transport is one
//! row; medians, spread and ratios are made by [`apus_load::report`].
//!
//! This crate prints nothing, writes no file but a packet capture, and handles no signal: tables, files and Ctrl-C are
//! the business of the program that calls it.

#![forbid(unsafe_code)]

pub mod calls;
pub mod child;
mod closed_loop;
pub mod comparison;
pub mod delivery;
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
