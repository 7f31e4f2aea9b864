//! A load generator and a server for real hosts, after cp_node of the Homa kernel module, and what they share with other programs
//! that put a load on Apus.
//!
//! | module | |
//! |---|---|
//! | [`options`], [`client`] | options, threads, statistics and results of the generator |
//! | `port`, `sender` | a sending port: what is outstanding, when the next call is due; its threads |
//! | `unloaded` | the measurement without load |
//! | `errors`, `recorder` | calls that failed, counted; what a client measures |
//! | [`server`] | answers on some ports, in some threads each |
//! | [`link`] | how both reach the network; [`capture`]: where packets are written |
//! | [`transport`] | a transport as load generators see it, and Apus behind that trait |
//! | [`message`], [`verify`], [`cp_node`] | the messages: with a header, with every byte checked, and those of the module's load generator |
//! | [`pace`], [`slots`] | when calls start; which are outstanding; [`traffic`]: counts of a server |
//! | [`arguments`] | how values of options are read |

#![forbid(unsafe_code)]

pub mod arguments;
pub mod as_text;
pub mod capture;
pub mod client;
pub mod cp_node;
mod errors;
pub mod link;
pub mod message;
pub mod options;
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

/// How often threads look whether it is time to stop.
const TICK: Duration = Duration::from_millis(50);
