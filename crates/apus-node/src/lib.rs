//! A load generator and a server for real hosts, after cp_node of the Homa kernel module, and parts shared with other programs that
//! generate load on Apus.
//!
//! | module | |
//! |---|---|
//! | [`load_profile`], [`client`] | load profile, threads, statistics and results of the generator |
//! | `port`, `sender` | a sending port: outstanding calls, the schedule; its threads |
//! | `unloaded` | the measurement without load |
//! | `errors`, `recorder` | counts of failed calls; a client's measurements |
//! | [`server`] | a server with several ports and threads |
//! | [`link`] | the options of the network; [`capture`]: the option of packet captures |
//! | [`transport`] | the interface of transports for load generators, and Apus behind it |
//! | [`message`], [`verify`], [`cp_node`] | the messages: with a header, with every byte checked, and the module's load generator's |
//! | [`pace`], [`slots`] | schedules of calls; outstanding calls; [`traffic`]: counts of a server |
//! | [`arguments`] | parsers of options' values |

#![forbid(unsafe_code)]

pub mod arguments;
pub mod as_text;
pub mod capture;
pub mod client;
pub mod cp_node;
mod errors;
pub mod link;
pub mod load_profile;
pub mod message;
pub mod pace;
mod port;
mod recorder;
mod sender;
pub mod server;
pub mod slots;
pub mod traffic;
pub mod transport;
mod unloaded;
pub mod verify;

use std::time::Duration;

/// Interval at which threads check for a request to stop.
const TICK: Duration = Duration::from_millis(50);
