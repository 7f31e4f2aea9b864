//! Accepting streams.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::address::Address;
use crate::delivery::Regime;
use crate::delivery::parker::{self, Waiter, WaiterId};
use crate::node::Node;
use crate::socket::{Socket, SocketInner};
use crate::stream::Stream;
use crate::stream::connection::Connection;
use crate::stream::failure;
use crate::stream::listening::{AwaitStream, Backlog, Listening};
use crate::stream::options::StreamOptions;
use crate::sync::clock;

/// Accepts [`Stream`]s at a port of a node, as [`TcpListener`](std::net::TcpListener) accepts connections.
///
/// Any number of threads and tasks may accept at once. A dropped listener accepts no further stream: waiting streams are refused,
/// and accepted ones continue. Its port is free when the last accepted stream has ended.
///
/// A listener keeps its node running, even if the [`Node`] is dropped.
///
/// ```
/// use std::io::{self, Read, Write};
/// use std::thread;
/// use apus::{Config, Node, Stream, StreamListener};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let mut config = Config::new();
/// # config.listen("127.0.0.1:0".parse()?);
/// let node = Node::start(&config)?;
/// let listener = StreamListener::bind(&node, 4000)?;
/// let address = listener.local_addr();
/// thread::spawn(move || {
///     // A thread for each stream.
///     for mut stream in listener.incoming() {
///         thread::spawn(move || {
///             stream.write_all(b"welcome")?;
///             stream.close()
///         });
///     }
/// });
///
/// let mut greeting = String::new();
/// Stream::connect(&node, address)?.read_to_string(&mut greeting)?;
/// assert_eq!(greeting, "welcome");
/// # Ok(())
/// # }
/// ```
pub struct StreamListener {
    ends: Vec<Arc<Listening>>,
    socket: Socket,
    backlog: Arc<Backlog>,
    options: StreamOptions,
    local: Address,
}

impl StreamListener {
    /// Listens at a server port, 1 to 32766, of a node. A port has a listener or a [`Port`](crate::Port), not both.
    ///
    /// # Errors
    ///
    /// [`AddrInUse`](io::ErrorKind::AddrInUse) if the port is taken, [`InvalidInput`](io::ErrorKind::InvalidInput) if it is out of
    /// range, [`PermissionDenied`](io::ErrorKind::PermissionDenied) if a shared engine forbids it.
    pub fn bind(node: &Node, port: u16) -> io::Result<Self> {
        Self::bind_with(node, port, &StreamOptions::new())
    }

