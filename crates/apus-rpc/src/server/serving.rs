//! A server at its port.

use std::fmt;
use std::future::Future;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use apus::{OpenError, Port, Request, Requests};
use futures_core::Stream;

use crate::server::counters::ServerCounters;
use crate::server::draining::{Ended, drain};
use crate::server::intake::Intake;

/// Why a server does not serve.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The port cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Misuse: the path of a method is not of the form `/SERVICE/METHOD`.
    #[error("method path '{0}': expected /SERVICE/METHOD")]
    Path(String),
    /// Misuse: two methods have the same path.
    #[error("method path '{0}' is given twice")]
    Twice(String),
}

/// The end of a server. The port stays open until this value is dropped, because the last responses may be under way:
/// [`Node::close`](apus::Node::close) waits for them.
pub struct Drained {
    /// Requests that were in port when the end began, and whose handlers have ended.
    pub finished: usize,
    /// Requests whose handlers were dropped, because the time of [`Serving::drain`] had passed.
    pub cancelled: usize,
    _port: Port,
}

/// A server that takes requests at its port while this is awaited, or while a thread [waits](Self::wait). From
/// [`ServerBuilder::serve`](crate::ServerBuilder::serve).
///
/// It ends when the `shutdown` of `serve` is ready: requests that arrive then are refused with
/// [`Code::Unavailable`](crate::Code::Unavailable), and clients know that they were not executed. The server waits for its handlers
/// meanwhile. It ends at once when the node is closed.
#[must_use = "a server serves while it is awaited or waited for"]
pub struct Serving {
    begun: Result<Begun, ServeError>,
    counters: Arc<ServerCounters>,
    stage: Stage,
}

struct Begun {
    port: Port,
    intake: Arc<Intake>,
    shutdown: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    drain_for: Duration,
    threads: usize,
}

enum Stage {
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
            Begun { port, intake, shutdown, drain_for, threads }
        });
        Self { begun, counters, stage: Stage::New }
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

    /// Serves on the calling thread, and on more if [`ServerBuilder::threads`](crate::ServerBuilder::threads) says so, until the
    /// server ends. These threads find requests without a wake-up, and call handlers that answer at once; handlers that wait go on in
    /// tasks.
    ///
    /// # Errors
    ///
    /// [`ServeError`].
    pub fn wait(self) -> Result<Drained, ServeError> {
        let mut begun = self.begun?;
        let ended = Arc::new(Mutex::new(Ended { finished: 0, cancelled: 0 }));
        if let Some(shutdown) = begun.shutdown.take() {
            let end = drain(Arc::clone(&begun.intake), shutdown, begun.drain_for);
            let (port, ended) = (begun.port.clone(), Arc::clone(&ended));
            begun.intake.spawner.spawn(Box::pin(async move {
                *ended.lock().unwrap_or_else(PoisonError::into_inner) = end.await;
                port.shutdown();
            }));
        }
        let Begun { port, intake, threads, .. } = begun;
        thread::scope(|scope| {
            for number in 1..threads {
                let (port, intake) = (&port, &intake);
                let thread = thread::Builder::new().name(format!("apus-rpc-serve-{number}"));
                let serve = || port.serve(|request| intake.take(request));
                // With fewer threads the port is slower, and not wrong.
                let _ = thread.spawn_scoped(scope, serve);
            }
            port.serve(|request| intake.take(request));
        });
        let Ended { finished, cancelled } = *ended.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Drained { finished, cancelled, _port: port })
    }
}

/// A panic of an interceptor ends its request, whose client is notified, and not the server.
fn take(intake: &Intake, request: Request) {
    let taken = panic::catch_unwind(AssertUnwindSafe(|| intake.take(request)));
    if taken.is_err() {
        intake.note_panic();
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
        if let (Stage::New, Some(shutdown)) = (&this.stage, begun.shutdown.take()) {
            let end = drain(Arc::clone(&begun.intake), shutdown, begun.drain_for);
            let requests = begun.port.requests();
            this.stage = Stage::Running { requests, end: Box::pin(end) };
        }
        let Stage::Running { requests, end } = &mut this.stage else {
            panic!("a server ends once");
        };
        let ended = match end.as_mut().poll(task) {
            Poll::Ready(ended) => ended,
            Poll::Pending => {
                for _ in 0..POLL_MAX {
                    match Pin::new(&mut *requests).poll_next(task) {
                        Poll::Ready(Some(request)) => take(&begun.intake, request),
                        Poll::Ready(None) => break,
                        Poll::Pending => return Poll::Pending,
                    }
                }
                // The node may be closed; otherwise more requests wait.
                match Pin::new(requests).poll_next(task) {
                    Poll::Ready(None) => Ended { finished: 0, cancelled: 0 },
                    Poll::Ready(Some(request)) => {
                        take(&begun.intake, request);
                        task.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
        };
        let port = begun.port.clone();
        this.stage = Stage::Over;
        let Ended { finished, cancelled } = ended;
        Poll::Ready(Ok(Drained { finished, cancelled, _port: port }))
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
