//! Shared engines whose users have identities: two hosts, and processes of several users.
#![cfg(feature = "secure")]

mod pair;
mod program;

use std::thread;

use apus::{Address, CallError, EngineAccess, Links, Node, Port};
use apus_proto::MessageKind;
use apus_wire::UnknownReason;
use pair::certificates::Authority;
use pair::engine::{Directory, Engine, attached};
use pair::liar::{CLOSE, IN_USE, Liar};
use pair::wait_until;
use program::{Program, play_role};

/// Users of both hosts.
const FIRST: u32 = 20_001;
const SECOND: u32 = 20_002;
/// The answer to a rule of a process without an identity.
const NO_IDENTITY: u64 = 1;

/// A user without an identity.
const OTHER: u32 = 20_003;

#[test]
#[ignore = "it is a process of other tests"]
fn role() {
    play_role();
}

fn name(of: &str) -> String {
    format!("spiffe://example.org/{of}")
}

/// The access to an engine whose two users have certificates of these names.
fn access_of(
    authority: &Authority,
    directory: &Directory,
    [_, first, second]: [&str; 3],
) -> EngineAccess {
    let file = |of: &str, kind| authority.directory().join(format!("{of}.{kind}"));
    let mut access = EngineAccess::new(&directory.socket());
    for (user, of) in [(FIRST, first), (SECOND, second)] {
        access.identity(&[user], Some((&file(of, "pem"), &file(of, "key"))));
    }
    access
}

/// A host with an engine and two users with identities.
struct Host {
    directory: Directory,
    engine: Engine,
}

impl Host {
    fn start(authority: &Authority, [own, first, second]: [&str; 3], link: Links) -> Self {
        for of in [own, first, second] {
            authority.issue(of, &[&name(of), "127.0.0.1"], 2100);
        }
        let directory = Directory::new();
        let access = access_of(authority, &directory, [own, first, second]);
        let engine = Engine::with(&access, authority.config(own).link(link));
        Self { directory, engine }
    }

    /// A process of a user. `None`, with a message: only root can start one.
    fn member(&self, user: u32) -> Option<Program> {
        let socket = self.directory.socket();
        let program = Program::start_as(user, &format!("member {}", socket.display()))?;
        assert_eq!(program.line(), self.engine.shared.local_addr().to_string());
        Some(program)
    }

    fn at(&self, port: u16) -> Address {
        Address::new(self.engine.shared.local_addr(), port)
    }
}

fn call(program: &mut Program, to: Address) -> String {
    program.ask(&format!("call {to}"))
}

/// Two hosts: front ends and a batch job call a store and a log.
struct Hosts {
    authority: Authority,
    clients: Host,
    servers: Host,
}

impl Hosts {
    fn start(link: Links) -> Self {
        let authority = Authority::new();
        let clients = Host::start(&authority, ["host1", "front", "batch"], link);
        let servers = Host::start(&authority, ["host2", "store", "log"], link);
        Self { authority, clients, servers }
    }

    fn store(&self) -> Address {
        self.servers.at(4_000)
    }

    fn log(&self) -> Address {
        self.servers.at(5_000)
    }

    /// The processes of both users at both hosts, of which those of the second serve their ports.
    fn members(&self) -> Option<[Program; 4]> {
        let [front, batch] = [self.clients.member(FIRST)?, self.clients.member(SECOND)?];
        let [mut store, mut log] = [self.servers.member(FIRST)?, self.servers.member(SECOND)?];
        assert_eq!(store.ask("serve 4000"), "done");
        assert_eq!(log.ask("serve 5000"), "done");
        Some([front, batch, store, log])
    }
}

