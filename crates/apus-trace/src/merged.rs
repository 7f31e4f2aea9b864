//! Several traces merged onto one clock.

use std::collections::BTreeMap;

use crate::file::{Anchor, EventNames, Record, RingTrace, Trace};
use crate::stamp::Clock;

/// Records of several traces in the order of time.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Merged {
    /// The rings that records come from.
    pub rings: Vec<Source>,
    /// The events of all traces.
    pub events: Vec<EventNames>,
    /// All records, the first at time 0.
    pub moments: Vec<Moment>,
    /// Threads of all processes that found all rings taken at their first record.
    pub without_ring: u64,
    /// Clock offset applied to each host except the first, which aligns both ends of a call.
    pub offsets: Vec<ClockOffset>,
}

/// A ring of one of the traces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// Index of its trace among the merged traces.
    pub trace: usize,
    /// The program.
    pub program: String,
    /// The process.
    pub pid: u32,
    /// The thread, or the simulated host.
    pub name: String,
    /// Records that were overwritten before the trace was read.
    pub overwritten: u64,
}

/// A record with its time on the common clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    /// Nanoseconds since the first record of all traces.
    pub nanos: u64,
    /// Index of its ring in [`Merged::rings`].
    pub ring: usize,
    /// Index of its event in [`Merged::events`].
    pub event: usize,
    /// Its arguments.
    pub arguments: [u32; 4],
}

/// The correction of one host's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockOffset {
    /// The first trace of the host.
    pub trace: usize,
    /// Nanoseconds added to its times, beyond the difference of the hosts' clocks of the day.
    pub nanos: i64,
    /// The least time of a message between the hosts, assumed equal in both directions. `None` if the traces have no call between
    /// the hosts, so that only the clocks of the day align them.
    pub least_delay_nanos: Option<i64>,
}

/// Traces with one boot id whose times of day differ by more than this come from different hosts: clones of one snapshot of a
/// virtual machine. Within one host, the time of day changes by less while programs run.
const ONE_BOOT_NANOS: u128 = 10_000_000_000;

/// A record before the alignment of the clocks.
#[derive(Clone, Copy)]
struct Raw {
    nanos: i128,
    ring: usize,
    event: usize,
    arguments: [u32; 4],
    /// Index of the clock of its stamp.
    clock: usize,
}

impl Merged {
    /// Merges traces. Traces of one boot of a host share a clock. Calls between hosts align the hosts' clocks, so that the least
    /// delay of a message is the same in both directions.
    #[must_use]
    pub fn of(traces: &[Trace]) -> Self {
        let (clocks, clock_of) = group(traces);
        let mut merged = Self::default();
        let (mut raws, mut known) = (Vec::new(), BTreeMap::new());
        for (index, trace) in traces.iter().enumerate() {
            merged.without_ring = merged.without_ring.saturating_add(trace.without_ring);
            let numbers = merged.take_events(&trace.events, &mut known);
            for RingTrace { name, records, overwritten, .. } in &trace.rings {
                let (program, name) = (trace.program.clone(), name.clone());
                let ring = merged.rings.len();
                let (pid, overwritten) = (trace.pid, *overwritten);
                merged.rings.push(Source { trace: index, program, pid, name, overwritten });
                let clock = clock_of[index];
                raws.extend(records.iter().filter_map(|&Record { ticks, event, arguments }| {
                    let event = *numbers.get(&event)?;
                    let nanos = clocks[clock].nanos(ticks);
                    Some(Raw { nanos, ring, event, arguments, clock })
                }));
            }
        }
        merged.rename_pairs(&mut raws);
        let corrections = merged.align(&raws, &clocks);
        for raw in &mut raws {
            raw.nanos += corrections[raw.clock];
        }
        raws.sort_by_key(|raw| raw.nanos);
        let start = raws.first().map_or(0, |raw| raw.nanos);
        let moments = raws.into_iter().map(|raw| Moment {
            nanos: u64::try_from(raw.nanos - start).unwrap_or(u64::MAX),
            ring: raw.ring,
            event: raw.event,
            arguments: raw.arguments,
        });
        merged.moments = moments.collect();
        merged
    }

