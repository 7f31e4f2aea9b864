//! A server and a client of tonic over each transport: the same services and the same calls.

#![allow(dead_code, reason = "not every test uses all parts")]

use std::time::Duration;

use apus::net::{FaultLink, Faults, UdpConfig, UdpLink};
use apus::{Address, Config, Links, Node, Route};
use apus_tonic::{Channel, Server};
use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower::ServiceExt;
use tower::util::BoxCloneSyncService;

/// Homa port of all servers; each node has its own.
pub(crate) const PORT: u16 = 4000;

/// A channel of any transport.
pub(crate) type AnyChannel = BoxCloneSyncService<Request<Body>, Response<Body>, Status>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transport {
    /// Memory between two nodes of this process.
    Memory,
    /// UDP between them.
    Udp,
    /// UDP that loses, repeats and reorders packets.
    Loss,
    /// Tonic's own, over HTTP/2.
    Tcp,
}

impl Transport {
    pub(crate) const ALL: [Self; 4] = [Self::Memory, Self::Udp, Self::Loss, Self::Tcp];

    pub(crate) const APUS: [Self; 3] = [Self::Memory, Self::Udp, Self::Loss];
}

pub(crate) fn node(transport: Transport, seed: u64) -> Node {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse().expect("an address"));
    // One probe in five is lost together with its answer: this time allows enough probes for a call.
    config.peer_timeout(Duration::from_secs(10));
    match transport {
        Transport::Memory => {}
        Transport::Udp | Transport::Tcp => _ = config.link(Links::Udp),
        Transport::Loss => {
            let address = "127.0.0.1:0".parse().expect("an address");
            let link = UdpLink::bind(address, &UdpConfig::default()).expect("a link");
            let faults =
                Faults { loss: 0.1, duplicate: 0.05, reorder: 0.05, seed, ..Faults::default() };
            let link = FaultLink::new(link, faults).expect("valid faults");
            return Node::with_link(Box::new(link), &config).expect("a node");
        }
    }
    Node::start(&config).expect("a node")
}

/// The two sides of a transport, in the runtime that the test runs in. The server ends with it.
pub(crate) struct Connected {
    pub(crate) channel: AnyChannel,
    pub(crate) nodes: Vec<Node>,
    pub(crate) transport: Transport,
}

/// Serves routes, and connects to them.
pub(crate) async fn connect(transport: Transport, routes: Routes) -> Connected {
    let server_node = node(transport, 1);
    let mut server = Server::builder().node(&server_node).add_routes(routes);
    if transport == Transport::Tcp {
        server = server.also_tcp("127.0.0.1:0");
    }
    let serving = server.serve(PORT);
    let tcp = serving.tcp_addrs().first().copied();
    tokio::spawn(async {
        serving.await.expect("the server serves");
    });
    if let Some(address) = tcp {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"));
        let channel = endpoint.expect("an address").connect().await.expect("a server");
        let channel = channel.map_err(|error| Status::from_error(error.into()));
        let channel = BoxCloneSyncService::new(channel);
        return Connected { channel, nodes: vec![server_node], transport };
    }
    let node = node(transport, 2);
    let channel = channel_to(&server_node, &node).await;
    let address = Address::new(server_node.local_addr(), PORT);
    let route = if transport == Transport::Memory { Route::Memory } else { Route::Udp };
    assert_eq!(node.route(address), route);
    let channel = BoxCloneSyncService::new(channel);
    Connected { channel, nodes: vec![server_node, node], transport }
}

/// A channel from one node to another.
pub(crate) async fn channel_to(server: &Node, client: &Node) -> Channel {
    let address = Address::new(server.local_addr(), PORT).to_string();
    let channel = Channel::builder(&address).node(client).connect().await;
    Channel::from(channel.expect("a server"))
}
