//! The production core on every host.
//!
//! The `apus` library drives an [`Endpoint`] in the same way: packets in, `poll_transmit` when the link takes more, `poll_event`,
//! and time. A host's clock is ahead of the simulation's by a part of a tick of its own, so that timers of different hosts do not
//! expire together. Three things differ:
//!
//! - **Hosts know each other.** A first contact takes one more round trip, once for each pair of processes. The simulation assumes
//!   that hosts have met, so two hosts are introduced before the first message between them.
//! - **Payload is not carried.** All messages are slices of one buffer of zeros. A packet carries its header and a length. The
//!   receiver gets the header with zeros behind it, which it counts and does not keep. The offset of a message's body in the buffer
//!   is the message's number, which identifies it on arrival.
//! - **The link pushes back.** The NIC takes one packet at a time, when it has sent the last, so that the shortest message is
//!   chosen as late as possible. The core's pacer, which estimates the known state of the link, is set to twice the rate: it only
//!   ends a `poll_transmit` after one packet. It also counts responses that bypass the link (50 ns each at 10 Gb/s), so a timer
//!   wakes a host whose link is idle while a message waits for the pacer.

use apus_proto::{
    CallOptions, Cookie, Endpoint, Event, Remote, RpcKey, SocketKey, SpentBodies, Time,
    TraceChoice, TraceEvent, TraceMark,
};
use apus_trace::Trace;
use apus_wire::{DATA_HEADER_LEN, MAX_HEADER, PacketSink, PacketType, PathId, Token, Transmit};
use bytes::Bytes;

use crate::fabric::{Fabric, Packet};
use crate::framing::Framing;
use crate::plan::{Exchange, Homa};
use crate::time_trace::Recorder;
use crate::transport::{Message, Transport};

/// The service of every host.
const PORT: u16 = 1;
/// Interval at which a host checks its timers, at multiples of it by its own clock; the core's own resolution.
const TICK_PS: u64 = 500_000_000;
/// The number of the timer that checks the core's timers.
const TICK: u32 = 0;
/// The number of the timer that transmits when the pacer allows it.
const PACED: u32 = 1;
/// Upper bound on messages in progress.
const NUMBERS: usize = 1 << 21;
/// The number of no message.
const NONE: u32 = u32::MAX;

/// A packet's header, and the length of the payload that it stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HomaHeader {
    bytes: [u8; MAX_HEADER],
    length: u8,
    payload: u16,
}

#[derive(Debug)]
struct HostEndpoint {
    endpoint: Endpoint,
    client: SocketKey,
    path: PathId,
    /// Lead of the host's clock, in ns.
    ahead_ns: u64,
    /// Time of the last [`PACED`] timer, in ps.
    paced_until: u64,
    withheld: Withheld,
}

impl HostEndpoint {
    /// The time by the host's clock.
    #[inline]
    fn time(&self, picos: u64) -> Time {
        Time::from_nanos(picos / 1000 + self.ahead_ns)
    }
}

/// Time in which a host withheld grants, and the bytes that its link delivered in that time. The rest of the link's capacity was
/// wasted.
#[derive(Clone, Copy, Debug, Default)]
struct Withheld {
    since: Option<u64>,
    picos: u64,
    bytes: u64,
}

impl Withheld {
    /// Notes a packet, and whether grants are withheld from now on.
    fn note(&mut self, now: u64, bytes: u32, withholds: bool) {
        if let Some(since) = self.since {
            self.picos += now - since;
            self.bytes += u64::from(bytes);
        }
        self.since = withholds.then_some(now);
    }
}

#[derive(Debug)]
pub(crate) struct Apus {
    hosts: Vec<HostEndpoint>,
    zeros: Bytes,
    spent: SpentBodies,
    /// Length of each message's request.
    lengths: Vec<u32>,
    framing: Framing,
    exchange: Exchange,
    /// Buffer for a packet without payload.
    control: [u8; MAX_HEADER],
    /// Buffer for a packet whose payload is zeros.
    data: Vec<u8>,
    failed: u64,
    overcommitment: u64,
    picos_per_byte: u64,
    now: u64,
    /// Whether each pair of hosts has met, by the lower host and then the other.
    introduced: Vec<bool>,
    /// The recorder of events, if they are recorded.
    recorder: Option<Recorder>,
    /// Identification of each message in the trace.
    marks: Vec<Option<TraceMark>>,
}

