//! Captures of two hosts with the Linux module are played against the production core, which takes the place of either host.
//!
//! Two small captures are part of the project. If `APUS_LINUX_HOMA_PCAP` names a folder, all its captures are played (pcap files
//! with Ethernet frames; a message is a 32-bit little-endian request length, the reply's length, then byte i = 31 i + 7, and the
//! reply equals the request).

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;
use std::{env, fs};

use apus_proto::{CallOptions, Config, Endpoint, Event, Remote, RpcKey, SocketKey, Time};
use apus_wire::{PacketSink, PathId, Transmit};

use crate::module::inspect::inspect;
use crate::module::message::{Incoming, Taken};
use crate::skipped::skipped;

/// One packet of a capture.
struct Captured {
    at: Duration,
    from: Ipv4Addr,
    bytes: Vec<u8>,
}

fn be(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

impl Captured {
    fn id(&self) -> u64 {
        be(&self.bytes[20..28])
    }

    fn is_data(&self) -> bool {
        self.bytes[11] == 0x10
    }
}

/// Parses a capture of this project, which is text.
fn from_hex(text: &str) -> Vec<Captured> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let packet = |line: &str| {
        let [at, from, _tos, hex] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("four words: {line}")
        };
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
        Captured {
            at: Duration::from_micros(at.parse().expect("a number")),
            from: from.parse().expect("an address"),
            bytes: (0..hex.len()).step_by(2).map(byte).collect(),
        }
    };
    lines.map(packet).collect()
}

/// Parses a pcap file of Ethernet frames. Skips frames other than IPv4 with protocol 146.
fn from_pcap(file: &[u8]) -> Vec<Captured> {
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("four bytes"));
    assert_eq!((word(0), word(20)), (0xA1B2_C3D4, 1), "pcap in microseconds, Ethernet");
    let (mut at, mut packets) = (24, Vec::new());
    while at < file.len() {
        let (seconds, micros, length) = (word(at), word(at + 4), word(at + 8) as usize);
        let frame = &file[at + 16..][..length];
        at += 16 + length;
        let ip = &frame[14..];
        if frame[12..14] != [8, 0] || ip[9] != apus_wire::IP_PROTOCOL {
            continue;
        }
        packets.push(Captured {
            at: Duration::from_secs(seconds.into()) + Duration::from_micros(micros.into()),
            from: Ipv4Addr::from(<[u8; 4]>::try_from(&ip[12..16]).expect("four bytes")),
            bytes: ip[usize::from(ip[0] & 15) * 4..be(&ip[2..4]) as usize].to_vec(),
        });
    }
    packets
}

/// The role of our host in a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Client,
    Server,
}

/// The path to the captured host whose packets our endpoint receives.
const PEER: PathId = PathId::new(0, 0).native();
const PACKET_MAX: usize = 1_480;

/// Checks our packets as strictly as possible, and reassembles them as the module does.
#[derive(Default)]
struct Observer {
    messages: BTreeMap<u64, Incoming>,
    acked: Vec<u64>,
    /// Version of the last CUTOFFS.
    version: Option<[u8; 2]>,
    kinds: BTreeMap<u8, usize>,
}

impl PacketSink for Observer {
    fn send(&mut self, packet: Transmit<'_>) {
        let bytes = [packet.header, packet.payload()].concat();
        if let Err(complaint) = inspect(&bytes) {
            panic!("{complaint}: {bytes:02x?}");
        }
        assert!(bytes.len() <= PACKET_MAX);
        *self.kinds.entry(bytes[11]).or_default() += 1;
        match bytes[11] {
            0x10 => {
                assert_eq!(bytes[4..8], bytes[52..56], "both offsets are the true one");
                let (id, offset) = (be(&bytes[20..28]), be(&bytes[4..8]) as u32);
                let (length, granted) = (be(&bytes[28..32]) as u32, be(&bytes[32..36]) as u32);
                let message =
                    self.messages.entry(id).or_insert_with(|| Incoming::new(length, granted, 0));
                let taken = message.take(offset, &bytes[56..]);
                assert!(matches!(taken, Taken::New | Taken::Duplicate), "{taken:?} at {offset}");
                self.acked.extend((bytes[36..44] != [0; 8]).then(|| be(&bytes[36..44])));
            }
            0x15 => self.version = bytes[60..62].try_into().ok(),
            0x18 => {
                self.acked.push(be(&bytes[20..28]));
                let count = be(&bytes[28..30]) as usize;
                self.acked.extend((0..count).map(|place| be(&bytes[30 + 10 * place..][..8])));
            }
            _ => {}
        }
    }

