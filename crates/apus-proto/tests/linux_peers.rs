//! The differences for a peer of a native link, which may be the Linux module.

use std::time::Duration;

use apus_proto::{
    CallError, CallFailed, CallOptions, Config, Endpoint, Event, Remote, ReplyError, RpcKey, Time,
};
use apus_wire::{
    Abort, Busy, Cutoffs, Data, DataFlags, Header, MAX_HEADER, MAX_LINUX_MESSAGE, Meet, NeedAck,
    Packet, PacketSink, PacketType, PathError, PathId, Priority, Resend, RpcId, RpcUnknown,
    Transmit, UnknownReason,
};
use bytes::Bytes;

const PORT: u16 = 4000;
const CLIENT_PORT: u16 = 32_768;
/// A Linux host: no UDP port.
const LINUX: PathId = PathId::new(2, 2).native();

/// Collects the packets of an endpoint.
struct Wire {
    packet_max: usize,
    packets: Vec<Vec<u8>>,
    refused: Vec<[u8; 8]>,
}

impl PacketSink for Wire {
    fn send(&mut self, packet: Transmit<'_>) {
        assert!(packet.len() <= self.packet_max);
        self.packets.push([packet.header, packet.payload()].concat());
    }

    fn max_packet(&self, _: PathId) -> usize {
        self.packet_max
    }

    fn refuse(&mut self, path: PathId, packet: [u8; 8]) {
        assert_eq!(path, LINUX);
        self.refused.push(packet);
    }
}

/// An Apus node with one Linux host as its peer, whose packets the test constructs.
struct Node {
    endpoint: Endpoint,
    now: Time,
    wire: Wire,
    socket: apus_proto::SocketKey,
}

impl Node {
    fn new(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        change(&mut config);
        let mut endpoint = Endpoint::new(config, 7);
        let socket = endpoint.open(None).unwrap();
        endpoint.open(Some(PORT)).unwrap();
        let wire = Wire { packet_max: 1_480, packets: Vec::new(), refused: Vec::new() };
        Self { endpoint, now: Time::ZERO, wire, socket }
    }

    fn call(&mut self, port: u16, length: usize) -> Result<RpcKey, CallError> {
        let body = Bytes::from(vec![1; length]);
        let to = Remote::new(LINUX, port);
        self.endpoint.call(self.now, self.socket, to, body, CallOptions::default())
    }

    /// Delivers a packet. Returns the packets that the node sends then.
    fn take(&mut self, packet: &[u8]) -> Vec<Vec<u8>> {
        self.now = self.now + Duration::from_millis(2);
        self.endpoint.handle_packet(self.now, LINUX, packet);
        self.sent()
    }

    fn sent(&mut self) -> Vec<Vec<u8>> {
        while self.endpoint.poll_transmit(self.now, &mut self.wire) {}
        std::mem::take(&mut self.wire.packets)
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.endpoint.poll_event()).collect()
    }

    /// Has the application answer its requests. Returns their number.
    fn answer(&mut self) -> usize {
        let requests = self.events();
        for event in &requests {
            let Event::Request { rpc, body, .. } = event else { panic!("{event:?}") };
            self.endpoint.reply(self.now, *rpc, body.clone()).unwrap();
        }
        requests.len()
    }
}

fn header(id: u64) -> Header {
    Header { source_port: CLIENT_PORT, dest_port: PORT, sender_id: RpcId(id) }
}

/// Returns a request of one packet in the module's form.
fn request(id: u64, port: u16, version: u16, retransmit: bool) -> Vec<u8> {
    let data = Data {
        message_length: 100,
        incoming: 100,
        ack: None,
        cutoff_version: version,
        retransmit,
        flags: DataFlags::NONE,
        offset: 0,
    };
    let mut packet = vec![3; 156];
    data.emit(&Header { dest_port: port, ..header(id) }, packet.first_chunk_mut().unwrap());
    packet
}

fn resend(id: u64, port: u16) -> Vec<u8> {
    let mut packet = vec![0; 90];
    let all = Resend { offset: 0, length: None, priority: Priority::HIGHEST };
    let length = all.emit(&Header { dest_port: port, ..header(id) }, &mut packet);
    packet.truncate(length);
    packet
}

