//! The compared transports, behind one pair of traits.
//!
//! * [`interface`](apus_node::transport::interface): these traits, in `apus-node`;
//! * [`over_apus`]: the product, through shared memory or over UDP;
//! * `stream_block`, `stream_poll`, [`tcp_epoll`]: the rivals, kernel TCP three ways and unix sockets two ways; `stream_server`: a server of
//!   the first two;
//! * `raw_udp`, `raw_shm`: the floors, which are the cost of the kernel's UDP path and of shared memory without a protocol;
//! * [`rival`]: transports that another program adds to these.
//!
//! Every transport carries the messages of [`apus_node::message`]: the server answers each request, and the client matches replies
//! to requests by tag. All transports send the same messages.

pub(crate) mod raw_shm;
pub(crate) mod raw_udp;
pub mod rival;
pub(crate) mod stream_block;
pub(crate) mod stream_poll;
mod stream_server;
mod stream_socket;

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result};
use apus::{Delivery, Links};
use apus_node::transport::{over_apus, tcp_epoll};
use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use strum::IntoStaticStr;

use self::raw_udp::Shape;
use self::rival::Rival;
use self::stream_server::StreamServer;
use self::stream_socket::SocketDomain;
use apus_node::transport::interface::{Client, ClientOptions, NodeOptions, Server};

/// The transport of messages. Its name is the `transport` of a result row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Transport {
    /// UDP ping-pong and 64 KB datagrams, both sides spinning: the floor
    RawUdp,
    /// As raw-udp, but both sides sleep in recv
    RawUdpBlock,
    /// As raw-udp, but short messages that are ready share a datagram: the floor of a rate
    RawUdpBatch,
    /// As raw-udp, but with 1,472-byte packets and the kernel's UDP segmentation and reassembly
    RawUdpGso,
    /// Shared memory between the two processes, both sides spinning: the floor of calls on one host
    RawShm,
    /// Kernel TCP, blocking calls, a thread for each connection
    TcpBlock,
    /// Kernel TCP, one thread with epoll each side, pipelined over several connections
    TcpEpoll,
    /// Kernel TCP, both sides spinning on one connection
    TcpPoll,
    /// A unix socket, blocking calls, a thread for each connection
    UnixBlock,
    /// A unix socket, both sides spinning on one connection
    UnixPoll,
    /// Apus through shared memory with the chosen `--delivery`
    ApusShm,
    /// Apus through shared memory, both sides polling without a pause
    ApusShmFullbusy,
    /// Apus over UDP with the chosen `--delivery`
    ApusUdp,
    /// Apus over UDP, both sides polling without a pause
    ApusUdpFullbusy,
    /// A transport that this program [added](rival::add)
    #[value(skip)]
    Rival(&'static Rival),
}