//= docs/protocol.md#seal-18
#[test]
fn each_user_calls_and_serves_under_its_own_name() {
    for link in [Links::Udp, Links::Auto] {
        let hosts = Hosts::start(link);
        let Some([mut front, mut batch, mut store, mut log]) = hosts.members() else { return };
        for _ in 0..3 {
            for (client, of) in [(&mut front, "front"), (&mut batch, "batch")] {
                assert_eq!(call(client, hosts.store()), name(of));
                assert_eq!(call(client, hosts.log()), name(of));
            }
        }
        // Three more ports, one of a user that has one already, and calls in the other direction.
        assert_eq!(store.ask("serve 4001"), "done");
        assert_eq!(call(&mut front, hosts.servers.at(4_001)), name("front"));
        assert_eq!(front.ask("serve 6000"), "done");
        assert_eq!(batch.ask("serve 6001"), "done");
        for (client, of) in [(&mut store, "store"), (&mut log, "log")] {
            assert_eq!(call(client, hosts.clients.at(6_000)), name(of));
            assert_eq!(call(client, hosts.clients.at(6_001)), name(of));
        }
        assert_eq!(call(&mut log, hosts.store()), name("log"), "within the engine");
        let alone = hosts.authority.node("alone", &[&name("alone"), "127.0.0.1"]);
        let client = alone.client().unwrap();
        for to in [hosts.store(), hosts.log(), hosts.store(), hosts.clients.at(6_000)] {
            assert_eq!(client.call(to, "").wait().unwrap(), name("alone"));
        }
        let service = alone.bind(7_000).unwrap();
        let serving = service.clone();
        thread::spawn(move || {
            serving.serve(|request| {
                let peer = request.peer().map(|peer| peer.name().to_owned());
                let _ = request.reply(peer.unwrap_or_default());
            });
        });
        let to = Address::new(alone.local_addr(), 7_000);
        for _ in 0..2 {
            for (client, of) in [(&mut front, "front"), (&mut batch, "batch")] {
                assert_eq!(call(client, to), name(of));
            }
        }
        let names = hosts.servers.engine.shared.processes().into_iter().map(|it| it.identity);
        assert!(names.eq([Some(name("store")), Some(name("log"))]));
        for host in [&hosts.clients, &hosts.servers] {
            let stats = host.engine.shared.stats();
            assert_eq!(stats.handshakes.client_failed + stats.handshakes.server_failed, 0);
        }
    }
}

//= docs/protocol.md#seal-18
#[test]
fn rules_see_the_identities_of_users() {
    let hosts = Hosts::start(Links::Udp);
    let Some([mut front, mut batch, mut store, mut log]) = hosts.members() else { return };
    assert_eq!(store.ask(&format!("allow 4000 {}", name("front"))), "done");
    assert_eq!(call(&mut front, hosts.store()), name("front"));
    let refused = format!("error: {}", CallError::Forbidden);
    assert_eq!(call(&mut batch, hosts.store()), refused);
    assert_eq!(call(&mut log, hosts.store()), refused, "within the engine");
    assert_eq!(call(&mut batch, hosts.log()), name("batch"));
    assert_eq!(front.ask(&format!("expect {}", name("store"))), "done");
    assert_eq!(call(&mut front, hosts.store()), name("front"));
    let error = call(&mut front, hosts.log());
    assert!(error.contains(&name("log")) && error.contains("nothing was sent"), "{error}");
    assert_eq!(call(&mut batch, hosts.log()), name("batch"), "another user has its own rules");
    assert_eq!(store.ask(&format!("expect {}", name("front"))), "done");
    let error = call(&mut store, hosts.log());
    assert!(error.contains(&name("log")) && error.contains("nothing was sent"), "{error}");
}

//= docs/protocol.md#seal-18
#[test]
fn a_user_without_an_identity_stays_within_the_engine() {
    let hosts = Hosts::start(Links::Udp);
    let Some([mut front, _, mut store, _]) = hosts.members() else { return };
    let Some(mut other) = hosts.servers.member(OTHER) else { return };
    assert_eq!(other.ask("serve 8000"), "done");
    assert_eq!(other.ask("expect any"), apus::RuleError::NoIdentity.to_string());
    let refused = format!("error: {}", CallError::Forbidden);
    assert_eq!(call(&mut front, hosts.servers.at(8_000)), refused);
    let to = hosts.clients.at(6_000);
    assert_eq!(call(&mut other, to), format!("error: {}", CallError::NoIdentity));
    assert_eq!(
        call(&mut other, hosts.store()),
        refused,
        "its rule is any, and this caller has no name"
    );
    assert_eq!(store.ask("allow 4000 plain"), "done");
    assert_eq!(call(&mut other, hosts.store()), "nobody");
    assert_eq!(call(&mut front, hosts.store()), refused);
    let processes = hosts.servers.engine.shared.processes();
    assert_eq!(processes.iter().filter(|process| process.identity.is_none()).count(), 1);
}

