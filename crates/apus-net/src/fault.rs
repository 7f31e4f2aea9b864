//! A wrapper of a link that injects reproducible faults at given rates.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::{Duration, Instant};

use apus_wire::{PacketReceiver, PacketSink, PathError, PathId, Priority, Transmit};
use bytes::Bytes;

use crate::link::{
    Capabilities, Link, LinkCounters, delegate_link, delegate_paths, delegate_sockets,
};
use crate::path::Path;
use crate::paths::{Examination, Examined};
use crate::sleeper::Descriptors;

/// Upper bound on held packets; further ones are dropped and counted.
const HELD_MAX: usize = 65_536;

/// Upper bound on the packets that pass a reordered one.
const PREEMPTED_BY_MAX: u64 = 8;

/// Upper bound on the wait of a reordered packet for others.
const REORDER_WAIT_MAX: Duration = Duration::from_millis(1);

/// Upper bound on delay and jitter: ten seconds. No protocol waits longer for a packet, and memory is finite.
const DELAY_MAX: Duration = Duration::from_secs(10);

/// Faults that a [`FaultLink`] injects into outgoing packets. All probabilities are per packet, in 0..=1.
///
/// # Defaults
///
/// No faults: no loss, no duplication, no reordering, no corruption, no delay; seed 0.
///
/// The text form, for a command line, lists the differences from the default: `loss=0.1,dup=0.05,reorder=0.05,corrupt=0.001,
/// delay=50us,jitter=10us,seed=7`. Durations have a unit: `ns`, `us`, `ms` or `s`.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Faults {
    /// Probability that the packet is dropped.
    pub loss: f64,
    /// Probability that the packet is sent twice.
    pub duplicate: f64,
    /// Probability that the packet is held back until one to eight others have passed it, or a millisecond has passed.
    pub reorder: f64,
    /// Probability that one bit of the packet, at any place, is flipped. **Homa has no checksum** and relies on UDP's, which is
    /// computed afterwards: a corrupted payload reaches the application. Useful for testing the checks of headers.
    pub corrupt: f64,
    /// Delay of each packet, at most 10 s.
    pub delay: Duration,
    /// Upper bound on the additional delay of each packet, at most 10 s. The delay is uniformly distributed, so packets also pass
    /// each other.
    pub jitter: Duration,
    /// Seed of the random numbers. Two links with the same seed treat the same packets in the same way.
    pub seed: u64,
}

impl Faults {
    /// Validates the faults. Fails if a probability is not in 0..=1 or a duration is longer than ten seconds.
    pub fn validated(self) -> Result<Self, FaultsError> {
        let probabilities = [
            ("loss", self.loss),
            ("dup", self.duplicate),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
        ];
        for (name, value) in probabilities {
            if !(0.0..=1.0).contains(&value) {
                return Err(FaultsError::Probability { name, value: value.to_string() });
            }
        }
        for (name, value) in [("delay", self.delay), ("jitter", self.jitter)] {
            if value > DELAY_MAX {
                return Err(FaultsError::Duration {
                    name,
                    value: format!("{}s", value.as_secs_f64()),
                });
            }
        }
        Ok(self)
    }
}

impl FromStr for Faults {
    type Err = FaultsError;

    fn from_str(text: &str) -> Result<Self, FaultsError> {
        let mut faults = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| FaultsError::Unknown { part: part.to_owned() })?;
            match name {
                "loss" => faults.loss = probability("loss", value)?,
                "dup" => faults.duplicate = probability("dup", value)?,
                "reorder" => faults.reorder = probability("reorder", value)?,
                "corrupt" => faults.corrupt = probability("corrupt", value)?,
                "delay" => faults.delay = duration("delay", value)?,
                "jitter" => faults.jitter = duration("jitter", value)?,
                "seed" => {
                    let wrong = |_| FaultsError::Seed { value: value.to_owned() };
                    faults.seed = value.parse().map_err(wrong)?;
                }
                _ => return Err(FaultsError::Unknown { part: part.to_owned() }),
            }
        }
        faults.validated()
    }
}

fn probability(name: &'static str, value: &str) -> Result<f64, FaultsError> {
    value.parse().map_err(|_| FaultsError::Probability { name, value: value.to_owned() })
}

fn duration(name: &'static str, value: &str) -> Result<Duration, FaultsError> {
    let wrong = || FaultsError::Duration { name, value: value.to_owned() };
    let digits = value.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = value.split_at(digits);
    let nanos: u64 = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(nanos).map(Duration::from_nanos).ok_or_else(wrong)
}

