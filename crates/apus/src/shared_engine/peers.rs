//! Identities of peers, which an engine announces to its processes: each once, under a number that the requests of the peer name.
//!
//! Both sides keep the last [`PEERS_MAX`] identities in the order of their announcement, so neither reports which ones it forgets.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use apus_seal::{Identity, Name};
use bytes::Bytes;

use crate::secure::peer::Peer;
use crate::shared_engine::messages::PIECE_MAX;

/// The number of an identity, for one process. Requests of a peer without an identity name [`NO_PEER`].
pub(crate) type PeerNumber = u32;

/// The number of no identity.
pub(crate) const NO_PEER: PeerNumber = 0;

/// Upper bound on the identities that an engine and a process know together.
const PEERS_MAX: usize = 256;

/// Upper bound on an announced identity in bytes: a handshake has less than 64 KiB.
const IDENTITY_MAX: usize = 256 << 10;

/// The identities that an engine has announced to a process.
#[derive(Debug, Default)]
pub(crate) struct AnnouncedPeers {
    /// Numbers by the place of the identity in memory, which `order` keeps in use.
    numbers: HashMap<usize, PeerNumber>,
    /// Oldest first.
    order: VecDeque<Arc<Identity>>,
    last: PeerNumber,
}

impl AnnouncedPeers {
    /// Returns the number of an identity. Passes the pieces of a new one to `announce`, each with whether it is the last.
    pub(crate) fn number(
        &mut self,
        peer: &Peer,
        mut announce: impl FnMut(PeerNumber, bool, Bytes),
    ) -> PeerNumber {
        let place = place_of(&peer.0);
        if let Some(&number) = self.numbers.get(&place) {
            return number;
        }
        let number = self.last.checked_add(1).unwrap_or(NO_PEER + 1);
        let bytes = Bytes::from(encode(&peer.0));
        for start in (0..bytes.len()).step_by(PIECE_MAX) {
            let end = bytes.len().min(start + PIECE_MAX);
            announce(number, end == bytes.len(), bytes.slice(start..end));
        }
        self.last = number;
        self.numbers.insert(place, number);
        self.order.push_back(Arc::clone(&peer.0));
        if self.order.len() > PEERS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.numbers.remove(&place_of(&oldest));
        }
        number
    }
}

fn place_of(identity: &Arc<Identity>) -> usize {
    Arc::as_ptr(identity).addr()
}

/// The identities that the engine of a process has announced.
#[derive(Debug, Default)]
pub(crate) struct KnownPeers {
    /// The pieces of an identity that is not complete.
    pieces: Vec<u8>,
    peers: HashMap<PeerNumber, Peer>,
    /// Oldest first.
    order: VecDeque<PeerNumber>,
}

impl KnownPeers {
    /// Takes a piece of an identity.
    pub(crate) fn take_piece(&mut self, number: PeerNumber, is_last: bool, piece: &[u8]) {
        if self.pieces.len() + piece.len() > IDENTITY_MAX {
            self.pieces.clear();
            return; // No engine of this version sends so much.
        }
        self.pieces.extend_from_slice(piece);
        if !is_last {
            return;
        }
        let identity = decode(&std::mem::take(&mut self.pieces));
        let Some(identity) = identity else { return };
        if self.peers.insert(number, Peer(Arc::new(identity))).is_none() {
            self.order.push_back(number);
        }
        if self.order.len() > PEERS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.peers.remove(&oldest);
        }
    }

    pub(crate) fn get(&self, number: PeerNumber) -> Option<&Peer> {
        self.peers.get(&number)
    }

    /// Forgets the identities of an engine that has ended.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Writes an identity as a list of texts and numbers, each text after its length.
fn encode(identity: &Identity) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, identity.name.as_str().as_bytes());
    put_list(&mut bytes, identity.dns_names.iter().map(|name| name.as_str().as_bytes()));
    put_length(&mut bytes, identity.addresses.len());
    for address in &identity.addresses {
        let address = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => *address,
        };
        bytes.extend(address.octets());
    }
    put(&mut bytes, &identity.serial);
    put(&mut bytes, identity.issuer.as_bytes());
    for time in [identity.not_before, identity.not_after] {
        bytes.extend(time.as_secs().to_le_bytes());
        bytes.extend(time.subsec_nanos().to_le_bytes());
    }
    put_list(&mut bytes, identity.chain.iter().map(Vec::as_slice));
    bytes
}

