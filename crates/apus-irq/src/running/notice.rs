//! What a session tells while it runs. Nothing of it ends the session.

use std::net::SocketAddr;

use crate::error::Error;
use crate::steering::Spread;

/// Something that the user of a session wants to know.
#[derive(Debug)]
pub enum Notice {
    /// The epoll sets of a child of the program cannot be set; told once for each process.
    NotSet(Error),
    /// NAPI instances of a device were set again.
    SetAgain {
        /// The device.
        device: String,
        /// Instances that had lost their values.
        lost: usize,
        /// Instances that are new.
        new: usize,
    },
    /// Connections of an address go to listeners by their receive queue.
    Steered {
        /// The address.
        address: SocketAddr,
        /// Listeners at it.
        listeners: u32,
        /// Receive queues of the device.
        queues: u32,
        /// How the queues are spread.
        spread: Spread,
    },
    /// Listeners that came later cannot be steered.
    NotSteered(Error),
    /// A session that was dropped could not restore something.
    NotRestored(Error),
    /// The program has gone to the background, and is followed there.
    Followed {
        /// Name of the program that was started.
        program: String,
        /// Name of the process that holds its sockets.
        holder: String,
        /// Number of that process.
        pid: i32,
    },
    /// The program has ended, and no process that it left has opened an internet socket.
    NotFollowed {
        /// Name of the program that was started.
        program: String,
        /// The processes that it left.
        left: Vec<i32>,
        /// For how many seconds a socket was waited for.
        seconds: u64,
    },
}