/// The form that [`FromStr`] parses.
impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { loss, duplicate, reorder, corrupt, delay, jitter, seed } = self;
        write!(f, "loss={loss},dup={duplicate},reorder={reorder},corrupt={corrupt}")?;
        write!(f, ",delay={}ns,jitter={}ns,seed={seed}", delay.as_nanos(), jitter.as_nanos())
    }
}

/// Reason for refusing a description of faults.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FaultsError {
    /// A probability is not a number in 0..=1.
    #[error("{name}={value}: must be a probability from 0 to 1")]
    Probability {
        /// The argument.
        name: &'static str,
        /// The given value.
        value: String,
    },
    /// A delay is not a duration of at most ten seconds.
    #[error("{name}={value}: must be a whole number with a unit (ns, us, ms, s), at most 10s")]
    Duration {
        /// The argument.
        name: &'static str,
        /// The given value.
        value: String,
    },
    /// The seed is not a number.
    #[error("seed={value}: must be a whole number from 0 to {}", u64::MAX)]
    Seed {
        /// The given value.
        value: String,
    },
    /// There is no such argument.
    #[error("{part}: must be one of loss=, dup=, reorder=, corrupt=, delay=, jitter=, seed=")]
    Unknown {
        /// The given part.
        part: String,
    },
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): eight bytes of state, passes BigCrush, and yields the same numbers everywhere.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a uniform number in 0..limit; the bias of at most limit / 2^64 does not matter here.
    fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    fn happens(&mut self, probability: f64) -> bool {
        // 53 bits, the precision of a double.
        ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }
}

/// A packet that is held back. Ordered by its due time, then by its number.
#[derive(Debug)]
struct DelayedPacket {
    due: Instant,
    number: u64,
    packet: Owned,
}

impl PartialEq for DelayedPacket {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for DelayedPacket {}

impl PartialOrd for DelayedPacket {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DelayedPacket {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

/// A packet that owns its bytes.
#[derive(Clone, Debug)]
struct Owned {
    path: PathId,
    priority: Priority,
    header: Vec<u8>,
    body: Bytes,
    range: std::ops::Range<usize>,
}

impl Owned {
    fn new(packet: &Transmit<'_>) -> Self {
        Self {
            path: packet.path,
            priority: packet.priority,
            header: packet.header.to_vec(),
            body: packet.body.clone(),
            range: packet.range.clone(),
        }
    }

    /// Flips one bit, numbered through header and payload. The payload becomes a copy, so that its message stays unchanged.
    fn flip(&mut self, bit: usize) {
        let (byte, mask) = (bit / 8, 1 << (bit % 8));
        if let Some(byte) = self.header.get_mut(byte) {
            *byte ^= mask;
            return;
        }
        let mut payload = self.body[self.range.clone()].to_vec();
        payload[byte - self.header.len()] ^= mask;
        self.range = 0..payload.len();
        self.body = payload.into();
    }

    fn send(&self, sink: &mut impl PacketSink) {
        sink.send(Transmit {
            path: self.path,
            priority: self.priority,
            header: &self.header,
            body: &self.body,
            range: self.range.clone(),
        });
    }
}

/// A link that injects its [`Faults`] into outgoing packets and leaves received packets unchanged.
///
/// Delayed packets leave when [`Link::recv`] or [`Link::flush`] is called at or after their time; [`Link::due_in`] returns that
/// time.
pub struct FaultLink<L> {
    link: L,
    faults: Faults,
    random: Random,
    /// Packets held back until a time.
    delayed: BinaryHeap<Reverse<DelayedPacket>>,
    /// Packets held back until packet `number` has been sent, or a time has come. There are few, so a scan of all is cheap.
    reordered: Vec<DelayedPacket>,
    /// Number of packets sent so far.
    number: u64,
    counters: LinkCounters,
}

impl<L: Link> FaultLink<L> {
    /// Wraps a link. Fails if the faults are not [valid](Faults::validated).
    pub fn new(link: L, faults: Faults) -> Result<Self, FaultsError> {
        Ok(Self {
            link,
            faults: faults.validated()?,
            random: Random(faults.seed),
            delayed: BinaryHeap::new(),
            reordered: Vec::new(),
            number: 0,
            counters: LinkCounters::default(),
        })
    }

