//! What a sending port needs of Apus and of TCP.

use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, bail, ensure};
use apus::{Address, Bytes, CallError, Incoming, More, RecvError, Socket};

use super::cp_node;
use super::errors::Failed;
use super::verify::{self, VERIFIED};
use crate::message::Header;
use crate::transport::apus_udp::{Bodies, read_reply};
use crate::transport::backlog::Backlog;
use crate::transport::interface::{Reply, Request};
use crate::transport::tcp_epoll::EpollClient;

/// After a connection broke, or could not be opened, the next attempt comes so much later.
const RETRY: Duration = Duration::from_millis(100);

/// Messages taken at once.
const BATCH: usize = 64;

/// What became of a call.
pub type Ended = Result<Reply, Failed>;

/// What the bytes of messages mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A pattern of which the end is checked.
    Pattern,
    /// Every byte is checked; the number makes the tags of this client its own.
    Verified(u64),
    /// As the cp_node of the Linux module.
    CpNode,
}

impl Body {
    /// Bytes of the shortest message.
    pub fn shortest(self) -> u32 {
        let bytes = if self == Self::CpNode { cp_node::Header::LEN } else { Header::LEN };
        bytes as u32
    }

    /// Bytes of the reply to a request of `length` bytes; `reply` as in [`Request::reply`].
    pub fn reply_length(self, length: u32, reply: u32) -> u32 {
        match (self, reply) {
            (Self::CpNode, reply) => cp_node::response_length(length, reply != 0),
            (_, 0) => length,
            (_, reply) => reply,
        }
    }
}

/// Sends requests to several servers and receives their replies.
pub trait Wire {
    /// Sends a request to the server of that place in the list; the request's tag is the key of the call.
    ///
    /// # Errors
    /// When this call cannot be made; others may.
    fn send(&mut self, server: usize, request: Request) -> Result<(), Failed>;

    /// Adds the calls that have ended, waiting up to `patience` for the first.
    ///
    /// # Errors
    /// When no call that is outstanding can end any more.
    fn receive(&mut self, patience: Duration, ended: &mut Vec<Ended>) -> Result<()>;

    /// Goes on after `receive` has failed with this error, if that is possible.
    ///
    /// # Errors
    /// The same one, when it is not.
    fn recover(&mut self, error: Error) -> Result<()> {
        Err(error)
    }
}

/// Some connections to each server.
pub struct TcpWire {
    ends: Vec<SocketAddr>,
    connections: usize,
    client: Result<EpollClient, Broken>,
    replies: Vec<Reply>,
}

/// Why there is no connection, and when to try again.
struct Broken {
    why: String,
    retry: Instant,
}

impl Broken {
    fn now(why: &Error) -> Self {
        Self { why: format!("{why:#}"), retry: Instant::now() + RETRY }
    }
}

impl TcpWire {
    /// Opens `connections` connections to each of the servers.
    ///
    /// # Errors
    /// When one cannot be reached.
    pub fn connect(servers: &[SocketAddr], connections: usize) -> Result<Self> {
        let each = |server| std::iter::repeat_n(server, connections);
        let ends: Vec<SocketAddr> = servers.iter().copied().flat_map(each).collect();
        let client = Ok(EpollClient::connect(&ends)?);
        Ok(Self { ends, connections, client, replies: Vec::new() })
    }

    /// Has all connections use a congestion control of the kernel: `cubic`, `reno`, `bbr`, …
    ///
    /// # Errors
    /// When the kernel has none of that name.
    pub fn use_congestion_control(&self, name: &str) -> Result<()> {
        match &self.client {
            Ok(client) => client.use_congestion_control(name),
            Err(broken) => bail!("{}", broken.why),
        }
    }
}

impl Wire for TcpWire {
    fn send(&mut self, server: usize, request: Request) -> Result<(), Failed> {
        let first = server * self.connections;
        match &mut self.client {
            Ok(client) => {
                client.send_among(first..first + self.connections, request);
                Ok(())
            }
            Err(broken) => Err(Failed::connection_lost(request.tag, &broken.why)),
        }
    }

