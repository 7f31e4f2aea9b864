//! TCP at its best with one thread per side: non-blocking, level-triggered epoll, several connections, messages pipelined on each,
//! and all ready messages written in one call. The serious rival.

use std::convert::Infallible;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, ensure};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{setsockopt, sockopt::TcpCongestion};
use nix::sys::time::TimeSpec;
use socket2::Socket;

use super::interface::{Client, Ended, Failed, Request, Server};
use super::stream_frames::{FrameReader, FrameWriter, Progress, READ_SIZE, WRITE_SIZE};
use crate::message::{MESSAGE_MAX, MessageHeader};
use crate::traffic::{Counts, Traffic};

/// Upper bound on events of one `epoll_wait`.
const EVENTS: usize = 64;

/// The epoll key of the listener. A connection's key is its index.
const LISTENER: u64 = u64::MAX;

/// One non-blocking connection with its framing.
pub struct FramedStream {
    stream: Socket,
    reader: FrameReader,
    /// Messages that wait to be written.
    pub writer: FrameWriter,
    /// Request and reply bytes of outstanding calls.
    outstanding: u64,
    /// Whether it is registered for writability because the socket buffer was full.
    waits_for_room: bool,
}

impl FramedStream {
    /// Takes over a connected stream.
    ///
    /// # Errors
    /// If the kernel refuses the options.
    pub fn new(stream: Socket) -> Result<Self> {
        stream.set_nonblocking(true).context("non-blocking mode")?;
        Ok(Self {
            stream,
            reader: FrameReader::default(),
            writer: FrameWriter::default(),
            outstanding: 0,
            waits_for_room: false,
        })
    }

    fn push(&mut self, request: Request) {
        self.outstanding += u64::from(request.length);
        self.writer.push(request.header());
    }

    /// Reads once, and calls `complete` for each message that ends in the read. Returns `false` if the other side has closed.
    pub fn read(
        &mut self,
        scratch: &mut [u8],
        complete: impl FnMut(&mut FrameWriter, MessageHeader),
    ) -> Result<bool> {
        let bytes = match self.stream.read(scratch) {
            Ok(0) => return Ok(false),
            Ok(bytes) => bytes,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(true);
            }
            Err(e) => return Err(e).context("socket read"),
        };
        let (writer, mut complete) = (&mut self.writer, complete);
        self.reader.take(&scratch[..bytes], |header| complete(writer, header))?;
        Ok(true)
    }

    /// Writes once, at most `limit` bytes of the queue.
    pub fn write(&mut self, limit: usize) -> Result<Progress> {
        self.writer.write(&mut self.stream, limit).context("socket write")
    }

    /// Writes like `write`, and registers for writability if the socket buffer is full. Returns whether more can be written at
    /// once.
    fn write_or_wait(&mut self, epoll: &Epoll, key: u64, limit: usize) -> Result<bool> {
        let progress = self.write(limit)?;
        let waits = progress == Progress::Full;
        if waits != self.waits_for_room {
            let room = if waits { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
            let mut event = EpollEvent::new(EpollFlags::EPOLLIN | room, key);
            epoll.modify(&self.stream, &mut event).context("epoll_ctl")?;
            self.waits_for_room = waits;
        }
        Ok(progress == Progress::More)
    }
}

/// The client's side.
pub struct EpollClient {
    epoll: Epoll,
    /// The server of each connection.
    servers: Vec<SocketAddr>,
    connections: Vec<FramedStream>,
    scratch: Vec<u8>,
}

impl EpollClient {
    /// Opens one connection to each of `servers`, which may all be the same.
    ///
    /// # Errors
    /// If the kernel or a server refuses.
    pub fn connect(servers: &[SocketAddr]) -> Result<Self> {
        let epoll = new_epoll()?;
        let mut connections = Vec::new();
        for (server, key) in servers.iter().zip(0..) {
            let stream = connect_tcp(*server)?;
            epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, key)).context("epoll_ctl")?;
            connections.push(FramedStream::new(stream)?);
        }
        Ok(Self { epoll, servers: servers.to_vec(), connections, scratch: vec![0; READ_SIZE] })
    }
}

impl Client for EpollClient {
    /// Picks the connection with the fewest outstanding bytes: a short message then waits behind as few bytes as possible, which
    /// gives TCP a better tail than taking turns.
    fn send(&mut self, _: usize, request: Request) -> Result<(), Failed> {
        self.send_among(0..self.connections.len(), request);
        Ok(())
    }

    fn receive(&mut self, timeout: Duration, ended: &mut Vec<Ended>) -> Result<()> {
        let before = ended.len();
        let mut events = [EpollEvent::empty(); EVENTS];
        loop {
            let more = self.write_queued(write_limit(timeout))?;
            let ready =
                wait(&self.epoll, &mut events, if more { Duration::ZERO } else { timeout })?;
            for event in &events[..ready] {
                self.handle(*event, ended)?;
            }
            if timeout.is_zero() || ended.len() > before || (ready == 0 && !more) {
                return Ok(());
            }
        }
    }
}

