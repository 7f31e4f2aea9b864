//! Apus through the library's public API, like any program's: through shared memory or over UDP.
//!
//! Bodies are passed without a copy, so the client keeps a few ready and sends slices of them. The tag determines the body, and the
//! reply must echo it.

use std::collections::HashMap;
use std::convert::Infallible;
use std::mem;
use std::net::{Ipv4Addr, SocketAddr};
use std::path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use apus::{
    Address, Bytes, CallError, Config, EngineAt, Flush, Links, Node, Port, RecvError, Response,
};

use super::backlog::Backlog;
use super::interface::{
    Client, Ended, Failed, Health, HealthProbe, NodeOptions, Reply, Request, Server,
};
use crate::cp_node;
use crate::message::{MESSAGE_MAX, MessageHeader, SHORT_REPLY, build, check_last};
use crate::verify::{self, VERIFIED};

/// The service's Homa port.
pub const PORT: u16 = 4000;

/// Number of bodies with different tags, so that a reply to the wrong request is detected.
const VARIANTS: u64 = 4;

/// Lower bound on the length of prepared bodies, which grow with the requests.
const BODY_MIN: usize = 1 << 12;

/// Length of the bodies prepared at the start: the longest message of the mix.
const BODY_USUAL: u32 = 1 << 20;

/// Upper bound on messages taken at once.
const BATCH: usize = 256;

/// Upper bound on requests that are sent together.
const TOGETHER_MAX: usize = 64;

/// Upper bound on outstanding calls: as many as an open loop can leave behind.
const CALLS_MAX: u32 = 1 << 20;

/// The format of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A pattern whose last byte is checked.
    Pattern,
    /// Every byte is checked. The number distinguishes the tags of clients.
    Verified(u64),
    /// The format of the Linux module's cp_node.
    CpNode,
}

