//! Byte streams over calls. `docs/streams.md` has the rules and the format of the messages.
//!
//! | part | file |
//! |---|---|
//! | [`Stream`], the handle of applications | this one, `listener.rs`, `options.rs`, `failure.rs`, `asynchronous.rs` |
//! | the protocol as pure state: both halves, the end that calls, the end that answers | `incoming.rs`, `outgoing.rs`, `halves.rs`, `caller.rs`, `answerer.rs` |
//! | the header of each message | `message.rs` |
//! | a stream in the engine, and its waiters | `connection.rs`, `listening.rs`, `waiters.rs` |

mod answerer;
#[cfg(feature = "tokio")]
mod asynchronous;
mod caller;
mod connection;
mod failure;
mod halves;
mod incoming;
mod listener;
mod listening;
mod message;
mod options;
mod outgoing;
#[cfg(test)]
mod tests;
mod waiters;

pub use listener::StreamListener;
pub use options::StreamOptions;

use std::fmt;
use std::future::Future;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use connection::{Connection, Operation};

use crate::address::Address;
use crate::node::Node;
use crate::socket::Socket;

/// An ordered stream of bytes in each direction between two nodes, as [`TcpStream`](std::net::TcpStream) is.
///
/// A [`StreamListener`] accepts streams at a port. The other end connects from a port that its node chooses; it needs no port that can
/// be called. Bytes travel in calls of the connecting end and in their responses, of up to 64 KiB each, so a stream is scheduled with
/// all other messages of both nodes, the shortest first. A message that a program writes and then waits for is one call, and the
/// answer that the other program writes is its response.
///
/// ```
/// use std::io::{Read, Write};
/// use std::net::Shutdown;
/// use std::thread;
/// use apus::{Address, Config, Node, Stream, StreamListener};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut config = Config::new();
/// config.listen("127.0.0.1:0".parse()?);
/// let server = Node::start(&config)?;
/// let listener = StreamListener::bind(&server, 4000)?;
/// let address = listener.local_addr();
/// thread::spawn(move || {
///     let (mut stream, _from) = listener.accept()?;
///     std::io::copy(&mut stream.clone(), &mut stream)?;
///     stream.close()
/// });
///
/// let node = Node::start(&config)?;
/// let mut stream = Stream::connect(&node, address)?;
/// stream.write_all(b"hello")?;
/// stream.end(Shutdown::Write)?;
/// let mut answer = String::new();
/// stream.read_to_string(&mut answer)?;
/// assert_eq!(answer, "hello");
/// # Ok(())
/// # }
/// ```
///
/// # Handles
///
/// Clones are the same stream. `&Stream` reads and writes as well, so that threads can do both at once. A task that polls
/// ([`poll_read`](Self::poll_read), tokio's traits with the feature `tokio`) may be mixed with threads that wait; of several tasks that
/// wait to read, or to write, the one that asked last is woken.
///
/// # Sending
///
/// A write returns when its bytes are in the send buffer, which has the size of the [window](StreamOptions::window). They are sent at
/// once if nothing is under way to the peer. Otherwise short writes are gathered while an answer is under way, up to 64 KiB.
/// [`flush`](Write::flush) therefore does nothing. [`set_nodelay`](std::net::TcpStream::set_nodelay) has no counterpart, because no
/// timer delays bytes.
///
/// # Ending
///
/// [`end`](Self::end) ends one half. [`close`](Self::close) also waits until the peer's node has all bytes. When the last
/// clone is dropped, written bytes are still sent in the background while the process runs. A process that may exit right away
/// must call `close`. If bytes were not read, or come later, the peer's operations fail with
/// [`ConnectionReset`](io::ErrorKind::ConnectionReset), as over TCP.
///
/// A process that ends without closing its streams ends them: at the peer, operations fail with `ConnectionReset` or
/// `ConnectionRefused` as soon as the peer's node knows. A peer that is out of reach ends the stream after
/// [`StreamOptions::lost_after`], 30 s by default, also if nothing was to be sent. The end that accepted may need ten times the setting
/// `peer_timeout` more (10 s).
///
/// # Errors
///
/// Operations return [`io::Error`] with the kinds that TCP has. Bytes that arrived before an error can be read first.
///
/// A stream keeps its node running, even if the [`Node`] is dropped. In a forked child of the process, every operation fails.
#[derive(Clone)]
pub struct Stream {
    handle: Arc<Handle>,
}

