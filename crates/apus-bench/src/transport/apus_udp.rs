//! Apus over UDP, through the library's public face, as any program would use it.
//!
//! Bodies are handed over without a copy, so the client keeps a few ready and sends slices of them. Which of them was
//! sent follows from the tag, and the reply must echo it.

use std::collections::HashMap;
use std::convert::Infallible;
use std::mem;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use apus::{
    Address, Bytes, CallError, CallOptions, Config, Incoming, More, Node, RecvError, Socket,
};

use super::backlog::Backlog;
use super::interface::{Client, Health, HealthProbe, NodeOptions, Reply, Request, Server};
use crate::message::{Header, MESSAGE_MAX, SHORT_REPLY, build, check_last};

/// The service's Homa port.
pub(crate) const PORT: u16 = 4000;

/// Bodies that differ in their tag, so that a reply to the wrong request is noticed.
const VARIANTS: u64 = 4;

/// The least length of the bodies kept ready; they grow with what is sent.
const BODY_MIN: usize = 1 << 12;

/// Length of the bodies made beforehand: the longest of the mix.
const BODY_USUAL: u32 = 1 << 20;

/// Messages taken at once.
const BATCH: usize = 256;

/// Calls that may be outstanding: as many as an open loop can leave behind.
const CALLS_MAX: u32 = 1 << 20;

/// The client's side.
pub(crate) struct ApusClient {
    socket: Socket,
    server: Address,
    bodies: Bodies,
    batch: Vec<Incoming>,
    waiting: Backlog<Request>,
    node: Node,
}

impl ApusClient {
    /// Starts a node that calls the one at `server`.
    ///
    /// # Errors
    /// When the node cannot start, or the environment (`APUS_…`) asks for something impossible.
    pub(crate) fn connect(server: SocketAddr, options: NodeOptions) -> Result<Self> {
        let node = start_node(options)?;
        Ok(Self {
            socket: node.socket()?,
            server: Address::new(server, PORT),
            bodies: Bodies::ready(),
            batch: Vec::with_capacity(BATCH),
            waiting: Backlog::default(),
            node,
        })
    }

    /// Sends a request; false if the node's budgets have no room for it until others have ended.
    fn try_send(&mut self, request: Request) -> Result<bool> {
        let body = self.bodies.body(request);
        match self.socket.send(self.server, body, request.tag, More::Yes) {
            Err(CallError::OverBudget { .. }) => Ok(false),
            sent => sent.map(|()| true).map_err(Into::into),
        }
    }

    /// Sends the waiting requests, as far as there is room.
    fn send_waiting(&mut self) -> Result<()> {
        let mut waiting = mem::take(&mut self.waiting);
        let sent = waiting.send(|request| self.try_send(request));
        self.waiting = waiting;
        sent
    }

    fn note(incoming: Incoming) -> Result<Reply> {
        match incoming {
            Incoming::Response { cookie, result } => read_reply(cookie, &result?),
            other => bail!("something arrived that is no response: {other:?}"),
        }
    }
}

/// A node on the loopback interface; settings from the environment have the last word.
fn start_node(options: NodeOptions) -> Result<Node> {
    let mut config = Config::new();
    config.listen((Ipv4Addr::LOCALHOST, 0).into()).delivery(options.delivery);
    if let Some(bytes) = options.receive_buffer {
        config.receive_buffer(bytes as usize);
    }
    config.calls_max(CALLS_MAX);
    config.apply_environment()?;
    Node::start(&config).context("cannot start an Apus node")
}

impl Client for ApusClient {
    fn send(&mut self, request: Request) -> Result<()> {
        self.waiting.push(request);
        self.send_waiting()
    }