/// Returns the version of the last CUTOFFS among packets.
fn version_in(packets: &[Vec<u8>]) -> Option<u16> {
    packets.iter().rev().find_map(|packet| match Packet::parse(packet) {
        Ok(Packet::Cutoffs { cutoffs: Cutoffs { version, .. }, .. }) => Some(version),
        _ => None,
    })
}

//= docs/protocol.md#linux-1
#[test]
fn messages_the_module_would_not_take_are_refused_with_a_reason() {
    let mut node = Node::new(|_| {});
    let longest = MAX_LINUX_MESSAGE as usize;
    assert!(node.call(PORT, longest).is_ok());
    let error = node.call(PORT, longest + 1).unwrap_err();
    assert_eq!(error, CallError::TooLargeForLinux { length: longest + 1 });
    assert!(
        error.to_string().contains("Linux module (homa://) accepts at most 1000000"),
        "{error}"
    );
    let error = node.call(PORT, 0).unwrap_err();
    assert_eq!(error, CallError::EmptyForLinux);
    assert!(
        error.to_string().contains("Linux module (homa://) accepts at least 1 byte"),
        "{error}"
    );
    let apus = Remote::new(PathId::new(3, 3), PORT);
    let body = Bytes::from(vec![1; longest + 1]);
    let to_apus =
        node.endpoint.call(node.now, node.socket, apus, body.clone(), CallOptions::default());
    assert!(to_apus.is_ok(), "an Apus peer takes more");
    node.take(&request(2, PORT, 0, false));
    let Some(Event::Request { rpc, .. }) = node.endpoint.poll_event() else { panic!("no request") };
    let error = node.endpoint.reply(node.now, rpc, body).unwrap_err();
    assert_eq!(error, ReplyError::TooLargeForLinux { length: longest + 1 });
    let error = node.endpoint.reply(node.now, rpc, Bytes::new()).unwrap_err();
    assert_eq!(error, ReplyError::EmptyForLinux);
    assert!(node.endpoint.reply(node.now, rpc, Bytes::from_static(b"short")).is_ok());
}

//= docs/protocol.md#linux-1
#[test]
fn a_longer_message_of_such_a_peer_is_not_taken() {
    let mut node = Node::new(|_| {});
    let mut packet = request(2, PORT, 0, false);
    packet[28..32].copy_from_slice(&1_000_001u32.to_be_bytes());
    node.take(&packet);
    assert_eq!(node.endpoint.counters().refused_too_large, 1);
    assert_eq!(node.endpoint.active_rpcs(), 0);
}

//= docs/protocol.md#linux-2
#[test]
fn it_receives_nothing_the_module_does_not_know() {
    let mut node = Node::new(|config| {
        config.incast_threshold(1);
    });
    node.call(PORT, 100).unwrap();
    node.call(PORT, 100).unwrap();
    for packet in node.sent() {
        assert_eq!(packet[49..52], [0; 3], "padding to the module");
    }
    assert_eq!(node.endpoint.counters().calls_in_incast, 1);
    let answers = node.take(&resend(2, PORT));
    assert_eq!(answers.len(), 1);
    assert_eq!((answers[0].len(), answers[0][11]), (28, 0x13), "RPC_UNKNOWN without a reason");
}

//= docs/protocol.md#handler-1
#[test]
fn it_is_not_notified_that_a_handler_panicked() {
    let mut node = Node::new(|_| {});
    node.take(&request(2, PORT, 0, false));
    let events = node.events();
    let [Event::Request { rpc, .. }] = events[..] else { panic!("{events:?}") };
    node.sent();
    assert!(node.endpoint.reject(rpc, UnknownReason::HandlerPanicked));
    assert_eq!((node.sent().len(), node.endpoint.active_rpcs()), (0, 0));
}

