//! The search for the longest packet that a path allows, in the spirit of RFC 8899.
//!
//! A path begins with the MTU of its route. The network shortens it, by a router that reports its limit, or by packets of some
//! length that vanish while shorter ones arrive (a *black hole*). Neither limit is permanent. After a black hole, the path falls
//! back to the minimum and rises again step by step, to below the vanished length; after some time, the interface's length is tried
//! again. The data of messages are the probes: the protocol retransmits vanished packets.

use std::time::{Duration, Instant};

/// MTU of every present path, including tunnels: the minimum of IPv6.
pub(crate) const BASE_MTU: usize = 1_280;

/// Minimum MTU of IPv4.
pub(crate) const MIN_MTU_V4: usize = 576;

/// Common MTUs of networks, in rising order.
const PLATEAUS: [usize; 6] = [BASE_MTU, 1_400, 1_492, 1_500, 4_352, 9_000];

/// Time between two plateaus.
const STEP: Duration = Duration::from_secs(10);

/// Time for which a limit is believed at first. It doubles each time that the path turns out to be as short as before.
const BELIEVED_MIN: Duration = Duration::from_secs(30);

/// Upper bound on that time, as RFC 1191 suggests.
pub(crate) const BELIEVED_MAX: Duration = Duration::from_secs(600);

/// State of the search. Lengths are of IP packets, in bytes.
#[derive(Clone, Debug)]
pub(crate) struct Search {
    /// MTU of the interface.
    device: usize,
    mtu: usize,
    /// Lower bound on believed MTUs.
    min: usize,
    limit: Option<Limit>,
    /// The last limit that was given up, and the time.
    tried: Option<(Instant, Limit)>,
}

#[derive(Clone, Copy, Debug)]
struct Limit {
    /// Packets of this length were lost.
    failed: usize,
    /// Time of the next step up.
    raise_at: Instant,
    /// Time at which the interface's length is tried again.
    until: Instant,
    believed: Duration,
}

impl Search {
    /// Creates the search for a path whose route has `mtu` and whose interface has `device`. A smaller MTU of the route may be
    /// learned or forged, so it is not believed for ever.
    pub(crate) fn new(mtu: usize, device: usize, v4: bool, now: Instant) -> Self {
        let min = if v4 { MIN_MTU_V4 } else { BASE_MTU };
        let device = device.max(min);
        let mut search = Self { device, mtu: device, min, limit: None, tried: None };
        search.mtu_reported(mtu, now);
        search
    }

    /// Returns the length of the longest IP packet to send now.
    pub(crate) fn mtu(&self) -> usize {
        self.mtu
    }

    /// Takes a report of the network that the path allows no more than `mtu`. Returns whether that is less than before.
    pub(crate) fn mtu_reported(&mut self, mtu: usize, now: Instant) -> bool {
        if mtu < self.min || mtu >= self.mtu {
            return false; // Absurd, or one of many errors about packets under way.
        }
        self.limit_to(mtu, mtu + 1, now);
        true
    }

    /// Records that packets longer than [`BASE_MTU`] vanish while shorter ones arrive. Returns whether shorter packets are sent
    /// from now on.
    pub(crate) fn swallowed(&mut self, now: Instant) -> bool {
        let lower = if self.mtu > BASE_MTU { BASE_MTU } else { self.min };
        if lower >= self.mtu {
            return false;
        }
        self.limit_to(lower, self.mtu, now);
        true
    }

    fn limit_to(&mut self, mtu: usize, failed: usize, now: Instant) {
        let (believed, failed) = match (self.limit, self.tried) {
            (Some(limit), _) => (limit.believed, failed),
            (None, Some((tried, before))) if now.duration_since(tried) < before.believed => {
                ((before.believed * 2).min(BELIEVED_MAX), before.failed.min(failed))
            }
            (None, _) => (BELIEVED_MIN, failed),
        };
        self.mtu = mtu;
        let until = now + believed;
        self.limit = Some(Limit { failed, raise_at: until, until, believed });
        self.plan(now);
    }

    /// Schedules the next raise.
    fn plan(&mut self, now: Instant) {
        let next = self.next();
        if let Some(limit) = &mut self.limit {
            limit.raise_at = limit.until;
            if next < limit.failed {
                limit.raise_at = limit.until.min(now + STEP);
            }
        }
    }

    fn next(&self) -> usize {
        let above = PLATEAUS.into_iter().find(|&plateau| plateau > self.mtu);
        above.unwrap_or(self.device).min(self.device)
    }