fn put_length(bytes: &mut Vec<u8>, length: usize) {
    bytes.extend(u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
}

fn put(bytes: &mut Vec<u8>, part: &[u8]) {
    put_length(bytes, part.len());
    bytes.extend(part);
}

fn put_list<'a>(bytes: &mut Vec<u8>, parts: impl ExactSizeIterator<Item = &'a [u8]>) {
    put_length(bytes, parts.len());
    parts.for_each(|part| put(bytes, part));
}

/// Reads the bytes of [`encode`]. `None` for other bytes.
fn decode(bytes: &[u8]) -> Option<Identity> {
    let mut reader = Reader(bytes);
    let mut identity = Identity::named(Name::parse(reader.text()?).ok()?);
    identity.dns_names = reader.list(|reader| Name::dns(reader.text()?).ok())?;
    identity.addresses = reader.list(|reader| {
        let address = Ipv6Addr::from(*reader.take::<16>()?);
        Some(address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4))
    })?;
    identity.serial = reader.part()?.to_vec();
    reader.text()?.clone_into(&mut identity.issuer);
    identity.not_before = reader.time()?;
    identity.not_after = reader.time()?;
    identity.chain = reader.list(|reader| Some(reader.part()?.to_vec()))?;
    reader.0.is_empty().then_some(identity)
}

/// The bytes that are not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(taken)
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(u32::from_le_bytes(*self.take()?)).ok()
    }

    fn part(&mut self) -> Option<&'a [u8]> {
        let length = self.length()?;
        let (part, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(part)
    }

    fn text(&mut self) -> Option<&'a str> {
        str::from_utf8(self.part()?).ok()
    }

    fn time(&mut self) -> Option<Duration> {
        let seconds = u64::from_le_bytes(*self.take()?);
        let nanos = u32::from_le_bytes(*self.take()?);
        (nanos < 1_000_000_000).then(|| Duration::new(seconds, nanos))
    }

    /// Reads a list, whose entries all have bytes, so that its length allocates nothing.
    fn list<T>(&mut self, mut entry: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let length = self.length()?;
        (0..length).map(|_| entry(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        let mut identity = Identity::named(Name::parse("spiffe://example.org/kv/1").unwrap());
        identity.dns_names = vec![Name::dns("kv.example.org").unwrap()];
        identity.addresses = ["10.0.0.2", "fd00::2"].map(|ip| ip.parse().unwrap()).to_vec();
        identity.serial = vec![0x4f, 0xa1];
        identity.issuer = "Example CA".to_owned();
        identity.not_before = Duration::from_nanos(1_234_567_890_123);
        identity.not_after = Duration::MAX;
        identity.chain = vec![vec![1; 900], vec![], vec![2; 3_000]];
        identity
    }

    #[test]
    fn an_identity_stays_what_it_is_and_bytes_of_none_are_refused() {
        let bytes = encode(&identity());
        assert_eq!(decode(&bytes), Some(identity()));
        for end in 0..bytes.len() {
            assert_eq!(decode(&bytes[..end]), None, "{end}");
        }
        assert_eq!(decode(&[&bytes[..], &[0]].concat()), None);
        assert_eq!(decode(&[0xff; 100]), None);
    }

    #[test]
    fn an_identity_is_announced_once_and_both_sides_forget_the_same_ones() {
        let (mut announced, mut known) = (AnnouncedPeers::default(), KnownPeers::default());
        let mut pieces = 0;
        let mut number = |peer: &Peer, known: &mut KnownPeers| {
            announced.number(peer, |number, is_last, piece| {
                pieces += 1;
                assert!(piece.len() <= PIECE_MAX);
                known.take_piece(number, is_last, &piece);
            })
        };
        let peers: Vec<_> = (0..=PEERS_MAX).map(|_| Peer(Arc::new(identity()))).collect();
        let first = number(&peers[0], &mut known);
        assert_eq!((first, number(&peers[0], &mut known)), (1, 1));
        assert_eq!(known.get(first), Some(&peers[0]));
        for peer in &peers[1..] {
            let number = number(peer, &mut known);
            assert_eq!(known.get(number), Some(peer));
        }
        assert_eq!(known.get(first), None, "both have forgotten it");
        let again = number(&peers[0], &mut known);
        assert_eq!((again as usize, known.get(again)), (PEERS_MAX + 2, Some(&peers[0])));
        assert_eq!(pieces, 2 * (PEERS_MAX + 2), "two pieces, once each");
    }

    #[test]
    fn pieces_without_an_end_are_not_kept() {
        let mut known = KnownPeers::default();
        for _ in 0..1_000 {
            known.take_piece(1, false, &[0; PIECE_MAX]);
            assert!(known.pieces.len() <= IDENTITY_MAX);
        }
    }
}