//= docs/protocol.md#linux-3
#[test]
fn a_port_nobody_serves_is_answered_by_icmp_alone() {
    let mut node = Node::new(|_| {});
    for packet in [request(2, 9, 0, false), request(2, 9, 0, true), resend(2, 9)] {
        assert!(node.take(&packet).iter().all(|answer| answer[11] == 0x15), "CUTOFFS at most");
        let refused = node.wire.refused.pop().expect("port unreachable was sent");
        assert_eq!(refused[..4], packet[..4], "the ports of the packet");
    }
    assert_eq!(node.endpoint.active_rpcs(), 0);
}

//= docs/protocol.md#linux-3
#[test]
fn port_unreachable_ends_the_calls_to_that_port_only() {
    let mut node = Node::new(|_| {});
    let [closed, open] = [4001, PORT].map(|port| node.call(port, 100).unwrap());
    node.sent();
    node.endpoint.handle_path_error(node.now, LINUX, PathError::NoService(4001));
    node.sent();
    let events = node.events();
    let [Event::Failed { rpc, error: CallFailed::NoSuchPort, .. }] = events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(rpc, closed);
    assert!(node.endpoint.abort(open), "the other call goes on");
}

//= docs/protocol.md#linux-4
#[test]
fn a_linux_host_that_restarts_is_served_and_nothing_twice() {
    let mut node = Node::new(|_| {});
    let sent = node.take(&request(2, PORT, 0, false));
    assert_eq!(
        (node.answer(), version_in(&sent)),
        (1, None),
        "the credit is kept for the response"
    );
    // After the first contact, the second request brings enough credit for the cutoffs.
    let sent = node.take(&request(4, PORT, 0, false));
    let version = version_in(&sent).or_else(|| version_in(&node.take(&request(4, PORT, 0, true))));
    let version = version.expect("the client learns a version");
    assert_eq!(node.answer(), 1);
    for id in [6, 8, 10] {
        node.take(&request(id, PORT, version, false));
        assert_eq!(node.answer(), 1, "request {id}");
    }
    for id in [2, 4, 6, 8, 10] {
        node.take(&ack(id));
    }
    // Copies by the network are not executed, whatever version they carry.
    for (id, carried) in [(2, 0), (6, version), (8, version.wrapping_add(1))] {
        node.take(&request(id, PORT, carried, false));
        assert_eq!(node.answer(), 0, "request {id} again");
    }
    // The host restarts, counts from the start again, and knows no version. It is challenged.
    let sent = node.take(&request(4, PORT, 0, false));
    let fresh = version_in(&sent).expect("a challenge");
    assert!(sent.iter().any(|packet| packet[11] == 0x12), "and a RESEND");
    assert_eq!(node.answer(), 0);
    node.take(&request(4, PORT, fresh, true));
    assert_eq!(node.answer(), 1);
    node.take(&request(6, PORT, fresh, false));
    assert_eq!(node.answer(), 1);
    // A request of its earlier run, delayed until now, carries no version or an old one.
    for carried in [0, version] {
        node.take(&request(8, PORT, carried, false));
        assert_eq!(node.answer(), 0, "version {carried}");
    }
}

fn ack(id: u64) -> Vec<u8> {
    let mut packet = vec![0; 80];
    apus_wire::Ack::new(&[]).emit(&header(id), &mut packet);
    packet
}

/// The module's server probes every millisecond, for ever, and also about calls that this node does not know.
#[test]
fn need_acks_are_answered_one_by_one_and_move_nothing() {
    let mut node = Node::new(|_| {});
    node.call(PORT, 100).unwrap();
    let id = u64::from_be_bytes(node.sent()[0][20..28].try_into().unwrap());
    let from_server =
        |id| Header { source_port: PORT, dest_port: CLIENT_PORT, sender_id: RpcId(id) };
    for _ in 0..1_000 {
        let mut packet = [0; 28];
        NeedAck.emit(&from_server(13), &mut packet);
        let answers = node.take(&packet);
        assert_eq!(answers.len(), 1);
        assert_eq!((answers[0].len(), answers[0][11]), (80, 0x18));
    }
    // For a call under way, the node probes for the response or sends the server BUSY; it acknowledges nothing.
    for _ in 0..1_000 {
        let mut packet = [0; 28];
        NeedAck.emit(&from_server(id ^ 1), &mut packet);
        for answer in node.take(&packet) {
            assert!([0x12, 0x14].contains(&answer[11]), "RESEND or BUSY, not {:#x}", answer[11]);
        }
    }
    assert_eq!(node.endpoint.active_rpcs(), 1);
}

