//! Nodes with certificates: sealed calls, names, rules, and refusals.
#![cfg(feature = "secure")]

mod certificates;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use apus::{
    Address, CallError, Client, Config, IdentityPem, IdentitySource, Links, Node, Plain, Port,
    RecvError, Route, StartError,
};
use certificates::Authority;

const PORT: u16 = 4000;
const KV: &str = "spiffe://example.org/kv/1";
const FRONT: &str = "spiffe://example.org/front/1";

/// Answers every request with its body and the name of the client.
fn serve(service: Port) {
    thread::spawn(move || {
        service.serve(|mut request| {
            let name =
                request.peer().map_or_else(|| "nobody".to_owned(), |peer| peer.name().to_owned());
            let mut body = request.take_body().to_vec();
            body.extend(name.as_bytes());
            let _ = request.reply(body);
        });
    });
}

fn server(authority: &Authority, names: &[&str]) -> (Node, Address) {
    let node = authority.node("server", names);
    let address = Address::new(node.local_addr(), PORT);
    (node, address)
}

fn client(authority: &Authority) -> (Node, Client) {
    let node = authority.node("client", &[FRONT]);
    let client = node.client().unwrap();
    (node, client)
}

//= docs/protocol.md#seal-1
#[test]
fn calls_of_all_sizes_are_sealed_and_the_server_knows_the_client() {
    let authority = Authority::new();
    let (server, address) = server(&authority, &[KV, "127.0.0.1"]);
    serve(server.bind(PORT).unwrap());
    let (node, client) = client(&authority);
    for length in [0, 1, 100, 5_000, 500_000] {
        let body = vec![7; length];
        let response = client.call(address, body.clone()).wait().unwrap();
        assert_eq!(response[..length], body);
        assert_eq!(response[length..], *FRONT.as_bytes());
    }
    let (ours, theirs) = (node.stats(), server.stats());
    assert!(ours.link.sealed_sent >= 4 && ours.link.sealed_received >= 4, "{:?}", ours.link);
    assert_eq!(ours.handshakes.client_begun, 1);
    assert_eq!((theirs.handshakes.server_begun, theirs.handshakes.server_done), (1, 1));
}