    /// Returns whether the path is limited to less than the interface.
    pub(crate) fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// Returns whether [`raise`](Self::raise) is due.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.limit.is_some_and(|limit| now >= limit.raise_at)
    }

    /// Takes the next step up, or rises to `device`, the interface's present MTU, once the limit was believed long enough.
    pub(crate) fn raise(&mut self, device: usize, now: Instant) {
        self.device = device.max(self.min);
        let Some(limit) = self.limit else { return self.mtu = self.device };
        if now < limit.until {
            self.mtu = self.next();
            return self.plan(now);
        }
        self.mtu = self.device;
        self.limit = None;
        self.tried = Some((now, limit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// Returns the MTU after each change, until nothing is due for an hour. Packets longer than `taken` vanish; `says` means that a
    /// router reports that limit.
    fn course(search: &mut Search, taken: usize, says: bool, from: Instant) -> Vec<(u64, usize)> {
        let mut course = vec![(0, search.mtu())];
        for second in 0..3_600 {
            let now = from + seconds(second);
            if search.is_due(now) {
                search.raise(1_500, now);
                course.push((second, search.mtu()));
            }
            if search.mtu() > taken {
                let changed =
                    if says { search.mtu_reported(taken, now) } else { search.swallowed(now) };
                assert!(changed);
                course.push((second, search.mtu()));
            }
        }
        course
    }

    #[test]
    fn what_a_router_says_is_believed_longer_each_time() {
        let start = Instant::now();
        let mut search = Search::new(1_500, 1_500, true, start);
        let tries: Vec<u64> = course(&mut search, 1_450, true, start)
            .into_iter()
            .filter_map(|(second, mtu)| (mtu == 1_500).then_some(second))
            .collect();
        assert_eq!(tries, [0, 30, 90, 210, 450, 930, 1_530, 2_130, 2_730, 3_330]);
        assert_eq!(search.mtu(), 1_450);
    }

    #[test]
    fn a_forged_limit_is_gone_after_half_a_minute() {
        let start = Instant::now();
        let mut search = Search::new(1_500, 1_500, true, start);
        assert!(search.mtu_reported(576, start));
        assert!(!search.mtu_reported(600, start), "less than what is known");
        let expected = [(0, 576), (10, 1_280), (20, 1_400), (30, 1_500)];
        // A forged limit proves nothing about the lengths above it, so it is lifted at once.
        let seen = course(&mut search, 1_500, true, start);
        assert_eq!(seen, [expected[0], expected[3]]);
    }

    #[test]
    fn absurd_limits_are_not_believed() {
        let start = Instant::now();
        assert!(!Search::new(1_500, 1_500, true, start).mtu_reported(575, start));
        assert!(!Search::new(1_500, 1_500, false, start).mtu_reported(1_279, start));
        assert!(Search::new(1_500, 1_500, false, start).mtu_reported(1_280, start));
        assert_eq!(Search::new(68, 1_500, true, start).mtu(), 1_500);
    }

    #[test]
    fn a_black_hole_ends_below_what_vanishes() {
        let start = Instant::now();
        let mut search = Search::new(1_500, 1_500, true, start);
        let course = course(&mut search, 1_450, false, start);
        let first_steps =
            [(0, 1_500), (0, 1_280), (10, 1_400), (20, 1_492), (20, 1_280), (30, 1_400)];
        let then =
            [(50, 1_500), (50, 1_280), (60, 1_400), (110, 1_500), (110, 1_280), (120, 1_400)];
        assert_eq!(course[..12], [first_steps, then].concat());
        let tries = course.iter().filter(|&&(_, mtu)| mtu > 1_450).count();
        assert!(tries <= 11, "{tries} of an hour: {course:?}");
    }

    #[test]
    fn a_path_that_takes_less_than_usual_is_found_too() {
        let start = Instant::now();
        let mut search = Search::new(1_500, 1_500, true, start);
        assert!(search.swallowed(start) && search.swallowed(start));
        assert_eq!(search.mtu(), 576);
        assert!(!search.swallowed(start), "no path takes less");
        let mut v6 = Search::new(1_500, 1_500, false, start);
        assert!(v6.swallowed(start) && !v6.swallowed(start));
    }

    #[test]
    fn a_path_that_grows_is_used_again() {
        let start = Instant::now();
        let mut search = Search::new(1_500, 1_500, true, start);
        search.mtu_reported(1_300, start);
        let later = start + seconds(40);
        assert!(search.is_due(later));
        search.raise(9_000, later);
        assert_eq!(search.mtu(), 9_000);
        assert!(!search.is_due(later + seconds(10_000)));
    }

    #[test]
    fn a_limit_in_the_route_does_not_last_either() {
        let start = Instant::now();
        let mut search = Search::new(1_300, 1_500, true, start);
        assert_eq!(search.mtu(), 1_300);
        let later = start + BELIEVED_MIN;
        assert!(search.is_due(later));
        search.raise(1_500, later);
        assert_eq!(search.mtu(), 1_500);
    }
}
