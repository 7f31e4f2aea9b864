//! A process that uses a shared engine and sends any messages, while two honest processes call each other.
#![no_main]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use apus::{Address, Client, Config, EngineAccess, EngineAt, Node, Request, SharedEngine};
use apus_proto::{MessageKind, Words};
use apus_shm::{MessageReceiver, Pair, PendingPair, Place, Trust, connect_to};
use bytes::Bytes;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

/// A port that an honest process serves.
const PORT: u16 = 4000;
/// A port that no process serves.
const FREE: u16 = 77;

const WITHIN: Duration = Duration::from_secs(10);

/// Ids that may be in use: small, and of a few generations.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Id {
    Likely {
        index: u8,
        generation: u8,
    },
    Any(u64),
    /// The id of the last request.
    Served,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Port {
    Served,
    Free,
    Any(u16),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Action {
    /// Any words with a body of any length.
    Say {
        word: u64,
        id: Id,
        length: u32,
    },
    /// The address of the honest processes, or any other, with or without a request.
    Address {
        id: Id,
        any: Option<[u8; 22]>,
    },
    Call {
        id: Id,
        from: u16,
        to: Port,
        length: u32,
    },
    Answer {
        id: Id,
        length: u32,
    },
    Refuse {
        id: Id,
        reason: u8,
    },
    Abort {
        id: Id,
    },
    Open {
        port: Port,
    },
    Close {
        port: Port,
    },
    /// A part of a long message.
    Part {
        word: u64,
        id: Id,
        length: u32,
    },
    Look,
    /// An honest process calls the port that this process may have opened.
    BeCalled {
        length: u16,
    },
}

/// State common to all runs.
struct Honest {
    path: PathBuf,
    engine: Arc<SharedEngine>,
    address: SocketAddr,
    client: Client,
    _nodes: [Node; 2],
    _service: apus::Port,
}

fn honest() -> &'static Honest {
    static HONEST: OnceLock<Honest> = OnceLock::new();
    HONEST.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("apus-fuzz-{}.sock", std::process::id()));
        let mut config = Config::new();
        config.listen(([127, 0, 0, 1], 0).into());
        let mut access = EngineAccess::new(&path);
        let engine = SharedEngine::start(&config, access.process_budget(1 << 20));
        let engine = Arc::new(engine.expect("no other process has the path"));
        let runner = Arc::clone(&engine);
        thread::spawn(move || runner.run());
        let mut config = Config::new();
        config.engine(EngineAt::Socket(path.clone()));
        let nodes = [(); 2].map(|()| Node::start(&config).expect("the engine is there"));
        let service = nodes[0].bind(PORT).expect("the port is free");
        let serving = service.clone();
        thread::spawn(move || {
            serving.serve(|mut request: Request| {
                let body = request.take_body();
                let _ = request.reply(body);
            });
        });
        let client = nodes[1].client().expect("a port is free");
        let address = engine.local_addr();
        Honest { path, engine, address, client, _nodes: nodes, _service: service }
    })
}

/// Remembers the last request.
#[derive(Default)]
struct Inbox(u64);

impl MessageReceiver for Inbox {
    fn admits(&mut self, _: Words, _: usize) -> bool {
        true
    }

    fn message(&mut self, words: Words, _: Bytes) {
        if let Some((MessageKind::Request { .. }, id)) = MessageKind::decode(words) {
            self.0 = id;
        }
    }
}

struct Liar {
    pair: Pair,
    inbox: Inbox,
}

impl Liar {
    fn attach(honest: &Honest) -> Self {
        let since = Instant::now();
        let socket = loop {
            match connect_to(&Place::File(honest.path.clone())) {
                Ok(socket) => break socket,
                Err(error) => assert!(since.elapsed() < WITHIN, "{error}"),
            }
        };
        let mut pending = PendingPair::send(socket, Trust::Copy, || true).expect("there is memory");
        loop {
            assert!(since.elapsed() < WITHIN, "the engine lets it in");
            match pending.complete().expect("the engine is honest") {
                Ok(pair) => return Self { pair, inbox: Inbox::default() },
                Err(waiting) => pending = waiting,
            }
            thread::yield_now();
        }
    }