impl Body {
    /// Bytes of the shortest message.
    pub fn shortest(self) -> u32 {
        let bytes =
            if self == Self::CpNode { cp_node::CpNodeHeader::LEN } else { MessageHeader::LEN };
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

/// The client's side.
pub struct ApusClient {
    client: apus::Client,
    servers: Arc<[Address]>,
    bodies: Bodies,
    body: Body,
    flush: Flush,
    batch: Vec<Response>,
    /// Requests to the server with this index that are sent together.
    together: (usize, Vec<Request>),
    /// Their bodies and tags, while they are sent.
    calls: Vec<(Bytes, u64)>,
    /// Waiting requests and their servers.
    waiting: Backlog<(usize, Request)>,
    /// The node, if the client owns it.
    node: Option<Node>,
    /// Whether memory is shared with the server, which must remain so to the end.
    memory: bool,
}

impl Clone for ApusClient {
    /// Another client that receives from the same socket.
    fn clone(&self) -> Self {
        Self::new(self.client.clone(), Arc::clone(&self.servers), self.flush, self.body)
    }
}

impl ApusClient {
    /// Starts a node that calls the node at `server`.
    ///
    /// # Errors
    /// If the node cannot start, the environment (`APUS_…`) has an impossible setting, or memory should be shared with the server
    /// and is not.
    pub fn connect(server: SocketAddr, options: NodeOptions) -> Result<Self> {
        let node = start_node(&options)?;
        let server = Address::new(server, PORT);
        let client = node.client()?;
        if options.link == Links::Auto {
            client.connect(server).wait()?;
            check_memory(&node)?;
        }
        let client = Self::new(client, Arc::new([server]), Flush::Later, Body::Pattern);
        let memory = options.link == Links::Auto;
        Ok(Self { bodies: Bodies::ready(), node: Some(node), memory, ..client })
    }

    /// Calls `servers` through `client`. With [`Flush::Later`], requests wait for the next `receive`.
    #[must_use]
    pub fn new(client: apus::Client, servers: Arc<[Address]>, flush: Flush, body: Body) -> Self {
        Self {
            client,
            servers,
            bodies: Bodies::default(),
            body,
            flush,
            batch: Vec::with_capacity(BATCH),
            together: (0, Vec::with_capacity(TOGETHER_MAX)),
            calls: Vec::with_capacity(TOGETHER_MAX),
            waiting: Backlog::default(),
            node: None,
            memory: false,
        }
    }

    /// Sends a request. Returns `false` if the node's budgets have no room for it until other calls end.
    fn try_send(&mut self, server: usize, request: Request) -> Result<bool, Failed> {
        let body = self.body_of(server, request);
        match self.client.send(self.servers[server], body, request.tag, self.flush) {
            Ok(()) => Ok(true),
            Err(CallError::OverBudget { .. }) => Ok(false),
            Err(error) => Err(Failed::call(request.tag, &error)),
        }
    }

    /// Sends the requests that are sent together. Those without room wait. Returns the first failure.
    fn send_together(&mut self) -> Result<(), Failed> {
        if self.together.1.is_empty() {
            return Ok(());
        }
        let (server, mut requests) = (self.together.0, mem::take(&mut self.together.1));
        let mut calls = mem::take(&mut self.calls);
        let bodies = requests.iter().map(|request| (self.body_of(server, *request), request.tag));
        calls.extend(bodies);
        let sent = self.client.send_many(self.servers[server], &mut calls, self.flush);
        let rest = requests.split_off(requests.len() - calls.len());
        calls.clear();
        requests.clear();
        (self.together.1, self.calls) = (requests, calls);
        let mut rest = rest.into_iter();
        let failed = match sent {
            Ok(()) | Err(CallError::OverBudget { .. }) => None,
            Err(error) => rest.next().map(|request| Failed::call(request.tag, &error)),
        };
        rest.for_each(|request| self.waiting.push((server, request)));
        failed.map_or(Ok(()), Err)
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
                let header = MessageHeader {
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
                // A cp_node does not return the length of the request.
                return Ok(Reply { tag: key, length, request_length: 0 });
            }
        };
        let header =
            MessageHeader::from_bytes(body).context("a response shorter than its header")?;
        ensure!(header.tag == tag(client, key), "a response to another request");
        ensure!(header.other_length > 0, "the server found a wrong byte in a request");
        ensure!(
            verify::is_right(header, body),
            "a wrong byte in a response of {} bytes",
            body.len()
        );
        Ok(Reply { tag: key, length: body.len() as u32, request_length: header.other_length })
    }

    fn note(&self, response: Response) -> Ended {
        let Response { cookie, result, .. } = response;
        let body = result.map_err(|error| Failed::call(cookie, &error))?;
        self.read(cookie, &body).map_err(|why| Failed::wrong(cookie, why))
    }
}

/// Starts a node on the loopback interface. Settings from the environment take precedence, except for the link and the engine,
/// which the transport's name implies.
fn start_node(options: &NodeOptions) -> Result<Node> {
    let mut config = Config::new();
    config.listen((Ipv4Addr::LOCALHOST, 0).into()).delivery(options.delivery);
    if let Some(bytes) = options.receive_buffer {
        config.receive_buffer(bytes as usize);
    }
    config.calls_max(CALLS_MAX);
    config.apply_environment()?.link(options.link).engine(EngineAt::Own);
    if options.link == Links::Auto {
        config.capture(None); // A capture would prevent shared memory.
    } else if let Some(file) = &options.capture {
        config.capture(Some(path::absolute(file).context("cannot resolve the path of --capture")?));
    }
    Node::start(&config).context("cannot start an Apus node")
}

/// Refuses to measure UDP under the name of shared memory. A node that fails to share memory with a peer uses UDP.
///
/// # Errors
/// If memory is not shared with the only server, or no longer.
fn check_memory(node: &Node) -> Result<()> {
    let memory = node.stats().memory;
    ensure!(
        memory.pairs_met > 0,
        "the server shares no memory, so calls would go over UDP (is APUS_SHARDS set?)"
    );
    ensure!(memory.pairs_ended == 0, "the server stopped sharing memory, so calls went over UDP");
    Ok(())
}

impl Client for ApusClient {
    fn send(&mut self, server: usize, request: Request) -> Result<(), Failed> {
        if self.flush == Flush::Later && self.waiting.is_empty() {
            let is_full = self.together.1.len() == TOGETHER_MAX;
            let sent = match is_full || self.together.0 != server {
                true => self.send_together(),
                false => Ok(()),
            };
            self.together.0 = server;
            self.together.1.push(request);
            return sent;
        }
        self.waiting.push((server, request));
        self.send_waiting()
    }

