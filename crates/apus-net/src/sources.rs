//! From which of this machine's addresses each peer is answered: the one it called.
//!
//! A socket bound to all addresses sends from whichever the route prefers. A peer that called another one would not know who
//! answers.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use crate::paths;

/// Peers remembered; when there are more, all are forgotten and noted anew as they send.
const PEERS_MAX: usize = 4_096;

/// Where a peer's packets come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Called {
    local: IpAddr,
    /// The route would send from there anyhow.
    preferred: bool,
}

/// Local addresses by peer.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    known: HashMap<SocketAddr, Called>,
    last: Option<(SocketAddr, Called)>,
}

impl Sources {
    /// A packet of `peer` came to `local`. Costs a few system calls for a peer that is new or calls another address than before.
    #[inline]
    pub(crate) fn note(&mut self, peer: SocketAddr, local: IpAddr) {
        if !self.last.is_some_and(|(last, called)| last == peer && called.local == local) {
            self.look_up(peer, local);
        }
    }

    fn look_up(&mut self, peer: SocketAddr, local: IpAddr) {
        let known = self.known.get(&peer).copied().filter(|called| called.local == local);
        let called = known.unwrap_or_else(|| {
            let preferred = paths::source(peer) == Some(local);
            if self.known.len() >= PEERS_MAX {
                self.known.clear();
            }
            self.known.insert(peer, Called { local, preferred });
            Called { local, preferred }
        });
        self.last = Some((peer, called));
    }

    #[inline]
    fn find(&self, peer: SocketAddr) -> Option<Called> {
        match self.last {
            Some((last, called)) if last == peer => Some(called),
            _ => self.known.get(&peer).copied(),
        }
    }

    /// Where the peer's last packet came to.
    pub(crate) fn called(&self, peer: SocketAddr) -> Option<IpAddr> {
        self.find(peer).map(|called| called.local)
    }

    /// The address to send to the peer from, when it is another than the route prefers.
    #[inline]
    pub(crate) fn towards(&self, peer: SocketAddr) -> Option<IpAddr> {
        self.find(peer).filter(|called| !called.preferred).map(|called| called.local)
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
        assert_eq!((sources.towards(peer(1)), sources.called(peer(1))), (None, Some(usual)));
        assert_eq!(sources.towards(peer(2)), Some(other));
        sources.note(peer(1), other);
        assert_eq!(sources.towards(peer(1)), Some(other));
        assert_eq!(sources.towards(peer(3)), None);
    }

    #[test]
    fn the_table_is_bounded() {
        let mut sources = Sources::default();
        let local = IpAddr::from([127, 0, 0, 1]);
        (1..5_000).for_each(|port| sources.note(SocketAddr::from(([127, 0, 0, 1], port)), local));
        assert!(sources.known.len() <= PEERS_MAX);
    }
}
