//! tarpc: a method that takes and returns bytes, encoded by bincode.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use apus::Address;
use apus_node::message::MESSAGE_MAX;
use apus_node::transport::interface::{Client, Server};
use apus_node::transport::over_apus::reply_to;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use tarpc::context::{self, Context};
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::formats::Bincode;
use tarpc::{client, serde_transport, server};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use crate::calls::{AsyncClient, AsyncServer, Wait};
use crate::identity::Identity;
use crate::socket::{self, Kind, Listener, Stream};
use crate::tls;
use crate::with_apus::{self, PORT};

#[tarpc::service]
trait Echo {
    async fn call(body: Bytes) -> Bytes;
}

/// Upper bound on outstanding calls and requests. The default of 1,000 may be too low for a load generator.
const OUTSTANDING_MAX: usize = 1 << 20;

/// Upper bound on the time of a call. The default of 10 s could end calls of an overloaded run as failures.
const DEADLINE: Duration = Duration::from_secs(60);

/// Connects a client, with TLS if it has an identity.
///
/// # Errors
/// If the server is not running, or does not show a certificate of the same authority.
pub(crate) fn connect(
    kind: Kind,
    wait: Wait,
    identity: Option<&Identity>,
    server: SocketAddr,
) -> Result<Box<dyn Client>> {
    let client = AsyncClient::new(wait, async move {
        let mut config = client::Config::default();
        config.max_in_flight_requests = OUTSTANDING_MAX;
        let mut stream = socket::connect(kind, server).await?;
        if let Some(identity) = identity {
            stream = tls::connect(identity.client()?, stream).await?;
        }
        let transport = serde_transport::new(framed(stream), Bincode::default());
        Ok(calls(EchoClient::new(config, transport).spawn()))
    })?;
    Ok(Box::new(client))
}

/// Connects the same client over Apus.
///
/// # Errors
/// If the server is not running.
pub(crate) fn connect_over_apus(link: &str, server: SocketAddr) -> Result<Box<dyn Client>> {
    let (node, runtime) = with_apus::start(link)?;
    let client = AsyncClient::within(runtime, async move {
        let mut config = client::Config::default();
        config.max_in_flight_requests = OUTSTANDING_MAX;
        let to = Address::new(server, PORT);
        let transport = apus_tarpc::dial(&node, to)?;
        transport.client().connect(to).await?;
        Ok(calls(EchoClient::new(config, transport).spawn()))
    })?;
    Ok(Box::new(client))
}

/// A function that calls the service.
fn calls(client: EchoClient) -> impl Fn(Bytes) -> BoxFuture<'static, Result<Bytes>> {
    move |body| {
        let client = client.clone();
        Box::pin(async move {
            let mut context = context::current();
            context.deadline = Instant::now() + DEADLINE;
            Ok(client.call(context, body).await?)
        })
    }
}

/// Opens a server, with TLS if it has an identity.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn bind(kind: Kind, wait: Wait, identity: Option<&Identity>) -> Result<Box<dyn Server>> {
    let tls = identity.map(Identity::server).transpose()?.map(Arc::new);
    AsyncServer::open(wait, async move {
        let listener = Listener::bind(kind)?;
        let serve = move |stream| match tls.clone() {
            Some(tls) => tls::accept(tls, stream, serve),
            None => serve(stream),
        };
        Ok((listener.address()?, listener.serve(serve)))
    })
}

/// Opens a server of the same service over Apus.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn bind_over_apus(link: &str) -> Result<Box<dyn Server>> {
    let (node, runtime) = with_apus::start(link)?;
    AsyncServer::within(runtime, async move {
        let transport = apus_tarpc::accept(node.bind(PORT)?);
        let channel = BaseChannel::new(server::Config::default(), transport);
        let requests = channel.execute(Service.serve());
        Ok((node.local_addr(), async move {
            requests.for_each(spawn).await;
            Ok(())
        }))
    })
}

/// Answers a connection until it ends.
fn serve(stream: Box<dyn Stream>) {
    let transport = serde_transport::new(framed(stream), Bincode::default());
    let channel = BaseChannel::new(server::Config::default(), transport);
    tokio::spawn(channel.execute(Service.serve()).for_each(spawn));
}

async fn spawn(reply: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(reply);
}

fn framed(stream: Box<dyn Stream>) -> Framed<Box<dyn Stream>, LengthDelimitedCodec> {
    // A body, and some bytes of bincode.
    let mut codec = LengthDelimitedCodec::builder();
    codec.max_frame_length(MESSAGE_MAX as usize + 1024);
    Framed::new(stream, codec.new_codec())
}

#[derive(Clone)]
struct Service;

impl Echo for Service {
    async fn call(self, _: Context, body: Bytes) -> Bytes {
        reply_to(body)
    }
}