    fn max_packet(&self, _: PathId) -> usize {
        PACKET_MAX
    }
}

/// Our host, in the place of one of the captured hosts.
struct Player<'a> {
    capture: &'a [Captured],
    endpoint: Endpoint,
    socket: SocketKey,
    observer: Observer,
    now: Time,
    /// The captured host whose packets our host receives.
    peer: Ipv4Addr,
    /// Our id of each call, by the captured id.
    ids: BTreeMap<u64, u64>,
    /// Captured requests, by captured id.
    requests: BTreeMap<u64, Vec<u8>>,
    calls: BTreeMap<RpcKey, u64>,
    over: usize,
}

impl<'a> Player<'a> {
    fn new(capture: &'a [Captured], role: Role) -> Self {
        let first = &capture[0];
        let (client, server) = (first.from, capture.iter().find(|it| it.from != first.from));
        let server = server.expect("two hosts").from;
        let port = be(&first.bytes[2..4]) as u16;
        let mut endpoint = Endpoint::new(Config::default(), 1);
        let socket = match role {
            Role::Client => endpoint.open(None),
            Role::Server => endpoint.open(Some(port)),
        };
        let peer = if role == Role::Client { server } else { client };
        Self {
            requests: requests(capture),
            capture,
            endpoint,
            socket: socket.expect("a free port"),
            observer: Observer::default(),
            now: Time::ZERO,
            peer,
            ids: BTreeMap::new(),
            calls: BTreeMap::new(),
            over: 0,
        }
    }

    fn play(mut self, role: Role) -> Observer {
        let start = self.capture[0].at;
        for packet in self.capture {
            self.wait_until(Time::from_nanos((packet.at - start).as_nanos() as u64));
            let theirs = packet.from == self.peer;
            if theirs {
                let bytes = self.translated(packet, role);
                self.endpoint.handle_packet(self.now, PEER, &bytes);
            } else if role == Role::Client && packet.is_data() {
                self.call(packet);
            }
            self.turn();
        }
        // Calls that the capture does not finish end by themselves.
        self.wait_until(self.now + Duration::from_millis(20));
        assert_eq!(self.over, self.requests.len(), "every call is over");
        if role == Role::Server {
            for (id, request) in &self.requests {
                let response = self.observer.messages.remove(&(id | 1)).expect("a response");
                assert!(response.into_bytes() == *request, "the response to call {id}");
            }
            assert_eq!(self.endpoint.active_rpcs(), 0, "every response was acknowledged");
        } else {
            for (id, request) in &self.requests {
                let sent = self.observer.messages.remove(&self.ids[id]).expect("a request");
                assert!(sent.into_bytes() == *request, "request {id}");
                assert!(self.observer.acked.contains(&self.ids[id]), "call {id} is acknowledged");
            }
        }
        self.observer
    }

    /// Makes our call when the captured client makes its own.
    fn call(&mut self, packet: &Captured) {
        if self.ids.contains_key(&packet.id()) {
            return;
        }
        let to = Remote::new(PEER, be(&packet.bytes[2..4]) as u16);
        let body = self.requests[&packet.id()].clone();
        let key = self
            .endpoint
            .call(self.now, self.socket, to, body, CallOptions::default())
            .expect("the call is within limits");
        self.calls.insert(key, packet.id());
        let known: Vec<u64> = self.observer.messages.keys().copied().collect();
        self.turn();
        let ours = self.observer.messages.keys().find(|id| !known.contains(id));
        self.ids.insert(packet.id(), *ours.expect("the request goes out at once"));
    }

