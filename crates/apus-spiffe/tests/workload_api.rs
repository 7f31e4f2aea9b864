//! Nodes whose certificates an agent gives.

mod agent;

use std::thread;
use std::time::{Duration, Instant};

use agent::{Agent, TrustDomain, X509SvidResponse};
use apus::{Address, CallError, Client, Config, Links, Node};
use apus_spiffe::{SpiffeError, WorkloadApi};

const PORT: u16 = 4000;
const KV: &str = "spiffe://example.org/kv/1";
const FRONT: &str = "spiffe://example.org/front/1";

fn config(agent: &Agent, servers: &str) -> Config {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse().unwrap()).link(Links::Udp);
    config.set("tls_spiffe", &agent.address()).unwrap();
    config.set("tls_servers", servers).unwrap();
    apus_spiffe::apply(&mut config).unwrap();
    config
}

/// Starts a server that answers with the names of its callers.
fn serve(config: &Config) -> (Node, Address) {
    let node = Node::start(config).unwrap();
    let port = node.bind(PORT).unwrap();
    let address = Address::new(node.local_addr(), PORT);
    thread::spawn(move || {
        port.serve(|request| {
            let name = request.peer().map(|peer| peer.name().to_owned());
            let _ = request.reply(name.unwrap_or_default());
        });
    });
    (node, address)
}

fn only(svid: agent::X509Svid) -> X509SvidResponse {
    X509SvidResponse { svids: vec![svid], ..X509SvidResponse::default() }
}

/// Takes what the agent has sent, and waits until a path has the new certificate.
fn refresh(node: &Node, client: &Client, address: Address) {
    let end = Instant::now() + Duration::from_secs(60);
    while !node.reload_identity().unwrap() {
        assert!(Instant::now() < end, "no new certificate has come");
        thread::yield_now();
    }
    while node.stats().handshakes.refreshes == 0 {
        assert!(Instant::now() < end, "the path has no new keys");
        client.call(address, "").wait().unwrap();
    }
}

#[test]
fn an_agent_gives_a_certificate_and_a_new_one_in_time() {
    let domain = TrustDomain::new();
    let agents = [KV, FRONT].map(|name| Agent::start(only(domain.svid(name, ""))));
    let (_server, address) = serve(&config(&agents[0], "none"));
    let node = Node::start(&config(&agents[1], KV)).unwrap();
    let client = node.client().unwrap();
    assert_eq!(client.call(address, "").wait().unwrap(), FRONT);
    agents[1].send(only(domain.svid(FRONT, "")));
    refresh(&node, &client, address);
    assert_eq!(client.call(address, "").wait().unwrap(), FRONT);
}

#[test]
fn roots_of_federated_domains_vouch_for_their_own_names() {
    let (domain, other) = (TrustDomain::new(), TrustDomain::new());
    let with_other = |svid| {
        let mut response = only(svid);
        response.federated_bundles.insert("other.org".to_owned(), other.roots());
        response
    };
    let server = Agent::start(with_other(domain.svid(KV, "")));
    let (_server, address) = serve(&config(&server, "none"));
    let call = |name: &str, domain: &TrustDomain, theirs: &TrustDomain| {
        let mut response = only(domain.svid(name, ""));
        response.federated_bundles.insert("example.org".to_owned(), theirs.roots());
        let agent = Agent::start(response);
        let node = Node::start(&config(&agent, KV)).unwrap();
        node.client().unwrap().call(address, "").wait()
    };
    assert_eq!(
        call("spiffe://other.org/front", &other, &domain).unwrap(),
        "spiffe://other.org/front"
    );
    let forged = call("spiffe://third.org/front", &TrustDomain::new(), &domain);
    assert!(matches!(forged, Err(CallError::HandshakeFailed { .. })), "{forged:?}");
}

#[test]
fn a_hint_chooses_among_several_certificates() {
    let domain = TrustDomain::new();
    let svids = vec![domain.svid(KV, "outer"), domain.svid(FRONT, "inner")];
    let agent = Agent::start(X509SvidResponse { svids, ..X509SvidResponse::default() });
    let inner = WorkloadApi::connect_with_hint(&agent.address(), "inner").unwrap();
    let server = Agent::start(only(domain.svid(KV, "")));
    let (_server, address) = serve(&config(&server, "none"));
    let mut own = config(&agent, KV);
    own.identity_source(inner);
    let node = Node::start(&own).unwrap();
    assert_eq!(node.client().unwrap().call(address, "").wait().unwrap(), FRONT);
}

#[test]
fn a_node_goes_on_with_its_certificate_while_the_agent_is_away() {
    let domain = TrustDomain::new();
    let server = Agent::start(only(domain.svid(KV, "")));
    let (_server, address) = serve(&config(&server, "none"));
    let mut agent = Agent::start(only(domain.svid(FRONT, "")));
    let config = config(&agent, KV);
    let node = Node::start(&config).unwrap();
    agent.end();
    assert_eq!(node.client().unwrap().call(address, "").wait().unwrap(), FRONT);
    let late = Node::start(&config).unwrap();
    assert_eq!(late.client().unwrap().call(address, "").wait().unwrap(), FRONT);
}

#[test]
fn a_wrong_address_is_named() {
    let error = WorkloadApi::connect("tcp:nonsense").unwrap_err();
    assert!(matches!(error, SpiffeError::NoCertificate { .. }));
    assert!(error.to_string().contains("tcp:nonsense"), "{error}");
    let mut config = Config::new();
    config.set("tls_spiffe", "unix:/run/agent.sock").unwrap();
    let error = Node::start(&config).unwrap_err().to_string();
    assert!(error.contains("none in a program that does not use apus-spiffe"), "{error}");
}
