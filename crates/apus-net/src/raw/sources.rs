//! From which of this machine's addresses each peer is answered: the one it called.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

/// Peers remembered; when there are more, all are forgotten and noted anew as they send.
const PEERS_MAX: usize = 4_096;

/// Local addresses by peer.
#[derive(Debug, Default)]
pub(super) struct Sources {
    known: HashMap<SocketAddr, IpAddr>,
    last: Option<(SocketAddr, IpAddr)>,
}

impl Sources {
    /// A packet of `peer` came to `local`.
    #[inline]
    pub(super) fn note(&mut self, peer: SocketAddr, local: IpAddr) {
        if self.last == Some((peer, local)) {
            return;
        }
        self.last = Some((peer, local));
        if self.known.len() >= PEERS_MAX {
            self.known.clear();
        }
        self.known.insert(peer, local);
    }

    /// Where the peer's last packet came to.
    #[inline]
    pub(super) fn towards(&self, peer: SocketAddr) -> Option<IpAddr> {
        match self.last {
            Some((last, local)) if last == peer => Some(local),
            _ => self.known.get(&peer).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_has_the_address_it_called_last_and_the_table_is_bounded() {
        let mut sources = Sources::default();
        let peer = |host: u32| SocketAddr::from((host.to_be_bytes(), 0));
        let [first, second] = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
        sources.note(peer(1), first);
        sources.note(peer(2), second);
        assert_eq!(sources.towards(peer(1)), Some(first));
        sources.note(peer(1), second);
        assert_eq!(sources.towards(peer(1)), Some(second));
        assert_eq!(sources.towards(peer(3)), None);
        (0..10_000).for_each(|host| sources.note(peer(host), first));
        assert!(sources.known.len() <= PEERS_MAX);
    }
}