    /// A captured packet as the module would send it to us: with the id and port of our call, and the version of our cutoffs.
    fn translated(&self, packet: &Captured, role: Role) -> Vec<u8> {
        let mut bytes = packet.bytes.clone();
        if role == Role::Client {
            let ours = self.ids[&(packet.id() & !1)];
            bytes[20..28].copy_from_slice(&(ours | 1).to_be_bytes());
            let port = self.endpoint.port(self.socket).expect("the socket is open");
            bytes[2..4].copy_from_slice(&port.to_be_bytes());
        }
        if let Some(version) = self.observer.version.filter(|_| packet.is_data()) {
            bytes[46..48].copy_from_slice(&version);
        }
        bytes
    }

    fn wait_until(&mut self, until: Time) {
        while let Some(due) = self.endpoint.poll_timeout().filter(|&due| due < until) {
            let at_least = self.now + Duration::from_micros(10);
            self.now = due.max(at_least).min(until);
            self.endpoint.handle_timeout(self.now);
            self.turn();
        }
        self.now = self.now.max(until);
    }

    fn turn(&mut self) {
        while self.endpoint.poll_transmit(self.now, &mut self.observer) {}
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Request { rpc, body, .. } => {
                    assert!(self.requests.values().any(|request| *request == body), "a request");
                    self.endpoint.reply(self.now, rpc, body).expect("the request is in service");
                    self.over += 1;
                }
                Event::Response { rpc, body, .. } => {
                    assert!(self.requests[&self.calls[&rpc]] == body, "the response");
                    self.over += 1;
                }
                Event::Connected { .. } | Event::Cancelled { .. } => {
                    unreachable!("a capture has no connections and watches nothing")
                }
                Event::Failed { error, .. } => panic!("a call failed: {error}"),
            }
        }
        while self.endpoint.poll_transmit(self.now, &mut self.observer) {}
    }
}

/// The requests in a capture.
fn requests(capture: &[Captured]) -> BTreeMap<u64, Vec<u8>> {
    let mut requests: BTreeMap<u64, Incoming> = BTreeMap::new();
    for packet in capture.iter().filter(|packet| packet.is_data() && packet.id() & 1 == 0) {
        let (length, at) = (be(&packet.bytes[28..32]) as u32, be(&packet.bytes[4..8]) as u32);
        let message =
            requests.entry(packet.id()).or_insert_with(|| Incoming::new(length, length, 0));
        message.take(at, &packet.bytes[56..]);
    }
    let whole = |message: Incoming| {
        assert!(message.is_complete(), "the capture has all of a request");
        let bytes = message.into_bytes();
        let pattern = |(at, &byte): (usize, &u8)| byte == (31 * at + 7) as u8;
        assert!(bytes.iter().enumerate().skip(8).all(pattern), "a body as the captures have it");
        bytes
    };
    requests.into_iter().map(|(id, message)| (id, whole(message))).collect()
}

/// Plays a capture in both roles. Returns the observers of our packets.
fn both_roles(capture: &[Captured]) -> [Observer; 2] {
    [Role::Client, Role::Server].map(|role| Player::new(capture, role).play(role))
}

#[test]
fn two_hosts_that_meet() {
    let capture = from_hex(include_str!("captures/first-contact-100B.hex"));
    let [client, server] = both_roles(&capture);
    assert!(client.kinds.contains_key(&0x15), "our client sends the server its cutoffs");
    assert_eq!(server.kinds[&0x10], 1);
}

#[test]
fn five_calls_with_acknowledgements_on_their_backs() {
    let capture = from_hex(include_str!("captures/100B-x5-same-socket.hex"));
    let [client, server] = both_roles(&capture);
    assert_eq!((client.kinds[&0x10], server.kinds[&0x10]), (5, 5));
}

#[test]
fn all_captures_of_a_folder() {
    let Ok(folder) = env::var("APUS_LINUX_HOMA_PCAP") else {
        return skipped("APUS_LINUX_HOMA_PCAP names no folder with captures of the module");
    };
    let mut played = 0;
    for entry in fs::read_dir(Path::new(&folder)).expect("a folder") {
        let path = entry.expect("a readable folder").path();
        if path.extension().is_some_and(|extension| extension == "pcap") {
            let [client, server] = both_roles(&from_pcap(&fs::read(&path).expect("a file")));
            println!("{}: client {:x?}, server {:x?}", path.display(), client.kinds, server.kinds);
            played += 1;
        }
    }
    assert!(played > 0, "no capture in {folder}");
}
