//! The same services over TCP (feature `transport`).

use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::panic;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use apus_rpc::{Bytes, Drained};
use http::{Request, Response};
use http_body::Body as HttpBody;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::transport::server::TcpIncoming;
use tower::Service;

use crate::body::BoxError;
use crate::server::error::ServeError;

/// TCP ports that are open.
#[derive(Default)]
pub(crate) struct TcpListeners {
    listeners: Vec<TcpListener>,
}

/// A server over TCP.
type TcpTask = Pin<Box<dyn Future<Output = Result<(), tonic::transport::Error>> + Send>>;

/// The servers over TCP beside a server over Apus.
#[derive(Default)]
pub(crate) struct TcpServing {
    tasks: Vec<TcpTask>,
    addrs: Vec<SocketAddr>,
    drain: Duration,
    /// Time at which the end began.
    ended_at: Arc<OnceLock<Instant>>,
}

impl TcpListeners {
    pub(crate) fn bind(&mut self, address: &str) -> io::Result<()> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        self.listeners.push(listener);
        Ok(())
    }

    /// Servers of this service, which end when the returned future ends or is dropped. It stands for `shutdown`.
    pub(crate) fn serve<S, B>(
        self,
        service: S,
        drain: Duration,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> (TcpServing, impl Future<Output = ()> + Send + 'static)
    where
        S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<BoxError> + Send,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (end, ended) = watch::channel(());
        let addrs = self.listeners.iter().filter_map(|it| it.local_addr().ok()).collect();
        let task = |listener| {
            let (service, mut ended) = (service.clone(), ended.clone());
            let end = async move {
                // An error: the sender is gone.
                while ended.changed().await.is_ok() {}
            };
            Box::pin(serve(service, listener, end)) as TcpTask
        };
        let tasks = self.listeners.into_iter().map(task).collect();
        let ended_at = Arc::new(OnceLock::new());
        let noted = Arc::clone(&ended_at);
        let shutdown = async move {
            shutdown.await;
            let _ = noted.set(Instant::now()); // It ends once.
            drop(end);
        };
        (TcpServing { tasks, addrs, drain, ended_at }, shutdown)
    }
}

async fn serve<S, B>(
    service: S,
    listener: TcpListener,
    end: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError> + Send,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let listener =
        tokio::net::TcpListener::from_std(listener).expect("a listener that does not block");
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let server = tonic::transport::Server::builder();
    server.serve_with_incoming_shutdown(service, incoming, end).await
}

impl TcpServing {
    pub(crate) fn addrs(&self) -> Vec<SocketAddr> {
        self.addrs.clone()
    }

    /// Serves beside a server over Apus. The end waits for connections for as long as for handlers.
    pub(crate) async fn beside(self, serving: apus_rpc::Serving) -> Result<Drained, ServeError> {
        let mut tasks: JoinSet<_> = self.tasks.into_iter().collect();
        let drained = {
            let mut serving = pin!(serving);
            poll_fn(|task| {
                while let Poll::Ready(Some(ended)) = tasks.poll_join_next(task) {
                    match ended {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => return Poll::Ready(Err(error.into())),
                        // No task is aborted while this polls them.
                        Err(panicked) => panic::resume_unwind(panicked.into_panic()),
                    }
                }
                serving.as_mut().poll(task).map_err(ServeError::from)
            })
            .await?
        };
        if !tasks.is_empty() {
            // Connections that go on longer are left to the runtime; each ends with its last call.
            let passed = self.ended_at.get().map_or(Duration::ZERO, Instant::elapsed);
            let rest = self.drain.saturating_sub(passed);
            let _ = timeout(rest, async { while tasks.join_next().await.is_some() {} }).await;
        }
        Ok(drained)
    }
}