impl EpollClient {
    /// Like [`send`](Client::send), on one of the connections with these indices.
    pub fn send_among(&mut self, places: Range<usize>, request: Request) {
        let connection = self.connections[places]
            .iter_mut()
            .min_by_key(|connection| connection.outstanding)
            .expect("there is at least one connection to each server");
        connection.push(request);
    }

    /// Like [`receive`](Client::receive), but returns at `end` even if bytes keep arriving, and sleeps to the microsecond: the
    /// kernel's `epoll_wait` counts in milliseconds.
    ///
    /// # Errors
    /// The errors of `receive`.
    pub fn receive_until(&mut self, end: Instant, ended: &mut Vec<Ended>) -> Result<()> {
        loop {
            self.receive(Duration::ZERO, ended)?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || !ended.is_empty() {
                return Ok(());
            }
            if !self.has_unwritten() {
                let mut ready = [PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN)];
                match ppoll(&mut ready, Some(TimeSpec::from_duration(left)), None) {
                    Ok(_) | Err(Errno::EINTR) => {}
                    Err(e) => return Err(e).context("ppoll"),
                }
            }
        }
    }

    /// Whether queued bytes can be written at once.
    fn has_unwritten(&self) -> bool {
        let unwritten =
            |connection: &FramedStream| !connection.writer.is_empty() && !connection.waits_for_room;
        self.connections.iter().any(unwritten)
    }

    /// Sets the congestion control of all connections.
    ///
    /// # Errors
    /// If the kernel has no algorithm of that name.
    pub fn use_congestion_control(&self, name: &str) -> Result<()> {
        self.connections
            .iter()
            .try_for_each(|connection| use_congestion_control(&connection.stream, name))
    }

    /// Returns the names of the congestion controls of the connections.
    #[cfg(test)]
    pub(super) fn congestion_controls(&self) -> Vec<std::ffi::OsString> {
        let of = |stream| nix::sys::socket::getsockopt(stream, TcpCongestion).expect("a name");
        self.connections.iter().map(|connection| of(&connection.stream)).collect()
    }

    /// Writes some of each connection's queue. Returns whether more can be written at once.
    fn write_queued(&mut self, limit: usize) -> Result<bool> {
        let mut more = false;
        for (connection, key) in self.connections.iter_mut().zip(0..) {
            if !connection.writer.is_empty() && !connection.waits_for_room {
                more |= connection.write_or_wait(&self.epoll, key, limit)?;
            }
        }
        Ok(more)
    }

    fn handle(&mut self, event: EpollEvent, ended: &mut Vec<Ended>) -> Result<()> {
        let connection = &mut self.connections[event.data() as usize];
        if event.events().contains(EpollFlags::EPOLLOUT) {
            connection.write_or_wait(&self.epoll, event.data(), WRITE_SIZE)?;
        }
        let mut answered = 0;
        let open = connection.read(&mut self.scratch, |_, header| {
            answered += u64::from(header.other_length);
            ended.push(Ok(header.into()));
        })?;
        ensure!(open, "server {}: it closed the connection", self.servers[event.data() as usize]);
        connection.outstanding = connection.outstanding.saturating_sub(answered);
        Ok(())
    }
}

/// The server's side: one thread for all connections.
pub struct EpollServer {
    listener: TcpListener,
    address: SocketAddr,
    epoll: Epoll,
    connections: Vec<Option<FramedStream>>,
    scratch: Vec<u8>,
    /// Connections with more to write at once.
    unfinished: Vec<u64>,
    traffic: Arc<Traffic>,
}

impl EpollServer {
    /// Listens on `address`. `traffic` counts the answered requests.
    ///
    /// # Errors
    /// If the address is in use, not local or not allowed.
    pub fn listen(address: SocketAddr, traffic: Arc<Traffic>) -> Result<Self> {
        let listener = TcpListener::bind(address)
            .with_context(|| format!("cannot listen on TCP {address}"))?;
        listener.set_nonblocking(true).context("TCP non-blocking mode")?;
        Self::on(listener, traffic)
    }

    /// Sets the congestion control of the connections that it will accept.
    ///
    /// # Errors
    /// If the kernel has no algorithm of that name.
    pub fn use_congestion_control(&self, name: &str) -> Result<()> {
        use_congestion_control(&self.listener, name)
    }