//= docs/protocol.md#seal-18
#[test]
fn a_port_that_nobody_serves_shows_the_name_of_the_engine() {
    let hosts = Hosts::start(Links::Udp);
    let alone = hosts.authority.node("alone", &[&name("alone"), "127.0.0.1"]);
    let client = alone.client().unwrap();
    client.expect([&*name("host2")]).unwrap();
    assert_eq!(client.call(hosts.store(), "").wait().unwrap_err(), CallError::NoSuchPort);
    let Some([_front, _batch, mut store, mut log]) = hosts.members() else { return };
    // The ports belong to users now, whose names this client does not expect.
    for (to, of) in [(hosts.store(), "store"), (hosts.log(), "log")] {
        wait_until("another name answers", || match client.call(to, "").wait().unwrap_err() {
            CallError::WrongPeer(wrong) => {
                assert_eq!(wrong.name, name(of));
                true
            }
            // The path for the port as nobody's has ended.
            CallError::MayHaveExecuted | CallError::NotSent | CallError::Forbidden => false,
            error => panic!("{error}"),
        });
    }
    // A port goes to another user, who gets nothing that was meant for the former one.
    let of_store = alone.client().unwrap();
    of_store.expect([&*name("store")]).unwrap();
    assert_eq!(of_store.call(hosts.store(), "").wait().unwrap(), name("alone"));
    assert_eq!(store.ask("close 4000"), "done");
    wait_until("the port is free", || log.ask("serve 4000") == "done");
    let is_over = |error: CallError| match error {
        CallError::WrongPeer(wrong) => {
            assert_eq!(wrong.name, name("log"));
            true
        }
        CallError::MayHaveExecuted | CallError::NotSent | CallError::Forbidden => false,
        error => panic!("{error}"),
    };
    wait_until("the client learns of it", || {
        is_over(of_store.call(hosts.store(), "").wait().unwrap_err())
    });
    let any = alone.client().unwrap();
    any.expect(["any"]).unwrap();
    assert_eq!(any.call(hosts.store(), "").wait().unwrap(), name("alone"));
}

//= docs/protocol.md#seal-11
#[test]
fn the_identity_of_each_user_is_renewed_and_revoked_by_itself() {
    let authority = Authority::new();
    let clients = Host::start(&authority, ["host1", "front", "batch"], Links::Udp);
    authority.issue("alone", &[&name("alone"), "127.0.0.1"], 2100);
    authority.revoke(&[]);
    let mut config = authority.config("alone");
    config.tls_crl(vec![authority.directory().join("crl.pem")]);
    let alone = Node::start(&config).unwrap();
    let service = alone.bind(7_000).unwrap();
    thread::spawn(move || {
        service.serve(|request| {
            let peer = request.peer().unwrap();
            let _ = request.reply(format!("{} {:?}", peer.name(), peer.certificates()[0]));
        });
    });
    let to = Address::new(alone.local_addr(), 7_000);
    let (Some(mut front), Some(mut batch)) = (clients.member(FIRST), clients.member(SECOND)) else {
        return;
    };
    let [first, _] = [&mut front, &mut batch].map(|client| call(client, to));
    assert!(first.starts_with(&name("front")), "{first}");
    authority.issue("front", &[&name("front"), "127.0.0.1"], 2101);
    assert!(clients.engine.shared.reload_identity().unwrap());
    wait_until("the new certificate is shown", || call(&mut front, to) != first);
    assert!(call(&mut front, to).starts_with(&name("front")));
    let expiries = clients.engine.shared.identities();
    assert_eq!(
        expiries.iter().map(apus::Peer::name).collect::<Vec<_>>(),
        ["host1", "front", "batch"].map(name)
    );
    assert!(expiries[1].expires() > expiries[2].expires());
    authority.revoke(&[authority.serial(&name("batch"))]);
    assert!(alone.reload_identity().unwrap());
    wait_until("the path of the revoked user has ended", || {
        call(&mut batch, to).starts_with("error")
    });
    assert!(call(&mut front, to).starts_with(&name("front")), "the other user goes on");
}