    fn id(&self, id: Id) -> u64 {
        match id {
            Id::Likely { index, generation } => u64::from(generation) << 32 | u64::from(index),
            Id::Any(id) => id,
            Id::Served => self.inbox.0,
        }
    }

    /// Sends a message. Returns `false` if the engine has ended the pair.
    fn say(&mut self, words: Words, body: Bytes, copied: usize) -> bool {
        let said = self.pair.send(words, &body).and_then(|()| self.pair.advance(copied));
        self.pair.flush();
        said.is_ok()
    }

    fn look(&mut self) -> bool {
        let taken = self.pair.receive(&mut self.inbox, 100);
        let handled = taken.and_then(|_| self.pair.handle_channel());
        handled.and_then(|_| self.pair.advance(usize::MAX)).is_ok()
    }

    fn act(&mut self, honest: &Honest, action: Action) -> bool {
        let body = |length: u32| Bytes::from(vec![b'x'; length as usize % 3_000_000]);
        let port = |port| match port {
            Port::Served => PORT,
            Port::Free => FREE,
            Port::Any(port) => port,
        };
        let address = encode(honest.address);
        let all = usize::MAX;
        match action {
            Action::Say { word, id, length } => self.say([word, self.id(id)], body(length), all),
            Action::Address { id, any } => {
                let address = any.map_or(address, |any| any.to_vec().into());
                self.say([8, self.id(id)], address, all)
            }
            Action::Call { id, from, to, length } => {
                let id = self.id(id);
                let request = MessageKind::Request { from, to: port(to), remaining: None };
                self.say([8, id], address, all) && self.say(request.encode(id), body(length), all)
            }
            Action::Answer { id, length } => {
                self.say(MessageKind::Response.encode(self.id(id)), body(length), all)
            }
            Action::Refuse { id, reason } => {
                self.say([3 | u64::from(reason & 0xf) << 4, self.id(id)], Bytes::new(), all)
            }
            Action::Abort { id } => {
                self.say(MessageKind::Abort.encode(self.id(id)), Bytes::new(), all)
            }
            Action::Open { port: to } => self.say([10, port(to).into()], Bytes::new(), all),
            Action::Close { port: to } => self.say([12, port(to).into()], Bytes::new(), all),
            Action::Part { word, id, length } => {
                self.say([word, self.id(id)], body(length.saturating_add(1 << 20)), 1)
            }
            Action::Look => self.look(),
            Action::BeCalled { length } => {
                let to = Address::new(honest.address, FREE);
                let _ = honest.client.call(to, vec![b'x'; 1 + usize::from(length)]).start(); // The call is dropped at once.
                true
            }
        }
    }
}

/// An IPv4 address in the engine's encoding.
fn encode(address: SocketAddr) -> Bytes {
    let SocketAddr::V4(address) = address else { unreachable!("it listens at an IPv4 address") };
    let ip = address.ip().to_ipv6_mapped().octets();
    [&address.port().to_le_bytes()[..], &[0; 4], &ip].concat().into()
}

fuzz_target!(|actions: Vec<Action>| {
    let honest = honest();
    let mut liar = Liar::attach(honest);
    let goes_on = actions.into_iter().all(|action| liar.act(honest, action));
    if goes_on {
        liar.look();
    }
    drop(liar);
    let to = Address::new(honest.address, PORT);
    assert_eq!(honest.client.call(to, "x").wait().expect("honest processes are not affected"), "x");
    let since = Instant::now();
    loop {
        let processes = honest.engine.processes();
        let idle = processes.iter().all(|it| (it.calls, it.held_bytes) == (0, 0));
        if processes.len() == 2 && idle {
            return;
        }
        assert!(since.elapsed() < WITHIN, "state is left: {processes:?}");
        thread::yield_now();
    }
});
