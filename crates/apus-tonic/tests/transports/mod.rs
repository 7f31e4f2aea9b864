//! A server and a client of tonic over each transport: the same services and the same calls.

#![allow(dead_code, reason = "not every test uses all parts")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{env, fs, process};

use apus::net::{FaultLink, Faults, UdpConfig, UdpLink};
use apus::{Address, Config, EngineAccess, EngineAt, Links, Node, Route, SharedEngine};
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
    /// The engine of a third node, which both are attached to.
    Engine,
    /// UDP between them.
    Udp,
    /// UDP that loses, repeats and reorders packets.
    Loss,
    /// Tonic's own, over HTTP/2.
    Tcp,
}

impl Transport {
    pub(crate) const ALL: [Self; 5] =
        [Self::Memory, Self::Engine, Self::Udp, Self::Loss, Self::Tcp];

    pub(crate) const APUS: [Self; 4] = [Self::Memory, Self::Engine, Self::Udp, Self::Loss];

    /// How messages between the nodes of a transport of Apus go.
    fn route(self) -> Route {
        match self {
            Self::Memory => Route::Memory,
            Self::Engine => Route::Engine,
            Self::Udp | Self::Loss | Self::Tcp => Route::Udp,
        }
    }
}

/// The nodes of a server and a client.
pub(crate) struct Nodes {
    pub(crate) server: Node,
    pub(crate) client: Node,
    /// The engine that they are attached to.
    engine: Option<SharedEngine>,
}

/// Two nodes that exchange messages by a transport.
pub(crate) fn nodes(transport: Transport) -> Nodes {
    if transport == Transport::Engine {
        return nodes_of_engine();
    }
    Nodes { server: node(transport, 1), client: node(transport, 2), engine: None }
}

fn nodes_of_engine() -> Nodes {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let directory = env::temp_dir().join(format!("apus-tonic-{}-{number}", process::id()));
    fs::create_dir(&directory).expect("a directory");
    let socket = directory.join("engine.sock");
    let mut config = config();
    let engine = SharedEngine::start(&config, &EngineAccess::new(&socket)).expect("an engine");
    config.engine(EngineAt::Socket(socket));
    let [server, client] = [(); 2].map(|()| Node::start(&config).expect("a node"));
    fs::remove_dir_all(directory).expect("both are attached");
    Nodes { server, client, engine: Some(engine) }
}

fn config() -> Config {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse().expect("an address"));
    // One probe in five is lost together with its answer: this time allows enough probes for a call.
    config.peer_timeout(Duration::from_secs(10));
    config
}

/// A node of any transport but [`Transport::Engine`].
pub(crate) fn node(transport: Transport, seed: u64) -> Node {
    let mut config = config();
    match transport {
        Transport::Memory => {}
        Transport::Engine => panic!("its nodes come together, from `nodes`"),
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
    pub(crate) nodes: Nodes,
    pub(crate) transport: Transport,
}

/// Serves routes, and connects to them.
pub(crate) async fn connect(transport: Transport, routes: Routes) -> Connected {
    let nodes = nodes(transport);
    let mut server = Server::builder().node(&nodes.server).add_routes(routes);
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
        return Connected { channel, nodes, transport };
    }
    let channel = channel_to(&nodes.server, &nodes.client).await;
    let address = Address::new(nodes.server.local_addr(), PORT);
    assert_eq!(nodes.client.route(address), transport.route());
    let channel = BoxCloneSyncService::new(channel);
    Connected { channel, nodes, transport }
}

/// A channel from one node to another.
pub(crate) async fn channel_to(server: &Node, client: &Node) -> Channel {
    let address = Address::new(server.local_addr(), PORT).to_string();
    let channel = Channel::builder(&address).node(client).connect().await;
    Channel::from(channel.expect("a server"))
}
