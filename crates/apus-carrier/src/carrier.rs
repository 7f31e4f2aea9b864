//! The process: programs and other carriers come, connections are carried, and at the end nobody is left.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use apus::{Address, Config, Delivery, Node, Stream, StreamListener, StreamOptions};
use apus_shm::{Memory, PeerProcess};
use apus_sockets::introduction::{self, Tuple, carrier_name};
use nix::errno::Errno;
use nix::sys::eventfd::EventFd;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
};
use nix::unistd::geteuid;

use crate::carried::Carried;
use crate::diagnosis;
use crate::frame::Frame;
use crate::log;
use crate::mirror::Mirror;
use crate::pairing::{Pairing, WAIT};
use crate::program::{Introduced, ProgramChannel};
use crate::reactor::{Source, within};
use crate::status::{Counters, Reason, Status};
use crate::tasks::spawn;

/// Processes and connections that a carrier has at a time. Further ones are not served, and stay with TCP.
const GUESTS_MAX: usize = 8_192;

/// How long the other carrier may take for an answer that waits for no program.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// How often a host that does not answer is asked again: each time takes `peer_timeout`.
const TRIES: usize = 2;

/// A host without a carrier is not asked again for this long.
const ABSENT: Duration = Duration::from_secs(10);

/// How often a carrier looks whether a program is there.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The answer to a carrier that names a connection of a program here.
const FOUND: u8 = b'Y';
/// What the other carrier says then, once its program has what it needs.
const JOINED: u8 = b'J';

/// Bytes of a stream that wait in each direction: a ring and its words.
const WINDOW: usize = 64 << 10;

/// How a carrier runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// UDP port of this carrier and of those of other hosts; also the port of their listeners within Apus. Default 20147; 1 to 32767.
    pub port: u16,
    /// How long the carrier goes on without a program. Default 5 s.
    pub idle: Duration,
    /// Settings of the node. Its address is replaced by 0.0.0.0 and the port.
    pub node: Config,
}

impl Settings {
    /// The defaults: packets wake a thread at once, and no thread polls.
    #[must_use]
    pub fn new() -> Self {
        let mut node = Config::new();
        node.delivery(Delivery::base());
        Self { port: introduction::PORT, idle: Duration::from_secs(5), node }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::new()
    }
}

/// Why a carrier does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The user has a carrier at this port already.
    #[error("a carrier of this user runs already at port {0}")]
    Runs(u16),
    /// The node does not start; most often the UDP port is in use.
    #[error("cannot start the node at UDP port {port}: {error}")]
    Node {
        /// The port.
        port: u16,
        /// Why.
        error: apus::StartError,
    },
    /// A system call failed.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

impl From<Errno> for StartError {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

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

/// A carrier that has started.
pub struct Carrier {
    shared: Arc<Shared>,
    idle: Duration,
}

struct Shared {
    node: Node,
    port: u16,
    pairing: Pairing<Stream>,
    /// Hosts that have no carrier, and since when that is known.
    absent: Mutex<HashMap<IpAddr, Instant>>,
    /// Processes and connections.
    guests: AtomicUsize,
    counters: Counters,
}

impl Carrier {
    /// Starts: programs and other carriers find it from now on, and [`run`](Self::run) serves them.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    pub fn start(settings: &Settings) -> Result<Self, StartError> {
        let port = settings.port;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let door = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        match bind(door.as_raw_fd(), &name(port)?) {
            Err(Errno::EADDRINUSE) => return Err(StartError::Runs(port)),
            bound => bound?,
        }
        let node = start_node(&settings.node, port);
        let node = node.map_err(|error| StartError::Node { port, error })?;
        let mut options = StreamOptions::new();
        options.window(WINDOW);
        let streams = StreamListener::bind_with(&node, port, &options)?;
        listen(&door, Backlog::new(128)?)?;
        let shared = Arc::new(Shared {
            node,
            port,
            pairing: Pairing::new(),
            absent: Mutex::default(),
            guests: AtomicUsize::new(0),
            counters: Counters::default(),
        });
        // The socket is of another type than those that the standard library makes; accepting is the same.
        let door = Source::new(UnixListener::from(door))?;
        spawn(programs(Arc::clone(&shared), door));
        spawn(carriers(Arc::clone(&shared), streams));
        Ok(Self { shared, idle: settings.idle })
    }

