//! The known ways to peers.
//!
//! A way is looked up before it is used, by an examination, and again when it is old. The kernel's news about a neighbour or a
//! route end it at once. Until it is looked up again, packets to its peer go by UDP.
//!
//! The kernel does not see packets that leave by an XSK. One datagram in a while therefore goes by UDP: the kernel then verifies the
//! neighbour as for any other traffic, and a firewall that follows connections keeps this one.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::routes::{Change, Way, WayAnswer};
use crate::recent::Recent;

/// Upper bound on peers whose ways are known.
const WAYS_MAX: usize = 4_096;

/// Upper bound on peers that wait for a look-up.
const WANTED_MAX: usize = 64;

/// Time after which a way is looked up again, and after which a datagram goes by UDP.
const FRESH: Duration = Duration::from_secs(10);

/// Time after which a way without another look-up is not used.
const USABLE: Duration = Duration::from_secs(20);

/// Time between two look-ups of a peer that the kernel has to verify.
const RETRY: Duration = Duration::from_millis(100);

/// The ways of one link.
#[derive(Debug)]
pub(super) struct Ways {
    known: Recent<SocketAddr, Known>,
    wanted: Vec<SocketAddr>,
}

#[derive(Debug)]
struct Known {
    way: Option<Way>,
    /// Time of the look-up.
    asked: Instant,
    /// Time from which the next look-up is due.
    due: Instant,
    /// Time of the last datagram by UDP.
    by_udp: Instant,
}

impl Ways {
    pub(super) fn new() -> Self {
        Self { known: Recent::new(WAYS_MAX), wanted: Vec::new() }
    }

    /// Returns the way of a datagram to a peer. `None`: it goes by UDP.
    pub(super) fn next(&mut self, to: SocketAddr, now: Instant) -> Option<&Way> {
        let Some(place) = self.known.place(&to) else {
            self.want(to);
            return None;
        };
        if now >= self.known.at(place).due {
            self.want(to);
        }
        let known = self.known.at(place);
        if now - known.by_udp >= FRESH {
            known.by_udp = now;
            return None;
        }
        if now - known.asked < USABLE { known.way.as_ref() } else { None }
    }

    /// Records that a way is needed.
    fn want(&mut self, to: SocketAddr) {
        if self.wanted.len() < WANTED_MAX && !self.wanted.contains(&to) {
            self.wanted.push(to);
        }
    }

    /// Returns whether a look-up is due before packets go to a peer.
    pub(super) fn is_due(&self, to: SocketAddr, now: Instant) -> bool {
        self.known.peek(&to).is_none_or(|known| now >= known.due)
    }

    /// Returns a peer that needs a look-up.
    pub(super) fn wanted(&mut self, now: Instant) -> Option<SocketAddr> {
        while let Some(to) = self.wanted.pop() {
            if self.is_due(to, now) {
                return Some(to);
            }
        }
        None
    }

    /// Takes the kernel's answer about a peer. The first datagram after a first look-up goes by UDP.
    pub(super) fn looked_up(&mut self, to: SocketAddr, answer: WayAnswer, now: Instant) {
        let due = now + if answer == WayAnswer::Unverified { RETRY } else { FRESH };
        let way = match answer {
            WayAnswer::Way(way) => Some(way),
            WayAnswer::Unverified | WayAnswer::Other => None,
        };
        match self.known.use_of(&to) {
            Some(known) => (known.way, known.asked, known.due) = (way, now, due),
            None => {
                let by_udp = now.checked_sub(FRESH).unwrap_or(now);
                self.known.insert(to, Known { way, asked: now, due, by_udp });
            }
        }
    }

    /// Ends the ways that a change concerns.
    pub(super) fn changed(&mut self, change: &Change, now: Instant) {
        for known in self.known.values_mut() {
            let concerned = match (change, &known.way) {
                (Change::Others, _) => true,
                (Change::Neighbour { device, ip, address }, Some(way)) => {
                    let is_same = address.is_some_and(|address| way.ethernet[..6] == address);
                    way.device == *device && way.next_hop == *ip && !is_same
                }
                (Change::Neighbour { address, .. }, None) => address.is_some(),
            };
            if concerned {
                (known.way, known.due) = (None, now);
            }
        }
    }

