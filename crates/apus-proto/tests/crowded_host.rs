//! Clients of one host that fill the table of peers do not exclude clients of other hosts.

use std::collections::VecDeque;
use std::time::Duration;

use apus_proto::{CallOptions, Config, Endpoint, Event, Remote, SocketKey, Time};
use apus_wire::{PacketSink, PathId, Transmit};
use bytes::Bytes;

const PORT: u16 = 4000;
/// The type of DATA packets.
const DATA: u8 = 0x10;

/// The host of the crowd.
const CROWDED: u32 = 7;

const SERVER: PathId = PathId::new(1, 1).on_host(1);

#[derive(Default)]
struct Wire(VecDeque<(PathId, Vec<u8>)>);

impl PacketSink for Wire {
    fn send(&mut self, packet: Transmit<'_>) {
        let bytes = [packet.header, packet.payload()].concat();
        self.0.push_back((packet.path, bytes));
    }

    fn max_packet(&self, _: PathId) -> usize {
        1_472
    }
}

struct Server {
    now: Time,
    endpoint: Endpoint,
}

impl Server {
    /// Takes a packet, answers requests, and returns the transmitted packets.
    fn take(&mut self, from: PathId, packet: &[u8]) -> VecDeque<(PathId, Vec<u8>)> {
        self.endpoint.handle_packet(self.now, from, packet);
        while let Some(event) = self.endpoint.poll_event() {
            let Event::Request { rpc, body, .. } = event else { continue };
            self.endpoint.reply(self.now, rpc, body).unwrap();
        }
        let mut wire = Wire::default();
        while self.endpoint.poll_transmit(self.now, &mut wire) {}
        wire.0
    }
}

struct Client {
    at: PathId,
    endpoint: Endpoint,
    socket: SocketKey,
    /// Whether the client only makes first contact, and sends no request.
    only_meets: bool,
    /// Packets that it has sent.
    sent: Vec<Vec<u8>>,
}

impl Client {
    fn new(index: u32, host: u32) -> Self {
        let mut endpoint = Endpoint::new(Config::default(), u128::from(index));
        let socket = endpoint.open(None).unwrap();
        let at = PathId::new(index, index.into()).on_host(host);
        Self { at, endpoint, socket, only_meets: host == CROWDED, sent: Vec::new() }
    }

    /// Sends a request to the server, which keeps it.
    fn request(&mut self, server: &mut Server, length: usize) {
        let to = Remote::new(SERVER, PORT);
        let body = Bytes::from(vec![1; length]);
        let now = server.now;
        self.endpoint.call(now, self.socket, to, body, CallOptions::default()).unwrap();
        let mut wire = Wire::default();
        loop {
            while self.endpoint.poll_transmit(now, &mut wire) {}
            let Some((_, packet)) = wire.0.pop_front() else { return };
            server.endpoint.handle_packet(now, self.at, &packet);
            let mut answers = Wire::default();
            while server.endpoint.poll_transmit(now, &mut answers) {}
            for (_, answer) in answers.0 {
                self.endpoint.handle_packet(now, SERVER, &answer);
            }
        }
    }

    /// Calls the server. Returns whether it is answered, with no packet lost.
    fn call(&mut self, server: &mut Server) -> bool {
        let to = Remote::new(SERVER, PORT);
        let body = Bytes::from_static(b"x");
        let now = server.now;
        self.endpoint.call(now, self.socket, to, body, CallOptions::default()).unwrap();
        for _ in 0..20 {
            let mut wire = Wire::default();
            while self.endpoint.poll_transmit(now, &mut wire) {}
            for (_, packet) in wire.0 {
                if self.only_meets && packet[11] == DATA {
                    continue;
                }
                for (to, answer) in server.take(self.at, &packet) {
                    assert_eq!(to, self.at);
                    self.endpoint.handle_packet(now, SERVER, &answer);
                }
                self.sent.push(packet);
            }
            while let Some(event) = self.endpoint.poll_event() {
                if matches!(event, Event::Response { .. }) {
                    return true;
                }
            }
        }
        false
    }
}

//= docs/protocol.md#hostile-4
#[test]
fn a_host_that_makes_many_peers_known_keeps_no_other_one_away() {
    let mut config = Config::default();
    config.peers_max(80);
    let mut endpoint = Endpoint::new(config, 1);
    endpoint.open(Some(PORT)).unwrap();
    let now = Time::ZERO + Duration::from_secs(100);
    let mut server = Server { now, endpoint };
    let mut crowd: Vec<_> = (0..100).map(|index| Client::new(100 + index, CROWDED)).collect();
    crowd.iter_mut().for_each(|client| assert!(!client.call(&mut server)));
    assert_eq!(server.endpoint.known_peers(), 70, "seven in eight");
    // All known peers are young.
    for index in 0..20 {
        let mut other = Client::new(1_000 + index, 100 + index);
        assert!(other.call(&mut server), "the {index}th host");
        assert!(other.call(&mut server), "and once more");
    }
    assert_eq!(server.endpoint.known_peers(), 70);
    // Evicted peers do not become known again by their earlier packets: these might have been requests as well.
    let met = server.endpoint.counters().peers_met;
    for client in &crowd {
        for packet in &client.sent {
            server.take(client.at, packet);
        }
    }
    assert_eq!(server.endpoint.counters().peers_met, met);
    assert_eq!(server.endpoint.known_peers(), 70);
}

/// The requests of all tokens of a host count for its budget, so that another host's calls have room.
//= docs/protocol.md#hostile-12
#[test]
fn the_tokens_of_a_host_have_one_budget_together() {
    const MANY: u32 = 8;
    let mut config = Config::default();
    config.peer_budget(1 << 20).total_budget(4 << 20).socket_budget(4 << 20);
    let mut endpoint = Endpoint::new(config, 1);
    endpoint.open(Some(PORT)).unwrap();
    let now = Time::ZERO + Duration::from_secs(100);
    let mut server = Server { now, endpoint };
    // No application answers the requests of the crowd. Each client sends as much as it may at once.
    for index in 0..100 {
        let mut client = Client::new(100 + index, MANY);
        (0..20).for_each(|_| client.request(&mut server, 1_000));
    }
    let held = server.endpoint.held_bytes();
    assert!(((1 << 19)..(1 << 20) + (1 << 16)).contains(&held), "{held}");
    let refused = server.endpoint.counters().refused_over_budget;
    assert!(refused > 0);
    // Another host has as many clients.
    for index in 0..40 {
        let mut client = Client::new(1_000 + index, 100);
        (0..10).for_each(|_| client.request(&mut server, 1_000));
    }
    assert_eq!(server.endpoint.counters().refused_over_budget, refused);
    // Requests that are given up make room for later ones of that host.
    while let Some(event) = server.endpoint.poll_event() {
        let Event::Request { rpc, .. } = event else { continue };
        server.endpoint.abort(rpc);
    }
    assert!(server.endpoint.held_bytes() < 1 << 16, "{}", server.endpoint.held_bytes());
    for index in 0..40 {
        let mut client = Client::new(2_000 + index, MANY);
        (0..10).for_each(|_| client.request(&mut server, 1_000));
    }
    assert_eq!(server.endpoint.counters().refused_over_budget, refused);
}