    /// The address of its node.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.shared.node.local_addr()
    }

    /// What it does, and has done since its start.
    #[must_use]
    pub fn status(&self) -> Status {
        Status { refused: self.shared.counters.refused() }
    }

    /// Carries until no program was there for the time that the settings say.
    pub fn run(&self) {
        let mut since = Instant::now();
        loop {
            thread::sleep(LOOK_EVERY);
            if self.shared.guests.load(Ordering::Acquire) > 0 {
                since = Instant::now();
            } else if since.elapsed() > self.idle {
                return;
            }
        }
    }
}

/// A node for hosts of both IP versions, or for those of IPv4 where there is no IPv6.
fn start_node(settings: &Config, port: u16) -> Result<Node, apus::StartError> {
    let at = |ip: IpAddr| Node::start(settings.clone().listen(SocketAddr::new(ip, port)));
    at(Ipv6Addr::UNSPECIFIED.into()).or_else(|error| match error {
        apus::StartError::AddressInUse(_) | apus::StartError::Config(_) => Err(error),
        _ => at(Ipv4Addr::UNSPECIFIED.into()),
    })
}

/// Counts a process or a connection as long as it is there.
struct Guest(Arc<Shared>);

impl Guest {
    fn new(shared: &Arc<Shared>) -> Option<Self> {
        let before = shared.guests.fetch_add(1, Ordering::AcqRel);
        let guest = Self(Arc::clone(shared));
        (before < GUESTS_MAX).then_some(guest)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.guests.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Accepts programs.
async fn programs(shared: Arc<Shared>, door: Source<UnixListener>) {
    loop {
        let accepted = poll_fn(|context| door.poll(context, |door| door.accept()));
        let Ok((socket, _)) = accepted.await else { continue };
        let socket = OwnedFd::from(socket);
        if let Ok(channel) = Source::new(ProgramChannel::new(socket)) {
            spawn(serve(Arc::clone(&shared), channel));
        }
    }
}

/// Accepts streams of other carriers.
async fn carriers(shared: Arc<Shared>, streams: StreamListener) {
    while let Ok((stream, from)) = streams.accept_async().await {
        // Any user of that host may have a node at another port, and would be believed about the connections of all others.
        if from.host.port() != shared.port {
            let line = || format!("a node at {} is no carrier: its stream is refused", from.host);
            shared.counters.refuse(Reason::ForeignPort, line);
            continue;
        }
        let shared = Arc::clone(&shared);
        spawn(async move {
            let Some(guest) = Guest::new(&shared) else { return };
            let named = within(ANSWER_WAIT, named(&stream)).await;
            let Some(Some(tuple)) = named else { return };
            if from.host.ip().to_canonical() == tuple.client.ip() {
                shared.pairing.bring(tuple, stream, Instant::now());
            } else {
                let line =
                    || format!("the carrier at {} names a client at another host", from.host);
                shared.counters.refuse(Reason::ForeignClient, line);
            }
            drop(guest);
        });
    }
}

/// The connection that another carrier names.
async fn named(stream: &Stream) -> Option<Tuple> {
    let mut bytes = [0; Tuple::BYTES];
    read_exactly(stream, &mut bytes).await.ok()?;
    Tuple::parse(&bytes)
}

async fn read_exactly(stream: &Stream, bytes: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let read = |context: &mut Context<'_>| stream.poll_read(context, &mut bytes[done..]);
        match poll_fn(read).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => done += count,
        }
    }
    Ok(())
}

async fn write_all(stream: &Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = poll_fn(|context| stream.poll_write(context, bytes)).await?;
        bytes = &bytes[count..];
    }
    Ok(())
}