/// The path to a host is the host's number.
fn path_to(host: u32) -> PathId {
    PathId::new(host, u64::from(host))
}

impl Apus {
    pub(crate) fn new(
        fabric: &mut Fabric<HomaHeader>,
        homa: &Homa,
        framing: Framing,
        exchange: Exchange,
        longest: u32,
        seed: u64,
    ) -> Self {
        let config = homa.config().expect("the plan is valid");
        let count = fabric.graph.hosts as u64;
        let hosts = (0..fabric.graph.hosts as u32)
            .map(|host| {
                let mut endpoint =
                    Endpoint::counting(config.clone(), u128::from(seed) << 64 | u128::from(host));
                let client = endpoint.open(None).expect("the first socket gets a port");
                endpoint.open(Some(PORT)).expect("the port is free");
                let ahead_ns = TICK_PS / 1000 * u64::from(host) / count;
                fabric.timer(TICK_PS - ahead_ns * 1000, host, TICK);
                HostEndpoint {
                    endpoint,
                    client,
                    path: path_to(host),
                    ahead_ns,
                    paced_until: 0,
                    withheld: Withheld::default(),
                }
            })
            .collect();
        Self {
            hosts,
            zeros: Bytes::from(vec![0; longest as usize + NUMBERS]),
            spent: SpentBodies::default(),
            lengths: Vec::new(),
            framing,
            exchange,
            control: [0; MAX_HEADER],
            data: vec![0; DATA_HEADER_LEN + framing.payload() as usize],
            failed: 0,
            overcommitment: homa.number("overcommitment"),
            picos_per_byte: 8_000 / homa.link_gbps,
            now: 0,
            introduced: vec![false; fabric.graph.hosts * fabric.graph.hosts],
            recorder: None,
            marks: Vec::new(),
        }
    }

    /// Starts recording the events of all calls.
    pub(crate) fn record(&mut self) {
        let recorder = Recorder::new(self.hosts.len());
        for (number, host) in self.hosts.iter_mut().enumerate() {
            host.endpoint.set_trace(recorder.sink(number), TraceChoice::one_in(1));
        }
        self.recorder = Some(recorder);
    }

    /// Sets the time of the following events to the current time.
    #[inline]
    fn stamp(&self, fabric: &Fabric<HomaHeader>) {
        if let Some(recorder) = &self.recorder {
            recorder.set_now(fabric.now);
        }
    }

    /// Records that the application of a host takes a message.
    fn trace_taken(&self, host: u32, event: TraceEvent, mark: Option<TraceMark>, bytes: usize) {
        if let (Some(recorder), Some(mark)) = (&self.recorder, mark) {
            let arguments = [mark.id, mark.pair, bytes as u32, 0];
            recorder.sink(host as usize).record(event, arguments);
        }
    }

    /// Introduces two hosts to each other, unless they have met.
    #[inline]
    fn introduce(&mut self, picos: u64, one: u32, other: u32) {
        let (low, high) = (one.min(other) as usize, one.max(other) as usize);
        let known = &mut self.introduced[low * self.hosts.len() + high];
        if std::mem::replace(known, true) {
            return;
        }
        let token = |of: usize, peer: usize| Token((of as u64 + 1) << 32 | (peer as u64 + 1));
        for (of, peer) in [(low, high), (high, low)] {
            let path = self.hosts[peer].path;
            let host = &mut self.hosts[of];
            let now = host.time(picos);
            host.endpoint.introduce(now, path, token(of, peer), token(peer, of));
        }
    }

    fn body(&self, number: u32, bytes: u32) -> Bytes {
        self.zeros.slice(number as usize..(number + bytes) as usize)
    }

    /// Handles the endpoint's events, then sends as much as the link takes. `arrived` is the message whose packet was handled last.
    #[inline]
    fn turn(&mut self, fabric: &mut Fabric<HomaHeader>, host: u32, arrived: u32) {
        while let Some(event) = self.hosts[host as usize].endpoint.poll_event() {
            self.on_event(fabric, host, arrived, event);
        }
        self.hosts[host as usize].endpoint.take_spent(&mut self.spent);
        self.spent.clear();
        self.transmit(fabric, host);
    }