//= docs/protocol.md#hostile-3
#[test]
fn a_large_response_waits_until_its_client_shows_that_it_receives() {
    let mut node = Node::new(|_| {});
    let sent = node.take(&request(2, PORT, 0, false));
    assert!(version_in(&sent).is_none());
    let Some(Event::Request { rpc, .. }) = node.endpoint.poll_event() else { panic!() };
    node.endpoint.reply(node.now, rpc, Bytes::from(vec![2; 100_000])).unwrap();
    let probe = node.sent();
    assert!(data_bytes(&probe) == 0 && node.endpoint.counters().responses_blocked == 1);
    let version = version_in(&probe).or_else(|| version_in(&node.take(&request(2, PORT, 0, true))));
    let version = version.expect("the client learns a version");
    // A forger does not know the version.
    let sent = node.take(&request(2, PORT, version.wrapping_add(1), true));
    assert_eq!(data_bytes(&sent), 0);
    // The client does.
    let sent = node.take(&request(2, PORT, version, true));
    assert!(data_bytes(&sent) > 0);
    assert!(node.events().is_empty(), "executed once");
}

//= docs/protocol.md#server-3
#[test]
fn a_response_to_a_client_that_never_shows_itself_ends() {
    let mut node = Node::new(|_| {});
    node.take(&request(2, PORT, 0, false));
    let Some(Event::Request { rpc, .. }) = node.endpoint.poll_event() else { panic!() };
    node.endpoint.reply(node.now, rpc, Bytes::from(vec![2; 100_000])).unwrap();
    for _ in 0..1_100 {
        node.sent();
        node.now = node.now + Duration::from_millis(1);
        node.endpoint.handle_timeout(node.now);
    }
    assert_eq!(node.endpoint.active_rpcs(), 0);
}

/// Returns the bytes of DATA packets.
fn data_bytes(packets: &[Vec<u8>]) -> usize {
    packets.iter().filter(|packet| packet[11] == 0x10).map(Vec::len).sum()
}

//= docs/protocol.md#hostile-2
#[test]
fn cutoffs_do_not_use_up_what_an_echo_needs() {
    // Two packets: the first alone would pay for the CUTOFFS.
    let mut node = Node::new(|_| {});
    let mut first = request(2, PORT, 0, false);
    first[28..32].copy_from_slice(&1_425u32.to_be_bytes());
    first[32..36].copy_from_slice(&1_425u32.to_be_bytes());
    let mut second = first.clone();
    first.resize(56 + 1_424, 7);
    second.resize(57, 7);
    second[52..56].copy_from_slice(&1_424u32.to_be_bytes());
    node.take(&first);
    node.take(&second);
    assert_eq!(node.answer(), 1);
    let first = data_bytes(&node.sent());
    node.now = node.now + Duration::from_millis(1);
    assert_eq!(first + data_bytes(&node.sent()), 1_425 + 2 * 56);
}

/// Returns a first packet of a request of the incarnation, with this version of cutoffs.
fn of_incarnation(incarnation: u64, sequence: u64, version: u16) -> Vec<u8> {
    request(incarnation << 23 | sequence << 1, PORT, version, false)
}

