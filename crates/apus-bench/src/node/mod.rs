//! A load generator and a server for real hosts, after cp_node of the Homa kernel module.
//!
//! * [`link`]: how both reach the network;
//! * [`server`]: answers on some ports, in some threads each;
//! * [`options`], [`client`]: options, threads, statistics and results of the generator;
//! * `port`: a sending port: what is outstanding and when the next call is due;
//! * `sender`: the threads of a port; `unloaded`: the measurement without load;
//! * `errors`: calls that failed, counted; `recorder`: what a client measures.

pub mod client;
mod errors;
pub mod link;
pub mod options;
mod port;
mod recorder;
mod sender;
pub mod server;
mod unloaded;

use std::time::Duration;

/// How often threads look whether it is time to stop.
const TICK: Duration = Duration::from_millis(50);
