//! The marks of packets on arrival, and whether the network honours them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use apus::{Address, Client};
use apus_load::stats;

use super::calls;
use super::packet::{DscpSocket, Packet};
use super::service::{Open, Ports};
use crate::finding::{Finding, Subject, Verdict};

const SUBJECT: Subject = Subject::Path;

#[derive(Clone, Debug)]
pub(super) struct Marks {
    /// Each level of priority with its marks there and back, or the reason why they are not known.
    levels: Result<Vec<MarkRoundTrip>, String>,
    /// `None` if it was not requested.
    flood: Option<Result<Flood, String>>,
}

/// A mark as sent, as received by the peer, and as received back in the answer.
#[derive(Clone, Copy, PartialEq, Debug)]
struct MarkRoundTrip {
    sent: u8,
    there: Option<u8>,
    back: Option<u8>,
}

/// Round trips while the lowest level is loaded, in microseconds, medians.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Flood {
    mbps: u64,
    idle_us: f64,
    highest_us: f64,
    lowest_us: f64,
    /// Share of unanswered questions at the highest level.
    highest_lost: f64,
    /// Share of unanswered questions at the lowest level.
    lowest_lost: f64,
}

impl Marks {
    /// `flood` is the rate of the load, in Mb/s.
    pub(super) fn gather(client: &Client, to: Address, nonce: u64, flood: Option<u64>) -> Self {
        let opened = open(client, to, nonce);
        let levels = opened.clone().and_then(|ports| {
            let asker = Asker::new(to, ports.answers, nonce).map_err(|error| error.to_string())?;
            asker.marks()
        });
        let flood = flood.map(|mbps| {
            let ports = opened?;
            loaded(to, ports, nonce, mbps).map_err(|error| error.to_string())
        });
        Self { levels, flood }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        vec![dscp(self), priorities(self)]
    }
}

/// Requests the ports of the doctor from the peer's node.
fn open(client: &Client, to: Address, nonce: u64) -> Result<Ports, String> {
    let reply = client.call(to, Open { nonce }.request()).deadline(calls::CALL_MAX).wait();
    let reply = reply.map_err(|error| format!("the call failed: {error}"))?;
    Ports::parse(&reply).ok_or_else(|| "the peer does not run `apus doctor --serve`".to_owned())
}

/// Sends questions to the doctor at the peer as datagrams, one at a time.
struct Asker {
    socket: DscpSocket,
    to: SocketAddr,
    nonce: u64,
    number: std::cell::Cell<u32>,
}

/// An answer, and the time that it took.
struct Answer {
    packet: Packet,
    mark: Option<u8>,
    time: Duration,
}

