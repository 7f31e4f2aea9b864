//! A server, from its beginning to its end.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use apus_rpc::{BoxTask, Drained, Node, ServerCounters, Spawn};
use tokio::runtime::Handle;

use crate::server::error::ServeError;
#[cfg(feature = "transport")]
use crate::server::tcp::TcpServing;

/// The end of a server. The port stays open until this value is dropped, because the last responses may be under way:
/// [`Node::close`](apus::Node::close) waits for them. A server with a node of its own has waited.
#[derive(Debug)]
pub struct ServerEnd {
    /// Requests over Apus that were in service when the end began, and whose handlers have ended.
    pub finished: usize,
    /// Requests over Apus whose handlers were dropped, because the time of [`drain`](crate::ServerBuilder::drain) had passed.
    pub cancelled: usize,
    _drained: Drained,
}

/// A server that takes requests while this is awaited. From [`ServerBuilder::serve`](crate::ServerBuilder::serve).
#[must_use = "a server serves while it is awaited"]
pub struct Serving {
    stage: Stage,
    counters: Arc<ServerCounters>,
    #[cfg(feature = "transport")]
    tcp_addrs: Vec<std::net::SocketAddr>,
}

enum Stage {
    New(Box<Begun>),
    Failed(ServeError),
    Running(Pin<Box<dyn Future<Output = Result<ServerEnd, ServeError>> + Send>>),
    Over,
}

struct Begun {
    serving: apus_rpc::Serving,
    runtime: InRuntime,
    /// The node, if it is the server's own.
    own: Option<Node>,
    #[cfg(feature = "transport")]
    tcp: TcpServing,
}

/// Bounds the wait for the last responses of the server's own node.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

impl Serving {
    pub(crate) fn new(serving: apus_rpc::Serving, runtime: InRuntime, own: Option<Node>) -> Self {
        let counters = serving.counters();
        let begun = Begun {
            serving,
            runtime,
            own,
            #[cfg(feature = "transport")]
            tcp: TcpServing::default(),
        };
        Self {
            stage: Stage::New(Box::new(begun)),
            counters,
            #[cfg(feature = "transport")]
            tcp_addrs: Vec::new(),
        }
    }

    pub(crate) fn failed(error: ServeError) -> Self {
        Self {
            stage: Stage::Failed(error),
            counters: Arc::default(),
            #[cfg(feature = "transport")]
            tcp_addrs: Vec::new(),
        }
    }

    #[cfg(feature = "transport")]
    pub(crate) fn with_tcp(mut self, tcp: TcpServing) -> Self {
        self.tcp_addrs = tcp.addrs();
        if let Stage::New(begun) = &mut self.stage {
            begun.tcp = tcp;
        }
        self
    }

    /// The counters of requests over Apus, which go on after the end.
    #[must_use]
    pub fn counters(&self) -> Arc<ServerCounters> {
        Arc::clone(&self.counters)
    }

    /// The addresses of [`also_tcp`](crate::ServerBuilder::also_tcp), in that order, with the ports that the system has chosen for port 0.
    #[cfg(feature = "transport")]
    #[cfg_attr(docsrs, doc(cfg(feature = "transport")))]
    #[must_use]
    pub fn tcp_addrs(&self) -> &[std::net::SocketAddr] {
        &self.tcp_addrs
    }
}

impl Begun {
    /// Serves to the end.
    async fn run(self) -> Result<ServerEnd, ServeError> {
        #[cfg(feature = "transport")]
        let drained = self.tcp.beside(self.serving).await?;
        #[cfg(not(feature = "transport"))]
        let drained = self.serving.await?;
        if let Some(node) = self.own {
            // Clients that are gone do not take their responses, which is no error of the server.
            let _ = node.close_async(CLOSE_WITHIN).await;
        }
        let Drained { finished, cancelled, .. } = drained;
        Ok(ServerEnd { finished, cancelled, _drained: drained })
    }
}

impl Future for Serving {
    type Output = Result<ServerEnd, ServeError>;

    /// # Panics
    ///
    /// If it is polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        if !matches!(self.stage, Stage::Running(_)) {
            self.stage = match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::New(begun) => {
                    let Ok(handle) = Handle::try_current() else {
                        return Poll::Ready(Err(ServeError::NoRuntime));
                    };
                    begun.runtime.set(handle);
                    if let Some(node) = &begun.own {
                        // Without an event loop, the node's own thread turns it.
                        let _ = apus_rpc::tokio::drive(node);
                    }
                    Stage::Running(Box::pin(begun.run()))
                }
                Stage::Failed(error) => return Poll::Ready(Err(error)),
                Stage::Running(_) | Stage::Over => panic!("a server ends once"),
            };
        }
        let Stage::Running(run) = &mut self.stage else { unreachable!("the stage is Running") };
        run.as_mut().poll(task)
    }
}

/// The runtime that a server is awaited in, for handlers that have to wait.
#[derive(Clone, Default)]
pub(crate) struct InRuntime {
    handle: Arc<OnceLock<Handle>>,
}

impl InRuntime {
    fn set(&self, handle: Handle) {
        self.handle.get_or_init(|| handle);
    }
}

impl Spawn for InRuntime {
    fn spawn(&self, task: BoxTask) {
        // Requests are taken in the first poll at the earliest. A dropped task answers its request.
        if let Some(handle) = self.handle.get() {
            handle.spawn(task);
        }
    }
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving").field("counters", &self.counters).finish_non_exhaustive()
    }
}