//= docs/protocol.md#once-3
#[test]
fn a_restarted_client_is_served_after_a_challenge_and_floods_of_others_do_not_keep_it_out() {
    let life = |n: u64| 1 << 40 | n;
    let mut node = Node::new(|_| {});
    node.take(&of_incarnation(life(1), 1, 0));
    assert_eq!(node.answer(), 1);
    node.endpoint
        .call(node.now, node.socket, Remote::new(LINUX, PORT), "x", CallOptions::default())
        .unwrap();
    node.sent();
    let mut probes = 0;
    let mut version = None;
    for n in 0..1_000 {
        probes += node.take(&of_incarnation(life(100 + n), 1, 0)).len();
        let sent = node.take(&of_incarnation(life(2), 1, 0));
        probes += sent.len();
        version = version.or_else(|| version_in(&sent));
    }
    assert_eq!(node.answer(), 0);
    assert!(probes < 8_000, "{probes}");
    // The version is accepted however late it comes, and whatever arrived meanwhile.
    let version = version.expect("it was challenged");
    node.take(&of_incarnation(life(2), 1, version));
    assert_eq!(node.answer(), 1);
    // Neither packets of the earlier run nor copies of this one's are executed.
    for (n, sequence) in [(1, 2), (2, 1)] {
        node.take(&of_incarnation(life(n), sequence, version));
        node.take(&of_incarnation(life(n), sequence, 0));
        assert_eq!(node.answer(), 0, "life {n}");
    }
}

//= docs/protocol.md#once-3
#[test]
fn a_long_message_of_a_restarted_client_is_probed_once_in_a_round_trip() {
    let mut node = Node::new(|_| {});
    node.take(&of_incarnation(1 << 40, 1, 0));
    assert_eq!(node.answer(), 1);
    node.call(PORT, 100).unwrap();
    node.sent();
    let started = node.now;
    let sent: usize = (0..2_000).map(|_| node.take(&of_incarnation(1 << 40 | 1, 1, 0)).len()).sum();
    let rto = 5;
    let probes = node.now.saturating_since(started).as_millis() as usize / rto + 1;
    assert!(sent <= 2 * probes + 10, "{sent} packets for 2,000 in {probes} rtos");
}

//= docs/protocol.md#once-3
#[test]
fn a_request_that_an_earlier_run_sent_in_part_is_not_executed() {
    let mut node = Node::new(|_| {});
    let half = |id: u64, offset: u32| {
        let mut packet = request(id, PORT, 0, false);
        packet[28..32].copy_from_slice(&2_000u32.to_be_bytes());
        packet[52..56].copy_from_slice(&offset.to_be_bytes());
        packet.resize(56 + 1_000, 9);
        packet
    };
    let (old, new) = (1u64 << 63, 1u64 << 63 | 1 << 23);
    node.take(&half(old | 2, 0));
    let sent = node.take(&of_incarnation(new >> 23, 1, 0));
    let version = version_in(&sent).expect("a challenge");
    node.take(&of_incarnation(new >> 23, 1, version));
    assert_eq!(node.answer(), 1);
    node.take(&half(old | 2, 1_000));
    assert_eq!(node.answer(), 0);
}

//= docs/protocol.md#once-4
#[test]
fn ids_that_roll_over_go_on_in_the_next_incarnation() {
    let mut node = Node::new(|_| {});
    let (life, last) = (1u64 << 40 | 5, (1u64 << 22) - 1);
    node.take(&of_incarnation(life, 1, 0));
    let version = version_in(&node.take(&of_incarnation(life, 1, 0)))
        .or_else(|| version_in(&node.take(&of_incarnation(life, 1, 0))));
    let version = version.expect("a challenge");
    assert_eq!(node.answer(), 1);
    let mut take = |life, sequence| {
        node.take(&of_incarnation(life, sequence, version));
        node.answer() == 1
    };
    assert!(take(life, last) && take(life + 1, 1));
    // Both incarnations are known now, each with its history.
    assert!(take(life, last - 5) && !take(life, last) && !take(life, last - 5));
    assert!(!take(life + 1, 1) && take(life + 1, 2));
    // Before the end of its numbers, the next incarnation is another run.
    assert!(!take(life + 2, 1));
}

//= docs/protocol.md#once-5
#[test]
fn a_request_that_its_server_may_have_forgotten_is_not_sent_again() {
    for (after, again) in [(30, true), (70, false)] {
        let mut node = Node::new(|config| {
            config.peer_timeout(Duration::from_secs(300));
        });
        node.call(PORT, 100).unwrap();
        let id = u64::from_be_bytes(node.sent()[0][20..28].try_into().unwrap());
        node.now = node.now + Duration::from_secs(after);
        let header = Header { source_port: PORT, dest_port: CLIENT_PORT, sender_id: RpcId(id ^ 1) };
        let mut unknown = [0; 29];
        RpcUnknown::default().emit(&header, &mut unknown);
        let sent = node.take(&unknown[..28]);
        assert_eq!(data_bytes(&sent) > 0, again);
        let failed = node.events();
        assert_eq!(failed.is_empty(), again);
        assert!(
            again
                || matches!(failed[..], [Event::Failed { error: CallFailed::MayHaveExecuted, .. }])
        );
    }
}