impl Asker {
    fn new(to: Address, port: u16, nonce: u64) -> io::Result<Self> {
        let any: IpAddr = match to.host.ip() {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = DscpSocket::bind(any, ANSWER_MAX)?;
        let to = SocketAddr::new(to.host.ip(), port);
        Ok(Self { socket, to, nonce, number: 0.into() })
    }

    /// Sends a question. `None` if no answer came in time.
    fn ask(&self, mark: u8) -> io::Result<Option<Answer>> {
        let number = self.number.get();
        self.number.set(number.wrapping_add(1));
        let mut bytes = [0; QUESTION];
        Packet { nonce: self.nonce, number, wanted: mark, seen: None }.write(&mut bytes);
        self.socket.mark(mark)?;
        let start = Instant::now();
        self.socket.send(&bytes, self.to)?;
        loop {
            let received = match self.socket.receive(&mut bytes) {
                Ok(received) => received,
                Err(error) if is_timeout(&error) => return Ok(None),
                Err(error) => return Err(error),
            };
            let time = start.elapsed();
            if time > ANSWER_MAX {
                return Ok(None);
            }
            let packet = Packet::parse(&bytes[..received.length]);
            // A late answer to an earlier question may come first.
            let answers =
                |it: &Packet| (it.nonce, it.number) == (self.nonce, number) && it.seen.is_some();
            if let Some(packet) = packet.filter(answers) {
                return Ok(Some(Answer { packet, mark: received.mark, time }));
            }
        }
    }

    /// Tries all levels. A question without an answer is repeated a few times.
    fn marks(&self) -> Result<Vec<MarkRoundTrip>, String> {
        let seen = (0..LEVELS).map(|level| {
            let sent = mark(level);
            for _ in 0..TRIES {
                if let Some(answer) = self.ask(sent).map_err(|error| error.to_string())? {
                    return Ok(MarkRoundTrip {
                        sent,
                        there: answer.packet.seen,
                        back: answer.mark,
                    });
                }
            }
            Err(format!("UDP port {} of the peer does not answer", self.to.port()))
        });
        seen.collect()
    }

    /// Tries each of the levels in turn for some time. Returns the times of the answers in microseconds, and the share of lost
    /// answers.
    fn sample<const N: usize>(
        &self,
        levels: [u8; N],
        time: Duration,
    ) -> io::Result<[(f64, f64); N]> {
        let mut times = levels.map(|_| Vec::new());
        let (start, mut rounds) = (Instant::now(), 0);
        while rounds < ROUNDS_MAX && start.elapsed() < time {
            for (level, times) in levels.iter().zip(&mut times) {
                times.extend(self.ask(mark(*level))?.map(|it| it.time.as_secs_f64() * 1e6));
            }
            rounds += 1;
        }
        Ok(times.map(|times| {
            let lost = 1.0 - times.len() as f64 / f64::from(rounds.max(1));
            (stats::median(&times).unwrap_or(f64::INFINITY), lost)
        }))
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// The byte that Apus writes for a level of priority.
fn mark(level: u8) -> u8 {
    level << 5
}

/// Loads the lowest level, and meanwhile sends questions at the lowest and the highest level.
fn loaded(to: Address, ports: Ports, nonce: u64, mbps: u64) -> io::Result<Flood> {
    let asker = Asker::new(to, ports.answers, nonce)?;
    let [(idle_us, _)] = asker.sample([HIGHEST], IDLE_TIME)?;
    let sink = SocketAddr::new(to.host.ip(), ports.sink);
    let flooding = DscpSocket::bind(asker.socket_ip(), ANSWER_MAX)?;
    flooding.mark(mark(LOWEST))?;
    let done = AtomicBool::new(false);
    let sampled = thread::scope(|scope| {
        scope.spawn(|| flood(&flooding, sink, mbps, &done));
        thread::sleep(FILL_TIME);
        let sampled = asker.sample([HIGHEST, LOWEST], FLOOD_TIME);
        done.store(true, Ordering::Relaxed);
        sampled
    });
    let [(highest_us, highest_lost), (lowest_us, lowest_lost)] = sampled?;
    Ok(Flood { mbps, idle_us, highest_us, lowest_us, highest_lost, lowest_lost })
}

impl Asker {
    fn socket_ip(&self) -> IpAddr {
        match self.to.ip() {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        }
    }
}

/// Sends at a rate until `done` is set, or for [`FLOOD_MAX`].
fn flood(socket: &DscpSocket, to: SocketAddr, mbps: u64, done: &AtomicBool) {
    let bytes = [0; FLOOD_PACKET];
    let (start, mut sent_bits) = (Instant::now(), 0u64);
    while !done.load(Ordering::Relaxed) && start.elapsed() < FLOOD_MAX {
        let due_bits = start.elapsed().as_micros() as u64 * mbps;
        if sent_bits > due_bits {
            thread::sleep(FLOOD_PAUSE);
            continue;
        }
        // Datagrams that a full queue refuses count as sent: the rate is the attempted rate.
        let _ = socket.send(&bytes, to);
        sent_bits += 8 * (FLOOD_PACKET as u64 + UDP_AND_IP);
    }
}

fn dscp(marks: &Marks) -> Finding {
    let name = "DSCP";
    let apus = "writes the priority of a packet into the upper three bits of its type of service; a network that rewrites them has \
                one queue for all packets";
    let levels = match &marks.levels {
        Ok(levels) => levels,
        Err(why) => {
            let mut finding = Finding::not_known(SUBJECT, name, why.clone()).apus(apus);
            finding.change = Some(SERVE.to_owned());
            finding.brings =
                Some("the doctor at the peer reports the marks of received packets".to_owned());
            return finding;
        }
    };
    let text = |mark: Option<u8>| {
        mark.map_or_else(|| "not reported".to_owned(), |it| format!("{it:#04x}"))
    };
    let changed = |direction: fn(&MarkRoundTrip) -> Option<u8>| {
        let changed = levels.iter().filter(move |it| direction(it) != Some(it.sent));
        changed.map(|it| format!("{:#04x} as {}", it.sent, text(direction(it)))).collect::<Vec<_>>()
    };
    let (there, back) = (changed(|it| it.there), changed(|it| it.back));
    let found = match (there.is_empty(), back.is_empty()) {
        (true, true) => "all eight levels arrive unchanged in both directions".to_owned(),
        _ => format!(
            "levels that arrive changed at the peer: {}; at this host: {}",
            if there.is_empty() { "none".to_owned() } else { there.join(", ") },
            if back.is_empty() { "none".to_owned() } else { back.join(", ") }
        ),
    };
    let intact = there.is_empty() && back.is_empty();
    Finding::new(SUBJECT, name, Verdict::good_if(intact), found)
        .apus(apus)
        .change(
            "sudo nft list ruleset | grep -i dscp; sudo iptables -t mangle -S # at both hosts; the switches must trust DSCP",
            "short messages overtake long ones in the queues of switches; without priorities, only SRPT and grants order them",
        )
        .value("changed_there", there.len())
        .value("changed_back", back.len())
}

fn priorities(marks: &Marks) -> Finding {
    let name = "priorities";
    let not_known = |why: String, command: &str, brings: &str| {
        let mut finding = Finding::not_known(SUBJECT, name, why);
        finding.change = Some(command.to_owned());
        finding.brings = Some(brings.to_owned());
        finding
    };
    let flood = match &marks.flood {
        None => {
            let why = "the path was not loaded".to_owned();
            let command = "apus doctor PEER --flood 1000 # Mb/s, for a second: more than the slowest link of the path; it disturbs \
                           other traffic";
            return not_known(
                why,
                command,
                "round trips at the highest level while the lowest is loaded",
            );
        }
        Some(Err(why)) => {
            return not_known(why.clone(), SERVE, "`apus doctor --serve` at the peer answers");
        }
        Some(Ok(flood)) => flood,
    };
    let Flood { mbps, idle_us, highest_us, lowest_us, highest_lost, lowest_lost } = *flood;
    let time = |micros: f64, lost: f64| match micros.is_finite() {
        true => format!("{micros:.0} µs ({:.0} % lost)", lost * 100.0),
        false => "no answer".to_owned(),
    };
    let found = format!(
        "round trips of {idle_us:.0} µs; with {mbps} Mb/s of the lowest level, {} at the highest and {} at the lowest",
        time(highest_us, highest_lost),
        time(lowest_us, lowest_lost)
    );
    let values = |finding: Finding| {
        let number = |micros: f64| micros.is_finite().then_some(micros.round());
        finding
            .value("flood_mbps", mbps)
            .value("idle_us", number(idle_us))
            .value("highest_us", number(highest_us))
            .value("lowest_us", number(lowest_us))
    };
    // Without a queue, no level can be ahead of another.
    let waits = |micros: f64| (micros - idle_us).max(0.0);
    let is_loaded =
        waits(lowest_us) > QUEUE_MIN * idle_us.max(QUEUE_MIN_US) || lowest_lost > LOST_MIN;
    if !is_loaded {
        let why = format!("{found}: no queue formed");
        let more = format!(
            "apus doctor PEER --flood {} # Mb/s: more than the slowest link of the path",
            mbps.saturating_mul(2)
        );
        return values(not_known(why, &more, "a queue forms, in which the levels differ"));
    }
    let acts = highest_us.is_finite()
        && waits(highest_us) <= AHEAD_MAX * waits(lowest_us)
        && (highest_lost < LOST_MIN || highest_lost < AHEAD_MAX * lowest_lost);
    let finding = Finding::new(SUBJECT, name, Verdict::good_if(acts), found)
        .apus("sends short messages at high levels and long ones at low levels, and keeps the queue of the sending host short")
        .change(
            "tc -s qdisc show # if the queue is at this host, flood with less than the rate of its interface",
            "in switches with a strict queue for each level, short messages do not wait behind long ones (docs/lab.md)",
        );
    values(finding)
}

const SERVE: &str =
    "apus doctor --serve --listen 0.0.0.0:20146 # at the peer; its UDP ports must be reachable";

const LEVELS: u8 = 8;
const LOWEST: u8 = 0;
const HIGHEST: u8 = LEVELS - 1;

/// Length of a question, in bytes.
const QUESTION: usize = 64;
const _: () = assert!(QUESTION >= Packet::LEN);

/// Time limit for an answer.
const ANSWER_MAX: Duration = Duration::from_millis(100);

/// Upper bound on the questions at one level until an answer comes.
const TRIES: usize = 5;

const ROUNDS_MAX: u32 = 5_000;
const IDLE_TIME: Duration = Duration::from_millis(200);
const FILL_TIME: Duration = Duration::from_millis(50);
const FLOOD_TIME: Duration = Duration::from_secs(1);
/// Upper bound on the time of the load.
const FLOOD_MAX: Duration = Duration::from_secs(3);
const FLOOD_PAUSE: Duration = Duration::from_micros(50);

/// Length of a packet, in bytes, that fits any path.
const FLOOD_PACKET: usize = 1_200;
const UDP_AND_IP: u64 = 28;

/// Lower bound on the lowest level's wait in a queue, in round trips of at least `QUEUE_MIN_US`.
const QUEUE_MIN: f64 = 3.0;
const QUEUE_MIN_US: f64 = 100.0;
/// Lower bound on the share that the lowest level loses in a queue.
const LOST_MIN: f64 = 0.2;

/// Upper bound on the highest level's waits and losses as a share of the lowest level's, if it is ahead of the queue.
const AHEAD_MAX: f64 = 0.3;

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(flood: Flood) -> Marks {
        Marks { levels: Err("no doctor".to_owned()), flood: Some(Ok(flood)) }
    }

    const FLOOD: Flood = Flood {
        mbps: 100,
        idle_us: 100.0,
        highest_us: 300.0,
        lowest_us: 9_000.0,
        highest_lost: 0.0,
        lowest_lost: 0.1,
    };

    #[test]
    fn marks_that_change_are_named() {
        let seen = |there| {
            (0..LEVELS).map(mark).map(move |sent| MarkRoundTrip {
                sent,
                there: Some(there & sent),
                back: Some(sent),
            })
        };
        let of = |there| dscp(&Marks { levels: Ok(seen(there).collect()), flood: None });
        assert_eq!(of(0xff).verdict, Verdict::Good);
        let bleached = of(0x20);
        assert!(
            bleached.found.contains("0xc0 as 0x00, 0xe0 as 0x20; at this host: none"),
            "{}",
            bleached.found
        );
        assert_eq!(bleached.verdict, Verdict::CouldBeBetter);
    }

    #[test]
    fn priorities_act_if_the_highest_level_does_not_wait() {
        assert_eq!(priorities(&marks(FLOOD)).verdict, Verdict::Good);
        let alike = Flood { highest_us: 8_000.0, ..FLOOD };
        assert_eq!(priorities(&marks(alike)).verdict, Verdict::CouldBeBetter);
        let lost = Flood { highest_us: f64::INFINITY, highest_lost: 1.0, ..FLOOD };
        assert_eq!(priorities(&marks(lost)).verdict, Verdict::CouldBeBetter);
        let no_queue = Flood { lowest_us: 150.0, lowest_lost: 0.0, ..FLOOD };
        let finding = priorities(&marks(no_queue));
        assert_eq!(finding.verdict, Verdict::NotKnown);
        assert!(finding.change.unwrap().contains("--flood 200 "));
    }

    #[test]
    fn what_was_not_asked_for_is_not_known() {
        let none = Marks { levels: Err("no doctor".to_owned()), flood: None };
        let [dscp, priorities] = none.findings().try_into().unwrap();
        assert!(dscp.change.unwrap().starts_with("apus doctor --serve"));
        assert!(priorities.change.unwrap().contains("--flood"));
    }
}
