//! TLS over the sockets of [`crate::socket`], for a rival whose library leaves it to the program.

use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::{ClientConfig, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::identity::SERVER_NAME;
use crate::socket::Stream;

impl Stream for client::TlsStream<Box<dyn Stream>> {}
impl Stream for server::TlsStream<Box<dyn Stream>> {}

/// The client's side of a handshake.
///
/// # Errors
/// If the client refuses the server's certificate. A client that the server refuses learns it from the first reply.
pub(crate) async fn connect(tls: ClientConfig, stream: Box<dyn Stream>) -> Result<Box<dyn Stream>> {
    let connector = TlsConnector::from(Arc::new(tls));
    let stream = connector.connect(SERVER_NAME.try_into()?, stream).await;
    Ok(Box::new(stream.context("TLS handshake")?))
}

/// The server's side of a handshake: calls `serve` after it, unless it fails.
pub(crate) fn accept(tls: Arc<ServerConfig>, stream: Box<dyn Stream>, serve: fn(Box<dyn Stream>)) {
    tokio::spawn(async move {
        if let Ok(stream) = TlsAcceptor::from(tls).accept(stream).await {
            serve(Box::new(stream));
        }
    });
}