    /// Ends all ways by a device.
    pub(super) fn device_is_gone(&mut self, device: u32, now: Instant) {
        for known in self.known.values_mut() {
            if known.way.as_ref().is_some_and(|way| way.device == device) {
                (known.way, known.due) = (None, now + RETRY);
            }
        }
    }
}

/// Returns whether a way is for datagrams from this local address.
pub(super) fn is_from(way: &Way, source: Option<IpAddr>) -> bool {
    source.is_none_or(|source| source == way.source)
}

#[cfg(test)]
mod tests {
    use super::super::headers::EthernetAddress;
    use super::*;

    const PEER: &str = "10.0.0.2:7";
    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn peer() -> SocketAddr {
        PEER.parse().unwrap()
    }

    fn way() -> WayAnswer {
        let mut ethernet = [0; 14];
        ethernet[..6].copy_from_slice(&MAC);
        let [source, next_hop] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
        WayAnswer::Way(Way { device: 3, ethernet, source, next_hop, mtu: 1_500 })
    }

    /// Returns ways on which the next datagram to the peer leaves by an XSK.
    fn used(now: Instant) -> Ways {
        let mut ways = Ways::new();
        ways.looked_up(peer(), way(), now);
        assert_eq!(ways.next(peer(), now), None, "the first one goes by UDP");
        assert!(ways.next(peer(), now).is_some());
        ways
    }

    fn neighbour(ip: &str, address: Option<EthernetAddress>) -> Change {
        Change::Neighbour { device: 3, ip: ip.parse().unwrap(), address }
    }

    #[test]
    fn a_way_is_wanted_until_it_is_looked_up() {
        let (mut ways, now) = (Ways::new(), Instant::now());
        assert!(ways.is_due(peer(), now));
        assert_eq!(ways.next(peer(), now), None);
        assert_eq!(ways.next(peer(), now), None);
        assert_eq!((ways.wanted(now), ways.wanted(now)), (Some(peer()), None));
        ways.looked_up(peer(), way(), now);
        assert!(!ways.is_due(peer(), now));
    }

    #[test]
    fn one_datagram_in_ten_seconds_goes_by_udp() {
        let now = Instant::now();
        let mut ways = used(now);
        let by_udp = (0..300u32).filter(|number| {
            let now = now + *number * Duration::from_millis(100);
            if ways.is_due(peer(), now) {
                ways.looked_up(peer(), way(), now);
            }
            ways.next(peer(), now).is_none()
        });
        assert_eq!(by_udp.collect::<Vec<_>>(), [100, 200]);
    }

    #[test]
    fn an_old_way_is_not_used() {
        let now = Instant::now();
        let mut ways = used(now);
        let later = now + FRESH;
        assert_eq!(ways.next(peer(), later), None);
        assert!(ways.next(peer(), later).is_some());
        assert_eq!(ways.wanted(later), Some(peer()));
        assert_eq!(ways.next(peer(), now + USABLE), None);
        assert_eq!(ways.next(peer(), now + USABLE), None);
    }

    #[test]
    fn news_of_the_neighbour_end_the_way() {
        let now = Instant::now();
        for (change, ends) in [
            (neighbour("10.0.0.2", Some(MAC)), false),
            (neighbour("10.0.0.2", Some([2; 6])), true),
            (neighbour("10.0.0.2", None), true),
            (neighbour("10.0.0.3", None), false),
            (Change::Others, true),
        ] {
            let mut ways = used(now);
            ways.changed(&change, now);
            assert_eq!(ways.next(peer(), now).is_none(), ends, "{change:?}");
            assert_eq!(ways.is_due(peer(), now), ends, "{change:?}");
        }
    }

    #[test]
    fn an_unverified_neighbour_is_looked_up_soon_and_when_it_is_verified() {
        let now = Instant::now();
        let mut ways = Ways::new();
        ways.looked_up(peer(), WayAnswer::Unverified, now);
        assert_eq!(ways.next(peer(), now), None);
        assert!(!ways.is_due(peer(), now) && ways.is_due(peer(), now + RETRY));
        ways.changed(&neighbour("10.0.0.2", Some(MAC)), now);
        assert!(ways.is_due(peer(), now));
    }

    #[test]
    fn a_device_that_is_gone_takes_its_ways_along() {
        let now = Instant::now();
        let mut ways = used(now);
        ways.device_is_gone(4, now);
        assert!(ways.next(peer(), now).is_some());
        ways.device_is_gone(3, now);
        assert_eq!(ways.next(peer(), now), None);
    }
}