/// The connection that all clones of a stream share.
struct Handle(Arc<Connection>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.dropped();
    }
}

impl Stream {
    pub(crate) fn new(connection: Arc<Connection>) -> Self {
        Self { handle: Arc::new(Handle(connection)) }
    }

    /// Opens a stream to a listener, and waits until the listener has it. The application there need not have accepted it.
    ///
    /// # Errors
    ///
    /// [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) if no listener is there or its backlog is full,
    /// [`TimedOut`](io::ErrorKind::TimedOut) if the node does not answer for the setting `peer_timeout` (1 s),
    /// [`AddrInUse`](io::ErrorKind::AddrInUse) if all 32,768 client ports of this node are in use. The source of an error may be a
    /// [`CallError`](crate::CallError).
    pub fn connect(node: &Node, to: Address) -> io::Result<Self> {
        Self::connect_with(node, to, &StreamOptions::new())
    }

    /// [`connect`](Self::connect) with options.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub fn connect_with(node: &Node, to: Address, options: &StreamOptions) -> io::Result<Self> {
        let stream = Self::unopened(node, to, options)?;
        stream.connection().open()?;
        Ok(stream)
    }

    /// [`connect_with`](Self::connect_with) as a future, for any executor. Dropping it gives the stream up.
    ///
    /// With the feature `tokio`, the stream has the traits of tokio:
    ///
    /// ```no_run
    /// # #[cfg(feature = "tokio")]
    /// # async fn example(node: apus::Node, to: apus::Address) -> std::io::Result<()> {
    /// use apus::{Stream, StreamOptions};
    /// use tokio::io::{AsyncReadExt, AsyncWriteExt};
    ///
    /// let mut stream = Stream::connect_async(&node, to, &StreamOptions::new()).await?;
    /// stream.write_all(b"question\n").await?;
    /// let mut answer = Vec::new();
    /// stream.read_to_end(&mut answer).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect_async(
        node: &Node,
        to: Address,
        options: &StreamOptions,
    ) -> impl Future<Output = io::Result<Self>> + Send + Sync + Unpin + use<> {
        Connect { stream: Some(Self::unopened(node, to, options)), begun: false }
    }

    fn unopened(node: &Node, to: Address, options: &StreamOptions) -> io::Result<Self> {
        let socket = Socket::open(&node.shards, None).map_err(failure::not_opened)?;
        let local = Address::new(node.local_addr(), socket.port());
        Ok(Self::new(Arc::new(Connection::connecting(socket, to, local, options)?)))
    }

    fn connection(&self) -> &Arc<Connection> {
        &self.handle.0
    }

    /// The node and port of the other end. At the end that accepted, this address is not authenticated.
    #[must_use]
    pub fn peer_addr(&self) -> Address {
        self.connection().peer()
    }

    /// The node and port of this end. An unspecified IP address (`0.0.0.0`) of the node stays unspecified.
    #[must_use]
    pub fn local_addr(&self) -> Address {
        self.connection().local()
    }

    /// Ends one half of the stream, or both, as `shutdown` of [`TcpStream`](std::net::TcpStream) does. It has another name than
    /// `AsyncWriteExt::shutdown` of tokio, which would be hidden otherwise.
    ///
    /// * `Write`: the peer reads the end of the stream after everything that was written. Later writes fail with
    ///   [`BrokenPipe`](io::ErrorKind::BrokenPipe).
    /// * `Read`: reads return 0. Bytes that have arrived or arrive later are dropped, without notice to the peer.
    ///
    /// # Errors
    ///
    /// Only in a forked child of the process, and after a panic inside the node.
    pub fn end(&self, how: Shutdown) -> io::Result<()> {
        if how != Shutdown::Read {
            self.connection().finish()?;
        }
        if how != Shutdown::Write {
            self.connection().discard()?;
        }
        Ok(())
    }

    /// Ends the writing half and waits until the peer's node has received everything. The application there may not have read it yet.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](io::ErrorKind::TimedOut) after the [write timeout](Self::set_write_timeout); the errors of writes, if the stream
    /// ended before everything was received.
    pub fn close(self) -> io::Result<()> {
        self.connection().deliver()
    }

    /// Limits how long a read waits. Then it fails with [`TimedOut`](io::ErrorKind::TimedOut), and no byte is lost. `None`, the
    /// default, waits without end. Holds for all clones.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for a timeout of zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_timeout(Operation::Read, timeout)
    }

    /// Limits how long a write waits for room, and [`close`](Self::close) for the peer. Otherwise as
    /// [`set_read_timeout`](Self::set_read_timeout).
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for a timeout of zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_timeout(Operation::Write, timeout)
    }

    fn set_timeout(&self, operation: Operation, timeout: Option<Duration>) -> io::Result<()> {
        if timeout == Some(Duration::ZERO) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a timeout must be above zero",
            ));
        }
        self.connection().set_timeout(operation, timeout);
        Ok(())
    }

    /// The timeout of reads.
    #[must_use]
    pub fn read_timeout(&self) -> Option<Duration> {
        self.connection().timeout(Operation::Read)
    }

    /// The timeout of writes.
    #[must_use]
    pub fn write_timeout(&self) -> Option<Duration> {
        self.connection().timeout(Operation::Write)
    }

    /// Reads without waiting, as a future's `poll`, for any executor. If nothing has arrived, the task is woken when something has.
    ///
    /// # Errors
    ///
    /// As [`read`](Read::read).
    pub fn poll_read(
        &self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.poll(Operation::Read, context, || self.connection().try_read(buffer))
    }

    /// Writes without waiting, as a future's `poll`, for any executor. If there is no room, the task is woken when there is.
    ///
    /// # Errors
    ///
    /// As [`write`](Write::write).
    pub fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll(Operation::Write, context, || self.connection().try_write(bytes))
    }

    /// Ends the writing half and is ready when the peer's node has received everything, as a future's `poll`, for any executor.
    ///
    /// # Errors
    ///
    /// As [`close`](Self::close).
    pub fn poll_close(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection().finish()?;
        ready!(self.connection().poll_delivered(context))?;
        Poll::Ready(self.connection().delivered())
    }

    fn poll<T>(
        &self,
        operation: Operation,
        context: &mut Context<'_>,
        mut attempt: impl FnMut() -> Option<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        self.connection().check_process()?;
        loop {
            if let Some(result) = attempt() {
                return Poll::Ready(result);
            }
            ready!(self.connection().poll_ready(operation, context))?;
        }
    }
}

