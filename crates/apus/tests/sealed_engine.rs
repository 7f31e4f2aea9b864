//! Processes of a shared engine that has a certificate: sealed calls, names and rules.
#![cfg(feature = "secure")]

mod pair;

use std::thread::{self, JoinHandle};

use apus::{Address, CallError, Client, Config, Links, Node, Port, RecvError, Route, RuleError};
use apus_proto::MessageKind;
use apus_wire::UnknownReason;
use pair::certificates::Authority;
use pair::engine::{Directory, Engine, attached};
use pair::liar::{CLOSE, FORBIDDEN, IN_USE, Liar, PEER};
use pair::{FAULT_AFTER, PORT, wait_until};

const ENGINE: &str = "spiffe://example.org/engine";
const KV: &str = "spiffe://example.org/kv/1";
const FRONT: &str = "spiffe://example.org/front/1";

/// An engine with a certificate, a process that uses it, and a node with an engine of its own.
struct Host {
    authority: Authority,
    directory: Directory,
    engine: Engine,
    process: Node,
    alone: Node,
}

impl Host {
    fn start(links: Links) -> Self {
        let authority = Authority::new();
        authority.issue("engine", &[ENGINE, "127.0.0.1"], 2100);
        authority.issue("alone", &[KV, "127.0.0.1"], 2100);
        let directory = Directory::new();
        let engine = Engine::start(&directory.socket(), authority.config("engine").link(links));
        let process = Node::start(&attached(&directory.socket())).unwrap();
        let alone = Node::start(authority.config("alone").link(links)).unwrap();
        Self { authority, directory, engine, process, alone }
    }

    fn another_process(&self) -> Node {
        Node::start(&attached(&self.directory.socket())).unwrap()
    }

    fn engine_port(&self) -> Address {
        Address::new(self.engine.shared.local_addr(), PORT)
    }

    fn alone_port(&self) -> Address {
        Address::new(self.alone.local_addr(), PORT)
    }
}

/// Answers every request with its body and the name of the client.
fn serve(service: &Port) -> JoinHandle<()> {
    let service = service.clone();
    thread::spawn(move || {
        service.serve(|mut request| {
            let name =
                request.peer().map_or_else(|| "nobody".to_owned(), |peer| peer.name().to_owned());
            let mut body = request.take_body().to_vec();
            body.extend(name.as_bytes());
            let _ = request.reply(body);
        });
    })
}

fn wrong_peer(error: CallError) -> String {
    let CallError::WrongPeer(wrong) = error else { panic!("{error}") };
    wrong.to_string()
}

