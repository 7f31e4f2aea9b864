//! The process: it accepts programs and other carriers, carries their connections, and exits when it is idle.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use apus::{Config, Node, StreamListener};
use apus_shm::PeerProcess;
use apus_sockets::introduction::carrier_name;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
};
use nix::unistd::geteuid;

use crate::control;
use crate::guests::{Guests, Reserve, raise_limit};
use crate::joining::stream_options;
use crate::programs;
use crate::reactor::Source;
use crate::settings::{Settings, StartError};
use crate::shared::CarrierState;
use crate::status::Status;
use crate::streams;
use crate::tasks::spawn;

/// Interval at which a carrier checks for programs.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Interval at which a leaving carrier checks for connections.
const LEAVE_EVERY: Duration = Duration::from_millis(5);

/// Whether this user has a carrier at a port, in this network namespace.
#[must_use]
pub fn is_running(port: u16) -> bool {
    let connected = || {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        connect(socket.as_raw_fd(), &name(port)?)?;
        PeerProcess::of(socket.as_fd())
    };
    connected().is_ok_and(|process| process.uid() == geteuid().as_raw())
}

fn name(port: u16) -> Result<UnixAddr, Errno> {
    UnixAddr::new_abstract(carrier_name(geteuid().as_raw(), port).as_bytes())
}

/// A running carrier.
pub struct Carrier {
    shared: Arc<CarrierState>,
    idle: Option<Duration>,
}

impl Carrier {
    /// Starts a carrier, which accepts programs and other carriers from now on, on its own threads. Raises the process's limit of
    /// open descriptors to the maximum.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    pub fn start(settings: &Settings) -> Result<Self, StartError> {
        let port = settings.port;
        let limit = raise_limit();
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        match bind(listener.as_raw_fd(), &name(port)?) {
            Err(Errno::EADDRINUSE) => return Err(StartError::Runs(port)),
            bound => bound?,
        }
        let node = start_node(&settings.node, port);
        let node = node.map_err(|error| StartError::Node { port, error })?;
        let streams = StreamListener::bind_with(&node, port, &stream_options())?;
        let control = Source::new(control::listener(port)?)?;
        listen(&listener, Backlog::new(128)?)?;
        // The socket has another type than the standard library's, but `accept` is the same.
        let listener = Source::new(UnixListener::from(listener))?;
        let reserve = Reserve::new(listener.get())?;
        let shared = CarrierState::new(node, settings, Guests::new(limit));
        spawn(programs::accept(Arc::clone(&shared), listener, reserve));
        spawn(streams::accept(Arc::clone(&shared), streams));
        spawn(control::answer(Arc::clone(&shared), control));
        Ok(Self { shared, idle: settings.idle })
    }

    /// The address of its node.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.shared.node.local_addr()
    }

    /// Its current state, and its counters since the start.
    #[must_use]
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// Returns all connections to TCP. Waits until they have returned, at most for `wait`; the remaining ones are reset when the
    /// process exits.
    pub fn leave(&self, wait: Duration) {
        control::switch(&self.shared, false);
        let until = Instant::now() + wait;
        while !self.shared.connections().is_empty() && Instant::now() < until {
            thread::sleep(LEAVE_EVERY);
        }
    }

    /// Returns when there was no program for the time in the settings.
    pub fn run(&self) {
        let mut since = Instant::now();
        loop {
            thread::sleep(LOOK_EVERY);
            if self.shared.guests.count() > 0 {
                since = Instant::now();
            } else if self.idle.is_some_and(|idle| since.elapsed() > idle) {
                return;
            }
        }
    }
}

/// Starts a node for hosts of both IP versions, or of IPv4 only if the host has no IPv6.
fn start_node(settings: &Config, port: u16) -> Result<Node, apus::StartError> {
    let at = |ip: IpAddr| Node::start(settings.clone().listen(SocketAddr::new(ip, port)));
    at(Ipv6Addr::UNSPECIFIED.into()).or_else(|error| match error {
        apus::StartError::AddressInUse(_) | apus::StartError::Config(_) => Err(error),
        _ => at(Ipv4Addr::UNSPECIFIED.into()),
    })
}