    fn receive(&mut self, patience: Duration, ended: &mut Vec<Ended>) -> Result<()> {
        let now = Instant::now();
        match &mut self.client {
            Ok(client) => {
                let received = client.receive_until(now + patience, &mut self.replies);
                ended.extend(self.replies.drain(..).map(Ok));
                return received;
            }
            Err(broken) if now < broken.retry => thread::sleep(patience.min(broken.retry - now)),
            Err(_) => {
                self.client = EpollClient::connect(&self.ends).map_err(|why| Broken::now(&why));
            }
        }
        Ok(())
    }

    /// All connections are given up, and opened again after a while.
    fn recover(&mut self, error: Error) -> Result<()> {
        self.client = Err(Broken::now(&error));
        Ok(())
    }
}

/// One Apus socket; clones receive from the same.
pub struct ApusWire {
    socket: Socket,
    servers: Arc<[Address]>,
    bodies: Bodies,
    batch: Vec<Incoming>,
    more: More,
    body: Body,
    /// Requests and their servers.
    waiting: Backlog<(usize, Request)>,
}

impl Clone for ApusWire {
    fn clone(&self) -> Self {
        Self::new(self.socket.clone(), Arc::clone(&self.servers), self.more, self.body)
    }
}

impl ApusWire {
    /// Sends from `socket`. With [`More::Yes`] requests wait for the next `receive`.
    pub fn new(socket: Socket, servers: Arc<[Address]>, more: More, body: Body) -> Self {
        Self {
            socket,
            servers,
            bodies: Bodies::default(),
            batch: Vec::with_capacity(BATCH),
            more,
            body,
            waiting: Backlog::default(),
        }
    }

    /// Sends a request; false if the node's budgets have no room for it until others have ended.
    fn try_send(&mut self, server: usize, request: Request) -> Result<bool, Failed> {
        let body = self.body_of(server, request);
        match self.socket.send(self.servers[server], body, request.tag, self.more) {
            Ok(()) => Ok(true),
            Err(CallError::OverBudget { .. }) => Ok(false),
            Err(error) => Err(Failed::call(request.tag, &error)),
        }
    }

    /// Sends the waiting requests, as far as there is room.
    fn send_waiting(&mut self) -> Result<(), Failed> {
        let mut waiting = mem::take(&mut self.waiting);
        let sent = waiting.send(|(server, request)| self.try_send(server, request));
        self.waiting = waiting;
        sent
    }

    fn body_of(&mut self, server: usize, request: Request) -> Bytes {
        match self.body {
            Body::Pattern => self.bodies.body(request),
            Body::Verified(client) => {
                let header = Header {
                    tag: tag(client, request.tag),
                    length: 0,
                    other_length: request.reply,
                };
                verify::build(header, request.length as usize).into()
            }
            Body::CpNode => {
                cp_node::request(request.tag, server, request.length, request.reply != 0)
            }
        }
    }

    fn read(&self, key: u64, body: &Bytes) -> Result<Reply> {
        let client = match self.body {
            Body::Pattern => return read_reply(key, body),
            Body::Verified(client) => client,
            Body::CpNode => {
                let length = cp_node::read_response(key, body)?;
                // A cp_node does not say how long the request was.
                return Ok(Reply { tag: key, length, request_length: 0 });
            }
        };
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

    fn note(&self, incoming: Incoming) -> Result<Ended> {
        match incoming {
            Incoming::Response { cookie, result: Ok(body) } => {
                Ok(self.read(cookie, &body).map_err(|why| Failed::wrong(cookie, why)))
            }
            Incoming::Response { cookie, result: Err(error) } => {
                Ok(Err(Failed::call(cookie, &error)))
            }
            other => Err(anyhow::anyhow!("something arrived that is no response: {other:?}")),
        }
    }
}

impl Wire for ApusWire {
    fn send(&mut self, server: usize, request: Request) -> Result<(), Failed> {
        self.waiting.push((server, request));
        self.send_waiting()
    }

    fn receive(&mut self, patience: Duration, ended: &mut Vec<Ended>) -> Result<()> {
        while let Err(failed) = self.send_waiting() {
            ended.push(Err(failed));
        }
        let mut batch = mem::take(&mut self.batch);
        match self.socket.recv_many(&mut batch, BATCH, Some(patience)) {
            Ok(_) => {}
            Err(RecvError::Timeout) => {}
            Err(e) => return Err(e.into()),
        }
        for incoming in batch.drain(..) {
            ended.push(self.note(incoming)?);
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