    fn on_event(&mut self, fabric: &mut Fabric<HomaHeader>, host: u32, arrived: u32, event: Event) {
        match event {
            Event::Request { rpc, body, .. } => {
                let mark = self.hosts[host as usize].endpoint.take_trace_mark(rpc);
                self.trace_taken(host, TraceEvent::RecvmsgRequest, mark, body.len());
                self.answer(fabric, host, rpc, arrived);
            }
            Event::Response { cookie, body, .. } => {
                let cookie = cookie.number();
                let mark = self.marks.get(cookie as usize).copied().flatten();
                self.trace_taken(host, TraceEvent::RecvmsgResponse, mark, body.len());
                if self.exchange != Exchange::OneWay {
                    fabric.finished.push(cookie as u32);
                }
                fabric.retired.push(cookie as u32);
            }
            Event::Connected { .. } | Event::Cancelled { .. } => {
                unreachable!("no host connects or watches")
            }
            Event::Failed { cookie, .. } => {
                let cookie = cookie.number();
                self.failed += 1;
                fabric.retired.push(cookie as u32);
            }
        }
    }

    fn answer(&mut self, fabric: &mut Fabric<HomaHeader>, host: u32, rpc: RpcKey, number: u32) {
        debug_assert_ne!(number, NONE, "a request is delivered when its last packet arrives");
        let bytes = match self.exchange {
            Exchange::OneWay => {
                fabric.finished.push(number);
                1
            }
            Exchange::Echo => self.lengths[number as usize],
            Exchange::Response(bytes) => bytes,
        };
        let body = self.body(number, bytes);
        let host = &mut self.hosts[host as usize];
        let now = host.time(fabric.now);
        host.endpoint
            .reply(now, rpc, body)
            .expect("a request that was just delivered can be answered");
    }

    #[inline]
    fn transmit(&mut self, fabric: &mut Fabric<HomaHeader>, host: u32) {
        let now = self.hosts[host as usize].time(fabric.now);
        let base = self.zeros.as_ptr() as usize;
        let endpoint = &mut self.hosts[host as usize].endpoint;
        let mut sink = Sink { fabric, host, framing: self.framing, base };
        while sink.fabric.nic_is_idle(host) {
            if !endpoint.poll_transmit(now, &mut sink) {
                return self.wait_for_pacer(fabric, host);
            }
        }
    }

    /// Has a host with an idle link transmit as soon as its pacer allows it, if a message waits for that.
    #[inline]
    fn wait_for_pacer(&mut self, fabric: &mut Fabric<HomaHeader>, host: u32) {
        let HostEndpoint { endpoint, ahead_ns, paced_until, .. } = &mut self.hosts[host as usize];
        let Some(ready) = endpoint.poll_ready() else { return };
        let at = ready.as_nanos().saturating_sub(*ahead_ns) * 1000;
        if at > fabric.now && *paced_until <= fabric.now {
            *paced_until = at;
            fabric.timer(at, host, PACED);
        }
    }
}

impl Transport for Apus {
    type Header = HomaHeader;

    fn start(&mut self, fabric: &mut Fabric<HomaHeader>, message: Message) {
        let Message { number, from, to, bytes } = message;
        self.stamp(fabric);
        debug_assert!((number as usize) < NUMBERS, "too many messages under way");
        let body = self.body(number, bytes);
        if self.lengths.len() <= number as usize {
            self.lengths.resize(number as usize + 1, 0);
        }
        self.lengths[number as usize] = bytes;
        self.introduce(fabric.now, from, to);
        let host = &mut self.hosts[from as usize];
        let now = host.time(fabric.now);
        let options =
            CallOptions { cookie: Cookie::Key(u64::from(number)), ..CallOptions::default() };
        let to = Remote::new(path_to(to), PORT);
        let called = host.endpoint.call(now, host.client, to, body, options);
        let Ok(rpc) = called else {
            self.failed += 1;
            fabric.retired.push(number);
            return;
        };
        if self.recorder.is_some() {
            let mark = host.endpoint.take_trace_mark(rpc);
            self.marks.resize(self.lengths.len(), None);
            self.marks[number as usize] = mark;
        }
        if fabric.nic_is_idle(from) {
            self.transmit(fabric, from);
        }
    }

