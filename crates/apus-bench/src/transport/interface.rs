//! What a transport is to the benchmarks.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::time::Duration;

use anyhow::{Result, bail};
use apus::Delivery;
use serde::{Deserialize, Serialize};

/// What a client may choose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientOptions {
    /// Connections of `tcp-epoll`; the other transports have one.
    pub(crate) connections: usize,
    /// What nodes of `apus-udp` are set to.
    pub(crate) node: NodeOptions,
}

/// What a node of `apus-udp` is set to.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct NodeOptions {
    /// Packet delivery of Apus.
    #[serde(with = "crate::as_text")]
    pub(crate) delivery: Delivery,
    /// Receive buffer to ask for, in bytes.
    pub(crate) receive_buffer: Option<u32>,
}

/// One request as the benchmarks give it to a transport.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Comes back in the reply.
    pub tag: u64,
    /// Bytes of the request, at least [`crate::message::Header::LEN`].
    pub length: u32,
    /// Bytes of the wanted reply; 0 means as long as the request.
    pub reply: u32,
}

/// One reply, already checked by the transport for what only it can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The tag of the request it answers.
    pub tag: u64,
    /// Bytes of the reply as they arrived.
    pub length: u32,
    /// Bytes of the request as the server saw them.
    pub request_length: u32,
}

/// What went wrong below the messages and was put right, or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Datagrams the kernel dropped because a receive buffer was full.
    pub drops: u64,
    /// Times data was asked for again.
    pub resends: u64,
}

impl AddAssign for Health {
    fn add_assign(&mut self, other: Self) {
        self.drops += other.drops;
        self.resends += other.resends;
    }
}

/// Tells a server's health while it runs.
pub type HealthProbe = Box<dyn Fn() -> Health + Send>;

/// The client's side of a transport, connected to one server and used by one thread.
pub trait Client {
    /// Takes a request for sending. It may stay queued until the next `receive`, so that many share a system call.
    fn send(&mut self, request: Request) -> Result<()>;

    /// Sends what is queued and adds the replies that are there to `replies`, waiting up to `patience` for the first.
    /// With a `patience` of zero it only looks.
    fn receive(&mut self, patience: Duration, replies: &mut Vec<Reply>) -> Result<()>;

    /// One request and its reply, the transport's quickest way; fails after `patience` without a reply.
    fn call(
        &mut self,
        request: Request,
        patience: Duration,
        replies: &mut Vec<Reply>,
    ) -> Result<Reply> {
        replies.clear();
        self.send(request)?;
        self.receive(patience, replies)?;
        match replies.pop() {
            Some(reply) => Ok(reply),
            None => bail!("no reply within {patience:?}"),
        }
    }

    /// What this side knows of its health; nothing, where the kernel keeps it to itself.
    fn health(&self) -> Health {
        Health::default()
    }
}

/// The server's side of a transport: answers every request until the process ends.
pub trait Server: Send {
    /// Where clients find it.
    fn address(&self) -> SocketAddr;

    /// Tells what this side knows of its health.
    fn health_probe(&self) -> HealthProbe {
        Box::new(Health::default)
    }

    /// Serves; returns only with an error.
    fn run(self: Box<Self>) -> Result<Infallible>;
}
