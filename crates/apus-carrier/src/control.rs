//! Requests to a running carrier: its status, and its switch.
//!
//! A carrier listens on an abstract unix socket besides the programs' socket. A request is one of three words. The answer is the
//! status afterwards, as JSON. Only root and the carrier's user may send requests.

use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use apus_sockets::introduction::carrier_name;
use async_io::Timer;
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::geteuid;

use crate::reactor::{Source, within};
use crate::shared::CarrierState;
use crate::status::{CarriedConnection, Status};

/// Upper bound on the time of a request, and of an answer.
const WAIT: Duration = Duration::from_secs(2);
/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);
/// Upper bound on an answer, in bytes.
const ANSWER_MAX: u64 = 16 << 20;

/// A request to a carrier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Read the status.
    Status,
    /// Carry no new connections, and return carried ones to TCP.
    Off,
    /// Carry new connections.
    On,
}

impl Request {
    const ALL: [Self; 3] = [Self::Status, Self::Off, Self::On];

    const fn word(self) -> &'static [u8] {
        match self {
            Self::Status => b"status\n",
            Self::Off => b"off\n",
            Self::On => b"on\n",
        }
    }
}

fn address(uid: u32, port: u16) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{}/control", carrier_name(uid, port)))
}

/// The user at the other end of a unix socket.
fn user_of(socket: &impl AsFd) -> io::Result<u32> {
    Ok(getsockopt(socket, sockopt::PeerCredentials)?.uid())
}

/// Sends a request to the carrier of a user at a port. Returns the status afterwards.
///
/// # Errors
///
/// If there is no such carrier, or it does not answer.
pub fn ask(uid: u32, port: u16, request: Request) -> io::Result<Status> {
    let mut stream = UnixStream::connect_addr(&address(uid, port)?)?;
    if user_of(&stream)? != uid {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "a process of another user answers at this port",
        ));
    }
    stream.set_read_timeout(Some(WAIT))?;
    stream.set_write_timeout(Some(WAIT))?;
    stream.write_all(request.word())?;
    let mut text = String::new();
    stream.take(ANSWER_MAX).read_to_string(&mut text)?;
    if text.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "only root and the user of the carrier may query it",
        ));
    }
    Ok(serde_json::from_str(&text)?)
}

/// Opens the socket for requests to this user's carrier.
pub(crate) fn listener(port: u16) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&address(geteuid().as_raw(), port)?)
}

/// Answers requests in turn.
pub(crate) async fn answer(shared: Arc<CarrierState>, listener: Source<UnixListener>) {
    loop {
        let accepted = poll_fn(|context| listener.poll(context, UnixListener::accept)).await;
        let Ok((stream, _)) = accepted else {
            Timer::after(PAUSE).await;
            continue;
        };
        let may_ask = user_of(&stream).is_ok_and(|uid| uid == 0 || uid == geteuid().as_raw());
        let Ok(stream) = Source::new(stream) else { continue };
        if may_ask {
            let _ = within(WAIT, serve(&shared, &stream)).await; // The requester may be gone.
        }
    }
}

async fn serve(shared: &CarrierState, stream: &Source<UnixStream>) -> io::Result<()> {
    let mut word = [0; 8];
    let read = |mut stream: &UnixStream| stream.read(&mut word);
    let length = stream.readable(read).await?;
    let request = Request::ALL.into_iter().find(|it| it.word() == &word[..length]);
    match request {
        Some(Request::Off) => switch(shared, false),
        Some(Request::On) => switch(shared, true),
        Some(Request::Status) => {}
        None => return Err(io::ErrorKind::InvalidData.into()),
    }
    let answer = serde_json::to_vec_pretty(&shared.status())?;
    let mut rest = &answer[..];
    while !rest.is_empty() {
        let count = stream.writable(|mut stream| stream.write(rest)).await?;
        rest = &rest[count..];
    }
    stream.get().shutdown(Shutdown::Both)
}

/// Switches the carrier on or off.
pub(crate) fn switch(shared: &CarrierState, carries: bool) {
    if shared.switch(carries) {
        tracing::info!("the carrier is switched {}", if carries { "on" } else { "off" });
    }
}

impl CarrierState {
    /// The carrier's current state, and its counters since the start.
    pub(crate) fn status(&self) -> Status {
        let connections = self.connections().into_iter().map(|tuple| CarriedConnection {
            client: tuple.client.to_string(),
            server: tuple.server.to_string(),
        });
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            listen: self.node.local_addr().to_string(),
            uptime_s: self.since.elapsed().as_secs(),
            log: self.log.clone(),
            carries: self.carries.load(Ordering::Relaxed),
            hosts: self.hosts.networks().iter().map(ToString::to_string).collect(),
            guests: self.guests.count(),
            descriptors_left: self.guests.descriptors_left(),
            connections: connections.collect(),
            waiting_streams: self.pairing.waiting(),
            carried: self.carried(),
            lost: self.counters.count(crate::status::Incident::Lost),
            refused: self.counters.refused(),
        }
    }
}