//= docs/protocol.md#seal-1
#[test]
fn the_cipher_is_the_first_of_the_client_that_the_server_allows() {
    use apus::Suite::{Aes128Gcm, Aes256Gcm, ChaCha20Poly1305};
    let authority = Authority::new();
    authority.issue("server", &[KV, "127.0.0.1"], 2100);
    authority.issue("client", &[FRONT], 2100);
    for (ours, theirs, speaks) in [
        (vec![ChaCha20Poly1305, Aes128Gcm], vec![Aes256Gcm, ChaCha20Poly1305], true),
        (vec![Aes256Gcm], vec![Aes256Gcm], true),
        (vec![Aes128Gcm], vec![Aes256Gcm, ChaCha20Poly1305], false),
    ] {
        let [server, client] = [("server", theirs), ("client", ours)].map(|(file, suites)| {
            Node::start(authority.config(file).link(Links::Udp).tls_suites(suites)).unwrap()
        });
        serve(server.bind(PORT).unwrap());
        let address = Address::new(server.local_addr(), PORT);
        match client.client().unwrap().call(address, "hello").wait() {
            Ok(_) => assert!(speaks),
            Err(CallError::HandshakeFailed { reason, sent: false }) => {
                assert!(!speaks && reason.contains("none of the offered suites"), "{reason}");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

//= docs/protocol.md#seal-6
#[test]
fn a_service_refuses_clients_that_its_rule_does_not_name() {
    let authority = Authority::new();
    let (server, address) = server(&authority, &[KV, "127.0.0.1"]);
    let service = server.bind(PORT).unwrap();
    service.allow(["spiffe://example.org/admin/*"]).unwrap();
    serve(service.clone());
    let (_node, client) = client(&authority);
    for _ in 0..2 {
        let error = client.call(address, "hello").wait().unwrap_err();
        assert_eq!(error, CallError::Forbidden);
        assert!(!error.may_have_executed());
    }
    service.allow(["spiffe://example.org/admin/*", FRONT]).unwrap();
    assert_eq!(client.call(address, "").wait().unwrap(), FRONT);
    assert!(server.stats().protocol.refused_not_allowed >= 2);
}

//= docs/protocol.md#seal-6
#[test]
fn requests_that_wait_are_refused_when_a_new_rule_does_not_name_their_client() {
    let authority = Authority::new();
    authority.issue("server", &[KV, "127.0.0.1"], 2100);
    authority.issue("client", &[FRONT], 2100);
    for (links, route) in [(Links::Udp, Route::Udp), (Links::Auto, Route::Memory)] {
        let [server, node] = ["server", "client"].map(|file| {
            let mut config = authority.config(file);
            config.link(links);
            Node::start(&config).unwrap()
        });
        let service = server.bind(PORT).unwrap();
        let address = Address::new(server.local_addr(), PORT);
        let client = node.client().unwrap();
        client.connect(address).wait().unwrap();
        assert_eq!(node.route(address), route);
        let taken = client.call(address, "").start().unwrap();
        let request = service.recv().unwrap();
        let before = server.stats().protocol.requests;
        let waiting = [(); 3].map(|()| client.call(address, "").start().unwrap());
        while server.stats().protocol.requests < before + 3 {
            thread::yield_now();
        }
        service.allow(["spiffe://example.org/admin/*"]).unwrap();
        assert!(matches!(service.try_recv(), Err(RecvError::Empty)));
        request.reply("done").unwrap();
        assert_eq!(taken.wait().unwrap(), "done");
        for call in waiting {
            assert_eq!(call.wait().unwrap_err(), CallError::Forbidden);
        }
        assert_eq!(server.stats().protocol.refused_not_allowed, 3);
        service.allow([FRONT]).unwrap();
        serve(service);
        assert_eq!(client.call(address, "").wait().unwrap(), FRONT);
    }
}

//= docs/protocol.md#seal-6
#[test]
fn the_rule_of_a_port_may_be_in_the_configuration() {
    let authority = Authority::new();
    authority.issue("server", &[KV, "127.0.0.1"], 2100);
    let mut config = authority.config("server");
    config
        .set("tls_allow", "4000=spiffe://example.org/admin/*; 4001=spiffe://example.org/front/*")
        .unwrap();
    let server = Node::start(&config).unwrap();
    serve(server.bind(PORT).unwrap());
    serve(server.bind(PORT + 1).unwrap());
    serve(server.bind(PORT + 2).unwrap());
    let (_node, client) = client(&authority);
    let call = |port| client.call(Address::new(server.local_addr(), port), "").wait();
    assert_eq!(call(PORT), Err(CallError::Forbidden));
    assert_eq!(call(PORT + 1).unwrap(), FRONT);
    assert_eq!(call(PORT + 2).unwrap(), FRONT, "any peer with a certificate");
}

//= docs/protocol.md#seal-6
#[test]
fn a_client_calls_nobody_whom_it_does_not_expect() {
    let authority = Authority::new();
    let (server, address) = server(&authority, &[KV]); // Not for its address.
    let service = server.bind(PORT).unwrap();
    serve(service.clone());
    let (node, client) = client(&authority);
    let error = client.call(address, "hello").wait().unwrap_err();
    let expected = format!("{} is {KV}; expected 127.0.0.1; nothing was sent", address.host);
    assert_eq!(error.to_string(), expected);
    assert!(!error.may_have_executed());
    // The peer is known now, and is refused at once.
    assert_eq!(client.call(address, "hello").wait().unwrap_err(), error);
    assert_eq!(service.stats().messages, 0);
    let other = node.client().unwrap();
    other.expect(["spiffe://example.org/db/*"]).unwrap();
    let error = other.call(address, "hello").wait().unwrap_err();
    assert!(error.to_string().contains("expected spiffe://example.org/db/*"), "{error}");
    other.expect(["spiffe://example.org/kv/*"]).unwrap();
    assert_eq!(other.call(address, "").wait().unwrap(), FRONT);
}

//= docs/protocol.md#seal-6
#[test]
fn a_client_expects_the_name_by_which_the_address_was_found() {
    let authority = Authority::new();
    let (server, address) = server(&authority, &["localhost"]); // Not for its address.
    serve(server.bind(PORT).unwrap());
    let (node, client) = client(&authority);
    let error = client.call(address, "hello").wait().unwrap_err();
    assert!(error.to_string().contains("is localhost; expected 127.0.0.1"), "{error}");
    let text = format!("localhost:{PORT}@{}", address.host.port());
    assert_eq!(node.resolve(&text).unwrap(), address);
    assert_eq!(client.call(address, "").wait().unwrap(), FRONT);
}

//= docs/protocol.md#seal-6
#[test]
fn a_client_with_a_rule_waits_for_the_first_contact_under_its_own_rule() {
    let authority = Authority::new();
    let (server, address) = server(&authority, &[KV]);
    serve(server.bind(PORT).unwrap());
    let (node, _) = client(&authority);
    let [right, wrong] = [(); 2].map(|()| node.client().unwrap());
    right.expect(["spiffe://example.org/kv/*"]).unwrap();
    wrong.expect(["spiffe://example.org/db/*"]).unwrap();
    let calls = [&right, &wrong].map(|client| client.call(address, "").start().unwrap());
    let [right, wrong] = calls.map(|call| call.wait());
    assert_eq!(right.unwrap(), FRONT);
    assert!(wrong.unwrap_err().to_string().contains("expected spiffe://example.org/db/*"));
}

//= docs/protocol.md#seal-5
#[test]
fn a_peer_of_another_authority_is_refused_by_both_sides() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (server, address) = server(&theirs, &[KV, "127.0.0.1"]);
    serve(server.bind(PORT).unwrap());
    let (node, client) = client(&ours);
    let error = client.call(address, "hello").wait().unwrap_err();
    assert!(matches!(error, CallError::HandshakeFailed { .. }), "{error}");
    assert!(error.to_string().contains("UnknownIssuer"), "{error}");
    assert!(!error.may_have_executed());
    // Until the next handshake may begin, calls fail at once with the same reason.
    assert_eq!(client.call(address, "hello").wait().unwrap_err(), error);
    assert_eq!(node.stats().handshakes.client_failed, 1);
}

//= docs/protocol.md#seal-2
#[test]
fn a_client_that_the_server_refuses_learns_why_at_once() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    theirs.issue("server", &[KV, "127.0.0.1"], 2100);
    let server = Node::start(&theirs.config("server")).unwrap();
    let service = server.bind(PORT).unwrap();
    serve(service.clone());
    ours.issue("client", &[FRONT], 2100);
    let mut config = ours.config("client");
    config.tls_ca(vec![ours.directory().join("ca.pem"), theirs.directory().join("ca.pem")]);
    let node = Node::start(&config).unwrap();
    let client = node.client().unwrap();
    let address = Address::new(server.local_addr(), PORT);
    let error = client.call(address, "hello").wait().unwrap_err();
    assert!(matches!(error, CallError::HandshakeFailed { .. }), "{error}");
    assert!(error.to_string().contains("the peer says"), "{error}");
    let later = client.call(address, "hello").wait().unwrap_err();
    assert!(matches!(later, CallError::HandshakeFailed { sent: false, .. }), "{later}");
    assert_eq!(service.stats().messages, 0);
}

#[test]
fn a_plain_server_is_not_called_and_a_plain_client_not_served() {
    let authority = Authority::new();
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse().unwrap()).link(Links::Udp);
    let plain = Node::start(&config).unwrap();
    serve(plain.bind(PORT).unwrap());
    let (sealed, address) = server(&authority, &[KV, "127.0.0.1"]);
    let service = sealed.bind(PORT).unwrap();
    serve(service.clone());
    let (_node, client) = client(&authority);
    let to_plain = Address::new(plain.local_addr(), PORT);
    assert_eq!(client.call(to_plain, "hello").wait().unwrap_err(), CallError::PlainOnly);
    let error = plain.client().unwrap().call(address, "hello").wait().unwrap_err();
    assert_eq!(error, CallError::SealedOnly);
    assert_eq!(service.stats().messages, 0);
}

#[test]
fn a_cluster_moves_in_three_steps() {
    let authority = Authority::new();
    authority.issue("server", &[KV, "127.0.0.1"], 2100);
    authority.issue("client", &[FRONT], 2100);
    let plain = {
        let mut config = Config::new();
        config.listen("127.0.0.1:0".parse().unwrap()).link(Links::Udp);
        Node::start(&config).unwrap()
    };
    for (used, by_plain, by_sealed) in
        [(Plain::Use, "nobody", FRONT), (Plain::Accept, "nobody", FRONT)]
    {
        let mut config = authority.config("server");
        config.tls_plain(used);
        let server = Node::start(&config).unwrap();
        serve(server.bind(PORT).unwrap());
        let address = Address::new(server.local_addr(), PORT);
        assert_eq!(plain.client().unwrap().call(address, "").wait().unwrap(), by_plain, "{used}");
        let sealed = Node::start(&authority.config("client")).unwrap();
        assert_eq!(sealed.client().unwrap().call(address, "").wait().unwrap(), by_sealed, "{used}");
        let moving = {
            let mut config = authority.config("client");
            config.tls_plain(Plain::Use);
            Node::start(&config).unwrap()
        };
        assert_eq!(moving.client().unwrap().call(address, "").wait().unwrap(), "nobody", "{used}");
    }
}

//= docs/protocol.md#seal-6
#[test]
fn memory_is_shared_under_the_name_of_the_sealed_path() {
    let authority = Authority::new();
    let start = |file: &str, names: &[&str]| {
        authority.issue(file, names, 2100);
        let mut config = authority.config(file);
        config.link(Links::Auto);
        Node::start(&config).unwrap()
    };
    let server = start("server", &[KV, "127.0.0.1"]);
    let [front, other] = [("front", FRONT), ("other", KV)].map(|(file, name)| start(file, &[name]));
    serve(server.bind(PORT).unwrap());
    let guarded = server.bind(PORT + 1).unwrap();
    guarded.allow(["spiffe://example.org/front/*"]).unwrap();
    serve(guarded);
    let address = Address::new(server.local_addr(), PORT);
    let guarded = Address::new(server.local_addr(), PORT + 1);
    for (node, name) in [(&front, FRONT), (&other, KV)] {
        let client = node.client().unwrap();
        client.connect(address).wait().unwrap();
        assert_eq!(node.route(address), Route::Memory);
        assert_eq!(client.call(address, "").wait().unwrap(), name);
        let admitted = client.call(guarded, "").wait();
        match name {
            FRONT => assert_eq!(admitted.unwrap(), FRONT),
            _ => assert_eq!(admitted.unwrap_err(), CallError::Forbidden),
        }
        assert!(node.stats().memory.messages_sent >= 2);
        client.expect(["spiffe://example.org/db/*"]).unwrap();
        assert!(matches!(client.call(address, "").wait(), Err(CallError::WrongPeer(_))));
    }
}

//= docs/protocol.md#seal-11
#[test]
fn a_revoked_peer_loses_its_path_and_others_keep_theirs() {
    let authority = Authority::new();
    authority.issue("server", &[KV, "127.0.0.1"], 2100);
    authority.revoke(&[]);
    let mut config = authority.config("server");
    config.tls_crl(vec![authority.directory().join("crl.pem")]);
    let server = Node::start(&config).unwrap();
    serve(server.bind(PORT).unwrap());
    let address = Address::new(server.local_addr(), PORT);
    let nodes = [FRONT, "spiffe://example.org/front/2"]
        .map(|name| authority.node(&name.replace(['/', ':'], "-"), &[name]));
    let clients = nodes.each_ref().map(|node| node.client().unwrap());
    for client in &clients {
        client.call(address, "").wait().unwrap();
    }
    assert!(!server.reload_identity().unwrap(), "nothing has changed");
    authority.revoke(&[authority.serial(FRONT)]);
    assert!(server.reload_identity().unwrap());
    let mut refused = client_error(&clients[0], address);
    while matches!(refused, CallError::MayHaveExecuted | CallError::PeerTimeout { .. }) {
        refused = client_error(&clients[0], address);
    }
    assert!(refused.to_string().contains("certificate_revoked"), "{refused}");
    assert_eq!(clients[1].call(address, "").wait().unwrap(), "spiffe://example.org/front/2");
    assert_eq!(nodes[1].stats().handshakes.client_begun, 1, "its path went on");
    std::fs::write(authority.directory().join("crl.pem"), "no list").unwrap();
    server.reload_identity().unwrap_err();
    assert_eq!(clients[1].call(address, "").wait().unwrap(), "spiffe://example.org/front/2");
}

//= docs/protocol.md#seal-11
#[test]
fn a_client_that_is_revoked_during_its_handshake_is_not_served_for_long() {
    let authority = Authority::new();
    authority.issue("server", &[KV, "127.0.0.1"], 2100);
    authority.revoke(&[]);
    let mut config = authority.config("server");
    config.tls_crl(vec![authority.directory().join("crl.pem")]);
    let server = Node::start(&config).unwrap();
    serve(server.bind(PORT).unwrap());
    let address = Address::new(server.local_addr(), PORT);
    let mut revoked = Vec::new();
    for number in 0..6 {
        let name = format!("spiffe://example.org/front/{number}");
        let node = authority.node(&format!("front-{number}"), &[&name]);
        revoked.push(authority.serial(&name));
        let client = node.client().unwrap();
        let first = client.call(address, "").start().unwrap();
        authority.revoke(&revoked); // Before, during or after the handshake.
        assert!(server.reload_identity().unwrap());
        let _ = first.wait();
        let refused = (0..10_000).find_map(|_| client.call(address, "").wait().err());
        assert!(refused.is_some(), "{name}");
    }
}

/// Calls until a call fails.
fn client_error(client: &Client, address: Address) -> CallError {
    loop {
        if let Err(error) = client.call(address, "").wait() {
            return error;
        }
    }
}

//= docs/protocol.md#seal-7
#[test]
fn a_new_certificate_is_shown_by_paths_that_go_on() {
    let authority = Authority::new();
    let (server, address) = server(&authority, &[KV, "127.0.0.1"]);
    serve(server.bind(PORT).unwrap());
    let (node, client) = client(&authority);
    client.call(address, "").wait().unwrap();
    authority.issue("client", &[FRONT, "front.example.org"], 2100);
    assert!(node.reload_identity().unwrap());
    while node.stats().handshakes.refreshes == 0 {
        assert_eq!(client.call(address, "").wait().unwrap(), FRONT);
    }
    assert_eq!(node.stats().protocol.calls_failed, 0);
    assert_eq!(server.stats().handshakes.server_done, 2);
}

/// A source whose identity a test changes.
#[derive(Debug)]
struct Changing(Mutex<(u64, IdentityPem)>);

impl Changing {
    fn set(&self, identity: IdentityPem) {
        let mut latest = self.0.lock().unwrap();
        *latest = (latest.0 + 1, identity);
    }
}

impl IdentitySource for Changing {
    fn version(&self) -> u64 {
        self.0.lock().unwrap().0
    }

    fn identity(&self) -> Result<IdentityPem, Box<dyn std::error::Error + Send + Sync>> {
        match self.0.lock().unwrap().1.clone() {
            none if none.is_empty() => Err("no SVID has come".into()),
            identity => Ok(identity),
        }
    }
}

//= docs/protocol.md#seal-11
#[test]
fn a_source_gives_a_certificate_and_a_new_one_without_files() {
    let authority = Authority::new();
    let (server, address) = server(&authority, &[KV, "127.0.0.1"]);
    serve(server.bind(PORT).unwrap());
    let source = Arc::new(Changing(Mutex::default()));
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse().unwrap()).link(Links::Udp);
    config.identity_source(Arc::clone(&source) as Arc<dyn IdentitySource>);
    // The roots of a trust domain vouch for no address.
    config.set("tls_servers", "spiffe://example.org/*").unwrap();
    let error = Node::start(&config).unwrap_err().to_string();
    assert!(error.ends_with("the source of the node's certificate: no SVID has come"), "{error}");
    let pem = |file: &str, names: &[&str]| {
        authority.issue(file, names, 2100);
        let read = |end: &str| std::fs::read(authority.directory().join(end)).unwrap();
        let identity = IdentityPem::new(read(&format!("{file}.pem")), read(&format!("{file}.key")));
        identity.domain("example.org", read("ca.pem"))
    };
    source.set(pem("first", &[FRONT]));
    let node = Node::start(&config).unwrap();
    let client = node.client().unwrap();
    assert_eq!(client.call(address, "").wait().unwrap(), FRONT);
    source.0.lock().unwrap().0 += 1;
    let kept = std::mem::take(&mut source.0.lock().unwrap().1);
    node.reload_identity().unwrap_err();
    source.0.lock().unwrap().1 = kept;
    assert!(node.reload_identity().unwrap(), "the version is the same, and is asked for again");
    source.set(IdentityPem::new("no certificate", "no key"));
    let error = node.reload_identity().unwrap_err().to_string();
    assert!(error.starts_with("the source of the node's certificate: "), "{error}");
    assert_eq!(client.call(address, "").wait().unwrap(), FRONT, "the earlier one stays");
    source.set(pem("second", &[FRONT, "front.example.org"]));
    assert!(node.reload_identity().unwrap());
    while node.stats().handshakes.refreshes == 0 {
        assert_eq!(client.call(address, "").wait().unwrap(), FRONT);
    }
    assert!(!node.reload_identity().unwrap(), "nothing has changed");
}

