//! Processes that use an engine and violate its rules. The engine ends or ignores them, without an effect on the others.

mod pair;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use apus::{Address, Config, EngineAccess, Node, Port, Request};
use apus_proto::MessageKind;
use apus_shm::{Place, connect_to};
use apus_wire::UnknownReason;
use pair::engine::{Directory, Engine, attached};
use pair::liar::{ADDRESS, CLOSE, FORBIDDEN, IN_USE, Liar, YES, encode, offer};
use pair::{PORT, pattern, serve_echo, wait_until};

/// A port of the hostile process.
const OWN: u16 = 77;
/// A client port of the hostile process.
const FROM: u16 = 40_000;
/// A port that only another user may serve.
const KEPT: u16 = 99;

const BUDGET: u64 = 1 << 20;

/// Two nodes of an engine that call each other all the time, and a node of its own that one of them calls as well.
struct Honest {
    directory: Directory,
    engine: Engine,
    client: Node,
    server: Node,
    alone: Node,
    over: Arc<AtomicBool>,
    calling: Option<JoinHandle<()>>,
    serving: Vec<(Port, JoinHandle<()>)>,
}

fn local() -> Config {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse().unwrap());
    config
}

impl Honest {
    fn start() -> Self {
        let directory = Directory::new();
        let mut access = EngineAccess::new(&directory.socket());
        access.process_budget(BUDGET).ports(KEPT..=KEPT, &[u32::MAX]);
        let engine = Engine::with(&access, &local());
        let [client, server] =
            [(); 2].map(|()| Node::start(&attached(&directory.socket())).unwrap());
        let alone = Node::start(&local()).unwrap();
        let services = [&server, &alone].map(|node| node.bind(PORT).unwrap());
        let to = [&server, &alone].map(|node| Address::new(node.local_addr(), PORT));
        let serving = services.map(|service| (service.clone(), serve_echo(&service))).into();
        let over = Arc::new(AtomicBool::new(false));
        let (port, ends) = (client.client().unwrap(), Arc::clone(&over));
        let calling = thread::spawn(move || {
            for round in 0.. {
                let length = [1, 300, 5_000, 200_000][round % 4];
                let body = pattern(round as u64, length);
                assert_eq!(port.call(to[round / 4 % 2], body.clone()).wait().unwrap(), body);
                if round > 100 && ends.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        Self { directory, engine, client, server, alone, over, calling: Some(calling), serving }
    }

    fn socket(&self) -> PathBuf {
        self.directory.socket()
    }

    fn liar(&self) -> Liar {
        Liar::attach(&self.socket())
    }

    /// The largest number of bytes that the engine holds for a process now.
    fn held_most(&self) -> u64 {
        self.engine.shared.processes().iter().map(|process| process.held_bytes).max().unwrap()
    }

    /// Asserts that all calls have succeeded, and that the engine holds nothing of another process any more.
    fn end(mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.calling.take().unwrap().join().unwrap();
        wait_until("only the honest processes are left", || {
            let processes = self.engine.shared.processes();
            let is_idle = |it: &apus::AttachedProcess| (it.calls, it.held_bytes) == (0, 0);
            processes.len() == 2 && processes.iter().all(is_idle)
        });
        drop((self.client, self.server, self.alone));
        for (service, thread) in self.serving {
            service.shutdown();
            thread.join().unwrap();
        }
    }
}

/// Random numbers that are the same in every run (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

#[test]
fn anything_may_be_said() {
    let honest = Honest::start();
    let nodes = [honest.server.local_addr(), honest.alone.local_addr()];
    let places = ["0.0.0.0:0", "255.255.255.255:1", "[::1]:7", "127.0.0.1:9", "224.0.0.1:4000"];
    let places: Vec<_> = nodes.into_iter().chain(places.map(|at| at.parse().unwrap())).collect();
    let mut taken = 0;
    for seed in 0..400 {
        let random = &mut Random(seed);
        let mut liar = honest.liar();
        for _ in 0..60 {
            let most = 1 << random.below(64);
            let id = random.below(most) << (32 * random.below(2));
            let port = random.below(1 << 16) << 8;
            let kind = random.below(16) | port | random.below(u64::MAX) << 24;
            let lengths = [0, 1, 22, 100, 5_000, 100_000, 2_000_000];
            let length = lengths[random.below(7) as usize];
            let place = places[random.below(places.len() as u64) as usize];
            let goes_on = match random.below(4) {
                0 => liar.say([kind, id], vec![random.below(256) as u8; length]),
                1 => liar.say([ADDRESS, id], encode(place)),
                2 => liar.call(place, (kind as u16, PORT, id), vec![b'x'; length + 1]),
                _ => liar.say([kind & 0xf, id], ""),
            };
            liar.look();
            if !goes_on {
                break;
            }
            taken += 1;
        }
    }
    assert!(taken > 2_000, "{taken} messages: the test tests little");
    honest.end();
}

#[test]
fn what_no_process_says_ends_it() {
    let honest = Honest::start();
    let to = honest.server.local_addr();
    // A request without an announced address is dropped, and a request from a server port ends the process.
    let request = MessageKind::Request { from: PORT, to: PORT, remaining: None }.encode(1);
    let lies = [
        ([0, 0], "nothing"),
        ([9, 1], "welcome"),
        ([11, PORT.into()], ""),
        ([13, 0], "unknown"),
        ([ADDRESS, 1], "no address"),
        (request, ""),
        (MessageKind::Failed.encode(1), "I am no engine"),
        (MessageKind::Alive.encode(1), ""),
    ];
    for (words, body) in lies {
        let mut liar = honest.liar();
        liar.say(words, body);
        assert!(liar.is_ended(), "{words:?}");
    }
    let mut liar = honest.liar();
    for id in 0..70_000 {
        liar.look();
        liar.say([ADDRESS, id], encode(to));
    }
    assert!(liar.is_ended(), "addresses without requests");
    for port in [0, PORT, KEPT, 32_767] {
        let mut liar = honest.liar();
        liar.call(to, (port, PORT, 1), "from a port that is none of a client");
        assert!(liar.is_ended(), "{port}");
    }
    honest.end();
}

#[test]
fn ids_of_others_are_of_no_use() {
    let honest = Honest::start();
    let service = honest.server.bind(PORT + 1).unwrap();
    let to = Address::new(honest.server.local_addr(), PORT + 1);
    let ports = [&honest.client, &honest.alone].map(|node| node.client().unwrap());
    let calls = ports.each_ref().map(|port| port.call(to, "held").start().unwrap());
    let held: Vec<Request> = (0..2).map(|_| service.recv().unwrap()).collect();
    let far = honest.alone.bind(PORT + 1).unwrap();
    let call =
        ports[0].call(Address::new(honest.alone.local_addr(), PORT + 1), "far").start().unwrap();
    let held_far = far.recv().unwrap();
    let mut liar = honest.liar();
    for id in (0..16).flat_map(|slot| (0..400).map(move |generation| generation << 32 | slot)) {
        for kind in [UnknownReason::Finished, UnknownReason::OverBudget] {
            assert!(liar.say(MessageKind::Refused(kind).encode(id), ""));
        }
        assert!(liar.say(MessageKind::Abort.encode(id), ""));
        assert!(liar.say(MessageKind::Response.encode(id), "forged"));
        liar.look();
    }
    assert_eq!(liar.answers().unwrap(), [], "nothing is sent to it");
    assert!(held.iter().all(|request| !request.is_cancelled()));
    held.into_iter().for_each(|request| request.reply("true").unwrap());
    held_far.reply("true").unwrap();
    calls.into_iter().chain([call]).for_each(|call| assert_eq!(call.wait().unwrap(), "true"));
    drop(liar);
    honest.end();
}

#[test]
fn an_id_stands_for_one_call() {
    let honest = Honest::start();
    let service = honest.server.bind(PORT + 1).unwrap();
    let mut liar = honest.liar();
    for _ in 0..100 {
        assert!(liar.call(honest.server.local_addr(), (FROM, PORT + 1, 7), "once"));
    }
    assert_eq!(liar.answers().unwrap(), []);
    service.recv().unwrap().reply("answer").unwrap();
    assert!(service.try_recv().is_err());
    assert_eq!(liar.next().unwrap(), (MessageKind::Response.encode(7), "answer".into()));
    assert_eq!(liar.answers().unwrap(), []);
    assert!(liar.say(MessageKind::Abort.encode(7), ""), "it has ended");
    drop((liar, service));
    honest.end();
}

#[test]
fn a_request_is_refused_and_answered_once() {
    let honest = Honest::start();
    let to = Address::new(honest.engine.shared.local_addr(), OWN);
    let mut liar = honest.liar();
    assert_eq!(liar.open(OWN), YES);
    for node in [&honest.alone, &honest.client] {
        let port = node.client().unwrap();
        let call = port.call(to, "request").start().unwrap();
        let [address, request] = [(); 2].map(|()| liar.next().unwrap());
        assert_eq!((address.0[0], &request.1[..]), (ADDRESS, &b"request"[..]));
        let id = request.0[1];
        for _ in 0..100 {
            assert!(liar.say(MessageKind::Refused(UnknownReason::OverBudget).encode(id), ""));
        }
        let again = [(); 2].map(|()| liar.next().unwrap())[1].clone();
        assert_eq!(again.1, "request");
        // Refusals that the engine reads after that count as well, and it reads many at a time.
        assert!(liar.answers().unwrap().len() < 20, "it does not come again for each");
        for _ in 0..100 {
            assert!(liar.say(MessageKind::Response.encode(again.0[1]), "answer"));
        }
        assert_eq!(call.wait().unwrap(), "answer");
    }
    drop(liar);
    honest.end();
}

#[test]
fn ports_of_others_stay_theirs() {
    let honest = Honest::start();
    let to = honest.server.local_addr();
    let mut liar = honest.liar();
    assert_eq!([PORT, KEPT, OWN, OWN].map(|port| liar.open(port)), [IN_USE, FORBIDDEN, YES, YES]);
    assert_eq!([0, 32_768, u16::MAX].map(|port| liar.open(port)), [IN_USE; 3]);
    for port in [PORT, KEPT, 0, FROM] {
        assert!(liar.say([CLOSE, port.into()], ""));
    }
    liar.answers().unwrap();
    // The process calls from ports that it does not serve, which would become its own ports.
    for port in [PORT, KEPT] {
        let mut liar = honest.liar();
        liar.call(honest.alone.local_addr(), (port, PORT, port.into()), "x");
        liar.answers();
        let error = honest.client.client().unwrap().call(Address::new(to, KEPT), "kept").wait();
        assert_eq!(error.unwrap_err(), apus::CallError::NoSuchPort);
    }
    drop(liar);
    honest.end();
}

#[test]
fn a_process_gets_so_many_ports() {
    let honest = Honest::start();
    let mut liar = honest.liar();
    let opened = (1..=2_000).filter(|&port| port != PORT && liar.open(port) == YES).count();
    assert_eq!(opened, 1_024);
    drop(liar);
    let mut liar = honest.liar();
    let alone = honest.alone.local_addr();
    for port in 32_768..37_000 {
        assert!(liar.call(alone, (port, PORT, port.into()), "x"));
        liar.look();
    }
    wait_until("the calls have ended", || {
        liar.answers();
        honest.engine.shared.processes().iter().all(|process| process.calls < 2)
    });
    let ports = honest.engine.shared.processes().iter().map(|process| process.ports.len()).max();
    assert_eq!(ports, Some(1_024));
    assert!(honest.client.client().is_ok());
    drop(liar);
    honest.end();
}

#[test]
fn a_process_that_never_reads_takes_little_memory() {
    let honest = Honest::start();
    for (to, length) in [(&honest.server, 100), (&honest.alone, 100), (&honest.server, 100_000)] {
        let mut liar = honest.liar();
        let mut most = 0;
        for id in 0..20_000 {
            if !liar.call(to.local_addr(), (FROM, PORT, id), vec![b'x'; length]) {
                break;
            }
            most = most.max(honest.held_most());
            if liar.pair.load() as u64 > 4 * BUDGET {
                break; // The engine does not read it any more.
            }
        }
        assert!(most <= 4 * BUDGET, "{most}");
    }
    honest.end();
}

#[test]
fn a_process_cannot_have_another_one_ended() {
    let honest = Honest::start();
    let service = honest.server.bind(PORT + 1).unwrap();
    let mut liar = honest.liar();
    for id in 0..2_000 {
        let body = vec![b'x'; BUDGET as usize / 2];
        assert!(liar.call(honest.server.local_addr(), (FROM, PORT + 1, id), body));
        assert!(liar.say(MessageKind::Abort.encode(id), ""));
        liar.look();
        while service.try_recv().is_ok() {}
        if liar.pair.load() as u64 > 64 * BUDGET {
            break;
        }
    }
    drop((liar, service));
    honest.end();
}

#[test]
fn a_message_of_which_a_part_comes_is_given_back() {
    let honest = Honest::start();
    let to = honest.server.local_addr();
    for stays in [false, true] {
        let mut liar = honest.liar();
        let request = MessageKind::Request { from: FROM, to: PORT, remaining: None };
        for id in 0..8 {
            let words = [request, MessageKind::Response][id % 2].encode(id as u64);
            assert!(liar.say([ADDRESS, id as u64], encode(to)));
            let body = vec![b'x'; 1_100_000 - 70_000 * id];
            liar.pair.send(words, &body.into()).unwrap();
            liar.pair.advance(65_536).unwrap();
            liar.pair.flush();
        }
        if stays {
            liar.answers();
        }
    }
    honest.end();
}

#[test]
fn processes_that_connect_and_say_nothing_keep_nobody_away() {
    let honest = Honest::start();
    let silent: Vec<_> = (0..1_000)
        .map(|number| {
            let mut socket = None;
            wait_until("the engine has room", || {
                socket = connect_to(&Place::File(honest.socket())).ok();
                socket.is_some()
            });
            if number % 100 == 0 {
                drop(Node::start(&attached(&honest.socket())).unwrap());
            }
            socket
        })
        .collect();
    drop(Node::start(&attached(&honest.socket())).unwrap());
    drop(silent);
    honest.end();
}

#[test]
fn processes_may_end_at_any_step() {
    let honest = Honest::start();
    let to = Address::new(honest.engine.shared.local_addr(), OWN);
    for step in (0..12).cycle().take(240) {
        let socket = connect_to(&Place::File(honest.socket()));
        if step == 0 {
            continue;
        }
        drop(socket);
        let offered = offer(&honest.socket());
        if step == 1 {
            continue;
        }
        drop(offered);
        let mut liar = honest.liar();
        let requests = [honest.server.local_addr(), honest.alone.local_addr()];
        if step > 2 {
            liar.say([ADDRESS, 2], encode(requests[step % 2]));
        }
        if step > 4 {
            liar.call(requests[step % 2], (FROM, PORT, 1), vec![b'x'; 100_000]);
        }
        if step > 6 {
            wait_until("the port of the last one is free", || liar.open(OWN) == YES);
        }
        let port = [&honest.alone, &honest.client][step % 2].client().unwrap();
        let call = port.call(to, "x").start().unwrap();
        if step > 8 {
            let of = |words| MessageKind::decode(words).map(|(kind, _)| kind);
            while !matches!(of(liar.next().unwrap().0), Some(MessageKind::Request { .. })) {}
        }
        drop(liar);
        assert!(call.wait().is_err());
    }
    honest.end();
}

/// Each process stays within its own budget.
#[test]
fn processes_that_never_read_take_little_memory_together() {
    const TOTAL: u64 = 4 << 20;
    let directory = Directory::new();
    let mut access = EngineAccess::new(&directory.socket());
    access.process_budget(2 * BUDGET).total_budget(TOTAL);
    let engine = Engine::with(&access, &local());
    let server = Node::start(&attached(&directory.socket())).unwrap();
    let service = server.bind(PORT).unwrap();
    let serving = serve_echo(&service);
    let (mut liars, mut most) = (Vec::new(), 0);
    for _ in 0..8 {
        let mut liar = Liar::attach(&directory.socket());
        for id in 0..200 {
            if !liar.call(server.local_addr(), (FROM, PORT, id), vec![b'x'; 200_000]) {
                break;
            }
            most = most.max(engine.shared.unread_bytes().0);
        }
        liars.push(liar);
    }
    assert!(most <= TOTAL + 4 * BUDGET, "{most}");
    // A process that reads has room.
    let client = Node::start(&attached(&directory.socket())).unwrap().client().unwrap();
    let to = Address::new(server.local_addr(), PORT);
    let body = pattern(1, 200_000);
    assert_eq!(client.call(to, body.clone()).wait().unwrap(), body);
    drop(liars);
    service.shutdown();
    serving.join().unwrap();
}
