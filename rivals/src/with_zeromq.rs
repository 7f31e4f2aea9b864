//! ZeroMQ: a DEALER at the client and a ROUTER at the server, as its guide recommends for many requests at a time.
//!
//! The crate is the implementation in Rust by the ZeroMQ project; libzmq has another licence (MPL-2.0).

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context, Result};
use apus_node::transport::interface::{Client, Ended, Failed, Request, Server};
use apus_node::transport::over_apus::{Bodies, read_reply, reply_to};
use bytes::Bytes;
use futures_util::FutureExt;
use tokio::runtime::Runtime;
use tokio::task::yield_now;
use tokio::time;
use zeromq::{DealerSocket, Endpoint, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use crate::calls::{AsyncServer, Wait, runtime};
use crate::socket::Kind;

/// The client's side.
struct ZeroMqClient {
    runtime: Runtime,
    socket: DealerSocket,
    bodies: Bodies,
    queued: VecDeque<Bytes>,
    /// Tags of the calls without a reply: one server answers one client in order.
    tags: VecDeque<u64>,
}

/// Connects a client.
///
/// # Errors
/// If the server is not running.
pub(crate) fn connect(kind: Kind, wait: Wait, server: SocketAddr) -> Result<Box<dyn Client>> {
    let runtime = runtime(wait)?;
    let socket = runtime.block_on(async {
        let mut socket = DealerSocket::new();
        socket.connect(&endpoint(kind, server)).await?;
        if kind == Kind::Unix {
            // No other client connects, and a killed server leaves the file behind.
            fs::remove_file(path(server)).context("cannot remove the unix socket's name")?;
        }
        anyhow::Ok(socket)
    })?;
    let (queued, tags) = (VecDeque::new(), VecDeque::new());
    Ok(Box::new(ZeroMqClient { runtime, socket, bodies: Bodies::ready(), queued, tags }))
}

impl Client for ZeroMqClient {
    fn send(&mut self, _: usize, request: Request) -> Result<(), Failed> {
        self.queued.push_back(self.bodies.body(request));
        self.tags.push_back(request.tag);
        Ok(())
    }

    fn receive(&mut self, timeout: Duration, ended: &mut Vec<Ended>) -> Result<()> {
        let Self { runtime, socket, queued, tags, .. } = self;
        runtime.block_on(async {
            for body in queued.drain(..) {
                socket.send(body.into()).await?;
            }
            if timeout.is_zero() {
                yield_now().await;
            } else if let Ok(first) = time::timeout(timeout, socket.recv()).await {
                ended.push(note(tags, first?)?);
            }
            while let Some(next) = socket.recv().now_or_never() {
                ended.push(note(tags, next?)?);
            }
            Ok(())
        })
    }
}

fn note(tags: &mut VecDeque<u64>, message: ZmqMessage) -> Result<Ended> {
    let tag = tags.pop_front().context("a reply to no request")?;
    let body = message.into_vec().pop().context("a message without a frame")?;
    Ok(read_reply(tag, &body).map_err(|why| Failed::wrong(tag, why)))
}

/// Opens a server.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn bind(kind: Kind, wait: Wait) -> Result<Box<dyn Server>> {
    AsyncServer::open(wait, async move {
        let mut socket = RouterSocket::new();
        // A unix socket has the port in its name. The TCP listener reserves the port meanwhile.
        let reserved = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("TCP listen")?;
        let mut address = reserved.local_addr().context("TCP local address")?;
        if kind == Kind::Tcp {
            address.set_port(0);
        }
        if let Endpoint::Tcp(_, port) = socket.bind(&endpoint(kind, address)).await? {
            address.set_port(port);
        }
        let serve = async move {
            let _reserved = reserved;
            loop {
                // The first frame names the client.
                let frames = socket.recv().await?.into_vec();
                let [client, body] = frames.try_into().ok().context("a message in parts")?;
                let mut reply = ZmqMessage::from(reply_to(body));
                reply.push_front(client);
                socket.send(reply).await?;
            }
        };
        Ok((address, serve))
    })
}

fn endpoint(kind: Kind, address: SocketAddr) -> String {
    match kind {
        Kind::Tcp => format!("tcp://{address}"),
        Kind::Unix => format!("ipc://{}", path(address).display()),
    }
}

/// The file of a unix socket.
fn path(address: SocketAddr) -> PathBuf {
    env::temp_dir().join(format!("apus-rivals-{}.socket", address.port()))
}
