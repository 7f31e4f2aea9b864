//! Transports of load generators.
//!
//! | module | |
//! |---|---|
//! | [`interface`] | the traits of its two sides |
//! | [`over_apus`] | Apus behind these traits, through shared memory or over UDP |
//! | [`tcp_epoll`], [`tcp_servers`] | kernel TCP behind them: one thread with epoll; a client of several servers |
//! | [`stream_frames`] | messages in a stream |
//! | [`backlog`] | requests of a client that wait for room |

pub mod backlog;
pub mod interface;
pub mod over_apus;
pub mod stream_frames;
pub mod tcp_epoll;
pub mod tcp_servers;
