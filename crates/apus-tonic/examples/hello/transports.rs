//! The transports: a server on a thread for each, and a channel to it.

use std::future::Future;
use std::io;
use std::sync::OnceLock;
use std::thread;

use apus::net::cpu;
use apus::{Address, Config, Links, Node};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Status;
use tonic::body::Body;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tower::ServiceExt;
use tower::util::BoxCloneSyncService;

use crate::Result;
use crate::load::service;

/// A channel of any transport.
pub(crate) type AnyChannel = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Status>;

/// A transport with its server.
pub(crate) struct Transport {
    pub(crate) name: &'static str,
    pub(crate) channel: AnyChannel,
    _node: Option<Node>,
}

/// Port of the servers over Apus.
const PORT: u16 = 4000;

/// The place of the servers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerOn {
    /// A thread of its own, on the second core.
    Thread,
    /// A task of the client's thread.
    Task,
}

/// All transports, tonic's own before the others.
pub(crate) async fn all(on: ServerOn) -> Result<Vec<Transport>> {
    let tonic = |name, channel| Transport { name, channel, _node: None };
    Ok(vec![
        tonic("tonic, TCP", over_tcp(on).await?),
        tonic("tonic, unix socket", over_unix(on).await?),
        over_apus(on, "Apus, memory", Links::Auto).await?,
        over_apus(on, "Apus, UDP", Links::Udp).await?,
    ])
}

pub(crate) fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Pins the calling thread to the first or the second core that the process may use. Does nothing if there is only one.
pub(crate) fn pin(number: usize) -> io::Result<()> {
    // Threads inherit the cores of the thread that starts them, so the first call decides.
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    let allowed = ALLOWED.get_or_init(cpu::allowed);
    if allowed.len() > 1 { cpu::pin_current_thread(allowed[number]) } else { Ok(()) }
}

/// Serves. The server says first where it is.
async fn begin<A, S>(
    on: ServerOn,
    serve: impl FnOnce(oneshot::Sender<A>) -> S + Send + 'static,
) -> Result<A>
where
    A: Send + 'static,
    S: Future<Output = Result<()>> + Send + 'static,
{
    let (sender, receiver) = oneshot::channel();
    let report = |ended: Result<()>| {
        if let Err(error) = ended {
            eprintln!("a server has ended: {error}");
        }
    };
    match on {
        ServerOn::Task => drop(tokio::spawn(async move { report(serve(sender).await) })),
        ServerOn::Thread => drop(thread::spawn(move || {
            let runtime = pin(1).and_then(|()| runtime());
            report(runtime.map_err(Into::into).and_then(|it| it.block_on(serve(sender))));
        })),
    }
    Ok(receiver.await?)
}

async fn over_tcp(on: ServerOn) -> Result<AnyChannel> {
    let address = begin(on, async |sender| {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let _ = sender.send(listener.local_addr()?);
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let server = Server::builder().add_service(service());
        Ok(server.serve_with_incoming(incoming).await?)
    });
    let endpoint = Endpoint::from_shared(format!("http://{}", address.await?))?;
    let channel = endpoint.tcp_nodelay(true).connect().await?;
    Ok(BoxCloneSyncService::new(channel.map_err(|error| Status::from_error(error.into()))))
}

async fn over_unix(on: ServerOn) -> Result<AnyChannel> {
    let path = std::env::temp_dir().join(format!("apus-hello-{}.sock", std::process::id()));
    let path = begin(on, async move |sender| {
        let listener = UnixListener::bind(&path)?;
        let _ = sender.send(path);
        let server = Server::builder().add_service(service());
        Ok(server.serve_with_incoming(UnixListenerStream::new(listener)).await?)
    });
    let path = path.await?;
    let to = path.clone();
    let connector = tower::service_fn(move |_: http::Uri| {
        let path = to.clone();
        async move { Ok::<_, io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    let channel = endpoint.connect_with_connector(connector).await?;
    std::fs::remove_file(path)?;
    Ok(BoxCloneSyncService::new(channel.map_err(|error| Status::from_error(error.into()))))
}

async fn over_apus(on: ServerOn, name: &'static str, links: Links) -> Result<Transport> {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse()?).link(links);
    let node = Node::start(&config)?;
    apus_rpc::tokio::drive(&node)?;
    let address = begin(on, async move |sender| {
        let node = Node::start(&config)?;
        apus_rpc::tokio::drive(&node)?;
        let _ = sender.send(Address::new(node.local_addr(), PORT));
        apus_tonic::Server::builder().node(&node).add_service(service()).serve(PORT).await?;
        Ok(())
    });
    let address = address.await?;
    let channel = apus_rpc::Channel::builder(&address.to_string()).node(&node).connect().await?;
    eprintln!("{address}: {:?}", node.route(address));
    let channel = BoxCloneSyncService::new(apus_tonic::Channel::from(channel));
    Ok(Transport { name, channel, _node: Some(node) })
}
