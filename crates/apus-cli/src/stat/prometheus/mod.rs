//! Counters for Prometheus, over HTTP.
//!
//! | file | |
//! |---|---|
//! | `ledger` | the processes of a page, and sums over ended processes |
//! | `page` | the page, in OpenMetrics |
//! | `histogram` | the latency of calls on it |
//! | `format` | the format that a client asks for, and the page in the older one |
//!
//! Connections are tasks of one thread. Each has a few seconds from its first byte to its last, and their number is bounded, so a client
//! that is slow or idle stops nobody.

mod format;
mod histogram;
mod ledger;
mod page;

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use apus_shm::CounterDirectory;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use self::format::Format;
use self::ledger::Ledger;
use crate::counters::Snapshot;
use crate::output;

/// Serves the counters at an address until the process ends.
///
/// # Errors
/// When the address cannot be used.
pub(super) fn serve(
    address: SocketAddr,
    directory: CounterDirectory,
    per_process: bool,
) -> Result<()> {
    let cannot = || format!("cannot listen at '--prometheus {address}'");
    let listener = TcpListener::bind(address).with_context(cannot)?;
    listener.set_nonblocking(true).with_context(cannot)?;
    let bound = listener.local_addr().with_context(cannot)?;
    output::print(&format!("metrics at http://{bound}/metrics\n"))?;
    let exporter = Arc::new(Exporter { directory, ledger: Mutex::new(Ledger::new(per_process)) });
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(accept(listener, exporter)).with_context(cannot)
}

/// Takes connections for ever.
async fn accept(listener: TcpListener, exporter: Arc<Exporter>) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = Arc::clone(&places).acquire_owned().await;
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await; // No descriptor is left.
            continue;
        };
        let exporter = Arc::clone(&exporter);
        tokio::spawn(async move {
            let answer = service_fn(|request| {
                let response = exporter.answer(&request);
                async { Ok::<_, Infallible>(response) }
            });
            let mut server = http1::Builder::new();
            server
                .timer(TokioTimer::new())
                .header_read_timeout(CONNECTION_TIMEOUT)
                .keep_alive(false);
            server.max_buf_size(HEAD_MAX);
            let served = server.serve_connection(TokioIo::new(stream), answer);
            // A client that breaks the protocol, or is too slow, has no answer.
            drop(timeout(CONNECTION_TIMEOUT, served).await);
            drop(place);
        });
    }
}

struct Exporter {
    directory: CounterDirectory,
    ledger: Mutex<Ledger>,
}

impl Exporter {
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let (status, kind, body) = match request.uri().path() {
            _ if !is_read => (StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n".to_owned()),
            "/metrics" | "/" => match self.page() {
                Ok(page) => {
                    let format = Format::of(request.headers());
                    (StatusCode::OK, format.content_type(), format.write(page))
                }
                // Without the processes all would count as ended.
                Err(error) => (StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{error}\n")),
            },
            _ => (StatusCode::NOT_FOUND, TEXT, "see /metrics\n".to_owned()),
        };
        let mut response = Response::new(Full::from(body));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, kind.parse().expect("a constant is valid"));
        response
    }

    fn page(&self) -> std::io::Result<String> {
        let (snapshot, _) = Snapshot::take(&self.directory)?;
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(page::of(ledger.take(&snapshot)))
    }
}

const TEXT: &str = "text/plain; charset=utf-8";

/// Upper bound on the duration of a connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections at the same time.
const CONNECTIONS_MAX: usize = 256;

/// Bytes of the head of a request.
const HEAD_MAX: usize = 16 << 10;

/// Upper bound on the wait for a descriptor.
const PAUSE: Duration = Duration::from_millis(100);