//= docs/protocol.md#seal-3
#[test]
fn two_nodes_that_call_each_other_at_once_are_introduced() {
    let authority = Authority::new();
    let (one, at_one) = server(&authority, &[KV, "127.0.0.1"]);
    let other = authority.node("other", &[FRONT, "127.0.0.1"]);
    let at_other = Address::new(other.local_addr(), PORT);
    serve(one.bind(PORT).unwrap());
    serve(other.bind(PORT).unwrap());
    let (to_one, to_other) = (other.client().unwrap(), one.client().unwrap());
    let calls =
        [to_one.call(at_one, "").start().unwrap(), to_other.call(at_other, "").start().unwrap()];
    let [by_one, by_other] = calls.map(|call| call.wait().unwrap());
    assert_eq!((&by_one[..], &by_other[..]), (FRONT.as_bytes(), KV.as_bytes()));
    for _ in 0..100 {
        assert_eq!(to_one.call(at_one, "").wait().unwrap(), FRONT);
        assert_eq!(to_other.call(at_other, "").wait().unwrap(), KV);
    }
}

//= docs/protocol.md#seal-9
#[test]
fn a_restarted_server_is_introduced_again() {
    let authority = Authority::new();
    let (server, address) = server(&authority, &[KV, "127.0.0.1"]);
    serve(server.bind(PORT).unwrap());
    let (node, client) = client(&authority);
    assert_eq!(client.call(address, "").wait().unwrap(), FRONT);
    let mut config = authority.config("server");
    config.listen(address.host);
    let mut running = server;
    for round in 1..4 {
        // Its peers are not notified.
        let _ = running.close(Duration::ZERO); // A response is not acknowledged.
        running = start_again(&config);
        serve(running.bind(PORT).unwrap());
        // The request may have reached the run before (contact-6).
        assert_eq!(
            client.call(address, "").wait(),
            Err(CallError::MayHaveExecuted),
            "round {round}"
        );
        assert_eq!(client.call(address, "").wait().unwrap(), FRONT, "round {round}");
    }
    // The answer to the last frame may come after the response of the call.
    while node.stats().handshakes.client_done < 4 {
        assert_eq!(client.call(address, "").wait().unwrap(), FRONT);
    }
}