    /// Returns the inner link.
    pub fn inner(&self) -> &L {
        &self.link
    }

    /// Holds a packet back, or sends it if it has no delay.
    fn dispatch(&mut self, packet: Owned) {
        let Faults { delay, jitter, reorder, .. } = self.faults;
        let reordered = self.random.happens(reorder);
        let jitter = u64::try_from(jitter.as_nanos()).expect("validated: at most ten seconds");
        let wait = delay + Duration::from_nanos(self.random.below(jitter.saturating_add(1)));
        if !reordered && wait.is_zero() {
            return packet.send(&mut self.link);
        }
        if self.delayed.len() + self.reordered.len() >= HELD_MAX {
            self.counters.fault_overflow += 1;
            return;
        }
        let due = Instant::now() + wait;
        if !reordered {
            self.counters.fault_delayed += 1;
            return self.delayed.push(Reverse(DelayedPacket { due, number: self.number, packet }));
        }
        self.counters.fault_reordered += 1;
        let number = self.number + 1 + self.random.below(PREEMPTED_BY_MAX);
        self.reordered.push(DelayedPacket { due: due + REORDER_WAIT_MAX, number, packet });
    }

    /// Sends packets that were held back long enough. Returns whether there were any.
    fn let_go(&mut self) -> bool {
        if self.delayed.is_empty() && self.reordered.is_empty() {
            return false;
        }
        let now = Instant::now();
        let mut released = self.release_reordered(Some(now));
        while self.delayed.peek().is_some_and(|Reverse(held)| held.due <= now) {
            let Reverse(held) = self.delayed.pop().expect("it was just looked at");
            held.packet.send(&mut self.link);
            released = true;
        }
        released
    }

    /// Sends the reordered packets that enough others have passed or, if `now` is given, that have waited too long.
    fn release_reordered(&mut self, now: Option<Instant>) -> bool {
        let before = self.reordered.len();
        let (number, link) = (self.number, &mut self.link);
        self.reordered.retain(|held| {
            let keep = held.number > number && now.is_none_or(|now| held.due > now);
            if !keep {
                held.packet.send(link);
            }
            keep
        });
        self.reordered.len() < before
    }
}

impl<L: Link> PacketSink for FaultLink<L> {
    fn send(&mut self, packet: Transmit<'_>) {
        let Faults { loss, duplicate, corrupt, .. } = self.faults;
        self.number += 1;
        if self.random.happens(loss) {
            self.counters.fault_lost += 1;
        } else {
            let mut packet = Owned::new(&packet);
            if self.random.happens(duplicate) {
                self.counters.fault_duplicated += 1;
                self.dispatch(packet.clone());
            }
            if self.random.happens(corrupt) {
                self.counters.fault_corrupted += 1;
                let bits = 8 * (packet.header.len() + packet.range.len());
                packet.flip(self.random.below(bits as u64) as usize);
            }
            self.dispatch(packet);
        }
        self.release_reordered(None);
    }

    delegate_paths!(self, self.link);
}

impl<L: Link> Link for FaultLink<L> {
    delegate_link!(self, self.link);
    delegate_sockets!(self, self.link);

    fn recv(&mut self, receiver: &mut dyn PacketReceiver) -> usize {
        if self.let_go() {
            self.link.flush();
        }
        self.link.recv(receiver)
    }

    fn flush(&mut self) {
        self.let_go();
        self.link.flush();
    }

    fn due_in(&self) -> Option<Duration> {
        let delayed = self.delayed.peek().map(|Reverse(held)| held.due);
        let due = self.reordered.iter().map(|held| held.due).chain(delayed).min();
        let own = due.map(|due| due.saturating_duration_since(Instant::now()));
        [own, self.link.due_in()].into_iter().flatten().min()
    }

    fn counters(&self) -> LinkCounters {
        let LinkCounters {
            fault_lost,
            fault_duplicated,
            fault_reordered,
            fault_corrupted,
            fault_delayed,
            fault_overflow,
            ..
        } = self.counters;
        let mut counters = self.link.counters();
        counters.fault_lost += fault_lost;
        counters.fault_duplicated += fault_duplicated;
        counters.fault_reordered += fault_reordered;
        counters.fault_corrupted += fault_corrupted;
        counters.fault_delayed += fault_delayed;
        counters.fault_overflow += fault_overflow;
        counters
    }
}

#[cfg(test)]
mod tests;