    /// [`bind`](Self::bind) with options for the listener and the streams that it accepts.
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind).
    pub fn bind_with(node: &Node, port: u16, options: &StreamOptions) -> io::Result<Self> {
        let socket = Socket::open(&node.shards, Some(port)).map_err(failure::not_opened)?;
        let backlog = Arc::new(Backlog::new(options.backlog));
        let local = Address::new(node.local_addr(), port);
        let begin = |end: &Arc<SocketInner>| {
            let mut engine = end.shared.enter().map_err(failure::unusable)?;
            Ok(Listening::begin(&mut engine, end, local, *options, &backlog))
        };
        let ends = socket.ends().map(begin).collect::<io::Result<_>>()?;
        Ok(Self { ends, socket, backlog, options: *options, local })
    }

    /// The node and port of this listener. An unspecified IP address (`0.0.0.0`) stays unspecified.
    #[must_use]
    pub fn local_addr(&self) -> Address {
        self.local
    }

    /// Waits for the next stream. Returns it with the address of its other end, which is not authenticated.
    ///
    /// # Errors
    ///
    /// [`NotConnected`](io::ErrorKind::NotConnected) once the node is closed. No action of a client is an error here.
    pub fn accept(&self) -> io::Result<(Stream, Address)> {
        let first = self.socket.first();
        let taken = if first.shared.regime == Regime::AlwaysPolls && self.ends.len() > 1 {
            self.take_busy()?
        } else {
            let engine = first.shared.enter().map_err(failure::unusable)?;
            let mut awaited = AwaitStream { backlog: &self.backlog, socket: first.key };
            let taken = first.shared.wait(engine, &mut awaited, clock::now(), None);
            taken.map_err(failure::unusable)?.expect("a wait without end has a result")
        };
        self.accepted(taken)
    }

    /// Polls all shards, because no other thread turns their engines in this mode.
    fn take_busy(&self) -> io::Result<Option<Arc<Connection>>> {
        loop {
            for end in self.socket.ends() {
                if let Some(taken) = self.backlog.take() {
                    return Ok(taken);
                }
                let engine = end.shared.try_lock().map_err(failure::unusable)?;
                if let Some(mut engine) = engine {
                    engine.turn(clock::now());
                }
            }
        }
    }

    fn accepted(&self, taken: Option<Arc<Connection>>) -> io::Result<(Stream, Address)> {
        let Some(connection) = taken else {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "the node was closed"));
        };
        connection.accepted(self.options.window);
        let peer = connection.peer();
        Ok((Stream::new(connection), peer))
    }

    /// [`accept`](Self::accept) as a future, for any executor. Dropping the future loses no stream.
    ///
    /// ```no_run
    /// # async fn serve(stream: apus::Stream) {}
    /// # async fn example(listener: apus::StreamListener) -> std::io::Result<()> {
    /// loop {
    ///     let (stream, from) = listener.accept_async().await?;
    ///     println!("a stream from {from}");
    ///     serve(stream).await;
    /// }
    /// # }
    /// ```
    pub fn accept_async(
        &self,
    ) -> impl Future<Output = io::Result<(Stream, Address)>> + Send + Sync + Unpin {
        Accept { listener: self, waiting: None }
    }

    /// The streams, one after the other, each as from [`accept`](Self::accept). Ends when the node is closed.
    pub fn incoming(&self) -> impl Iterator<Item = Stream> {
        std::iter::from_fn(|| self.accept().ok().map(|(stream, _)| stream))
    }
}

impl Drop for StreamListener {
    fn drop(&mut self) {
        for (listening, end) in self.ends.iter().zip(self.socket.ends()) {
            let Ok(mut engine) = end.shared.enter() else { continue };
            let now = clock::now();
            listening.close(&mut engine, now);
            engine.transmit(now);
            engine.transmit_due(now);
        }
    }
}

impl fmt::Debug for StreamListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamListener").field("local", &self.local).finish_non_exhaustive()
    }
}

/// A wait for a stream, as a future.
struct Accept<'a> {
    listener: &'a StreamListener,
    /// The id under which a waker is registered.
    waiting: Option<WaiterId>,
}

impl Accept<'_> {
    /// Removes the future from the waiters.
    fn leave(&mut self) {
        let Some(id) = self.waiting.take() else { return };
        self.listener.backlog.delist(id);
        for end in self.listener.socket.ends() {
            let Ok(mut engine) = end.shared.enter() else { continue };
            engine.mail.unregister_task();
        }
    }
}

impl Future for Accept<'_> {
    type Output = io::Result<(Stream, Address)>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.leave();
        let listener = self.listener;
        let always_polls = listener.socket.first().shared.regime == Regime::AlwaysPolls;
        let waiter = Waiter::task(parker::next_id(), context.waker());
        for end in listener.socket.ends() {
            let mut engine = end.shared.enter().map_err(failure::unusable)?;
            let now = clock::now();
            if always_polls || engine.holds_back() {
                engine.turn(now);
            }
            if !always_polls {
                engine.mail.register(&waiter);
                engine.need_progress();
                engine.transmit_due(now);
            }
        }
        if always_polls {
            context.waker().wake_by_ref();
        } else {
            self.waiting = Some(waiter.id());
            listener.backlog.enlist(waiter);
        }
        match listener.backlog.take() {
            None => Poll::Pending,
            Some(taken) => {
                self.leave();
                Poll::Ready(listener.accepted(taken))
            }
        }
    }
}

impl Drop for Accept<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
