//! s2n-quic, the QUIC of AWS: a bidirectional stream for each call, with mutual TLS of s2n-tls. It has no client that accepts
//! every certificate.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;
use apus_node::transport::interface::{Client, Server};
use apus_node::transport::over_apus::reply_to;
use bytes::{Bytes, BytesMut};
use s2n_quic::Connection;
use s2n_quic::client::Connect;
use s2n_quic::connection::Handle;
use s2n_quic::provider::io::tokio::Provider as Io;
use s2n_quic::provider::limits::Limits;
use s2n_quic::provider::tls::default as tls;
use s2n_quic::provider::tls::default::callbacks::VerifyHostNameCallback;
use s2n_quic::stream::{BidirectionalStream, ReceiveStream};

use crate::calls::{AsyncClient, AsyncServer, Wait};
use crate::identity::{Identity, SERVER_NAME};

/// Upper bound on open streams. The default of 100 is too low for a load generator.
const STREAMS_MAX: u64 = 1 << 20;

/// Flow control of one call, and upper bound on its bytes without an acknowledgement.
const CALL_WINDOW: u32 = 8 << 20;

/// Flow control of the connection, in bytes.
const WINDOW: u32 = 64 << 20;

/// Upper bound on an IP packet, for UDP packets as long as quinn's here.
const PACKET_MAX: u16 = 6_428;

/// Connects a client.
///
/// # Errors
/// If the server is not running, or does not show a certificate of the same authority.
pub(crate) fn connect(
    wait: Wait,
    identity: &Identity,
    server: SocketAddr,
) -> Result<Box<dyn Client>> {
    let Identity { roots, chain, key } = identity;
    let client = AsyncClient::new(wait, async move {
        let tls = tls::Client::builder()
            .with_empty_trust_store()?
            .with_certificate(roots)?
            .with_client_identity(chain, key)?
            .build()?;
        let client = s2n_quic::Client::builder()
            .with_tls(tls)?
            .with_io(io()?)?
            .with_limits(limits()?)?
            .start()?;
        let connect = Connect::new(server).with_server_name(SERVER_NAME);
        let (connection, _) = client.connect(connect).await?.split();
        Ok(move |body| {
            let _open = &client;
            call(connection.clone(), body)
        })
    })?;
    Ok(Box::new(client))
}

async fn call(mut connection: Handle, body: Bytes) -> Result<Bytes> {
    let (mut receive, mut send) = connection.open_bidirectional_stream().await?.split();
    send.send(body).await?;
    send.finish()?;
    read_to_end(&mut receive).await
}

/// Opens a server.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn bind(wait: Wait, identity: &Identity) -> Result<Box<dyn Server>> {
    let Identity { roots, chain, key } = identity;
    AsyncServer::open(wait, async {
        let tls = tls::Server::builder()
            .with_empty_trust_store()?
            .with_trusted_certificate(roots)?
            .with_client_authentication()?
            .with_verify_host_name_callback(KnownName)?
            .with_certificate(chain, key)?
            .build()?;
        let mut server = s2n_quic::Server::builder()
            .with_tls(tls)?
            .with_io(io()?)?
            .with_limits(limits()?)?
            .start()?;
        let address = server.local_addr()?;
        Ok((address, async move {
            while let Some(connection) = server.accept().await {
                tokio::spawn(serve(connection));
            }
            Ok(())
        }))
    })
}

/// Answers a connection until it ends.
async fn serve(mut connection: Connection) -> Result<()> {
    while let Some(stream) = connection.accept_bidirectional_stream().await? {
        tokio::spawn(answer(stream));
    }
    Ok(())
}

async fn answer(stream: BidirectionalStream) -> Result<()> {
    let (mut receive, mut send) = stream.split();
    let body = read_to_end(&mut receive).await?;
    send.send(reply_to(body)).await?;
    Ok(send.finish()?)
}

/// Reads a message, which is not copied if it arrives in one piece.
async fn read_to_end(receive: &mut ReceiveStream) -> Result<Bytes> {
    let first = receive.receive().await?.unwrap_or_default();
    let Some(second) = receive.receive().await? else { return Ok(first) };
    let mut body = BytesMut::from(first);
    body.extend_from_slice(&second);
    while let Some(piece) = receive.receive().await? {
        body.extend_from_slice(&piece);
    }
    Ok(body.freeze())
}

fn io() -> Result<Io> {
    Ok(Io::builder()
        .with_receive_address((Ipv4Addr::LOCALHOST, 0).into())?
        .with_max_mtu(PACKET_MAX)?
        .with_initial_mtu(PACKET_MAX)?
        .build()?)
}

fn limits() -> Result<Limits> {
    Ok(Limits::new()
        .with_max_open_local_bidirectional_streams(STREAMS_MAX)?
        .with_max_open_remote_bidirectional_streams(STREAMS_MAX)?
        .with_bidirectional_local_data_window(CALL_WINDOW.into())?
        .with_bidirectional_remote_data_window(CALL_WINDOW.into())?
        .with_data_window(WINDOW.into())?
        .with_max_send_buffer_size(CALL_WINDOW)?)
}

/// The client's name in its certificate, which s2n-tls leaves to the program.
struct KnownName;

impl VerifyHostNameCallback for KnownName {
    fn verify_host_name(&self, name: &str) -> bool {
        name == SERVER_NAME
    }
}