    /// Gives records of the first calls to a peer the pair of later calls.
    fn rename_pairs(&self, raws: &mut [Raw]) {
        let met = raws.iter().filter(|raw| self.events[raw.event].name == "peer_met");
        let later: BTreeMap<u32, u32> =
            met.map(|raw| (raw.arguments[0], raw.arguments[1])).collect();
        if later.is_empty() {
            return;
        }
        for raw in raws {
            if self.events[raw.event].is_of_call() {
                let pair = &mut raw.arguments[1];
                *pair = later.get(pair).copied().unwrap_or(*pair);
            }
        }
    }

    /// The text of a moment.
    #[must_use]
    pub fn text(&self, moment: &Moment) -> String {
        self.events[moment.event].format(&moment.arguments)
    }

    /// The name of a moment's event.
    #[must_use]
    pub fn name(&self, moment: &Moment) -> &str {
        &self.events[moment.event].name
    }

    /// The lower half of a call's id and its pair, if the moment is about a call.
    #[must_use]
    pub fn call_of(&self, moment: &Moment) -> Option<(u32, u32)> {
        let is_of_call = self.events[moment.event].is_of_call();
        is_of_call.then_some((moment.arguments[0], moment.arguments[1]))
    }

    /// The merged trace as one file, with one ring for each of [`rings`](Self::rings).
    #[must_use]
    pub fn to_trace(&self) -> Trace {
        let rings = self.rings.iter().map(|source| RingTrace {
            name: format!("{}.{}/{}", source.program, source.pid, source.name),
            overwritten: source.overwritten,
            ..RingTrace::default()
        });
        let mut rings: Vec<_> = rings.collect();
        for &Moment { nanos, ring, event, arguments } in &self.moments {
            rings[ring].records.push(Record { ticks: nanos, event: event as u16, arguments });
        }
        let events = self.events.iter().zip(0..);
        Trace {
            clock: Clock::Virtual,
            program: "merged".to_owned(),
            pid: 0,
            machine: [0; 16],
            realtime: 0,
            anchors: vec![Anchor::default(), Anchor { ticks: 1_000_000_000, nanos: 1_000_000_000 }],
            events: events.map(|(event, number)| EventNames { number, ..event.clone() }).collect(),
            rings,
            without_ring: self.without_ring,
        }
    }

    /// Adds the events of a trace. Returns their indices by their numbers in that trace. `known` has the indices of earlier events,
    /// without their numbers.
    fn take_events(
        &mut self,
        events: &[EventNames],
        known: &mut BTreeMap<EventNames, usize>,
    ) -> BTreeMap<u16, usize> {
        let mut places = BTreeMap::new();
        for event in events {
            let names = EventNames { number: 0, ..event.clone() };
            let place = *known.entry(names).or_insert_with(|| {
                self.events.push(event.clone());
                self.events.len() - 1
            });
            places.insert(event.number, place);
        }
        places
    }

    /// The correction of each clock, in nanoseconds.
    fn align(&mut self, raws: &[Raw], clocks: &[HostClock]) -> Vec<i128> {
        let mut corrections = vec![0; clocks.len()];
        if clocks.len() < 2 {
            return corrections;
        }
        let least = self.least_delays(raws);
        let mut aligned = vec![0];
        let mut waiting: Vec<usize> = (1..clocks.len()).collect();
        while !waiting.is_empty() {
            let both_ways = |&clock: &usize| {
                aligned.iter().find_map(|&other: &usize| {
                    Some((clock, other, *least.get(&(other, clock))?, *least.get(&(clock, other))?))
                })
            };
            let found = waiting.iter().find_map(both_ways);
            let (clock, least_delay) = match found {
                Some((clock, other, there, back)) => {
                    corrections[clock] = corrections[other] + (back - there) / 2;
                    (clock, Some((there + back) / 2))
                }
                None => (waiting[0], None),
            };
            waiting.retain(|&other| other != clock);
            aligned.push(clock);
            self.offsets.push(ClockOffset {
                trace: clocks[clock].trace,
                nanos: corrections[clock] as i64,
                least_delay_nanos: least_delay.map(|nanos| nanos as i64),
            });
        }
        corrections
    }

