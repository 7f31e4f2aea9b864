//! Endpoints that are left out for some time, because they fail or drain. Times are arguments.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use apus::Address;

/// Failures in a row, without an answer between them, that eject an endpoint.
pub(crate) const FAILURES_MAX: u32 = 5;

/// Time for which the first failures eject. Each later ejection takes as much longer.
const EJECTED_FOR: Duration = Duration::from_secs(30);

/// Longest time of an ejection. An endpoint that did not fail for so long begins anew.
const EJECTED_MAX: Duration = Duration::from_secs(300);

/// Time after which an endpoint is asked whether it is back: one that has drained, and one that did not answer when its
/// ejection ended.
const ASKED_AFTER: Duration = Duration::from_secs(1);

/// The ejected endpoints of a channel, and those that were.
#[derive(Debug, Default)]
pub(crate) struct Ejections {
    records: BTreeMap<Address, EjectionRecord>,
    /// Endpoints whose service does not serve, as they say.
    unhealthy: BTreeSet<Address>,
}

#[derive(Debug, Default)]
struct EjectionRecord {
    /// Ejections by failures since the endpoint was well for [`EJECTED_MAX`].
    count: u32,
    /// When the last ejection ended.
    back: Option<Instant>,
    out: Option<Out>,
}

#[derive(Debug)]
struct Out {
    by_failures: bool,
    /// When the endpoint is asked.
    until: Instant,
    is_asked: bool,
}

impl Ejections {
    pub(crate) fn is_out(&self, address: Address) -> bool {
        self.records.get(&address).is_some_and(|record| record.out.is_some())
    }

    /// Whether an endpoint has said that it does not serve, or its health cannot be asked.
    pub(crate) fn is_unhealthy(&self, address: Address) -> bool {
        self.unhealthy.contains(&address)
    }

    /// Takes the health of an endpoint. Returns whether it is another one.
    pub(crate) fn set_health(&mut self, address: Address, serves: bool) -> bool {
        if serves { self.unhealthy.remove(&address) } else { self.unhealthy.insert(address) }
    }

    /// An endpoint of this many has failed [`FAILURES_MAX`] times in a row. Returns whether it is ejected now: at most half of
    /// the endpoints are out by failures.
    pub(crate) fn failed(&mut self, address: Address, endpoints: usize, now: Instant) -> bool {
        let by_failures =
            |record: &EjectionRecord| record.out.as_ref().is_some_and(|out| out.by_failures);
        let out = self.records.values().filter(|record| by_failures(record)).count();
        if self.is_out(address) || (out + 1) * 2 > endpoints {
            return false;
        }
        let record = self.records.entry(address).or_default();
        let was_well = record.back.is_some_and(|back| now.duration_since(back) >= EJECTED_MAX);
        record.count = if was_well { 1 } else { record.count.saturating_add(1) };
        let time = EJECTED_FOR.saturating_mul(record.count).min(EJECTED_MAX);
        record.out = Some(Out { by_failures: true, until: now + time, is_asked: false });
        true
    }

    /// An endpoint drains. Returns whether it is ejected now.
    pub(crate) fn drained(&mut self, address: Address, now: Instant) -> bool {
        if self.is_out(address) {
            return false;
        }
        let out = Out { by_failures: false, until: now + ASKED_AFTER, is_asked: false };
        self.records.entry(address).or_default().out = Some(out);
        true
    }

    /// The next endpoint whose time is over. It is to be asked, and [`asked`](Self::asked) takes the result.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Address> {
        self.records.iter_mut().find_map(|(address, record)| {
            let out = record.out.as_mut().filter(|out| !out.is_asked && out.until <= now)?;
            out.is_asked = true;
            Some(*address)
        })
    }

    /// The time of the next [`due`](Self::due).
    pub(crate) fn next(&self) -> Option<Instant> {
        let outs = self.records.values().filter_map(|record| record.out.as_ref());
        outs.filter(|out| !out.is_asked).map(|out| out.until).min()
    }

    /// An endpoint was asked. One that does not serve is asked again later.
    pub(crate) fn asked(&mut self, address: Address, serves: bool, now: Instant) {
        let Some(record) = self.records.get_mut(&address) else { return };
        if serves {
            record.out = None;
            record.back = Some(now);
        } else if let Some(out) = &mut record.out {
            (out.is_asked, out.until) = (false, now + ASKED_AFTER);
        }
    }

    /// Forgets endpoints that are no longer in the list.
    pub(crate) fn retain(&mut self, is_listed: impl Fn(Address) -> bool) {
        self.records.retain(|address, _| is_listed(*address));
        self.unhealthy.retain(|address| is_listed(*address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u8) -> Address {
        format!("10.0.0.{number}:1").parse().expect("an address")
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn at_most_half_are_out_by_failures() {
        let (mut ejections, now) = (Ejections::default(), Instant::now());
        assert!(!ejections.failed(address(1), 1, now), "one of one");
        assert!(ejections.failed(address(1), 5, now));
        assert!(!ejections.failed(address(1), 5, now), "it is out");
        assert!(ejections.failed(address(2), 5, now));
        assert!(!ejections.failed(address(3), 5, now), "three of five");
        assert!(ejections.drained(address(3), now), "a drain has no such limit");
        assert!(!ejections.drained(address(3), now));
    }

    #[test]
    fn an_ejection_ends_with_an_answer_only() {
        let (mut ejections, begin) = (Ejections::default(), Instant::now());
        ejections.failed(address(1), 2, begin);
        assert_eq!(ejections.next(), Some(begin + 30 * SECOND));
        assert_eq!(ejections.due(begin + 29 * SECOND), None);
        let now = begin + 30 * SECOND;
        assert_eq!(ejections.due(now), Some(address(1)));
        assert_eq!((ejections.due(now), ejections.next()), (None, None), "it is asked once");
        ejections.asked(address(1), false, now + SECOND);
        assert!(ejections.is_out(address(1)));
        assert_eq!(ejections.next(), Some(now + 2 * SECOND));
        assert_eq!(ejections.due(now + 2 * SECOND), Some(address(1)));
        ejections.asked(address(1), true, now + 3 * SECOND);
        assert!(!ejections.is_out(address(1)));
    }

    #[test]
    fn ejections_grow_to_300_s_and_begin_anew_after_300_s_without() {
        let (mut ejections, mut now) = (Ejections::default(), Instant::now());
        let mut lengths = Vec::new();
        for _ in 0..12 {
            ejections.failed(address(1), 2, now);
            let until = ejections.next().expect("it is out");
            lengths.push(until.duration_since(now).as_secs());
            assert_eq!(ejections.due(until), Some(address(1)));
            ejections.asked(address(1), true, until);
            now = until + SECOND;
        }
        assert_eq!(lengths, [30, 60, 90, 120, 150, 180, 210, 240, 270, 300, 300, 300]);
        now += EJECTED_MAX;
        ejections.failed(address(1), 2, now);
        assert_eq!(ejections.next(), Some(now + EJECTED_FOR));
    }

    #[test]
    fn a_drain_is_short_and_not_counted() {
        let (mut ejections, now) = (Ejections::default(), Instant::now());
        ejections.drained(address(1), now);
        assert_eq!(ejections.next(), Some(now + SECOND));
        assert_eq!(ejections.due(now + SECOND), Some(address(1)));
        ejections.asked(address(1), true, now + SECOND);
        ejections.failed(address(1), 2, now + SECOND);
        assert_eq!(ejections.next(), Some(now + SECOND + EJECTED_FOR));
        ejections.retain(|_| false);
        assert!(!ejections.is_out(address(1)));
    }
}