//= docs/protocol.md#seal-6
#[test]
fn processes_call_and_are_called_sealed_and_both_sides_know_names() {
    for links in [Links::Udp, Links::Auto] {
        let host = Host::start(links);
        let services = [&host.process, &host.alone].map(|node| node.bind(PORT).unwrap());
        let serving = services.each_ref().map(serve);
        for (from, to, name) in
            [(&host.process, host.alone_port(), ENGINE), (&host.alone, host.engine_port(), KV)]
        {
            let client = from.client().unwrap();
            for length in [0, 1, 100, 5_000, 500_000] {
                let body = vec![7; length];
                let response = client.call(to, body.clone()).wait().unwrap();
                assert_eq!(response[..length], body);
                assert_eq!(response[length..], *name.as_bytes());
            }
        }
        let stats = host.engine.shared.stats();
        assert!(stats.link.sealed_sent >= 2 && stats.link.sealed_received >= 2, "{:?}", stats.link);
        assert_eq!(stats.handshakes.client_done + stats.handshakes.server_done, 1);
        services.iter().for_each(Port::shutdown);
        serving.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn a_process_sees_the_whole_certificate_of_its_peer() {
    let host = Host::start(Links::Udp);
    let service = host.process.bind(PORT).unwrap();
    let call = host.alone.client().unwrap().call(host.engine_port(), "").start().unwrap();
    let request = service.recv().unwrap();
    let peer = request.peer().unwrap();
    assert_eq!((peer.name(), peer.addresses().len(), peer.certificates().len()), (KV, 1, 1));
    assert!(peer.certificates()[0].len() > 100 && peer.expires() > std::time::SystemTime::now());
    request.reply("done").unwrap();
    assert_eq!(call.wait().unwrap(), "done");
}

//= docs/protocol.md#seal-6
#[test]
fn a_client_calls_only_whom_it_expects_and_hears_whom_it_found() {
    let host = Host::start(Links::Udp);
    let serving = serve(&host.alone.bind(PORT).unwrap());
    let [db, kv] = [(); 2].map(|()| host.process.client().unwrap());
    db.expect(["spiffe://example.org/db/*", "10.0.0.9"]).unwrap();
    for _ in 0..2 {
        let error = wrong_peer(db.call(host.alone_port(), "").wait().unwrap_err());
        assert!(error.contains(KV) && error.contains("spiffe://example.org/db/*"), "{error}");
    }
    kv.expect(["spiffe://example.org/kv/*"]).unwrap();
    assert_eq!(kv.call(host.alone_port(), "").wait().unwrap(), ENGINE);
    db.expect([KV]).unwrap();
    assert_eq!(db.call(host.alone_port(), "").wait().unwrap(), ENGINE);
    assert_eq!(host.alone.stats().protocol.requests, 2 + handshakes(&host.alone));
    drop(serving);
}

/// Requests of handshakes that a node has served.
fn handshakes(node: &Node) -> u64 {
    2 * node.stats().handshakes.server_done
}

#[test]
fn an_error_of_the_handshake_comes_with_its_cause() {
    let host = Host::start(Links::Udp);
    let strangers = Authority::new();
    let stranger = strangers.node("stranger", &["spiffe://example.org/stranger", "127.0.0.1"]);
    let to = Address::new(stranger.local_addr(), PORT);
    match host.process.client().unwrap().call(to, "").wait().unwrap_err() {
        CallError::HandshakeFailed { reason, sent: false } => {
            assert!(reason.contains("UnknownIssuer"), "{reason}");
        }
        error => panic!("{error}"),
    }
    let mut plain = Config::new();
    let plain = Node::start(plain.listen("127.0.0.1:0".parse().unwrap())).unwrap();
    let to = Address::new(plain.local_addr(), PORT);
    let error = host.process.client().unwrap().call(to, "").wait().unwrap_err();
    assert_eq!(error, CallError::PlainOnly);
}

//= docs/protocol.md#seal-6
#[test]
fn a_service_refuses_clients_that_its_rule_does_not_name() {
    for links in [Links::Udp, Links::Auto] {
        let host = Host::start(links);
        let service = host.process.bind(PORT).unwrap();
        let client = host.alone.client().unwrap();
        client.connect(host.engine_port()).wait().unwrap();
        if links == Links::Auto {
            assert_eq!(host.alone.route(host.engine_port()), Route::Memory);
        }
        let taken = client.call(host.engine_port(), "").start().unwrap();
        let request = service.recv().unwrap();
        let waiting = [(); 3].map(|()| client.call(host.engine_port(), "").start().unwrap());
        wait_until("the requests are there", || {
            host.engine.shared.processes()[0].counters.requests == 4
        });
        service.allow([FRONT]).unwrap();
        assert!(matches!(service.try_recv(), Err(RecvError::Empty)));
        request.reply("done").unwrap();
        assert_eq!(taken.wait().unwrap(), "done");
        for call in waiting {
            assert_eq!(call.wait().unwrap_err(), CallError::Forbidden);
        }
        assert_eq!(client.call(host.engine_port(), "").wait().unwrap_err(), CallError::Forbidden);
        assert_eq!(host.engine.shared.processes()[0].counters.requests, 4);
        service.allow(["spiffe://example.org/kv/*"]).unwrap();
        let serving = serve(&service);
        assert_eq!(client.call(host.engine_port(), "").wait().unwrap(), KV);
        service.shutdown();
        serving.join().unwrap();
    }
}

#[test]
fn the_configuration_of_the_engine_has_rules_for_ports() {
    let host = Host::start(Links::Udp);
    let directory = Directory::new();
    let mut config = host.authority.config("engine");
    config.set("tls_allow", &format!("{PORT}={FRONT}")).unwrap();
    let engine = Engine::start(&directory.socket(), &config);
    let process = Node::start(&attached(&directory.socket())).unwrap();
    let service = process.bind(PORT).unwrap();
    let client = host.alone.client().unwrap();
    let to = Address::new(engine.shared.local_addr(), PORT);
    assert_eq!(client.call(to, "").wait().unwrap_err(), CallError::Forbidden);
    service.allow([KV]).unwrap();
    let serving = serve(&service);
    assert_eq!(client.call(to, "").wait().unwrap(), KV);
    service.shutdown();
    serving.join().unwrap();
}

//= docs/protocol.md#seal-6
#[test]
fn rules_hold_between_processes_of_an_engine() {
    let host = Host::start(Links::Udp);
    let other = host.another_process();
    let service = other.bind(PORT).unwrap();
    let serving = serve(&service);
    let client = host.process.client().unwrap();
    assert_eq!(client.call(host.engine_port(), "").wait().unwrap(), ENGINE);
    service.allow([FRONT]).unwrap();
    assert_eq!(client.call(host.engine_port(), "").wait().unwrap_err(), CallError::Forbidden);
    service.allow([ENGINE]).unwrap();
    assert_eq!(client.call(host.engine_port(), "").wait().unwrap(), ENGINE);
    client.expect([KV]).unwrap();
    let error = wrong_peer(client.call(host.engine_port(), "").wait().unwrap_err());
    assert!(error.contains(ENGINE) && error.contains(KV), "{error}");
    client.expect(["any"]).unwrap();
    assert_eq!(client.call(host.engine_port(), "").wait().unwrap(), ENGINE);
    assert_eq!(host.engine.shared.stats().link.packets_sent, 0, "nothing goes over the network");
    service.shutdown();
    serving.join().unwrap();
}

#[test]
fn a_rule_that_an_engine_cannot_keep_is_an_error() {
    let host = Host::start(Links::Udp);
    let client = host.process.client().unwrap();
    let many: Vec<_> = (0..65).map(|number| format!("n{number}.example.org")).collect();
    let long = |count| many[..count].iter().map(String::as_str);
    assert!(matches!(client.expect(long(65)), Err(RuleError::TooLong { patterns: 64, .. })));
    client.expect(long(64)).unwrap();
    let clients: Vec<Client> = (0..16).map(|_| host.process.client().unwrap()).collect();
    for (number, client) in clients.iter().enumerate().take(15) {
        client.expect([&*many[number]]).unwrap();
    }
    let limit = Err(RuleError::TooMany { limit: 16 });
    assert_eq!(clients[15].expect(["other.example.org"]), limit);
    assert_eq!(host.another_process().client().unwrap().expect(["other.example.org"]), limit);
    clients[15].expect([&*many[3]]).unwrap();
    drop(clients);
    wait_until("the rules are free", || client.expect(["other.example.org"]).is_ok());
    let directory = Directory::new();
    let mut config = Config::new();
    let _engine = Engine::start(&directory.socket(), config.listen("127.0.0.1:0".parse().unwrap()));
    let client = Node::start(&attached(&directory.socket())).unwrap().client().unwrap();
    assert_eq!(client.expect(["any"]), Err(RuleError::NoIdentity));
}

#[test]
fn rules_outlast_the_engine_that_kept_them() {
    let host = Host::start(Links::Udp);
    let mut config = host.authority.config("engine");
    config.listen(host.engine.shared.local_addr());
    let Host { authority, directory, engine, process, alone } = host;
    let service = process.bind(PORT).unwrap();
    service.allow([FRONT]).unwrap();
    let serving = serve(&service);
    let expecting = process.client().unwrap();
    expecting.expect([FRONT]).unwrap();
    let to = Address::new(engine.shared.local_addr(), PORT);
    drop(engine);
    wait_until("the engine is gone", || expecting.expect(["any"]) == Err(RuleError::NoEngine));
    let engine = Engine::start(&directory.socket(), &config);
    let client = alone.client().unwrap();
    wait_until("the service is there", || match client.call(to, "").wait().unwrap_err() {
        CallError::Forbidden => true,
        error => {
            assert!(matches!(error, CallError::NoSuchPort | CallError::MayHaveExecuted), "{error}");
            false
        }
    });
    let far = Address::new(alone.local_addr(), PORT);
    assert!(wrong_peer(expecting.call(far, "").wait().unwrap_err()).contains(FRONT));
    drop(engine);
    // An engine that cannot keep the rules does not let the process do without them.
    let mut plain = Config::new();
    plain.listen(to.host).insecure(true);
    let _engine = Engine::start(&directory.socket(), &plain);
    wait_until("the process is attached again", || match expecting.call(far, "").wait() {
        Err(CallError::NoIdentity) => true,
        Err(CallError::NoEngine | CallError::EngineEnded | CallError::NotSent) => false,
        other => panic!("{other:?}"),
    });
    let mut insecure = Config::new();
    insecure.listen("127.0.0.1:0".parse().unwrap()).insecure(true);
    let stranger = Node::start(&insecure).unwrap().client().unwrap();
    assert_eq!(stranger.call(to, "").wait().unwrap_err(), CallError::NoSuchPort);
    drop(authority);
    service.shutdown();
    serving.join().unwrap();
    process.close(FAULT_AFTER).unwrap();
}

/// Answers to a rule.
const SET: u64 = 0;
const TOO_MANY: u64 = 2;

/// A client port of a hostile process.
const FROM: u16 = 40_000;

#[test]
fn a_process_makes_no_handshakes_and_takes_none() {
    let host = Host::start(Links::Udp);
    let serving = serve(&host.alone.bind(PORT).unwrap());
    let client = host.process.client().unwrap();
    assert_eq!(client.call(host.alone_port(), "").wait().unwrap(), ENGINE);
    let mut liar = Liar::attach(&host.directory.socket());
    assert_eq!(liar.open(32_767), FORBIDDEN);
    let begun = host.alone.stats().handshakes.server_begun;
    for (id, to) in
        [host.alone.local_addr(), host.engine.shared.local_addr()].into_iter().enumerate()
    {
        assert!(liar.call(to, (FROM, 32_767, id as u64), vec![0; 200]));
        let (words, _) = liar.next().unwrap();
        let no_such_port = MessageKind::Refused(UnknownReason::NoSuchPort);
        assert_eq!(MessageKind::decode(words), Some((no_such_port, id as u64)));
    }
    assert_eq!(host.alone.stats().handshakes.server_begun, begun);
    // Without a certificate nobody else has the port either.
    let directory = Directory::new();
    let mut plain = Config::new();
    let _engine = Engine::start(&directory.socket(), plain.listen("127.0.0.1:0".parse().unwrap()));
    assert_eq!(Liar::attach(&directory.socket()).open(32_767), FORBIDDEN);
    drop(serving);
}

#[test]
fn rules_of_a_hostile_process_are_bounded_and_those_of_others_stay() {
    let host = Host::start(Links::Udp);
    let service = host.process.bind(PORT).unwrap();
    service.allow([KV]).unwrap();
    let serving = serve(&service);
    let attach = || Liar::attach(&host.directory.socket());
    for (is_last, text) in [
        (true, "not a pattern!".to_owned()),
        (true, vec!["a.example.org"; 65].join(",")),
        (false, "a".repeat(4_000)),
    ] {
        let mut liar = attach();
        (0..6).for_each(|_| _ = liar.say_rule(PORT, is_last, &text));
        assert!(liar.is_ended(), "{text:.40}");
    }
    let mut liar = attach();
    assert!(!liar.say([PEER, 1 << 32 | 5], vec![0; 100]) || liar.is_ended());
    let mut liar = attach();
    // A rule for the port of another process is one for a port that this process may open later.
    assert_eq!(liar.rule(PORT, ""), SET);
    assert_eq!(liar.open(PORT), IN_USE);
    let client = host.alone.client().unwrap();
    assert_eq!(client.call(host.engine_port(), "").wait().unwrap(), KV);
    // The second rule of the user is the engine's second: the honest service has one already.
    let answers: Vec<_> =
        (0..20).map(|number| liar.rule(FROM + number, &format!("n{number}.example.org"))).collect();
    let set = answers.iter().filter(|&&answer| answer == SET).count();
    assert_eq!((set, answers[19]), (14, TOO_MANY));
    liar.say([CLOSE, FROM.into()], "");
    assert_eq!(liar.rule(FROM + 19, "n19.example.org"), SET);
    drop(liar);
    wait_until("the rules are free", || attach().rule(FROM, "other.example.org") == SET);
    assert_eq!(client.call(host.engine_port(), "").wait().unwrap(), KV);
    service.shutdown();
    serving.join().unwrap();
}