    /// The least time from the first transmission of a message to its arrival, from one clock to another, by the clocks of both
    /// hosts. Two hosts that call each other use the same ids and one pair, so the sender's clock is a part of the key.
    fn least_delays(&self, raws: &[Raw]) -> BTreeMap<(usize, usize), i128> {
        let place = |name| self.events.iter().position(|event| event.name == name);
        let (sent, received) = (place("data_xmit"), place("data_received"));
        let mut first_sent: BTreeMap<(u32, u32), BTreeMap<usize, i128>> = BTreeMap::new();
        for raw in raws.iter().filter(|raw| Some(raw.event) == sent && raw.arguments[2] == 0) {
            let key = (raw.arguments[0], raw.arguments[1]);
            let at = first_sent.entry(key).or_default().entry(raw.clock).or_insert(raw.nanos);
            *at = raw.nanos.min(*at);
        }
        let mut least = BTreeMap::new();
        for raw in raws.iter().filter(|raw| Some(raw.event) == received && raw.arguments[2] == 0) {
            let Some(senders) = first_sent.get(&(raw.arguments[0] ^ 1, raw.arguments[1])) else {
                continue;
            };
            let mut others = senders.iter().filter(|(clock, _)| **clock != raw.clock);
            // With several candidates, which have no pair, the sender is unknown.
            if let (Some((&from, &at)), None) = (others.next(), others.next()) {
                let delay = raw.nanos - at;
                let least = least.entry((from, raw.clock)).or_insert(delay);
                *least = delay.min(*least);
            }
        }
        least
    }
}

/// The clock of a host, from boot to shutdown.
struct HostClock {
    /// Index of the first trace with this clock.
    trace: usize,
    first: Anchor,
    last: Anchor,
    /// Added to its nanoseconds, gives nanoseconds since 1970.
    to_day: i128,
}

impl HostClock {
    fn nanos(&self, ticks: u64) -> i128 {
        let since = i128::from(ticks) - i128::from(self.first.ticks);
        let (ticks, nanos) =
            (self.last.ticks - self.first.ticks, self.last.nanos.saturating_sub(self.first.nanos));
        let elapsed = match ticks {
            0 => since,
            _ => since.saturating_mul(nanos.into()) / i128::from(ticks),
        };
        i128::from(self.first.nanos) + elapsed + self.to_day
    }
}

/// The clocks of the traces, and the index of each trace's clock.
fn group(traces: &[Trace]) -> (Vec<HostClock>, Vec<usize>) {
    let mut clocks: Vec<HostClock> = Vec::new();
    let clock_of = traces.iter().enumerate().map(|(index, trace)| {
        let [first, last] = trace.widest_anchors();
        let started = trace.anchors.first().copied().unwrap_or_default();
        let to_day = match trace.clock {
            Clock::Virtual => 0,
            _ => i128::from(trace.realtime) - i128::from(started.nanos),
        };
        let shares = |other: &HostClock| {
            let of_day = other.to_day;
            let other = &traces[other.trace];
            trace.clock != Clock::Virtual
                && (other.clock, other.machine) == (trace.clock, trace.machine)
                && of_day.abs_diff(to_day) < ONE_BOOT_NANOS
        };
        if let Some(at) = clocks.iter().position(shares) {
            let clock = &mut clocks[at];
            if first.ticks < clock.first.ticks {
                clock.first = first;
            }
            if last.ticks > clock.last.ticks {
                clock.last = last;
            }
            return at;
        }
        clocks.push(HostClock { trace: index, first, last, to_day });
        clocks.len() - 1
    });
    let clock_of = clock_of.collect();
    (clocks, clock_of)
}