    fn receive(&mut self, timeout: Duration, ended: &mut Vec<Ended>) -> Result<()> {
        if let Err(failed) = self.send_together() {
            ended.push(Err(failed));
        }
        while let Err(failed) = self.send_waiting() {
            ended.push(Err(failed));
        }
        if timeout.is_zero() {
            // The call that finds no response turns the engine, which sends queued requests.
            for _ in 0..BATCH {
                match self.client.try_recv() {
                    Ok(response) => ended.push(self.note(response)),
                    Err(RecvError::Empty) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            return Ok(());
        }
        let mut batch = mem::take(&mut self.batch);
        match self.client.recv_many(&mut batch, BATCH, Some(timeout)) {
            Ok(_) | Err(RecvError::Timeout) => {}
            Err(error) => return Err(error.into()),
        }
        ended.extend(batch.drain(..).map(|response| self.note(response)));
        self.batch = batch;
        Ok(())
    }

    fn call(&mut self, request: Request, timeout: Duration, _: &mut Vec<Ended>) -> Result<Reply> {
        let body = self.body_of(0, request);
        self.read(request.tag, &self.client.call(self.servers[0], body).deadline(timeout).wait()?)
    }

    fn health(&self) -> Result<Health> {
        let Some(node) = &self.node else { return Ok(Health::default()) };
        if self.memory {
            check_memory(node)?;
        }
        Ok(health(node))
    }
}

/// The health of a node.
pub fn health(node: &Node) -> Health {
    let stats = node.stats();
    Health { drops: stats.link.receive_buffer_drops, resends: stats.protocol.resends_sent }
}

/// Checks a response to the request with `tag`.
pub fn read_reply(tag: u64, body: &[u8]) -> Result<Reply> {
    let header = MessageHeader::from_bytes(body).context("a response shorter than its header")?;
    ensure!(header.tag == tag % VARIANTS, "a response to another request");
    check_last(&body[MessageHeader::LEN..], body.len())?;
    let length = body.len() as u32;
    // An echo is the request itself, whose 0 stands for the length of the reply.
    let request_length = if header.other_length == 0 { length } else { header.other_length };
    Ok(Reply { tag, length, request_length })
}

/// Prepared request bodies, by variant and length of the wanted reply.
#[derive(Debug, Default)]
pub struct Bodies {
    ready: HashMap<(u64, u32), Bytes>,
}

impl Bodies {
    /// Bodies of the usual lengths, prepared at the start, because making a long body would delay short calls.
    #[must_use]
    pub fn ready() -> Self {
        let mut bodies = Self::default();
        for tag in 0..VARIANTS {
            for reply in [0, SHORT_REPLY] {
                bodies.body(Request { tag, length: BODY_USUAL, reply });
            }
        }
        bodies
    }

    /// The body of a request.
    pub fn body(&mut self, request: Request) -> Bytes {
        let variant = request.tag % VARIANTS;
        let length = request.length as usize;
        let ready = self.ready.entry((variant, request.reply)).or_default();
        if ready.len() < length {
            let header = MessageHeader { tag: variant, length: 0, other_length: request.reply };
            *ready = build(header, length.next_power_of_two().max(BODY_MIN)).into();
        }
        ready.slice(..length)
    }
}

/// The server's side.
pub struct ApusServer {
    node: Arc<Node>,
    service: Port,
}

impl ApusServer {
    /// Starts a node on the loopback interface.
    ///
    /// # Errors
    /// If the node cannot start, or the environment (`APUS_…`) has an impossible setting.
    pub fn bind(options: NodeOptions) -> Result<Self> {
        let node = start_node(&options)?;
        let service = node.bind(PORT)?;
        Ok(Self { node: Arc::new(node), service })
    }
}

impl Server for ApusServer {
    fn address(&self) -> String {
        self.node.local_addr().to_string()
    }

    fn health_probe(&self) -> HealthProbe {
        let node = Arc::clone(&self.node);
        Box::new(move || health(&node))
    }

    fn run(self: Box<Self>) -> Result<Infallible> {
        self.service.serve(|mut request| {
            let body = request.take_body();
            // The client detects a wrong byte by the missing reply. A client that is gone needs no reply.
            if check_last(body.get(MessageHeader::LEN..).unwrap_or_default(), body.len()).is_ok() {
                let _ = request.reply(reply_to(body));
            }
        });
        bail!("the node was closed")
    }
}

/// The reply to a request: an echo, or a reply of the requested length. Malformed requests, and those with a reply longer than a
/// message may be, are echoed.
pub fn reply_to(body: Bytes) -> Bytes {
    match MessageHeader::from_bytes(&body) {
        Some(header) if (1..=MESSAGE_MAX).contains(&header.other_length) => {
            let reply = header.answer(body.len() as u32);
            build(reply, reply.length as usize).into()
        }
        _ => body,
    }
}

/// The tag of a checked message, different for every call of every client.
fn tag(client: u64, key: u64) -> u64 {
    let mut mixed = client ^ key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed ^ (mixed >> 32)) | VERIFIED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_beyond_the_budgets_wait_for_their_turn() {
        let server = ApusServer::bind(NodeOptions::default()).expect("a free port");
        let address = server.node.local_addr();
        std::thread::spawn(move || Box::new(server).run());
        let mut config = Config::new();
        config.listen((Ipv4Addr::LOCALHOST, 0).into());
        config.message_max(100_000).peer_budget(250_000);
        let node = Node::start(&config).expect("a free port");
        let servers = Arc::new([Address::new(address, PORT)]);
        let client = node.client().expect("a free port");
        let mut client = ApusClient::new(client, servers, Flush::Later, Body::Pattern);
        for tag in 0..100 {
            client.send(0, Request { tag, length: 20_000, reply: 0 }).expect("it waits");
        }
        assert!(!client.waiting.is_empty(), "the budgets have room for six");
        let mut replies = Vec::new();
        while replies.len() < 100 {
            client.receive(Duration::from_millis(10), &mut replies).expect("all are answered");
        }
    }

    #[test]
    fn a_reply_reports_its_request() {
        let mut bodies = Bodies::default();
        for (tag, length) in [(5, 100), (6, 70_000)] {
            let echo = bodies.body(Request { tag, length, reply: 0 });
            assert_eq!(
                read_reply(tag, &echo).unwrap(),
                Reply { tag, length, request_length: length }
            );
            assert!(read_reply(tag + 1, &echo).is_err());
            let request = bodies.body(Request { tag, length, reply: SHORT_REPLY });
            let header = MessageHeader::from_bytes(&request).unwrap().answer(request.len() as u32);
            let short = build(header, header.length as usize);
            assert_eq!(
                read_reply(tag, &short).unwrap(),
                Reply { tag, length: SHORT_REPLY, request_length: length }
            );
        }
    }
}