    fn receive(&mut self, patience: Duration, replies: &mut Vec<Reply>) -> Result<()> {
        if !self.waiting.is_empty() {
            self.send_waiting()?;
        }
        if patience.is_zero() {
            // The one that finds nothing has turned the engine, and so has sent what was queued.
            for _ in 0..BATCH {
                match self.socket.try_recv() {
                    Ok(incoming) => replies.push(Self::note(incoming)?),
                    Err(RecvError::Empty) => break,
                    Err(e) => return Err(e.into()),
                }
            }
            return Ok(());
        }
        match self.socket.recv_many(&mut self.batch, BATCH, Some(patience)) {
            Ok(_) => {
                for incoming in self.batch.drain(..) {
                    replies.push(Self::note(incoming)?);
                }
                Ok(())
            }
            Err(RecvError::Timeout) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn call(&mut self, request: Request, patience: Duration, _: &mut Vec<Reply>) -> Result<Reply> {
        let body = self.bodies.body(request);
        let options = CallOptions::new().deadline(patience);
        read_reply(request.tag, &self.socket.call_with(self.server, body, options)?)
    }

    fn health(&self) -> Health {
        health(&self.node)
    }
}

/// What a node knows of its health.
pub(crate) fn health(node: &Node) -> Health {
    let stats = node.stats();
    Health { drops: stats.link.receive_buffer_drops, resends: stats.protocol.resends_sent }
}

/// Checks a response to the request with `tag`.
pub(crate) fn read_reply(tag: u64, body: &Bytes) -> Result<Reply> {
    let header = Header::from_bytes(body).context("a response shorter than its header")?;
    ensure!(header.tag == tag % VARIANTS, "a response to another request");
    check_last(&body[Header::LEN..], body.len())?;
    let length = body.len() as u32;
    // An echo is the request itself, which says 0: as long as the reply.
    let request_length = if header.other_length == 0 { length } else { header.other_length };
    Ok(Reply { tag, length, request_length })
}

/// Request bodies kept ready, by variant and length of the wanted reply.
#[derive(Debug, Default)]
pub(crate) struct Bodies {
    ready: HashMap<(u64, u32), Bytes>,
}

impl Bodies {
    /// Those of the usual lengths, made beforehand: making a long one would keep short calls waiting.
    fn ready() -> Self {
        let mut bodies = Self::default();
        for tag in 0..VARIANTS {
            for reply in [0, SHORT_REPLY] {
                bodies.body(Request { tag, length: BODY_USUAL, reply });
            }
        }
        bodies
    }

    /// The body of a request.
    pub(crate) fn body(&mut self, request: Request) -> Bytes {
        let variant = request.tag % VARIANTS;
        let length = request.length as usize;
        let ready = self.ready.entry((variant, request.reply)).or_default();
        if ready.len() < length {
            let header = Header { tag: variant, length: 0, other_length: request.reply };
            *ready = build(header, length.next_power_of_two().max(BODY_MIN)).into();
        }
        ready.slice(..length)
    }
}

/// The server's side.
pub(crate) struct ApusServer {
    node: Arc<Node>,
    socket: Socket,
}

impl ApusServer {
    /// Starts a node on the loopback interface.
    ///
    /// # Errors
    /// When the node cannot start, or the environment (`APUS_…`) asks for something impossible.
    pub(crate) fn bind(options: NodeOptions) -> Result<Self> {
        let node = start_node(options)?;
        let socket = node.bind(PORT)?;
        Ok(Self { node: Arc::new(node), socket })
    }
}

impl Server for ApusServer {
    fn address(&self) -> SocketAddr {
        self.node.local_addr()
    }

    fn health_probe(&self) -> HealthProbe {
        let node = Arc::clone(&self.node);
        Box::new(move || health(&node))
    }

    fn run(self: Box<Self>) -> Result<Infallible> {
        self.socket.serve(|mut request| {
            let body = request.take_body();
            // A wrong byte shows on the client's side, which then has no reply; a client that has gone needs none.
            if check_last(body.get(Header::LEN..).unwrap_or_default(), body.len()).is_ok() {
                let _ = request.reply(reply_to(body));
            }
        });
        bail!("the node was closed")
    }
}

/// The reply to a request: an echo, or the reply of the length it asks for. What is none of our messages, or asks for
/// more than a message may be, is echoed.
pub fn reply_to(body: Bytes) -> Bytes {
    match Header::from_bytes(&body) {
        Some(header) if (1..=MESSAGE_MAX).contains(&header.other_length) => {
            let reply = header.answer(body.len() as u32);
            build(reply, reply.length as usize).into()
        }
        _ => body,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_beyond_the_budgets_wait_for_their_turn() {
        let server = ApusServer::bind(NodeOptions::default()).expect("a free port");
        let address = server.address();
        std::thread::spawn(move || Box::new(server).run());
        let mut config = Config::new();
        config.listen((Ipv4Addr::LOCALHOST, 0).into());
        config.message_max(100_000).peer_budget(250_000);
        let node = Node::start(&config).expect("a free port");
        let mut client = ApusClient {
            socket: node.socket().expect("a free port"),
            server: Address::new(address, PORT),
            bodies: Bodies::default(),
            batch: Vec::new(),
            waiting: Backlog::default(),
            node,
        };
        for tag in 0..100 {
            client.send(Request { tag, length: 20_000, reply: 0 }).expect("it waits");
        }
        assert!(!client.waiting.is_empty(), "the budgets have room for six");
        let mut replies = Vec::new();
        while replies.len() < 100 {
            client.receive(Duration::from_millis(10), &mut replies).expect("all are answered");
        }
    }

    #[test]
    fn a_reply_tells_of_its_request() {
        let mut bodies = Bodies::default();
        for (tag, length) in [(5, 100), (6, 70_000)] {
            let echo = bodies.body(Request { tag, length, reply: 0 });
            assert_eq!(
                read_reply(tag, &echo).unwrap(),
                Reply { tag, length, request_length: length }
            );
            assert!(read_reply(tag + 1, &echo).is_err());
            let request = bodies.body(Request { tag, length, reply: SHORT_REPLY });
            let header = Header::from_bytes(&request).unwrap().answer(request.len() as u32);
            let short = build(header, header.length as usize).into();
            assert_eq!(
                read_reply(tag, &short).unwrap(),
                Reply { tag, length: SHORT_REPLY, request_length: length }
            );
        }
    }
}