//= docs/protocol.md#seal-5
#[test]
fn a_server_with_another_name_at_a_known_address_hears_that_its_first_handshake_has_ended() {
    let authority = Authority::new();
    let (server, address) = server(&authority, &[KV, "127.0.0.1"]);
    serve(server.bind(PORT).unwrap());
    let (node, client) = client(&authority);
    assert_eq!(client.call(address, "").wait().unwrap(), FRONT);
    let _ = server.close(Duration::ZERO); // A response is not acknowledged.
    authority.issue("other", &["spiffe://example.org/kv/2", "127.0.0.1"], 2100);
    let mut config = authority.config("other");
    config.listen(address.host);
    let other = start_again(&config);
    serve(other.bind(PORT).unwrap());
    client.call(address, "").wait().unwrap_err();
    for _ in 0..1_000 {
        assert_eq!(client.call(address, "").wait().unwrap(), FRONT);
    }
    let (ours, theirs) = (node.stats().handshakes, other.stats().handshakes);
    assert_eq!((ours.client_done, ours.client_failed), (2, 1));
    assert_eq!((theirs.server_begun, theirs.server_done, theirs.server_failed), (2, 1, 1));
}

/// Starts a node at the address of one that has just ended.
fn start_again(config: &Config) -> Node {
    loop {
        match Node::start(config) {
            Ok(node) => return node,
            // A thread of the earlier run still sleeps on its socket.
            Err(StartError::AddressInUse(_)) => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

//= docs/protocol.md#seal-7
#[test]
fn calls_go_on_while_paths_get_new_keys() {
    let authority = Authority::new();
    let (server, address) = server(&authority, &[KV, "127.0.0.1"]);
    serve(server.bind(PORT).unwrap());
    authority.issue("client", &[FRONT], 2100);
    let mut config = authority.config("client");
    config.tls_rekey(Duration::from_secs(1));
    let node = Node::start(&config).unwrap();
    let client = node.client().unwrap();
    let body = vec![7; 100_000];
    let mut calls = 0;
    while node.stats().handshakes.refreshes < 3 {
        assert_eq!(client.call(address, "").wait().unwrap(), FRONT);
        assert!(client.call(address, body.clone()).wait().unwrap().starts_with(&body));
        calls += 1;
        assert!(calls < 1_000_000, "{:?}", node.stats().handshakes);
    }
    let (ours, theirs) = (node.stats(), server.stats());
    assert_eq!(ours.handshakes.client_failed, 0);
    assert_eq!((ours.protocol.calls_failed, ours.protocol.peers_met), (0, 2), "plain and sealed");
    assert!(theirs.handshakes.refreshes >= 3);
}

//= docs/protocol.md#seal-4
#[test]
fn calls_wait_while_a_server_has_no_room_for_their_handshake() {
    let authority = Authority::new();
    let (server, address) = server(&authority, &[KV, "127.0.0.1"]);
    serve(server.bind(PORT).unwrap());
    authority.issue("client", &[FRONT], 2100);
    let nodes: Vec<_> =
        (0..30).map(|_| Node::start(&authority.config("client")).unwrap()).collect();
    let clients: Vec<_> = nodes.iter().map(|node| node.client().unwrap()).collect();
    let calls: Vec<_> = clients.iter().map(|it| it.call(address, "").start().unwrap()).collect();
    for call in calls {
        assert_eq!(call.wait().unwrap(), FRONT);
    }
    assert!(server.stats().handshakes.refused > 0);
}

/// Prints the time of a first call, with the handshake, and that of later ones, beside those of plain nodes.
#[test]
#[ignore = "a measurement: run it with --release and --nocapture"]
fn cost_of_first_and_later_calls() {
    let median = |times: &mut Vec<Duration>| {
        times.sort();
        times[times.len() / 2]
    };
    let authority = Authority::new();
    authority.issue("server", &[KV, "127.0.0.1"], 2100);
    authority.issue("client", &[FRONT], 2100);
    let config = |file: &str, is_sealed: bool| {
        if is_sealed {
            return authority.config(file);
        }
        let mut config = Config::new();
        config.listen("127.0.0.1:0".parse().unwrap()).link(Links::Udp);
        config
    };
    for is_sealed in [false, true, false, true] {
        let server = Node::start(&config("server", is_sealed)).unwrap();
        serve(server.bind(PORT).unwrap());
        let address = Address::new(server.local_addr(), PORT);
        let (mut first, mut later) = (Vec::new(), Vec::new());
        // A server takes 20 handshakes of a host in a second.
        for _ in 0..15 {
            let node = Node::start(&config("client", is_sealed)).unwrap();
            let client = node.client().unwrap();
            let call = |times: &mut Vec<Duration>| {
                let began = Instant::now();
                client.call(address, vec![7; 100]).wait().unwrap();
                times.push(began.elapsed());
            };
            call(&mut first);
            (0..200).for_each(|_| call(&mut later));
        }
        let kind = if is_sealed { "sealed" } else { "plain" };
        println!("{kind}: first {:?}, later {:?}", median(&mut first), median(&mut later));
    }
}

#[test]
fn the_port_of_handshakes_is_kept() {
    let node = Node::start(&Config::new()).unwrap();
    assert_eq!(node.bind(32_767).unwrap_err(), apus::OpenError::PortReserved(32_767));
    let error = node.bind(PORT).unwrap().allow(["any"]).unwrap_err();
    assert_eq!(error, apus::RuleError::NoIdentity);
}

#[test]
fn a_missing_file_and_a_key_that_everybody_may_write_refuse_the_start() {
    use std::os::unix::fs::PermissionsExt;
    let authority = Authority::new();
    let error = Node::start(&authority.config("nobody")).unwrap_err().to_string();
    assert!(error.contains("nobody.key"), "{error}");
    authority.issue("node", &[KV], 2100);
    let key = authority.directory().join("node.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o666)).unwrap();
    let error = Node::start(&authority.config("node")).unwrap_err().to_string();
    assert!(error.contains("node.key") && error.contains("chmod"), "{error}");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    authority.issue("node", &[KV], 2025);
    Node::start(&authority.config("node")).unwrap_err();
}

//= docs/protocol.md#seal-11
#[test]
fn a_pipe_in_place_of_a_certificate_blocks_nothing_whenever_it_is_put_there() {
    let authority = Authority::new();
    authority.issue("node", &[KV], 2100);
    let path = |file: &str| authority.directory().join(file);
    let [chain, kept, pipe, link] = ["node.pem", "kept", "pipe", "link"].map(path);
    std::fs::copy(&chain, &kept).unwrap();
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let replace = |file: &Path| {
        std::fs::hard_link(file, &link).unwrap();
        std::fs::rename(&link, &chain).unwrap();
    };
    replace(&pipe);
    let error = Node::start(&authority.config("node")).unwrap_err().to_string();
    assert!(error.contains("node.pem: not a file of less than 16 MiB"), "{error}");
    replace(&kept);
    let node = Node::start(&authority.config("node")).unwrap();
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                replace(&pipe);
                replace(&kept);
            }
        });
        for _ in 0..30_000 {
            let _ = node.reload_identity(); // Whether it finds the pipe is chance.
        }
        ends.store(true, Ordering::Relaxed);
    });
    std::fs::copy(&kept, &link).unwrap();
    std::fs::rename(&link, &chain).unwrap();
    assert!(node.reload_identity().unwrap());
}

#[test]
fn a_file_that_shows_no_length_is_read_up_to_a_limit() {
    let endless = Path::new("/proc/self/pagemap");
    if !endless.exists() {
        return; // A kernel without it, or a sandbox.
    }
    let authority = Authority::new();
    authority.issue("node", &[KV], 2100);
    let mut config = authority.config("node");
    config.tls_cert(Some(endless.to_owned()));
    let error = Node::start(&config).unwrap_err().to_string();
    assert!(error.contains("not a file of less than 16 MiB"), "{error}");
}
