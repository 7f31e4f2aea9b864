//! A typed service of apus-rpc: a method that takes and returns bytes, awaited in a runtime whose thread turns the node.

use std::future;
use std::net::SocketAddr;

use anyhow::Result;
use apus::Address;
use apus_node::transport::interface::{Client, Server};
use apus_node::transport::over_apus::reply_to;
use apus_rpc::{Bytes, Channel, Context, Status};

use crate::calls::{AsyncClient, AsyncServer};
use crate::with_apus::{PORT, start};

#[apus_rpc::service(name = "apus.rivals.Echo")]
trait Echo {
    async fn call(&self, cx: &Context, #[bytes] body: Bytes) -> Result<Bytes, Status>;
}

struct Service;

impl Echo for Service {
    async fn call(&self, _: &Context, body: Bytes) -> Result<Bytes, Status> {
        Ok(reply_to(body))
    }
}

/// Connects a client.
///
/// # Errors
/// If the server is not running.
pub(crate) fn connect(link: &str, server: SocketAddr) -> Result<Box<dyn Client>> {
    let (node, runtime) = start(link)?;
    let client = AsyncClient::within(runtime, async move {
        let target = Address::new(server, PORT).to_string();
        let client = EchoClient::new(Channel::builder(&target).node(&node).connect().await?);
        Ok(move |body: Bytes| {
            let client = client.clone();
            async move { Ok(client.call(body).await?) }
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
        let server = apus_rpc::Server::builder(&node).add(EchoServer::new(Service));
        let serving = server.serve(PORT, future::pending());
        serving.check()?;
        Ok((node.local_addr(), async move {
            let _ended = serving.await?;
            Ok(())
        }))
    })
}
