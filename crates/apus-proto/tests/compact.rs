//! Short messages in compact bundles.

use std::time::Duration;

use apus_proto::{
    CallFailed, CallOptions, Config, Cookie, Endpoint, Event, Remote, Rights, RpcKey, SocketKey,
    SpentBodies, Time,
};
use apus_wire::compact::{self, AckRange, Entries, Entry, Envelope};
use apus_wire::{
    Extension, Header, Packet, PacketSink, PathId, Priority, RpcId, ShortTransmit, Stamp, Token,
    Transmit, bundle, send_acks_as_packets,
};
use bytes::Bytes;

const PORT: u16 = 4000;
const CLIENT: PathId = PathId::new(0, 10);
const SERVER: PathId = PathId::new(2, 11);

/// Datagrams under way.
#[derive(Default)]
struct Wire {
    datagrams: Vec<Vec<u8>>,
    /// Whether short messages go as packets, as by a link without compact bundles.
    plain: bool,
}

impl Wire {
    fn push(&mut self, envelope: &Envelope, entry: &Entry<'_>) {
        if let Some(last) = self.datagrams.last_mut()
            && bundle::is_bundle(last)
            && compact::push(last, 1_472, envelope, entry)
        {
            return;
        }
        let mut next = Vec::new();
        compact::start(&mut next, envelope, entry.id());
        assert!(compact::push(&mut next, 1_472, envelope, entry));
        self.datagrams.push(next);
    }
}

impl PacketSink for Wire {
    fn send(&mut self, packet: Transmit<'_>) {
        self.datagrams.push([packet.header, packet.payload()].concat());
    }

    fn send_short(&mut self, message: &ShortTransmit<'_>) {
        if self.plain {
            return message.send_as_packets(self);
        }
        if let Some(acks) = message.acks {
            self.push(&message.envelope, &Entry::Acks(acks));
        }
        let mut words = [0; Extension::LEN_MAX];
        self.push(&message.envelope, &Entry::Message(message.message(&mut words)));
    }

    fn send_acks(
        &mut self,
        path: PathId,
        priority: Priority,
        envelope: &Envelope,
        header: &Header,
        acks: AckRange,
    ) {
        if self.plain {
            return send_acks_as_packets(self, path, priority, envelope, header, acks);
        }
        self.push(envelope, &Entry::Acks(acks));
    }

    fn max_packet(&self, _: PathId) -> usize {
        1_472
    }
}

/// A client and a server that have met.
struct Pair {
    now: Time,
    client: Endpoint,
    server: Endpoint,
    socket: SocketKey,
    wire: Wire,
    responses: Vec<(Cookie, Bytes)>,
    requests: Vec<(RpcKey, Bytes)>,
    service: SocketKey,
}

impl Pair {
    fn new(plain: bool) -> Self {
        Self::with(plain, &Config::default())
    }

    /// `config`: of the server.
    fn with(plain: bool, config: &Config) -> Self {
        let now = Time::from_nanos(1_000_000_000);
        let (mut client, mut server) =
            (Endpoint::new(Config::default(), 1), Endpoint::new(config.clone(), 2));
        let socket = client.open(None).unwrap();
        let service = server.open(Some(PORT)).unwrap();
        let (responses, requests) = (Vec::new(), Vec::new());
        let wire = Wire { plain, ..Wire::default() };
        let mut pair = Self { now, client, server, socket, wire, responses, requests, service };
        pair.call(Bytes::from_static(b"first"), 0);
        pair.exchange();
        pair.answer();
        pair.exchange();
        assert_eq!(pair.responses.len(), 1);
        pair
    }

    fn call(&mut self, body: Bytes, cookie: u64) {
        let options = CallOptions { cookie: Cookie::Queue(cookie), ..CallOptions::default() };
        let to = Remote::new(SERVER, PORT);
        self.client.call(self.now, self.socket, to, body, options).unwrap();
    }

    /// Starts calls together.
    fn calls(&mut self, bodies: &[Bytes]) {
        let mut messages = self.client.short_messages(self.now, self.socket, SERVER);
        for (cookie, body) in (1..).zip(bodies) {
            let options = CallOptions { cookie: Cookie::Queue(cookie), ..CallOptions::default() };
            messages.call(PORT, body.clone(), options).unwrap();
        }
    }

