//! QUIC: a bidirectional stream for each call.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use anyhow::{Context, Result};
use apus_node::message::MESSAGE_MAX;
use apus_node::transport::interface::{Client, Server};
use apus_node::transport::over_apus::reply_to;
use bytes::Bytes;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, Incoming, MtuDiscoveryConfig, RecvStream,
    SendStream, ServerConfig, TokioRuntime, TransportConfig, VarInt,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};

use crate::calls::{AsyncClient, AsyncServer, Wait};
use crate::identity::{Identity, SERVER_NAME, provider};

/// Upper bound on open streams. The default of 100 is too low for a load generator.
const STREAMS_MAX: u32 = 1 << 20;

/// Upper bound on a packet: quinn passes ten at a time to the kernel, which takes 64 KiB.
const PACKET_MAX: u16 = 6_400;

/// Connects a client. Without an identity it shows none, and accepts every certificate.
///
/// # Errors
/// If the server is not running, or does not show a certificate of the same authority.
pub(crate) fn connect(
    wait: Wait,
    identity: Option<&Identity>,
    server: SocketAddr,
) -> Result<Box<dyn Client>> {
    let client = AsyncClient::new(wait, async move {
        let tls = match identity {
            Some(identity) => identity.client()?,
            None => rustls::ClientConfig::builder_with_provider(Arc::new(provider()))
                .with_protocol_versions(&[&rustls::version::TLS13])?
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Anyone(provider())))
                .with_no_client_auth(),
        };
        let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
        config.transport_config(transport());
        let connection = endpoint(None)?.connect_with(config, server, SERVER_NAME)?.await?;
        Ok(move |body| call(connection.clone(), body))
    })?;
    Ok(Box::new(client))
}

async fn call(connection: Connection, body: Bytes) -> Result<Bytes> {
    let (mut send, mut receive) = connection.open_bi().await?;
    send.write_chunk(body).await?;
    send.finish()?;
    Ok(receive.read_to_end(MESSAGE_MAX as usize).await?.into())
}

/// Opens a server. Without an identity it shows a certificate of its own, and accepts every client.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn bind(wait: Wait, identity: Option<&Identity>) -> Result<Box<dyn Server>> {
    AsyncServer::open(wait, async {
        let tls = match identity {
            Some(identity) => identity.server()?,
            None => anonymous()?,
        };
        let tls = quinn::crypto::rustls::QuicServerConfig::try_from(tls)?;
        let mut config = ServerConfig::with_crypto(Arc::new(tls));
        config.transport_config(transport());
        let endpoint = endpoint(Some(config))?;
        let address = endpoint.local_addr()?;
        Ok((address, async move {
            while let Some(incoming) = endpoint.accept().await {
                tokio::spawn(serve(incoming));
            }
            Ok(())
        }))
    })
}

/// TLS of a server that asks clients for no certificate.
fn anonymous() -> Result<rustls::ServerConfig> {
    let certified = rcgen::generate_simple_self_signed([SERVER_NAME.to_owned()])?;
    let key = PrivateKeyDer::Pkcs8(certified.signing_key.serialize_der().into());
    Ok(rustls::ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)?)
}

/// Answers a connection until it ends.
async fn serve(incoming: Incoming) -> Result<()> {
    let connection = incoming.await?;
    loop {
        let (send, receive) = connection.accept_bi().await?;
        tokio::spawn(answer(send, receive));
    }
}

async fn answer(mut send: SendStream, mut receive: RecvStream) -> Result<()> {
    let body = receive.read_to_end(MESSAGE_MAX as usize).await?;
    send.write_chunk(reply_to(body.into())).await?;
    Ok(send.finish()?)
}

fn endpoint(server: Option<ServerConfig>) -> Result<Endpoint> {
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(PACKET_MAX)?;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("UDP socket")?;
    Ok(Endpoint::new(config, server, socket, Arc::new(TokioRuntime))?)
}

fn transport() -> Arc<TransportConfig> {
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(PACKET_MAX);
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS_MAX))
        .initial_mtu(PACKET_MAX)
        .mtu_discovery_config(Some(discovery));
    Arc::new(config)
}

/// Accepts every certificate: the client identifies its server by the address.
#[derive(Debug)]
struct Anyone(CryptoProvider);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
