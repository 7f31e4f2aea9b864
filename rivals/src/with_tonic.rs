//! gRPC: a unary call of a message with one field of bytes.

use std::net::SocketAddr;

use anyhow::Result;
use apus::Address;
use apus_node::message::MESSAGE_MAX;
use apus_node::transport::interface::{Client, Server};
use apus_node::transport::over_apus::reply_to;
use apus_rpc::envelope::EnvelopeLimits;
use bytes::Bytes;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{
    Certificate, ClientTlsConfig, Endpoint, Identity as TonicIdentity, Server as TonicServer,
    ServerTlsConfig, Uri,
};
use tonic::{Request, Response, Status};
use tower::service_fn;

use crate::calls::{AsyncClient, AsyncServer, Wait};
use crate::echo::echo_client::EchoClient;
use crate::echo::echo_server::{Echo, EchoServer};
use crate::identity::{Identity, SERVER_NAME};
use crate::socket::{self, Kind, Listener};
use crate::with_apus::{self, PORT};

/// The message that both directions carry.
#[derive(Clone, PartialEq, prost::Message)]
#[allow(unreachable_pub, reason = "the public trait that tonic generates names it")]
pub struct Message {
    /// A message of the benchmarks.
    #[prost(bytes = "bytes", tag = "1")]
    pub body: Bytes,
}

/// Upper bound on an encoded message: a body, and some bytes of protobuf.
const ENCODED_MAX: usize = MESSAGE_MAX as usize + 64;

/// The same for messages over Apus.
const LIMITS: EnvelopeLimits = EnvelopeLimits::new().frame_max(ENCODED_MAX);

/// Flow control of one call, in bytes: several of the longest messages of the mix.
const CALL_WINDOW: u32 = 8 << 20;

/// Flow control of the connection, in bytes. The adaptive windows of HTTP/2 begin at 64 kB, and h2 ends a connection with more
/// outstanding short replies than its window allows ("too_many_data_frames"): 256 of them suffice.
const WINDOW: u32 = 64 << 20;

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
        let endpoint = match identity {
            Some(identity) => {
                let tls = ClientTlsConfig::new().domain_name(SERVER_NAME);
                let tls = tls.ca_certificate(Certificate::from_pem(&identity.roots));
                let tls = tls.identity(TonicIdentity::from_pem(&identity.chain, &identity.key));
                Endpoint::from_shared(format!("https://{server}"))?.tls_config(tls)?
            }
            None => Endpoint::from_shared(format!("http://{server}"))?,
        };
        let endpoint = endpoint
            .tcp_nodelay(true)
            .initial_stream_window_size(CALL_WINDOW)
            .initial_connection_window_size(WINDOW);
        let channel = match kind {
            Kind::Tcp => endpoint.connect().await?,
            Kind::Unix => {
                let connect = move |_: Uri| async move {
                    socket::connect(kind, server).await.map(TokioIo::new)
                };
                endpoint.connect_with_connector(service_fn(connect)).await?
            }
        };
        let client = EchoClient::new(channel)
            .max_decoding_message_size(ENCODED_MAX)
            .max_encoding_message_size(ENCODED_MAX);
        Ok(move |body| {
            let mut client = client.clone();
            async move { Ok(client.call(Message { body }).await?.into_inner().body) }
        })
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
        let target = Address::new(server, PORT).to_string();
        let channel = apus_rpc::Channel::builder(&target).node(&node).limits(LIMITS);
        let client = EchoClient::new(apus_tonic::Channel::from(channel.connect().await?))
            .max_decoding_message_size(ENCODED_MAX)
            .max_encoding_message_size(ENCODED_MAX);
        Ok(move |body| {
            let mut client = client.clone();
            async move { Ok(client.call(Message { body }).await?.into_inner().body) }
        })
    })?;
    Ok(Box::new(client))
}

/// Opens a server, with TLS if it has an identity.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn bind(kind: Kind, wait: Wait, identity: Option<&Identity>) -> Result<Box<dyn Server>> {
    AsyncServer::open(wait, async move {
        let listener = Listener::bind(kind)?;
        let service = EchoServer::new(Service)
            .max_decoding_message_size(ENCODED_MAX)
            .max_encoding_message_size(ENCODED_MAX);
        let mut server = TonicServer::builder();
        if let Some(identity) = identity {
            let tls = ServerTlsConfig::new()
                .identity(TonicIdentity::from_pem(&identity.chain, &identity.key))
                .client_ca_root(Certificate::from_pem(&identity.roots));
            server = server.tls_config(tls)?;
        }
        let server = server
            .initial_stream_window_size(CALL_WINDOW)
            .initial_connection_window_size(WINDOW)
            .add_service(service);
        let address = listener.address()?;
        Ok((address, async move {
            match listener.unix {
                Some(unix) => {
                    let unix = UnixListenerStream::new(UnixListener::from_std(unix)?);
                    server.serve_with_incoming(unix).await?;
                }
                None => {
                    let tcp = TcpIncoming::from(TcpListener::from_std(listener.tcp)?);
                    server.serve_with_incoming(tcp.with_nodelay(Some(true))).await?;
                }
            }
            Ok(())
        }))
    })
}

/// Opens a server of the same service over Apus.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn bind_over_apus(link: &str) -> Result<Box<dyn Server>> {
    let (node, runtime) = with_apus::start(link)?;
    AsyncServer::within(runtime, async move {
        let service = EchoServer::new(Service)
            .max_decoding_message_size(ENCODED_MAX)
            .max_encoding_message_size(ENCODED_MAX);
        let server = apus_tonic::Server::builder().node(&node).limits(LIMITS);
        let serving = server.add_service(service).serve(PORT);
        Ok((node.local_addr(), async move {
            let _ended = serving.await?;
            Ok(())
        }))
    })
}

struct Service;

#[tonic::async_trait]
impl Echo for Service {
    async fn call(&self, request: Request<Message>) -> Result<Response<Message>, Status> {
        Ok(Response::new(Message { body: reply_to(request.into_inner().body) }))
    }
}