//= docs/protocol.md#hostile-10
#[test]
fn cutoffs_of_no_call_are_not_taken() {
    let mut node = Node::new(|_| {});
    node.call(PORT, 100).unwrap();
    let id = u64::from_be_bytes(node.sent()[0][20..28].try_into().unwrap());
    let header = |id| Header { source_port: PORT, dest_port: CLIENT_PORT, sender_id: RpcId(id) };
    let cutoffs = Cutoffs { cutoffs: [0; 8], version: 77 };
    for (id, taken) in [(id ^ 9, false), (id ^ 1, true)] {
        let mut packet = [0; 62];
        cutoffs.emit(&header(id), &mut packet);
        node.take(&packet);
        node.call(PORT, 100).unwrap();
        let sent = node.sent();
        let version = u16::from_be_bytes(sent[0][46..48].try_into().unwrap());
        assert_eq!(version == 77, taken);
    }
}

/// The stripped module's clients never prove that they receive at their address.
#[test]
fn a_network_of_honest_hosts_can_do_without_confirmation() {
    for confirm in [true, false] {
        let mut node = Node::new(|config| {
            config.confirm_peers(confirm);
        });
        node.take(&request(2, PORT, 0, false));
        let Some(Event::Request { rpc, .. }) = node.endpoint.poll_event() else { panic!() };
        node.endpoint.reply(node.now, rpc, Bytes::from(vec![2; 30_000])).unwrap();
        let data = node.sent().iter().filter(|packet| packet[11] == 0x10).count();
        assert_eq!(data > 0, !confirm);
    }
}

#[test]
fn busy_from_nobody_moves_only_a_counter() {
    let mut node = Node::new(|_| {});
    let mut packet = [0; 28];
    Busy.emit(&header(2), &mut packet);
    assert!(node.take(&packet).is_empty());
    assert_eq!(node.endpoint.counters().dropped_unknown_rpc, 1);
    assert_eq!(node.endpoint.known_peers(), 0);
}

/// A peer that holds a message back and answers BUSY for ever. The number of probes exceeds a byte.
#[test]
fn a_peer_may_be_busy_for_as_long_as_it_likes() {
    let mut node = Node::new(|_| {});
    node.call(PORT, 100).unwrap();
    let id = u64::from_be_bytes(node.sent()[0][20..28].try_into().unwrap());
    let from = Header { source_port: PORT, dest_port: CLIENT_PORT, sender_id: RpcId(id ^ 1) };
    let mut busy = [0; 28];
    Busy.emit(&from, &mut busy);
    // The first half of the response.
    let mut half = request(2, PORT, 0, false);
    half[28..32].copy_from_slice(&2_000u32.to_be_bytes());
    half[..4].copy_from_slice(&busy[..4]);
    half[20..28].copy_from_slice(&busy[20..]);
    half.resize(56 + 1_000, 9);
    node.take(&half);
    let mut probes = 0;
    while probes < 600 {
        let Some(due) = node.endpoint.poll_timeout() else { panic!("given up after {probes}") };
        node.now = node.now.max(due);
        node.endpoint.handle_timeout(node.now);
        let asked = node.sent().iter().any(|packet| packet[11] == 0x12);
        probes += u32::from(asked);
        if asked {
            node.take(&busy);
        }
    }
    assert_eq!(node.endpoint.active_rpcs(), 1);
}