/// Serves a program's socket: the process is there as long as it is open, and it may introduce a connection.
async fn serve(shared: Arc<Shared>, channel: Source<ProgramChannel>) {
    let Some(_guest) = Guest::new(&shared) else { return };
    let Ok(uid) = PeerProcess::of(channel.get().as_fd()).map(|process| process.uid()) else {
        return;
    };
    if uid != geteuid().as_raw() {
        return;
    }
    let introduced = poll_fn(|context| channel.poll(context, ProgramChannel::introduced)).await;
    let Ok(introduced) = introduced else { return };
    if !diagnosis::is_socket_of(&introduced.introduction, uid) {
        return;
    }
    // A program that gives up ends the search.
    let mut search = Box::pin(search(&shared, &introduced));
    let found = poll_fn(|context| match search.as_mut().poll(context) {
        Poll::Ready(stream) => Poll::Ready(stream),
        Poll::Pending => channel.poll(context, ProgramChannel::hear).map(|_| None),
    });
    let Some(stream) = found.await else { return };
    drop(search);
    let joined = join(&stream, channel.get(), introduced.introduction.accepted).await;
    let Some((shown, bell)) = joined else { return };
    let Ok(bell) = Source::new(bell) else { return };
    let Introduced { segment, bells, introduction } = introduced;
    let mut carried = Carried::new(Mirror::new(segment, shown, bells, channel), bell, stream);
    // Whoever is still there notices by the end of its socket whether the connection ended or was lost.
    if let Err(error) = poll_fn(|context| carried.poll(context)).await {
        let Tuple { client, server } = introduction.tuple();
        log::line(&format!("the connection of {client} to {server} was lost: {error}"));
    }
}

/// Finds the carrier of the other end, and its stream.
async fn search(shared: &Shared, introduced: &Introduced) -> Option<Stream> {
    let introduction = &introduced.introduction;
    let tuple = introduction.tuple();
    if introduction.accepted {
        return within(WAIT, shared.pairing.stream_for(tuple)).await;
    }
    let ip = tuple.server.ip();
    if shared.is_absent(ip) {
        return None;
    }
    let to = Address::new(SocketAddr::new(ip, shared.port), shared.port);
    let mut options = StreamOptions::new();
    options.window(WINDOW);
    let mut connected = Stream::connect_async(&shared.node, to, &options).await;
    // A carrier that was restarted is met anew by the next attempt.
    let again = [io::ErrorKind::TimedOut, io::ErrorKind::ConnectionReset];
    for _ in 0..TRIES {
        if connected.as_ref().is_err_and(|error| again.contains(&error.kind())) {
            connected = Stream::connect_async(&shared.node, to, &options).await;
        }
    }
    if let Err(error) = &connected {
        log::line(&format!("no carrier at {ip}: {error}"));
        shared.absent.lock().unwrap_or_else(PoisonError::into_inner).insert(ip, Instant::now());
    }
    let stream = connected.ok()?;
    write_all(&stream, &tuple.to_bytes()).await.ok()?;
    expect(&stream, FOUND, WAIT).await.then_some(stream)
}

/// Gives the program what it needs. The carrier of the end that accepted the connection says that it has the program (FOUND); then the
/// other one gives its program what it needs, and says so (JOINED). From then on each carrier tells the other one how it ends.
async fn join(
    stream: &Stream,
    channel: &ProgramChannel,
    accepted: bool,
) -> Option<(Memory, EventFd)> {
    if !accepted {
        let shown = channel.show().ok()?;
        write_all(stream, &[JOINED]).await.ok()?;
        return Some(shown);
    }
    write_all(stream, &[FOUND]).await.ok()?;
    let shown = if expect(stream, JOINED, ANSWER_WAIT).await { channel.show().ok() } else { None };
    if shown.is_none() {
        // The other program may have joined: it is told that this one is gone.
        let mut frame = Vec::new();
        Frame { died: true, ..Frame::default() }.encode(&mut frame);
        write_all(stream, &frame).await.ok()?;
        poll_fn(|context| stream.poll_close(context)).await.ok()?;
    }
    shown
}

/// Whether the other carrier says this within a while.
async fn expect(stream: &Stream, word: u8, wait: Duration) -> bool {
    let mut said = [0];
    let read = within(wait, read_exactly(stream, &mut said)).await;
    matches!(read, Some(Ok(()))) && said == [word]
}

impl Shared {
    fn is_absent(&self, ip: IpAddr) -> bool {
        let mut absent = self.absent.lock().unwrap_or_else(PoisonError::into_inner);
        absent.retain(|_, since| since.elapsed() < ABSENT);
        absent.contains_key(&ip)
    }
}
