//! A server at its port.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use apus::{OpenError, Port, Requests};
use futures_core::Stream;

use crate::blocking::block_on;
use crate::cancellation::{Cancellation, WaitCancelled};
use crate::server::counters::ServerCounters;
use crate::server::draining::{Ended, drain};
use crate::server::intake::Intake;
use crate::transport::Incoming;

/// Why a server does not serve.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The port cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Misuse: the server was begun without a node, by [`Server::in_memory`](crate::Server::in_memory).
    #[error("the server has no node: `Server::builder` takes one")]
    NoNode,
    /// Misuse: the path of a method is not of the form `/SERVICE/METHOD`.
    #[error("method path '{0}': expected /SERVICE/METHOD")]
    Path(String),
    /// Local: the system does not start a thread.
    #[error("no thread to serve: {0}")]
    Thread(String),
    /// Misuse: two methods have the same path.
    #[error("method path '{0}' is given twice")]
    Twice(String),
}

/// The end of a server. The port stays open until this value is dropped, because the last responses may be under way:
/// [`Node::close`](apus::Node::close) waits for them.
#[must_use = "the port is closed when this is dropped"]
pub struct Drained {
    /// Requests that were in service when the end began, and whose handlers have ended.
    pub finished: usize,
    /// Requests whose handlers were dropped, because the time of [`Serving::drain`] had passed.
    pub cancelled: usize,
    port: Port,
    intake: Arc<Intake>,
}

/// A server that takes requests at its port while this is awaited, or while a thread [waits](Self::wait). From
/// [`ServerBuilder::serve`](crate::ServerBuilder::serve).
///
/// It ends when the `shutdown` of `serve` is ready: requests that arrive then are refused with
/// [`Code::Unavailable`](crate::Code::Unavailable), and clients know that they were not executed. The server waits for its handlers
/// meanwhile. It ends at once when the node is closed.
#[must_use = "a server serves while it is awaited or waited for"]
pub struct Serving {
    begun: Result<OpenServer, ServeError>,
    counters: Arc<ServerCounters>,
    stage: ServingStage,
}

struct OpenServer {
    port: Port,
    intake: Arc<Intake>,
    shutdown: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    drain_for: Duration,
    threads: usize,
}

enum ServingStage {
    New,
    Running { requests: Requests, end: Pin<Box<dyn Future<Output = Ended> + Send>> },
    Over,
}

/// Default of [`Serving::drain`].
const DRAIN_FOR: Duration = Duration::from_secs(30);

/// Requests that are taken in one poll; then other tasks have their turn.
const POLL_MAX: usize = 64;

impl Serving {
    pub(crate) fn new(
        port: Result<Port, ServeError>,
        intake: Intake,
        threads: usize,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        let counters = Arc::clone(&intake.in_service.counters);
        let (intake, shutdown) = (Arc::new(intake), Some(Box::pin(shutdown) as Pin<Box<_>>));
        let begun = port.map(|port| {
            let drain_for = DRAIN_FOR;
            OpenServer { port, intake, shutdown, drain_for, threads }
        });
        Self { begun, counters, stage: ServingStage::New }
    }

    /// Whether the server can serve: its port is open. Awaiting the server and [`wait`](Self::wait) return the same error.
    ///
    /// # Errors
    ///
    /// [`ServeError`].
    pub fn check(&self) -> Result<(), ServeError> {
        self.begun.as_ref().map(|_| ()).map_err(ServeError::clone)
    }

    /// The longest time for which the end of the server waits for handlers. Those that go on are dropped then, and their clients get
    /// [`Code::Cancelled`](crate::Code::Cancelled). Default 30 s.
    pub fn drain(mut self, at_most: Duration) -> Self {
        if let Ok(begun) = &mut self.begun {
            begun.drain_for = at_most;
        }
        self
    }

    /// The counters, which go on after the end.
    #[must_use]
    pub fn counters(&self) -> Arc<ServerCounters> {
        Arc::clone(&self.counters)
    }