/// Hostile or broken packets of the module about a call and a request under way. Only counters change: the call and the request
/// still end as they should.
#[test]
fn a_hostile_module_moves_counters_and_nothing_else() {
    let mut node = Node::new(|_| {});
    let call = node.call(PORT, 100_000).unwrap();
    let id = u64::from_be_bytes(node.sent()[0][20..28].try_into().unwrap());
    let from_server = |kind: u8, body: &[u8]| {
        let mut packet = vec![0; 28];
        Busy.emit(
            &Header { source_port: PORT, dest_port: CLIENT_PORT, sender_id: RpcId(id ^ 1) },
            &mut packet,
        );
        packet[11] = kind;
        packet.extend_from_slice(body);
        packet
    };
    // The first half of a request of two packets.
    let half = |length: u32, offset: u32, payload: usize| {
        let mut packet = request(2, PORT, 0, false);
        packet[28..32].copy_from_slice(&length.to_be_bytes());
        for at in [4, 52] {
            packet[at..at + 4].copy_from_slice(&offset.to_be_bytes());
        }
        packet.resize(56 + payload, 9);
        packet
    };
    node.take(&half(2_000, 0, 1_000));
    let rpcs = node.endpoint.active_rpcs();
    let bad: [(&str, Vec<u8>); 8] = [
        ("a message of no bytes", half(0, 0, 10)),
        ("a length that changes", half(3_000, 1_000, 1_000)),
        ("bytes beyond the end", half(2_000, 1_999, 2)),
        ("no bytes at all", half(2_000, 0, 0)),
        ("an unknown type", from_server(0x1E, &[])),
        ("a short packet", from_server(0x11, &[0; 4])),
        ("a priority that is none", from_server(0x11, &[0, 0, 0, 1, 8])),
        ("a negative length", from_server(0x12, &[0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFE, 7])),
    ];
    for (what, packet) in bad {
        let before = node.endpoint.counters().clone();
        node.take(&packet);
        let now = node.endpoint.counters();
        let dropped = |it: &apus_proto::Counters| it.dropped_malformed + it.dropped_inconsistent;
        assert_eq!(dropped(now), dropped(&before) + 1, "{what}");
        assert_eq!((node.endpoint.active_rpcs(), node.events()), (rpcs, Vec::new()), "{what}");
    }
    // Grants beyond the end of the message, and repeated grants.
    for _ in 0..100 {
        node.take(&from_server(0x11, &[0xFF, 0xFF, 0xFF, 0xFF, 3]));
    }
    assert_eq!(node.endpoint.counters().data_bytes_sent, 100_000, "each byte once");
    assert_eq!(node.endpoint.counters().grants_late, 99);
    // The request and the call go on.
    node.take(&half(2_000, 1_000, 1_000));
    assert_eq!(node.answer(), 1);
    let mut response = request(id ^ 1, CLIENT_PORT, 0, false);
    response[..2].copy_from_slice(&PORT.to_be_bytes());
    node.take(&response);
    let events = node.events();
    assert!(matches!(&events[..], [Event::Response { rpc, .. }] if *rpc == call), "{events:?}");
}

//= docs/protocol.md#loss-13
#[test]
fn a_response_that_a_linux_server_gives_up_is_lost_at_the_first_word() {
    let mut node = Node::new(|_| {});
    node.call(PORT, 100).unwrap();
    let id = Packet::parse(&node.sent()[0]).unwrap().header().sender_id.flipped();
    let header = Header { source_port: PORT, dest_port: CLIENT_PORT, sender_id: id };
    let mut unknown = [0; 90];
    let length = RpcUnknown { reason: UnknownReason::Unknown }.emit(&header, &mut unknown).min(28);
    // The module's DATA has the same form in both directions.
    let mut first = request(0, PORT, 0, false);
    first[28..32].copy_from_slice(&1_000u32.to_be_bytes());
    first[..4].copy_from_slice(&unknown[..4]);
    first[20..28].copy_from_slice(&unknown[20..28]);
    node.take(&first);
    node.take(&unknown[..length]);
    assert!(node.events().is_empty(), "nothing was asked, so this was late");
    while !node.sent().iter().any(|packet| packet[11] == 0x12) {
        node.now = node.endpoint.poll_timeout().expect("it will ask").max(node.now);
        node.endpoint.handle_timeout(node.now);
    }
    node.take(&unknown[..length]);
    let [Event::Failed { ref error, .. }] = node.events()[..] else { panic!("not lost") };
    assert_eq!(*error, CallFailed::ResponseLost);
}