impl Read for &Stream {
    /// Waits until bytes have arrived and moves as many as are there into `buffer`. 0 means that the stream has ended, or that
    /// `buffer` is empty.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](io::ErrorKind::TimedOut) after the [read timeout](Stream::set_read_timeout) or when the peer is lost,
    /// [`ConnectionReset`](io::ErrorKind::ConnectionReset) if the peer has dropped the stream or has ended,
    /// [`ConnectionAborted`](io::ErrorKind::ConnectionAborted) if the peer broke the rules,
    /// [`NotConnected`](io::ErrorKind::NotConnected) if the node was closed.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.connection().read(buffer)
    }
}

impl Write for &Stream {
    /// Waits until there is room in the send buffer and takes as many bytes as fit.
    ///
    /// # Errors
    ///
    /// As reads, and [`BrokenPipe`](io::ErrorKind::BrokenPipe) after this half was shut down. Bytes of earlier writes may not have
    /// arrived then.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.connection().write(bytes)
    }

    /// Does nothing: bytes are sent as soon as may be.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("local", &self.local_addr())
            .field("peer", &self.peer_addr())
            .finish_non_exhaustive()
    }
}

/// Opening a stream, as a future.
struct Connect {
    /// Until it is opened.
    stream: Option<io::Result<Stream>>,
    begun: bool,
}

impl Future for Connect {
    type Output = io::Result<Stream>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { stream, begun } = &mut *self;
        let opened = match stream.as_ref().expect("a future is not polled after it was ready") {
            Ok(stream) => ready!(stream.connection().poll_open(begun, context)),
            Err(_) => Ok(()),
        };
        let stream = stream.take().expect("looked at a moment ago");
        Poll::Ready(opened.and(stream))
    }
}
