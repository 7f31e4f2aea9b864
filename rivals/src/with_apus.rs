//! Apus as the other rivals are used: calls are awaited in a runtime of tokio, whose thread turns the node.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use apus::{Address, Config, Node};
use apus_node::transport::interface::{Client, Server};
use apus_node::transport::over_apus::reply_to;
use tokio::runtime::{Builder, Runtime};

use crate::calls::{AsyncClient, AsyncServer};

/// The port of services over Apus.
pub(crate) const PORT: u16 = 1;

/// Connects a client.
///
/// # Errors
/// If the server is not running.
pub(crate) fn connect(link: &str, server: SocketAddr) -> Result<Box<dyn Client>> {
    let (node, runtime) = start(link)?;
    let (client, to) = (node.client()?, Address::new(server, PORT));
    client.connect(to).wait()?;
    let client = AsyncClient::within(runtime, async move {
        Ok(move |body| {
            let call = client.call(to, body).start();
            async move { Ok(call?.await?) }
        })
    })?;
    Ok(Box::new(client))
}

/// Opens a server.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn bind(link: &str) -> Result<Box<dyn Server>> {
    let (node, runtime) = start(link)?;
    AsyncServer::within(runtime, async move {
        let service = node.bind(PORT)?;
        Ok((node.local_addr(), async move {
            loop {
                let mut request = service.recv_async().await?;
                let body = request.take_body();
                let _ = request.reply(reply_to(body)); // The client may have given up.
            }
        }))
    })
}

/// Starts a node and the runtime whose thread turns it. `link` is a value of the setting `link`.
///
/// # Errors
/// If the kernel refuses, or the environment names a certificate that cannot be read.
pub(crate) fn start(link: &str) -> Result<(Node, Runtime)> {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse()?);
    config.apply_environment()?.link(link.parse()?); // It may name a certificate.
    let node = Node::start(&config)?;
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start tokio")?;
    runtime.spawn(node.event_loop()?.drive());
    Ok((node, runtime))
}
