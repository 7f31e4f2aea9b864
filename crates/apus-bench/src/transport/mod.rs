//! The transports the benchmarks put side by side, behind one pair of traits.
//!
//! * [`apus_udp`]: the product;
//! * `tcp_block`, [`tcp_epoll`], `tcp_poll`: the rivals, kernel TCP three ways;
//! * `raw_udp`: the floor, what the kernel's UDP path costs with no protocol on top.
//!
//! Every transport carries the messages of [`crate::message`]: the server answers each request, the client matches
//! replies to requests by tag. What is sent when is the same for all.

pub mod apus_udp;
pub(crate) mod backlog;
pub(crate) mod raw_udp;
pub(crate) mod tcp_block;
pub mod tcp_epoll;
mod tcp_frames;
pub(crate) mod tcp_poll;

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use apus::Delivery;
use serde::{Deserialize, Serialize};

/// How a message travels; the name is the `transport` of a result row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// UDP ping-pong and 64 KB datagrams, both sides spinning: the floor
    RawUdp,
    /// As raw-udp with both sides sleeping in recv
    RawUdpBlock,
    /// As raw-udp with 1,472-byte packets and the kernel's UDP segmentation and reassembly
    RawUdpGso,
    /// Kernel TCP, blocking calls, a thread for each connection
    TcpBlock,
    /// Kernel TCP, one thread with epoll each side, pipelined over several connections
    TcpEpoll,
    /// Kernel TCP, both sides spinning on one connection
    TcpPoll,
    /// Apus over UDP with the chosen `--delivery`
    ApusUdp,
    /// Apus over UDP, both sides polling
    ApusUdpFullbusy,
}

impl Transport {
    /// The name in tables, results and arguments.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RawUdp => "raw-udp",
            Self::RawUdpBlock => "raw-udp-block",
            Self::RawUdpGso => "raw-udp-gso",
            Self::TcpBlock => "tcp-block",
            Self::TcpEpoll => "tcp-epoll",
            Self::TcpPoll => "tcp-poll",
            Self::ApusUdp => "apus-udp",
            Self::ApusUdpFullbusy => "apus-udp-fullbusy",
        }
    }

    /// Whether both sides spin and so need a core each.
    #[must_use]
    pub fn spins(self) -> bool {
        matches!(self, Self::RawUdp | Self::RawUdpGso | Self::TcpPoll | Self::ApusUdpFullbusy)
    }

    /// Whether this is a floor: no protocol, nothing is sent again when it is lost.
    #[must_use]
    pub fn is_floor(self) -> bool {
        matches!(self, Self::RawUdp | Self::RawUdpBlock | Self::RawUdpGso)
    }

    /// Whether this is Apus.
    #[must_use]
    pub fn is_apus(self) -> bool {
        matches!(self, Self::ApusUdp | Self::ApusUdpFullbusy)
    }

    /// Whether this is kernel TCP.
    #[must_use]
    pub fn is_tcp(self) -> bool {
        matches!(self, Self::TcpBlock | Self::TcpEpoll | Self::TcpPoll)
    }

    /// Whether the client can look for replies without waiting, as an open loop must.
    #[must_use]
    pub fn can_poll(self) -> bool {
        !matches!(self, Self::TcpBlock | Self::RawUdpBlock)
    }
}

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

/// Connects a client of `transport` to the server at `server`.
///
/// # Errors
/// When the kernel refuses a socket or the server is not there.
pub(crate) fn connect(
    transport: Transport,
    server: SocketAddr,
    options: ClientOptions,
) -> Result<Box<dyn Client>> {
    Ok(match transport {
        Transport::RawUdp => {
            Box::new(raw_udp::RawClient::connect(server, raw_udp::Shape::SPINNING)?)
        }
        Transport::RawUdpBlock => {
            Box::new(raw_udp::RawClient::connect(server, raw_udp::Shape::BLOCKING)?)
        }
        Transport::RawUdpGso => {
            Box::new(raw_udp::RawClient::connect(server, raw_udp::Shape::SEGMENTED)?)
        }
        Transport::TcpBlock => Box::new(tcp_block::BlockingClient::connect(server)?),
        Transport::TcpEpoll => {
            Box::new(tcp_epoll::EpollClient::connect(&vec![server; options.connections])?)
        }
        Transport::TcpPoll => Box::new(tcp_poll::PollingClient::connect(server)?),
        Transport::ApusUdp => Box::new(apus_udp::ApusClient::connect(server, options.node)?),
        Transport::ApusUdpFullbusy => {
            let node = NodeOptions { delivery: Delivery::fullbusy(), ..options.node };
            Box::new(apus_udp::ApusClient::connect(server, node)?)
        }
    })
}

/// Opens a server of `transport` on the loopback interface, on a port the kernel picks.
///
/// # Errors
/// When the kernel refuses a socket.
pub(crate) fn bind(transport: Transport, node: NodeOptions) -> Result<Box<dyn Server>> {
    Ok(match transport {
        Transport::RawUdp => Box::new(raw_udp::RawServer::bind(raw_udp::Shape::SPINNING)?),
        Transport::RawUdpBlock => Box::new(raw_udp::RawServer::bind(raw_udp::Shape::BLOCKING)?),
        Transport::RawUdpGso => Box::new(raw_udp::RawServer::bind(raw_udp::Shape::SEGMENTED)?),
        Transport::TcpBlock => Box::new(tcp_block::BlockingServer::bind()?),
        Transport::TcpEpoll => Box::new(tcp_epoll::EpollServer::listen(
            (Ipv4Addr::LOCALHOST, 0).into(),
            Arc::default(),
        )?),
        Transport::TcpPoll => Box::new(tcp_poll::PollingServer::bind()?),
        Transport::ApusUdp => Box::new(apus_udp::ApusServer::bind(node)?),
        Transport::ApusUdpFullbusy => {
            let node = NodeOptions { delivery: Delivery::fullbusy(), ..node };
            Box::new(apus_udp::ApusServer::bind(node)?)
        }
    })
}