/// Runs a call of one packet to a Linux server that answers every probe with `answers` in turn, and the last one for ever. Returns
/// how often the request was sent, and when and how the call ended.
fn call_to_a_server_that_says(answers: &[PacketType]) -> (usize, Time, CallFailed) {
    let mut node = Node::new(|_| {});
    let call = node.call(PORT, 100).unwrap();
    let (mut requests, mut asked) = (0, 0);
    loop {
        let packets = node.sent();
        let header = Header { source_port: PORT, dest_port: CLIENT_PORT, sender_id: RpcId(3) };
        for packet in packets {
            match Packet::parse(&packet).unwrap() {
                Packet::Data { .. } => requests += 1,
                Packet::Resend { header: probe, .. } => {
                    let header = Header { sender_id: probe.sender_id.flipped(), ..header };
                    let mut answer = vec![0; 90];
                    let length = match answers[asked.min(answers.len() - 1)] {
                        PacketType::Busy => Busy.emit(&header, &mut answer),
                        _ => {
                            RpcUnknown { reason: UnknownReason::Unknown }.emit(&header, &mut answer)
                        }
                    };
                    asked += 1;
                    node.endpoint.handle_packet(node.now, LINUX, &answer[..length.min(28)]);
                }
                other => panic!("{other:?}"),
            }
        }
        if let Some(event) = node.endpoint.poll_event() {
            let Event::Failed { rpc, error, .. } = event else { panic!("{event:?}") };
            assert_eq!(rpc, call);
            return (requests, node.now, error);
        }
        node.now = node.endpoint.poll_timeout().unwrap().max(node.now);
        node.endpoint.handle_timeout(node.now);
    }
}

//= docs/protocol.md#linux-5
#[test]
fn a_request_is_not_sent_for_ever_to_a_linux_server_that_gives_it_up() {
    use PacketType::{Busy, RpcUnknown};
    let (requests, ended, error) = call_to_a_server_that_says(&[RpcUnknown]);
    assert_eq!((requests, error), (6, CallFailed::ResponseLost));
    assert!(ended < Time::ZERO + Duration::from_millis(100), "{ended}");
    // The server had the request, so it must not receive it again.
    let (requests, _, error) = call_to_a_server_that_says(&[Busy, RpcUnknown]);
    assert_eq!((requests, error), (1, CallFailed::ResponseLost));
}

//= docs/protocol.md#life-8
//= docs/wire.md#W41
#[test]
fn an_abort_is_heeded_over_udp_only() {
    let mut node = Node::new(|_| {});
    node.take(&request(2, PORT, 0, false));
    let Some(Event::Request { rpc, .. }) = node.endpoint.poll_event() else { panic!("no request") };
    // Without a token, any host could have sent the packet.
    let mut buffer = [0; MAX_HEADER];
    let length = Abort.emit(&header(2), &mut buffer);
    node.take(&buffer[..length]);
    assert!(node.endpoint.is_active(rpc));
    assert_eq!(node.endpoint.counters().requests_cancelled, 0);
    assert_eq!(node.endpoint.counters().dropped_mismatch, 1, "it found the request");
}

//= docs/protocol.md#local-7
//= docs/wire.md#W42
#[test]
fn a_meet_is_heeded_over_udp_only() {
    let mut node = Node::new(|_| {});
    let meet = Meet { nonce: [1, 2], place: 3 };
    let mut buffer = [0; MAX_HEADER];
    let length = meet.emit(&header(0), &mut buffer);
    node.take(&buffer[..length]);
    assert_eq!(node.endpoint.counters().dropped_unknown_rpc, 1, "of an unknown host");
    node.take(&request(2, PORT, 0, false));
    assert_eq!(node.answer(), 1);
    node.sent();
    assert!(node.take(&buffer[..length]).is_empty());
    assert_eq!(node.endpoint.counters().dropped_mismatch, 1, "of a known one");
    assert_eq!(node.endpoint.poll_meet(), None);
    assert!(!node.endpoint.send_meet(LINUX, meet));
}
