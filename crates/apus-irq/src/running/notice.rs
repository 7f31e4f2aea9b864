//! The notices of a session while it runs. None of them ends the session.

use std::net::SocketAddr;

use crate::error::Error;
use crate::steering::Spread;

/// An event of a session that its user should know.
#[derive(Debug)]
pub enum Notice {
    /// The epoll sets of a child of the program cannot be set; reported once for each process.
    NotSet(Error),
    /// NAPI instances of a device were set again.
    SetAgain {
        /// The device.
        device: String,
        /// Number of instances that had lost their values.
        lost: usize,
        /// Number of new instances.
        new: usize,
    },
    /// Connections of an address go to listeners by their receive queue.
    Steered {
        /// The address.
        address: SocketAddr,
        /// Number of listeners at the address.
        listeners: u32,
        /// Number of receive queues of the device.
        queues: u32,
        /// The distribution of the queues.
        spread: Spread,
    },
    /// Listeners that were added later cannot be steered.
    NotSteered(Error),
    /// A dropped session could not restore a value.
    NotRestored(Error),
    /// The program has gone to the background, and is followed there.
    Followed {
        /// Name of the started program.
        program: String,
        /// Name of the process that holds its sockets.
        holder: String,
        /// PID of that process.
        pid: i32,
    },
    /// The program has ended, and no process that it left has opened an internet socket.
    NotFollowed {
        /// Name of the started program.
        program: String,
        /// The processes that it left.
        left: Vec<i32>,
        /// Time that was waited for a socket, in seconds.
        seconds: u64,
    },
}
