//! From which of this machine's addresses each peer is answered: the one it called.
//!
//! A socket bound to all addresses sends from whichever the route prefers. A peer that called another one would not know who
//! answers.

use std::net::{IpAddr, SocketAddr};

use crate::recent::Recent;

/// Peers remembered.
const PEERS_MAX: usize = 4_096;

/// Local addresses by peer. Anybody can have a peer noted, so that costs no system call.
#[derive(Debug)]
pub(crate) struct Sources {
    called: Recent<SocketAddr, IpAddr>,
    last: Option<(SocketAddr, IpAddr)>,
}

impl Default for Sources {
    fn default() -> Self {
        Self { called: Recent::new(PEERS_MAX), last: None }
    }
}

impl Sources {
    /// A packet of `peer` came to `local`.
    #[inline]
    pub(crate) fn note(&mut self, peer: SocketAddr, local: IpAddr) {
        if self.last != Some((peer, local)) {
            self.note_another(peer, local);
        }
    }

    fn note_another(&mut self, peer: SocketAddr, local: IpAddr) {
        match self.called.use_of(&peer) {
            Some(called) => *called = local,
            None => _ = self.called.insert(peer, local),
        }
        self.last = Some((peer, local));
    }

    /// Where the peer's last packet came to.
    #[inline]
    pub(crate) fn called(&self, peer: SocketAddr) -> Option<IpAddr> {
        match self.last {
            Some((last, local)) if last == peer => Some(local),
            _ => self.called.peek(&peer).copied(),
        }
    }

    /// The address to send to the peer from, when it is another than `preferred`, which the route would choose.
    #[inline]
    pub(crate) fn towards(&self, peer: SocketAddr, preferred: Option<IpAddr>) -> Option<IpAddr> {
        self.called(peer).filter(|&local| preferred != Some(local))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_is_answered_from_the_address_it_called_last() {
        let mut sources = Sources::default();
        let peer = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let [usual, other] = [1, 2].map(|host| IpAddr::from([127, 0, 0, host]));
        sources.note(peer(1), usual);
        sources.note(peer(2), other);
        let preferred = Some(usual);
        assert_eq!(sources.towards(peer(1), preferred), None);
        assert_eq!(sources.called(peer(1)), Some(usual));
        assert_eq!(sources.towards(peer(1), None), Some(usual), "the route is not known");
        assert_eq!(sources.towards(peer(2), preferred), Some(other));
        sources.note(peer(1), other);
        assert_eq!(sources.towards(peer(1), preferred), Some(other));
        assert_eq!(sources.towards(peer(3), preferred), None);
    }

    #[test]
    fn the_table_is_bounded_and_unknown_sources_do_not_drive_a_peer_out() {
        let mut sources = Sources::default();
        let [local, called] = [1, 2].map(|host| IpAddr::from([127, 0, 0, host]));
        let peer = SocketAddr::from(([10, 0, 0, 1], 1));
        sources.note(peer, called);
        for unknown in 0..20_000u32 {
            sources.note(SocketAddr::from((unknown.to_be_bytes(), 7)), local);
            if unknown % 1_000 == 0 {
                sources.note(peer, called);
            }
        }
        assert_eq!(sources.called.len(), PEERS_MAX);
        assert_eq!(sources.towards(peer, Some(local)), Some(called));
    }
}