//= docs/protocol.md#seal-18
#[test]
fn first_calls_to_ports_of_two_users_are_executed_or_not_sent() {
    let hosts = Hosts::start(Links::Udp);
    let Some(_members) = hosts.members() else { return };
    let alone = hosts.authority.node("alone", &[&name("alone"), "127.0.0.1"]);
    let client = alone.client().unwrap();
    let first = [hosts.store(), hosts.log()].map(|to| client.call(to, "").start().unwrap());
    for call in first {
        match call.wait() {
            Ok(answer) => assert_eq!(answer, name("alone")),
            Err(error) => assert_eq!(error, CallError::NotSent),
        }
    }
    for to in [hosts.store(), hosts.log()] {
        assert_eq!(client.call(to, "").wait().unwrap(), name("alone"));
    }
}

//= docs/protocol.md#seal-18
#[test]
fn a_node_may_have_several_identities_at_one_time_and_one_at_another() {
    let authority = Authority::new();
    let names = ["host2", "store", "log"];
    let several = Host::start(&authority, names, Links::Udp);
    let alone = authority.node("alone", &[&name("alone"), "127.0.0.1"]);
    let client = alone.client().unwrap();
    let ports = [several.at(4_000), several.at(5_000)];
    for to in ports {
        assert_eq!(client.call(to, "").wait().unwrap_err(), CallError::NoSuchPort);
    }
    let mut config = authority.config("host2");
    config.listen(several.engine.shared.local_addr());
    let Host { directory, engine } = several;
    drop(engine);
    let engine = Engine::start(&directory.socket(), &config);
    let process = Node::start(&attached(&directory.socket())).unwrap();
    let services = [4_000, 5_000].map(|port| process.bind(port).unwrap());
    let serving = services
        .clone()
        .map(|service| thread::spawn(move || service.serve(|request| drop(request.reply("one")))));
    let answers = |to| client.call(to, "").wait().is_ok_and(|answer| answer == "one");
    ports.into_iter().for_each(|to| wait_until("the one identity answers", || answers(to)));
    for to in [ports, ports].into_iter().flatten() {
        assert_eq!(client.call(to, "").wait().unwrap(), "one", "by one path");
    }
    services.iter().for_each(Port::shutdown);
    serving.into_iter().for_each(|thread| thread.join().unwrap());
    drop((process, engine));
    let access = access_of(&authority, &directory, names);
    let _engine = Engine::with(&access, &config);
    for to in ports {
        wait_until("the port is nobody's", || {
            client.call(to, "").wait().unwrap_err() == CallError::NoSuchPort
        });
    }
}

//= docs/protocol.md#seal-18
#[test]
fn a_hostile_process_has_the_identity_of_its_user_and_no_part_of_others() {
    let hosts = Hosts::start(Links::Udp);
    let Some([mut front, mut batch, mut store, _log]) = hosts.members() else { return };
    assert_eq!(store.ask(&format!("allow 4000 {}", name("front"))), "done");
    assert_eq!(call(&mut front, hosts.store()), name("front"));
    // This process has no identity at either host. Nothing that it sends changes that.
    let mut liar = Liar::attach(&hosts.servers.directory.socket());
    assert_eq!(liar.open(4_000), IN_USE);
    assert_eq!(liar.rule(4_000, "any"), NO_IDENTITY);
    assert_eq!(liar.rule(40_000, "any"), NO_IDENTITY);
    assert!(liar.say([CLOSE, 4_000], "") && !liar.is_ended());
    let refused = format!("error: {}", CallError::Forbidden);
    assert_eq!(call(&mut batch, hosts.store()), refused, "the rule is that of the service");
    let served = hosts.servers.engine.shared.stats().handshakes.server_begun;
    let mut liar = Liar::attach(&hosts.clients.directory.socket());
    for (id, port) in [(1, 4_000), (2, 5_000), (3, 32_767), (4, 1)] {
        assert!(liar.call(hosts.store().host, (40_000, port, id), vec![0; 100]));
        let (words, body) = liar.next().unwrap();
        match MessageKind::decode(words) {
            Some((MessageKind::Failed, failed)) => {
                assert_eq!((failed, &body[1..]), (id, &b"no-identity"[..]), "port {port}");
            }
            Some((MessageKind::Refused(UnknownReason::NoSuchPort), 3)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(!liar.is_ended());
    assert_eq!(hosts.servers.engine.shared.stats().handshakes.server_begun, served);
    assert_eq!(call(&mut front, hosts.store()), name("front"));
}