impl Transport {
    /// The name in tables, results and arguments.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rival(rival) => rival.name,
            own => own.into(),
        }
    }

    /// All transports: this crate's own and the ones added by the program.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied().chain(Self::added())
    }

    /// The transports added by the program.
    pub(crate) fn added() -> impl Iterator<Item = Self> {
        rival::added().iter().map(Self::Rival)
    }

    /// Reads the name of a transport as an argument.
    pub(crate) fn parser() -> impl TypedValueParser<Value = Self> {
        let names = PossibleValuesParser::new(Self::all().map(|transport| match transport {
            Self::Rival(rival) => rival.possible_value(),
            own => own.to_possible_value().expect("no transport of this crate is hidden"),
        }));
        names.try_map(|name| name.parse())
    }

    /// Whether both sides spin and so need a core each.
    #[must_use]
    pub fn spins(self) -> bool {
        if let Self::Rival(rival) = self {
            return rival.spins;
        }
        matches!(
            self,
            Self::RawUdp
                | Self::RawUdpBatch
                | Self::RawUdpGso
                | Self::RawShm
                | Self::TcpPoll
                | Self::UnixPoll
                | Self::ApusShmFullbusy
                | Self::ApusUdpFullbusy
        )
    }

    /// Whether calls may be lost: datagrams without a protocol are not retransmitted.
    #[must_use]
    pub fn may_lose(self) -> bool {
        self.shape().is_some()
    }

    /// Whether this is Apus.
    #[must_use]
    pub fn is_apus(self) -> bool {
        matches!(
            self,
            Self::ApusShm | Self::ApusShmFullbusy | Self::ApusUdp | Self::ApusUdpFullbusy
        )
    }

    /// Whether this is kernel TCP or a unix socket.
    #[must_use]
    pub fn is_kernel_socket(self) -> bool {
        matches!(
            self,
            Self::TcpBlock | Self::TcpEpoll | Self::TcpPoll | Self::UnixBlock | Self::UnixPoll
        )
    }

    /// Whether both sides would block in `write` for ever with long messages in both directions.
    #[must_use]
    pub fn blocks_in_write(self) -> bool {
        matches!(self, Self::TcpBlock | Self::UnixBlock)
    }

    /// Whether the client can check for replies without waiting, as an open loop must.
    #[must_use]
    pub fn can_poll(self) -> bool {
        !matches!(self, Self::TcpBlock | Self::UnixBlock | Self::RawUdpBlock)
    }

    /// A floor's use of UDP.
    fn shape(self) -> Option<Shape> {
        match self {
            Self::RawUdp => Some(Shape::SPINNING),
            Self::RawUdpBlock => Some(Shape::BLOCKING),
            Self::RawUdpBatch => Some(Shape::SHARED),
            Self::RawUdpGso => Some(Shape::SEGMENTED),
            _ => None,
        }
    }

    /// The kind of streams of a rival.
    fn domain(self) -> SocketDomain {
        match self {
            Self::UnixBlock | Self::UnixPoll => SocketDomain::Unix,
            _ => SocketDomain::Tcp,
        }
    }

    /// Whether its nodes send packets rather than only messages through memory.
    pub(crate) fn has_packets(self) -> bool {
        self.is_apus() && self.node(NodeOptions::default()).link == Links::Udp
    }

    /// Settings of an Apus node under `options`.
    pub(crate) fn node(self, options: NodeOptions) -> NodeOptions {
        let link = match self {
            Self::ApusShm | Self::ApusShmFullbusy => Links::Auto,
            _ => Links::Udp,
        };
        let polls = matches!(self, Self::ApusShmFullbusy | Self::ApusUdpFullbusy);
        let delivery = if polls { Delivery::fullbusy() } else { options.delivery };
        let capture = options.capture.filter(|_| link == Links::Udp);
        NodeOptions { link, delivery, capture, receive_buffer: options.receive_buffer }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::all().find(|transport| transport.name() == name);
        known.ok_or_else(|| format!("unknown transport `{name}`"))
    }
}

/// Connects a client of `transport` to the server at `server`.
///
/// # Errors
/// If the kernel refuses a socket or the server is not running.
pub(crate) fn connect(
    transport: Transport,
    server: &str,
    options: ClientOptions,
) -> Result<Box<dyn Client>> {
    let domain = transport.domain();
    let ip = || server.parse().with_context(|| format!("the server's address, {server}"));
    if let Some(shape) = transport.shape() {
        return Ok(Box::new(raw_udp::RawClient::connect(ip()?, shape)?));
    }
    Ok(match transport {
        Transport::TcpBlock | Transport::UnixBlock => {
            Box::new(stream_block::BlockingClient::connect(domain, server)?)
        }
        Transport::TcpPoll | Transport::UnixPoll => {
            Box::new(stream_poll::PollingClient::connect(domain, server)?)
        }
        Transport::TcpEpoll => {
            Box::new(tcp_epoll::EpollClient::connect(&vec![ip()?; options.connections])?)
        }
        Transport::Rival(rival) => (rival.connect)(ip()?)?,
        Transport::RawShm => Box::new(raw_shm::ShmClient::connect(server)?),
        apus => Box::new(over_apus::ApusClient::connect(ip()?, apus.node(options.node))?),
    })
}

/// Opens a server of `transport` on this host, at an address that the kernel picks.
///
/// # Errors
/// If the kernel refuses a socket.
pub(crate) fn bind(transport: Transport, node: NodeOptions) -> Result<Box<dyn Server>> {
    if let Some(shape) = transport.shape() {
        return Ok(Box::new(raw_udp::RawServer::bind(shape)?));
    }
    Ok(match transport {
        Transport::TcpBlock | Transport::UnixBlock => {
            Box::new(StreamServer::bind(transport.domain(), stream_block::serve)?)
        }
        Transport::TcpPoll | Transport::UnixPoll => {
            Box::new(StreamServer::bind(transport.domain(), stream_poll::serve)?)
        }
        Transport::TcpEpoll => Box::new(tcp_epoll::EpollServer::listen(
            (Ipv4Addr::LOCALHOST, 0).into(),
            Arc::default(),
        )?),
        Transport::Rival(rival) => (rival.bind)()?,
        Transport::RawShm => Box::new(raw_shm::ShmServer::bind()?),
        apus => Box::new(over_apus::ApusServer::bind(apus.node(node))?),
    })
}