    /// Another server on the same listener. The kernel gives connections to either.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn share(&self) -> Result<Self> {
        Self::on(self.listener.try_clone().context("TCP listener")?, Arc::clone(&self.traffic))
    }

    fn on(listener: TcpListener, traffic: Arc<Traffic>) -> Result<Self> {
        let address = listener.local_addr().context("TCP local address")?;
        let epoll = new_epoll()?;
        let interest = EpollFlags::EPOLLIN | EpollFlags::EPOLLEXCLUSIVE;
        epoll.add(&listener, EpollEvent::new(interest, LISTENER)).context("epoll_ctl")?;
        Ok(Self {
            listener,
            address,
            epoll,
            connections: Vec::new(),
            scratch: vec![0; READ_SIZE],
            unfinished: Vec::new(),
            traffic,
        })
    }

    /// Serves on a new thread until the process exits. The thread ends only with an error.
    ///
    /// # Errors
    /// If the system has no thread left.
    pub fn spawn(self) -> Result<JoinHandle<Error>> {
        let serve = move || match Box::new(self).run() {
            Ok(never) => match never {},
            Err(error) => error,
        };
        let thread = thread::Builder::new().name("tcp-epoll".to_owned());
        thread.spawn(serve).context("cannot start a thread")
    }

    /// Accepts a connection, unless another server was faster.
    fn accept(&mut self) -> Result<()> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => {
                return Ok(());
            }
            Err(e) => return Err(e).context("TCP accept"),
        };
        stream.set_nodelay(true).context("TCP_NODELAY")?;
        let free = self.connections.iter().position(Option::is_none);
        let key = free.unwrap_or(self.connections.len());
        self.epoll
            .add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, key as u64))
            .context("epoll_ctl")?;
        let connection = Some(FramedStream::new(stream.into())?);
        match free {
            Some(key) => self.connections[key] = connection,
            None => self.connections.push(connection),
        }
        Ok(())
    }

    /// Answers the requests of a connection. Drops a connection that ended, broke or requests more than a message may be; the
    /// client reports that if it matters.
    fn serve(&mut self, key: u64) {
        let slot = &mut self.connections[key as usize];
        let Some(connection) = slot else { return };
        let (mut counts, mut asked_too_much) = (Counts::default(), false);
        let open = connection
            .read(&mut self.scratch, |writer, header| {
                let reply = header.answer(header.length);
                if reply.length > MESSAGE_MAX {
                    counts.wrong += 1;
                    asked_too_much = true;
                    return;
                }
                counts.requests += 1;
                counts.in_bytes += u64::from(header.length);
                counts.out_bytes += u64::from(reply.length);
                writer.push(reply);
            })
            .and_then(|open| {
                if connection.write_or_wait(&self.epoll, key, WRITE_SIZE)? {
                    self.unfinished.push(key);
                }
                Ok(open)
            });
        self.traffic.add(counts);
        if asked_too_much || !matches!(open, Ok(true)) {
            *slot = None;
        }
    }
}

impl Server for EpollServer {
    fn address(&self) -> String {
        self.address.to_string()
    }

    fn run(mut self: Box<Self>) -> Result<Infallible> {
        let mut events = [EpollEvent::empty(); EVENTS];
        loop {
            let timeout = if self.unfinished.is_empty() { Duration::MAX } else { Duration::ZERO };
            let ready = wait(&self.epoll, &mut events, timeout)?;
            for key in std::mem::take(&mut self.unfinished) {
                self.serve(key);
            }
            for event in &events[..ready] {
                match event.data() {
                    LISTENER => self.accept()?,
                    key => self.serve(key),
                }
            }
        }
    }
}

/// Upper bound on one write: everything if the caller waits for replies anyway, little if it has short calls to handle in between.
pub fn write_limit(timeout: Duration) -> usize {
    if timeout.is_zero() { WRITE_SIZE } else { usize::MAX }
}

fn use_congestion_control(socket: &impl AsFd, name: &str) -> Result<()> {
    setsockopt(socket, TcpCongestion, &name.into())
        .with_context(|| format!("the kernel has no TCP congestion control `{name}`"))
}

fn new_epoll() -> Result<Epoll> {
    Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("epoll_create")
}

/// `epoll_wait`, whose timeout has milliseconds. A shorter timeout other than zero is rounded up.
fn wait(epoll: &Epoll, events: &mut [EpollEvent], timeout: Duration) -> Result<usize> {
    let milliseconds = match timeout.as_millis() {
        0 if timeout.is_zero() => EpollTimeout::ZERO,
        milliseconds => EpollTimeout::try_from(milliseconds.max(1)).unwrap_or(EpollTimeout::NONE),
    };
    match epoll.wait(events, milliseconds) {
        Err(Errno::EINTR) => Ok(0),
        ready => ready.context("epoll_wait"),
    }
}
/// Time within which a server must accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects by TCP, with Nagle's algorithm disabled.
///
/// # Errors
/// If the kernel or the server refuses, or the server does not answer.
pub fn connect_tcp(server: SocketAddr) -> Result<Socket> {
    let stream = TcpStream::connect_timeout(&server, CONNECT_TIMEOUT)
        .with_context(|| format!("TCP connect to {server}"))?;
    stream.set_nodelay(true).context("TCP_NODELAY")?;
    Ok(stream.into())
}
