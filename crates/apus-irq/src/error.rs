//! The errors of this crate.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::steering::Misfit;

/// The reason why parameters were not read, set or restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No device of that name.
    #[error("no network device `{0}`")]
    NoDevice(String),
    /// A device without the requested queue.
    #[error("`{device}` has no receive queue {queue}; it has {there}")]
    NoQueue {
        /// The device.
        device: String,
        /// The requested queue.
        queue: u32,
        /// The names of the device's queues.
        there: String,
    },
    /// A device that shows no NAPI instance.
    #[error(
        "`{0}` has no visible NAPI instance: the device is down, its driver does not report them, or it has none (loopback; veth \
         without GRO)"
    )]
    NoNapi(String),
    /// A device or process that was changed before, and whose earlier values are kept.
    #[error("{what} is already set by {by}")]
    Held {
        /// Device or process.
        what: String,
        /// The process or command that set it, and how that ends.
        by: String,
    },
    /// NAPI instances that are absent now, although their values are kept.
    #[error(
        "`{device}` has lost {slots}; the state directory keeps their earlier values: restore them when the device is up again"
    )]
    Absent {
        /// The device.
        device: String,
        /// Names of the instances.
        slots: String,
    },
    /// A state file that cannot be understood.
    #[error("`{}` is not a state file of apus irq: {why}", path.display())]
    BadState {
        /// The file.
        path: PathBuf,
        /// The fault.
        why: String,
    },
    /// A state directory, or a file in it, that another user could have chosen or changed.
    #[error("`{}` is {why}: the state directory and its files must belong to the user of this command, and no other user may have \
             write permission", path.display())]
    UnsafeState {
        /// The directory or file.
        path: PathBuf,
        /// The fault.
        why: String,
    },
    /// The caller may not watch the kernel's tracepoints.
    #[error("cannot watch the kernel's timers and polls: {source} ({right})")]
    CannotWatch {
        /// The missing right, or a remedy.
        right: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A process of our own that did not report that it is ready.
    #[error("the {0} did not start")]
    NotStarted(&'static str),
    /// A device to be kept set that is not set.
    #[error("`{0}` is not set")]
    NotSet(String),
    /// NAPI instances that bring packets to other programs, too.
    #[error(
        "{slot} is shared: it also receives packets for {others}, which would wait while another program is busy"
    )]
    Shared {
        /// The instance.
        slot: String,
        /// Names and numbers of the programs.
        others: String,
    },
    /// A program without listeners that could be steered.
    #[error(
        "the program has no TCP listeners that share an address by SO_REUSEPORT: steering needs one for each worker"
    )]
    NoListeners,
    /// Listeners that receive queues cannot be spread over evenly.
    #[error("{address}: {source}")]
    Misfit {
        /// The address of the listeners.
        address: SocketAddr,
        /// The numbers of listeners and queues.
        source: Misfit,
    },
    /// A program that has ended while it was measured.
    #[error("{0} has ended")]
    Ended(String),
    /// A measurement that the caller has stopped.
    #[error("stopped; the values before are restored")]
    Stopped,
    /// A program without packets from a NAPI instance.
    #[error("the program received no packet from a NAPI instance of this network namespace")]
    NoPackets,
    /// A command that measures as a client and has no result.
    #[error("`{command}`: {why}")]
    Client {
        /// The command.
        command: String,
        /// The fault.
        why: String,
    },
    /// No user of this name or number.
    #[error("no user `{0}`")]
    NoUser(String),
    /// A process that may not run a program as another user.
    #[error("only root can run a program as another user")]
    NotRoot,
    /// A refusal of the kernel or the file system.
    #[error("{what}: {}", explained(source))]
    Io {
        /// The object that was read or set.
        what: String,
        /// The error.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }
}

fn explained(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::Unsupported if error.get_ref().is_none() => {
            "this kernel cannot set single NAPI instances, which needs Linux 6.13".to_owned()
        }
        io::ErrorKind::NotFound if error.raw_os_error().is_none() => {
            "this kernel does not have the netlink family netdev, which needs Linux 6.8".to_owned()
        }
        _ => error.to_string(),
    }
}
