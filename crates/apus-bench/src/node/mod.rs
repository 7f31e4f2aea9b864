//! A load generator and a server for real hosts, after cp_node of the Homa kernel module.
//!
//! * [`link`]: how both reach the network;
//! * [`server`]: answers on some ports, in some threads each;
//! * [`options`], [`client`]: options, threads, statistics and results of the generator;
//! * [`port`]: a sending port: what is outstanding and when the next call is due;
//! * `sender`: the threads of a port; `unloaded`: the measurement without load;
//! * [`wire`]: what a port needs of Apus and of TCP; [`errors`]: calls that failed;
//! * `recorder`: what a client measures;
//! * `verify`: messages of which every byte is checked; `cp_node`: messages of the module's load generator.

pub mod client;
mod cp_node;
pub mod errors;
pub mod link;
pub mod options;
pub mod port;
mod recorder;
mod sender;
pub mod server;
mod unloaded;
mod verify;
pub mod wire;

use std::time::Duration;

/// How often threads look whether it is time to stop.
const TICK: Duration = Duration::from_millis(50);