    /// Serves on threads of the server, one unless [`ServerBuilder::threads`](crate::ServerBuilder::threads) says otherwise, and blocks
    /// the calling thread until the server ends. The threads find requests without a wake-up, and call handlers that answer at
    /// once; handlers that have to wait go on in tasks.
    ///
    /// # Errors
    ///
    /// [`ServeError`].
    pub fn wait(self) -> Result<Drained, ServeError> {
        let OpenServer { port, intake, shutdown, drain_for, threads } = self.begun?;
        let gone = Gone(Arc::new((Cancellation::default(), AtomicUsize::new(threads))));
        for number in 0..threads {
            let (serving, intake, gone) = (port.clone(), Arc::clone(&intake), gone.clone());
            let thread = thread::Builder::new().name(format!("apus-rpc-serve-{number}"));
            let serve = move || {
                serving.serve(|request| intake.take_or_drop(Incoming::Network(request)));
                gone.one_less();
            };
            thread.spawn(serve).map_err(|error| {
                port.shutdown();
                ServeError::Thread(error.to_string())
            })?;
        }
        let mut end =
            pin!(shutdown.map(|shutdown| drain(Arc::clone(&intake), shutdown, drain_for)));
        let mut closed = pin!(WaitCancelled::new(gone));
        let ended = block_on(poll_fn(|task| {
            if closed.as_mut().poll(task).is_ready() {
                return Poll::Ready(Ended { finished: 0, cancelled: 0 });
            }
            end.as_mut().as_pin_mut().map_or(Poll::Pending, |end| end.poll(task))
        }));
        let Ended { finished, cancelled } = ended;
        Ok(Drained { finished, cancelled, port, intake })
    }
}

/// The threads of [`Serving::wait`], which end when the port or the node is closed.
#[derive(Clone)]
struct Gone(Arc<(Cancellation, AtomicUsize)>);

impl Gone {
    fn one_less(&self) {
        let (closed, threads) = &*self.0;
        if threads.fetch_sub(1, Ordering::AcqRel) == 1 {
            closed.cancel();
        }
    }
}

impl AsRef<Cancellation> for Gone {
    fn as_ref(&self) -> &Cancellation {
        &self.0.0
    }
}

impl Future for Serving {
    type Output = Result<Drained, ServeError>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let begun = match &mut this.begun {
            Ok(begun) => begun,
            Err(error) => return Poll::Ready(Err(error.clone())),
        };
        if let (ServingStage::New, Some(shutdown)) = (&this.stage, begun.shutdown.take()) {
            let end = drain(Arc::clone(&begun.intake), shutdown, begun.drain_for);
            let requests = begun.port.requests();
            this.stage = ServingStage::Running { requests, end: Box::pin(end) };
        }
        let ServingStage::Running { requests, end } = &mut this.stage else {
            panic!("a server ends once");
        };
        let ended = match end.as_mut().poll(task) {
            Poll::Ready(ended) => ended,
            Poll::Pending => {
                for _ in 0..POLL_MAX {
                    match Pin::new(&mut *requests).poll_next(task) {
                        Poll::Ready(Some(request)) => {
                            begun.intake.take_or_drop(Incoming::Network(request))
                        }
                        Poll::Ready(None) => break,
                        Poll::Pending => return Poll::Pending,
                    }
                }
                // The node may be closed; otherwise more requests wait.
                match Pin::new(requests).poll_next(task) {
                    Poll::Ready(None) => Ended { finished: 0, cancelled: 0 },
                    Poll::Ready(Some(request)) => {
                        begun.intake.take_or_drop(Incoming::Network(request));
                        task.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
        };
        let (port, intake) = (begun.port.clone(), Arc::clone(&begun.intake));
        this.stage = ServingStage::Over;
        let Ended { finished, cancelled } = ended;
        Poll::Ready(Ok(Drained { finished, cancelled, port, intake }))
    }
}

impl Drained {
    /// Refuses requests that arrive while the port stays open, as the server did at its end. For a server that was awaited; the threads
    /// of [`Serving::wait`] do this themselves. Ready when the port is closed.
    pub fn refuse(&self) -> impl Future<Output = ()> + Send + use<> {
        let (mut requests, intake) = (self.port.requests(), Arc::clone(&self.intake));
        async move {
            while let Some(request) = poll_fn(|task| Pin::new(&mut requests).poll_next(task)).await
            {
                intake.take_or_drop(Incoming::Network(request));
            }
        }
    }
}

impl Drop for Drained {
    fn drop(&mut self) {
        self.port.shutdown();
    }
}

impl fmt::Debug for Drained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drained")
            .field("finished", &self.finished)
            .field("cancelled", &self.cancelled)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving").field("counters", &self.counters).finish_non_exhaustive()
    }
}
