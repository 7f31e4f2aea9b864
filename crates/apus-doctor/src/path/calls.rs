//! Calls to the peer's node: the route to it, the time of a call, and the longest packet.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use apus::net::{Link as _, MAX_DATAGRAM};
use apus::{Address, Bytes, Client, Config, Links, Node, Presence, Route};
use apus_load::stats;
use apus_node::message::{self, MessageHeader};

use crate::device::{self, Device};
use crate::files::Here;
use crate::finding::{Finding, Subject, Verdict};

const SUBJECT: Subject = Subject::Path;

/// The result of the first packet to a peer.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Reachability {
    to: Address,
    /// The answer, or the reason why there is none.
    answer: Result<(), String>,
}

#[derive(Clone, Debug)]
pub(super) struct Calls {
    route: Route,
    short: Result<RoundTrips, String>,
    long: Result<Long, String>,
}

#[derive(Clone, Copy, Debug)]
struct RoundTrips {
    calls: usize,
    p50_us: f64,
    p99_us: f64,
}

/// Long messages over UDP there and back.
#[derive(Clone, Copy, Debug, Default)]
struct Long {
    /// Longest Homa packet of the route, in bytes.
    max_packet: usize,
    /// Longest Homa packet of the route's interface, in bytes.
    by_interface: Option<usize>,
    messages: u64,
    gso_segments: u64,
    resends: u64,
    /// Number of times that packets were refused as too long, or vanished.
    shrunk: u64,
}

impl Reachability {
    pub(super) fn probe(to: Address, config: &Config) -> Self {
        let answer = match apus::probe_with(to, PROBE_TIMEOUT, config) {
            Ok(Presence::Answered(_)) => Ok(()),
            Ok(Presence::PortNotServed) => {
                Err(format!("a node answers, but no service listens at port {}", to.port))
            }
            Ok(Presence::Unreachable(error)) => Err(error.to_string()),
            Ok(_) => Err(format!("no answer within {PROBE_TIMEOUT:?}")),
            Err(error) => Err(error.to_string()),
        };
        Self { to, answer }
    }

    pub(super) fn is_there(&self) -> bool {
        self.answer.is_ok()
    }

    pub(super) fn finding(&self) -> Finding {
        let to = self.to;
        let (verdict, found) = match &self.answer {
            Ok(()) => (Verdict::Good, format!("a node answers at {to}")),
            Err(why) => (Verdict::Bad, format!("{to}: {why}")),
        };
        Finding::new(SUBJECT, "peer", verdict, found)
            .apus("needs UDP in both directions")
            .change(
                "apus doctor --serve --listen 0.0.0.0:20146 # at the peer; packet filters must pass UDP port 20146",
                "calls",
            )
            .value("reached", self.is_there())
    }
}

impl Calls {
    /// Makes calls to a running node.
    ///
    /// # Errors
    /// When no node can be started, or the first call fails.
    pub(super) fn gather(client: &Client, node: &Node, to: Address, config: &Config) -> Self {
        Self { route: node.route(to), short: short(client, to), long: long(to, config) }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        vec![transport(self), round_trip(self), packets(self)]
    }
}

