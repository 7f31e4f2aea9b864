//! The datagrams that an attacker on the path has recorded, and those that it makes of them.

use apus_load::Random;
use apus_seal::{CLEAR_LEN, VERSION_HINT};
use apus_wire::PathId;
use rand::Rng;

use crate::chance::{below, happens};
use crate::check::addresses::attacker;

/// Upper bounds on the recorded datagrams and their bytes. Later ones replace earlier ones at random.
const SEEN_MAX: usize = 4_096;
const SEEN_BYTES_MAX: usize = 4 << 20;

/// A recorded datagram.
#[derive(Clone, Debug)]
pub(super) struct Datagram {
    pub(super) from: PathId,
    pub(super) to: PathId,
    pub(super) bytes: Vec<u8>,
}

/// The datagrams that the attacker has recorded.
#[derive(Debug, Default)]
pub(super) struct Seen {
    datagrams: Vec<Datagram>,
    bytes: usize,
}

impl Seen {
    pub(super) fn note(&mut self, rng: &mut Random, from: PathId, to: PathId, bytes: &[u8]) {
        let datagram = Datagram { from, to, bytes: bytes.to_vec() };
        self.bytes += bytes.len();
        if self.datagrams.len() < SEEN_MAX && self.bytes < SEEN_BYTES_MAX {
            return self.datagrams.push(datagram);
        }
        let place = below(rng, self.datagrams.len().max(1) as u32) as usize;
        if let Some(old) = self.datagrams.get_mut(place) {
            self.bytes -= old.bytes.len();
            *old = datagram;
        }
    }

    /// A recorded datagram, more often one of the last.
    pub(super) fn any(&self, rng: &mut Random) -> Option<&Datagram> {
        let count = self.datagrams.len() as u32;
        let back = if happens(rng, 500_000) { count.min(16) } else { count };
        if back == 0 {
            return None;
        }
        self.datagrams.get((count - 1 - below(rng, back)) as usize)
    }

    /// The next datagram of the attacker. `addresses` are those of all nodes.
    pub(super) fn forge(&self, rng: &mut Random, addresses: &[PathId]) -> Option<Datagram> {
        let mut datagram = self.any(rng)?.clone();
        let anywhere = |rng: &mut Random| addresses[below(rng, addresses.len() as u32) as usize];
        match below(rng, 10) {
            0 | 1 => {}
            2 | 3 => datagram.from = anywhere(rng),
            4 => (datagram.from, datagram.to) = (attacker(), anywhere(rng)),
            5 => datagram.to = anywhere(rng),
            6 => {
                for _ in 0..=below(rng, 3) {
                    let at = below(rng, datagram.bytes.len() as u32) as usize;
                    datagram.bytes[at] ^= 1 << below(rng, 8);
                }
            }
            7 => {
                let other = self.any(rng)?;
                let keep = below(rng, datagram.bytes.len() as u32 + 1) as usize;
                datagram.bytes.truncate(keep);
                datagram.bytes.extend(other.bytes.iter().skip(keep));
            }
            8 => {
                // The hint is about a datagram that its receiver has not answered so.
                let clear = datagram.bytes.get(..CLEAR_LEN)?;
                let mut hint = clear.to_vec();
                hint[..4].copy_from_slice(&[0, 0, VERSION_HINT, 0]);
                if happens(rng, 300_000) {
                    hint[12 + below(rng, 8) as usize] = rng.next_u32() as u8;
                }
                datagram = Datagram { from: datagram.to, to: datagram.from, bytes: hint };
            }
            _ => {
                // The number of a record that is sent later.
                let number = datagram.bytes.get_mut(17..CLEAR_LEN)?;
                number[below(rng, 3) as usize] = rng.next_u32() as u8;
            }
        }
        Some(datagram)
    }
}