    /// Answers all requests together, with their bodies.
    fn answer(&mut self) {
        let mut messages = self.server.short_messages(self.now, self.service, CLIENT);
        for (rpc, body) in self.requests.drain(..) {
            messages.reply(rpc, body).unwrap();
        }
    }

    fn transmit(&mut self, from_client: bool) -> Vec<Vec<u8>> {
        self.now = self.now + Duration::from_micros(10);
        let from = if from_client { &mut self.client } else { &mut self.server };
        while from.poll_transmit(self.now, &mut self.wire) {}
        std::mem::take(&mut self.wire.datagrams)
    }

    fn deliver(&mut self, to_client: bool, datagram: &[u8]) {
        let (to, from) =
            if to_client { (&mut self.client, SERVER) } else { (&mut self.server, CLIENT) };
        if bundle::is_bundle(datagram) {
            let mut entries = Entries::parse(datagram).unwrap();
            to.handle_entries_as_events(self.now, from, &mut entries);
        } else {
            to.handle_packet(self.now, from, datagram);
        }
        let mut spent = SpentBodies::default();
        to.take_spent(&mut spent);
        while let Some(event) = to.poll_event() {
            match event {
                Event::Request { rpc, body, .. } => self.requests.push((rpc, body)),
                Event::Response { cookie, body, .. } => self.responses.push((cookie, body)),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Lets datagrams travel until none is under way. Returns their number.
    fn exchange(&mut self) -> usize {
        let mut count = 0;
        loop {
            let before = count;
            for from_client in [true, false] {
                for datagram in self.transmit(from_client) {
                    self.deliver(!from_client, &datagram);
                    count += 1;
                }
            }
            if count == before {
                return count;
            }
        }
    }

    /// Makes the calls, and ends them.
    fn run(&mut self, bodies: &[Bytes]) -> usize {
        self.responses.clear();
        self.calls(bodies);
        let there = self.exchange();
        self.answer();
        let back = self.exchange();
        for (cookie, body) in (1..).zip(bodies) {
            let response = self.responses.iter().find(|(it, _)| *it == Cookie::Queue(cookie));
            assert_eq!(response.map(|(_, body)| body), Some(body));
        }
        assert_eq!(self.responses.len(), bodies.len());
        there + back
    }
}

fn bodies(lengths: impl IntoIterator<Item = usize>) -> Vec<Bytes> {
    lengths.into_iter().map(|length| Bytes::from(vec![length as u8; length])).collect()
}

//= docs/wire.md#W53
//= docs/wire.md#W57
#[test]
fn short_messages_of_nodes_that_have_met_share_datagrams() {
    let mut pair = Pair::new(false);
    let datagrams = pair.run(&bodies([100; 100]));
    // 100 requests and 100 responses of 112 bytes, and one range of acknowledgements.
    assert_eq!(datagrams, 9 + 9 + 1);
    assert_eq!((pair.server.active_rpcs(), pair.client.active_rpcs()), (0, 0));
    let plain = Pair::new(true).run(&bodies([100; 100]));
    assert!(plain > 200);
}

//= docs/wire.md#W57
#[test]
fn short_messages_by_a_sealed_path_share_datagrams_after_the_handshake() {
    let now = Time::from_nanos(1_000_000_000);
    let [mut client, mut server] = [1, 2].map(|seed| Endpoint::new(Config::default(), seed));
    let socket = client.open(None).unwrap();
    server.open(Some(PORT)).unwrap();
    let (to, from) = (SERVER.sealed(), CLIENT.sealed());
    let greeting = client.greeting(now, to, false);
    let answer = server.answer_greeting(now, from, greeting);
    assert!(client.answered(now, to, greeting, answer));
    assert!(server.introduced(now, from, answer, greeting.token));
    let mut messages = client.short_messages(now, socket, to);
    for body in bodies([100; 100]) {
        messages.call(PORT, body, CallOptions::default()).unwrap();
    }
    drop(messages);
    let mut wire = Wire::default();
    while client.poll_transmit(now, &mut wire) {}
    assert_eq!(wire.datagrams.len(), 9);
}

//= docs/protocol.md#seal-6
#[test]
fn requests_of_a_bundle_without_right_are_refused_one_by_one() {
    let mut pair = Pair::new(false);
    pair.server.set_rights(CLIENT, Rights::NONE);
    pair.calls(&bodies([100; 20]));
    for datagram in pair.transmit(true) {
        pair.deliver(false, &datagram);
    }
    assert_eq!(pair.server.counters().refused_not_allowed, 20);
    pair.server.set_rights(CLIENT, Rights::ALL);
    for datagram in pair.transmit(false) {
        pair.client.handle_packet(pair.now, SERVER, &datagram);
    }
    for _ in 0..20 {
        let event = pair.client.poll_event();
        assert!(matches!(event, Some(Event::Failed { error: CallFailed::SealedOnly, .. })));
    }
    assert_eq!((pair.requests.len(), pair.server.active_rpcs()), (0, 0));
    pair.run(&bodies([100; 20]));
}

#[test]
fn the_state_is_the_same_by_bundles_and_by_packets() {
    let lengths = [0, 1, 100, 492, 493, 900, 999, 1_000, 5_000, 40_000, 2, 3];
    let mut states = [false, true].map(|plain| {
        let mut pair = Pair::new(plain);
        pair.calls(&bodies(lengths));
        let begun = (pair.client.held_bytes(), pair.client.active_rpcs());
        pair.exchange();
        let mut served: Vec<usize> = pair.requests.iter().map(|(_, body)| body.len()).collect();
        served.sort_unstable();
        let taken = (pair.server.held_bytes(), pair.server.active_rpcs());
        pair.answer();
        let answered = pair.server.held_bytes();
        pair.exchange();
        assert_eq!(pair.responses.len(), 1 + lengths.len());
        let ended = (pair.client.held_bytes(), pair.client.active_rpcs());
        let of = |endpoint: &Endpoint| {
            let counters = endpoint.counters();
            let kept = ["calls", "requests", "responses", "calls_completed", "data_bytes_sent"];
            let kept = counters.iter().filter(|(name, _)| kept.contains(name));
            kept.map(|(_, value)| value).collect::<Vec<_>>()
        };
        (begun, served, taken, answered, ended, of(&pair.client), of(&pair.server))
    });
    let (first, second) = states.split_at_mut(1);
    assert_eq!(first, second);
}

#[test]
fn messages_of_a_bundle_keep_their_order() {
    let mut pair = Pair::new(false);
    let bodies: Vec<Bytes> = (0..200_u8).map(|number| Bytes::from(vec![number])).collect();
    let deadline = Some(pair.now + Duration::from_secs(1));
    let mut messages = pair.client.short_messages(pair.now, pair.socket, SERVER);
    for (cookie, body) in (0..).zip(&bodies) {
        // Some requests take another way than the others.
        let deadline = deadline.filter(|_| cookie % 7 == 3);
        let options = CallOptions { cookie: Cookie::Queue(cookie), deadline, trace: None };
        messages.call(PORT, body.clone(), options).unwrap();
    }
    drop(messages);
    pair.exchange();
    assert!(pair.requests.iter().map(|(_, body)| body).eq(&bodies));
    pair.responses.clear();
    pair.answer();
    pair.exchange();
    assert!(pair.responses.iter().map(|(_, body)| body).eq(&bodies));
}

//= docs/protocol.md#once-1
#[test]
fn a_copy_of_a_bundle_executes_nothing_again() {
    let mut pair = Pair::new(false);
    pair.calls(&bodies([100; 70]));
    let datagrams = pair.transmit(true);
    for _ in 0..2 {
        datagrams.iter().for_each(|datagram| pair.deliver(false, datagram));
    }
    assert_eq!(pair.requests.len(), 70);
    let held = pair.server.held_bytes();
    pair.answer();
    datagrams.iter().for_each(|datagram| pair.deliver(false, datagram));
    assert!(pair.requests.is_empty());
    assert_eq!(pair.server.held_bytes(), held);
    pair.exchange();
    datagrams.iter().for_each(|datagram| pair.deliver(false, datagram));
    assert!(pair.requests.is_empty() && pair.server.active_rpcs() == 0);
}

//= docs/wire.md#W56
#[test]
fn a_bundle_with_an_unknown_token_has_one_answer() {
    let mut pair = Pair::new(false);
    let envelope = Envelope { token: Token(77), cutoff_version: 0 };
    let message = |number: u64| {
        let header = Header { source_port: 40_000, dest_port: PORT, sender_id: RpcId(2 * number) };
        let flags = apus_wire::DataFlags::NONE;
        Entry::Message(compact::Message { header, flags, words: &[], body: b"x" })
    };
    let acks = Entry::Acks(AckRange { first: RpcId(2), count: 255 });
    let mut datagram = Vec::new();
    compact::start(&mut datagram, &envelope, RpcId(2));
    assert!(compact::push(&mut datagram, 1_472, &envelope, &acks));
    (1..100).for_each(|n| assert!(compact::push(&mut datagram, 1_472, &envelope, &message(n))));
    pair.deliver(false, &datagram);
    let answers = pair.transmit(false);
    let [answer] = &answers[..] else { panic!("{} answers", answers.len()) };
    assert!(answer.len() < compact::HEADER_LEN + compact::ENTRY_LEN + 1);
    assert!(matches!(Packet::parse(answer), Ok(Packet::RpcUnknown { .. })));
    assert_eq!(Stamp::read(answer), Some(Stamp::new(Token(77))));
    // Acknowledgements alone have none.
    let mut datagram = Vec::new();
    compact::start(&mut datagram, &envelope, RpcId(2));
    assert!(compact::push(&mut datagram, 1_472, &envelope, &acks));
    pair.deliver(false, &datagram);
    assert!(pair.transmit(false).is_empty());
}

//= docs/wire.md#W55
#[test]
fn a_range_of_unknown_ids_ends_after_eight() {
    for (unknown, left) in [(7, 0), (8, 1)] {
        let mut pair = Pair::new(false);
        pair.run(&bodies([10; 8]));
        pair.calls(&bodies([10]));
        let request = pair.transmit(true).remove(0);
        let envelope = Entries::parse(&request).unwrap().envelope();
        let id = Entries::parse(&request).unwrap().last().unwrap().id();
        pair.deliver(false, &request);
        pair.answer();
        pair.transmit(false);
        assert_eq!(pair.server.active_rpcs(), 1);
        let first = RpcId(id.0.wrapping_sub(2 * unknown));
        let count = unknown as u16 + 1;
        let mut datagram = Vec::new();
        compact::start(&mut datagram, &envelope, first);
        let acks = Entry::Acks(AckRange { first, count });
        assert!(compact::push(&mut datagram, 1_472, &envelope, &acks));
        pair.deliver(false, &datagram);
        assert_eq!(pair.server.active_rpcs(), left, "{unknown} unknown ids");
    }
}

//= docs/protocol.md#life-3
#[test]
fn a_request_in_a_bundle_has_its_deadline() {
    let mut pair = Pair::new(false);
    let deadline = Some(pair.now + Duration::from_millis(5));
    let options = CallOptions { deadline, ..CallOptions::default() };
    let to = Remote::new(SERVER, PORT);
    pair.client.call(pair.now, pair.socket, to, Bytes::from_static(b"soon"), options).unwrap();
    let datagrams = pair.transmit(true);
    assert!(datagrams.iter().all(|it| bundle::is_bundle(it)));
    datagrams.iter().for_each(|datagram| pair.deliver(false, datagram));
    let (rpc, _) = pair.requests[0];
    assert!(pair.server.is_active(rpc));
    pair.now = pair.now + Duration::from_millis(6);
    pair.server.handle_timeout(pair.now);
    assert!(!pair.server.is_active(rpc));
}

//= docs/protocol.md#hostile-1
#[test]
fn a_bundle_takes_no_more_than_the_budgets() {
    let mut config = Config::default();
    config.message_max(10_000).peer_budget(100_000).socket_budget(100_000).total_budget(100_000);
    let mut pair = Pair::with(false, &config);
    for _ in 0..20 {
        pair.calls(&bodies([100; 40]));
        for datagram in pair.transmit(true) {
            pair.deliver(false, &datagram);
        }
        assert!(pair.server.held_bytes() <= 100_000);
    }
    assert!((100..200).contains(&pair.requests.len()), "{} requests", pair.requests.len());
    assert!(pair.server.counters().refused_over_budget > 500);
}
