//! What a sending port needs of Apus and of TCP.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use apus::{Address, Bytes, CallError, Incoming, More, RecvError, Socket};

use super::verify::{self, VERIFIED};
use crate::message::Header;
use crate::transport::apus_udp::{Bodies, read_reply};
use crate::transport::tcp_epoll::EpollClient;
use crate::transport::{Reply, Request};

/// Messages taken at once.
const BATCH: usize = 64;

/// Sends requests to several servers and receives their replies.
pub(crate) trait Wire {
    /// Sends a request to the server of that place in the list; the request's tag is the key of the call.
    fn send(&mut self, server: usize, request: Request) -> Result<()>;

    /// Adds the replies that have come, waiting up to `patience` for the first.
    fn receive(&mut self, patience: Duration, replies: &mut Vec<Reply>) -> Result<()>;
}

/// A call that failed.
#[derive(Debug)]
pub(crate) struct Failed {
    /// Which call.
    pub(crate) key: u64,
    /// Why.
    pub(crate) error: CallError,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a call failed: {}", self.error)
    }
}

impl std::error::Error for Failed {}

/// Some connections to each server.
pub(crate) struct TcpWire {
    client: EpollClient,
    connections: usize,
}

impl TcpWire {
    /// Opens `connections` connections to each of the servers.
    ///
    /// # Errors
    /// When one cannot be reached.
    pub(crate) fn connect(servers: &[SocketAddr], connections: usize) -> Result<Self> {
        let each = |server| std::iter::repeat_n(server, connections);
        let ends: Vec<SocketAddr> = servers.iter().copied().flat_map(each).collect();
        Ok(Self { client: EpollClient::connect(&ends)?, connections })
    }

    /// Has all connections use a congestion control of the kernel: `cubic`, `reno`, `bbr`, …
    ///
    /// # Errors
    /// When the kernel has none of that name.
    pub(crate) fn use_congestion_control(&self, name: &str) -> Result<()> {
        self.client.use_congestion_control(name)
    }
}

impl Wire for TcpWire {
    fn send(&mut self, server: usize, request: Request) -> Result<()> {
        let first = server * self.connections;
        self.client.send_among(first..first + self.connections, request);
        Ok(())
    }

    fn receive(&mut self, patience: Duration, replies: &mut Vec<Reply>) -> Result<()> {
        self.client.receive_until(Instant::now() + patience, replies)
    }
}

/// One Apus socket; clones receive from the same.
pub(crate) struct ApusWire {
    socket: Socket,
    servers: Arc<[Address]>,
    bodies: Bodies,
    batch: Vec<Incoming>,
    more: More,
    /// Every byte is checked; the number makes the tags of this client its own.
    verify: Option<u64>,
}

impl Clone for ApusWire {
    fn clone(&self) -> Self {
        Self::new(self.socket.clone(), Arc::clone(&self.servers), self.more, self.verify)
    }
}

impl ApusWire {
    /// Sends from `socket`. With [`More::Yes`] requests wait for the next `receive`.
    pub(crate) fn new(
        socket: Socket,
        servers: Arc<[Address]>,
        more: More,
        verify: Option<u64>,
    ) -> Self {
        Self {
            socket,
            servers,
            bodies: Bodies::default(),
            batch: Vec::with_capacity(BATCH),
            more,
            verify,
        }
    }

    fn read(&self, key: u64, body: &Bytes) -> Result<Reply> {
        let Some(client) = self.verify else { return read_reply(key, body) };
        let header = Header::from_bytes(body).context("a response shorter than its header")?;
        ensure!(header.tag == tag(client, key), "a response to another request");
        ensure!(header.other_length > 0, "the server found a wrong byte in a request");
        ensure!(
            verify::is_right(header, body),
            "a wrong byte in a response of {} bytes",
            body.len()
        );
        Ok(Reply { tag: key, length: body.len() as u32, request_length: header.other_length })
    }

    fn note(&self, incoming: Incoming) -> Result<Reply> {
        match incoming {
            Incoming::Response { cookie, result: Ok(body) } => self.read(cookie, &body),
            Incoming::Response { cookie, result: Err(error) } => {
                Err(Failed { key: cookie, error }.into())
            }
            other => Err(anyhow::anyhow!("something arrived that is no response: {other:?}")),
        }
    }
}

impl Wire for ApusWire {
    fn send(&mut self, server: usize, request: Request) -> Result<()> {
        let body = match self.verify {
            Some(client) => {
                let header = Header {
                    tag: tag(client, request.tag),
                    length: 0,
                    other_length: request.reply,
                };
                verify::build(header, request.length as usize).into()
            }
            None => self.bodies.body(request),
        };
        let to = self.servers[server];
        self.socket
            .send(to, body, request.tag, self.more)
            .with_context(|| format!("cannot call {to}"))
    }

    fn receive(&mut self, patience: Duration, replies: &mut Vec<Reply>) -> Result<()> {
        let mut batch = std::mem::take(&mut self.batch);
        match self.socket.recv_many(&mut batch, BATCH, Some(patience)) {
            Ok(_) => {}
            Err(RecvError::Timeout) => {}
            Err(e) => return Err(e.into()),
        }
        for incoming in batch.drain(..) {
            replies.push(self.note(incoming)?);
        }
        self.batch = batch;
        Ok(())
    }
}

/// The tag of a checked message, different for every call of every client.
fn tag(client: u64, key: u64) -> u64 {
    let mut mixed = client ^ key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed ^ (mixed >> 32)) | VERIFIED
}