/// Makes calls one at a time, until there are enough or the time is over.
fn short(client: &Client, to: Address) -> Result<RoundTrips, String> {
    let body = Bytes::from(request(SHORT));
    let (start, mut times) = (Instant::now(), Vec::with_capacity(CALLS_MAX));
    while times.len() < CALLS_MAX && (start.elapsed() < SHORT_TIME || times.len() < CALLS_MIN) {
        let call = Instant::now();
        client
            .call(to, body.clone())
            .deadline(CALL_MAX)
            .wait()
            .map_err(|error| error.to_string())?;
        times.push(call.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    let at = |percent| stats::percentile(&times, percent).unwrap_or_default();
    Ok(RoundTrips { calls: times.len(), p50_us: at(50.0), p99_us: at(99.0) })
}

/// Sends and receives long messages over UDP, even to a node of this host.
fn long(to: Address, config: &Config) -> Result<Long, String> {
    if to.host.port() == 0 {
        return Err("the peer uses IP protocol 146, whose packets follow the MTU of the interface"
            .to_owned());
    }
    let max_packet = max_packet(to, config)?;
    let by_interface = by_interface(to).ok().flatten();
    let mut config = config.clone();
    config.listen(any(to)).link(Links::Udp).capture(None);
    let node = Node::start(&config).map_err(|error| error.to_string())?;
    let client = node.client().map_err(|error| error.to_string())?;
    let body = Bytes::from(request(LONG));
    for _ in 0..MESSAGES {
        let reply = client
            .call(to, body.clone())
            .deadline(CALL_MAX)
            .wait()
            .map_err(|error| error.to_string())?;
        if reply.len() != body.len() {
            return Err(format!(
                "the peer answered a request of {} bytes with {} bytes",
                body.len(),
                reply.len()
            ));
        }
    }
    let stats = node.stats();
    let shrunk = stats.link.path_shrunk + stats.link.black_holes + stats.link.send_too_big;
    Ok(Long {
        max_packet,
        by_interface,
        messages: MESSAGES,
        gso_segments: stats.link.gso_segments,
        resends: stats.protocol.resends_sent + stats.protocol.resends_received,
        shrunk,
    })
}

/// The kernel's limit for the path: a link examines the path as it does before the first message.
fn max_packet(to: Address, config: &Config) -> Result<usize, String> {
    let mut config = config.clone();
    config.listen(any(to)).link(Links::Udp).capture(None);
    let mut link = config.open_link().map_err(|error| error.to_string())?;
    let path = link.resolve(to.host).ok_or("this link does not support the address")?;
    if let Some(examination) = link.examination(path) {
        link.examined(examination.run());
    }
    Ok(link.path(path).max_packet)
}

/// The longest Homa packet that the interface of the route accepts.
fn by_interface(to: Address) -> io::Result<Option<usize>> {
    let socket = UdpSocket::bind(any(to))?;
    socket.connect(to.host)?;
    let local = socket.local_addr()?.ip();
    let mtu = device::with_address(local).and_then(|name| Device::read(&Here, &name).mtu);
    let headers = if local.is_ipv4() { 28 } else { 48 };
    Ok(mtu.map(|mtu| (mtu as usize).saturating_sub(headers).min(MAX_DATAGRAM)))
}

/// An address to call from.
fn any(to: Address) -> SocketAddr {
    let ip: IpAddr = match to.host.ip() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, 0)
}

/// A request that `apus node server` answers with the same number of bytes.
fn request(length: usize) -> Vec<u8> {
    message::build(MessageHeader { tag: 0, length: 0, other_length: 0 }, length)
}

fn transport(calls: &Calls) -> Finding {
    let sends_segments = calls.long.as_ref().is_ok_and(|long| long.gso_segments > 0);
    let (found, apus) = match calls.route {
        Route::Memory => ("shared memory", "the peer is a process of this host"),
        Route::Engine => ("the shared engine of this host", "APUS_ENGINE names it"),
        Route::Raw => ("IP protocol 146", "the address begins with homa://"),
        _ if sends_segments => {
            ("UDP with segmentation (GSO)", "one send transmits packets of equal length")
        }
        _ => (
            "UDP without segmentation",
            "packets had the maximum length of a datagram, or the kernel has no GSO: see `apus doctor`",
        ),
    };
    Finding::new(SUBJECT, "transport", Verdict::Good, found).apus(apus).value("gso", sends_segments)
}

fn round_trip(calls: &Calls) -> Finding {
    let name = "round trip";
    let trips = match &calls.short {
        Ok(trips) => trips,
        Err(why) => {
            return Finding::new(SUBJECT, name, Verdict::Bad, format!("a call failed: {why}"));
        }
    };
    let RoundTrips { calls, p50_us, p99_us } = *trips;
    let found =
        format!("{p50_us:.1} µs for a call of {SHORT} B, p99 {p99_us:.1} µs, of {calls} calls");
    Finding::new(SUBJECT, name, Verdict::by(p50_us, ROUND_TRIP_GOOD_US, ROUND_TRIP_BAD_US), found)
        .apus("adapts windows and timeouts to the measured round trip of each peer")
        .change(
            "apus doctor # at both ends: wake-ups, interrupts, other load",
            "over UDP within a host of two cores, a call takes 6.1 µs (docs/performance.md)",
        )
        .value("p50_us", round(p50_us))
        .value("p99_us", round(p99_us))
        .value("calls", calls)
}

fn packets(calls: &Calls) -> Finding {
    let name = "packet length";
    let long = match &calls.long {
        Ok(long) => long,
        Err(why) => return Finding::not_known(SUBJECT, name, why.clone()),
    };
    let Long { max_packet, by_interface, messages, resends, shrunk, .. } = *long;
    let passed = match shrunk {
        0 => format!(
            "{messages} messages of 1 MB arrived in each direction; no packet exceeded the path's MTU"
        ),
        times => format!(
            "{messages} messages of 1 MB arrived in each direction; packets exceeded the path's MTU {times} times"
        ),
    };
    // The kernel has learnt that some hop accepts less.
    let limit = by_interface.filter(|&longest| max_packet < longest);
    let limit = limit.map(|longest| format!(", where the interface allows {longest} B"));
    let shorter = limit.is_some();
    let limit = limit.unwrap_or_default();
    let found = format!(
        "Homa packets of up to {max_packet} B by the route{limit}; {passed}; {resends} resends"
    );
    Finding::new(SUBJECT, name, Verdict::good_if(shrunk == 0 && !shorter), found)
        .apus("sends shorter packets where longer ones are lost or refused, and tries longer ones again after 10 to 30 s \
               (docs/links.md)")
        .change(
            "tracepath -n PEER # names the hop with a smaller MTU; then `sudo ip link set dev DEV mtu N` at both hosts",
            "no losses when a path is probed again",
        )
        .value("max_packet_bytes", max_packet)
        .value("shrunk", shrunk)
        .value("resends", resends)
}

fn round(micros: f64) -> f64 {
    (micros * 10.0).round() / 10.0
}

/// Length of a short request, in bytes.
const SHORT: usize = 100;
const LONG: usize = 1_000_000;
const MESSAGES: u64 = 4;

const CALLS_MIN: usize = 20;
const CALLS_MAX: usize = 2_000;
const SHORT_TIME: Duration = Duration::from_millis(400);

/// Time limit for the first answer of a peer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Time limit for a call.
pub(super) const CALL_MAX: Duration = Duration::from_secs(5);

/// Upper bound on a good round trip; round trips within a datacenter take less.
const ROUND_TRIP_GOOD_US: f64 = 300.0;
const ROUND_TRIP_BAD_US: f64 = 20_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(long: Long) -> Calls {
        let short = RoundTrips { calls: 2_000, p50_us: 47.25, p99_us: 90.0 };
        Calls { route: Route::Udp, short: Ok(short), long: Ok(long) }
    }

    #[test]
    fn a_path_that_shrinks_could_be_better() {
        let long = Long { max_packet: 1_472, messages: 4, gso_segments: 900, ..Long::default() };
        let [transport, trip, packets] = calls(long).findings().try_into().unwrap();
        assert_eq!(transport.found, "UDP with segmentation (GSO)");
        assert!(trip.found.starts_with("47.2 µs for a call of 100 B"), "{}", trip.found);
        assert_eq!(packets.verdict, Verdict::Good);
        let hole = calls(Long { shrunk: 2, ..long }).findings().remove(2);
        assert_eq!(hole.verdict, Verdict::CouldBeBetter);
        assert!(hole.change.unwrap().starts_with("tracepath"));
        let learnt = Long { max_packet: 972, by_interface: Some(1_472), ..long };
        let learnt = calls(learnt).findings().remove(2);
        assert!(learnt.found.contains("972 B by the route, where the interface allows 1472 B"));
    }

    #[test]
    fn a_failed_call_is_bad() {
        let failed = Calls { short: Err("silent".to_owned()), ..calls(Long::default()) };
        assert_eq!(failed.findings()[1].verdict, Verdict::Bad);
    }

    #[test]
    fn the_change_for_a_silent_peer_is_a_program_to_start() {
        let to = apus::resolve("127.0.0.1:4000@1").unwrap();
        let peer = Reachability { to, answer: Err("no answer".to_owned()) };
        assert!(peer.finding().change.unwrap().starts_with("apus doctor --serve"));
    }
}