    #[inline]
    fn receive(&mut self, fabric: &mut Fabric<HomaHeader>, host: u32, packet: u32) {
        self.stamp(fabric);
        let Packet { header, from, message, wire, .. } = *fabric.packet(packet);
        fabric.remove(packet);
        let length = usize::from(header.length);
        let bytes = if header.payload > 0 {
            self.data[..length].copy_from_slice(&header.bytes[..length]);
            &self.data[..length + usize::from(header.payload)]
        } else {
            self.control[..length].copy_from_slice(&header.bytes[..length]);
            &self.control[..length]
        };
        let from = self.hosts[usize::from(from)].path;
        let receiver = &mut self.hosts[host as usize];
        receiver.endpoint.handle_packet(receiver.time(fabric.now), from, bytes);
        self.turn(fabric, host, message);
        let HostEndpoint { endpoint, withheld, .. } = &mut self.hosts[host as usize];
        withheld.note(fabric.now, wire, endpoint.load().granting > self.overcommitment);
        self.now = fabric.now;
    }

    fn nic_free(&mut self, fabric: &mut Fabric<HomaHeader>, host: u32) {
        self.stamp(fabric);
        self.transmit(fabric, host);
    }

    fn timer(&mut self, fabric: &mut Fabric<HomaHeader>, host: u32, number: u32) {
        self.stamp(fabric);
        if number == PACED {
            return self.transmit(fabric, host);
        }
        let now = self.hosts[host as usize].time(fabric.now);
        let endpoint = &mut self.hosts[host as usize].endpoint;
        if endpoint.poll_timeout().is_some_and(|due| due <= now) {
            endpoint.handle_timeout(now);
            self.turn(fabric, host, NONE);
        }
        fabric.timer(fabric.now + TICK_PS, host, TICK);
    }

    fn time_trace(&self) -> Option<Trace> {
        self.recorder.as_ref().map(Recorder::finish)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut sums: Vec<(&'static str, u64)> = Vec::new();
        for host in &self.hosts {
            for (index, (name, value)) in host.endpoint.counters().iter().enumerate() {
                match sums.get_mut(index) {
                    Some((_, sum)) => *sum += value,
                    None => sums.push((name, value)),
                }
            }
        }
        sums.push(("messages_failed", self.failed));
        let (mut withheld, mut wasted) = (0, 0);
        for host in &self.hosts {
            let Withheld { picos, bytes, .. } = host.withheld;
            withheld += picos;
            wasted += picos.saturating_sub(bytes * self.picos_per_byte);
        }
        let parts = (self.now / 1_000_000).max(1) * self.hosts.len() as u64;
        sums.push(("withheld_time_ppm", withheld / parts));
        sums.push(("wasted_bandwidth_ppm", wasted / parts));
        sums
    }
}

/// Sends an endpoint's packets into the fabric.
struct Sink<'a> {
    fabric: &'a mut Fabric<HomaHeader>,
    host: u32,
    framing: Framing,
    /// Address of the buffer of zeros.
    base: usize,
}

impl PacketSink for Sink<'_> {
    #[inline]
    fn send(&mut self, packet: Transmit<'_>) {
        let length = packet.header.len();
        let payload = packet.range.len();
        let mut header =
            HomaHeader { bytes: [0; MAX_HEADER], length: length as u8, payload: payload as u16 };
        header.bytes[..length].copy_from_slice(packet.header);
        let kind = packet.header[11];
        let to = packet.path.index() as u32;
        let is_data = kind == PacketType::Data as u8;
        let wire = if is_data {
            self.framing.data_wire(payload as u32)
        } else {
            self.framing.control_wire(length as u32)
        };
        let mut out = Packet::new(header, self.host, to, wire);
        out.level = packet.priority.get();
        let by_server = packet.header[27] & 1 == 1;
        if is_data && !by_server {
            out.message = (packet.body.as_ptr() as usize - self.base) as u32;
        }
        if (is_data && by_server) || kind == PacketType::Ack as u8 {
            self.fabric.send_answer(out);
        } else {
            self.fabric.send(out);
        }
    }

    fn max_packet(&self, _: PathId) -> usize {
        DATA_HEADER_LEN + self.framing.payload() as usize
    }
}
