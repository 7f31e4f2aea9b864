//! Datagrams of a peer, sealed, changed, repeated and reordered, and bytes that nobody sealed.
//!
//! No input makes a table panic. A datagram is opened only if it was sealed, with the same text, and at most once from each
//! address.

#![no_main]

use std::collections::BTreeSet;
use std::time::Duration;

use apus_seal::{
    AssociationId, Associations, AwsAead, CLEAR_LEN, Installation, OVERHEAD, PathSecret, Role,
    SealLimits, Successor, Suite,
};
use apus_wire::{PathId, Priority};
use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};

type Table = Associations<AwsAead, u8>;

const HOME: u8 = 0;

#[derive(Arbitrary, Debug)]
enum Step {
    Seal {
        level: u8,
        len: u8,
        header_words: u8,
    },
    /// A datagram arrives, perhaps with a changed byte.
    Deliver {
        nth: u8,
        from: u8,
        change: Option<(u8, u8)>,
    },
    /// The beginning of a datagram and other bytes behind it arrive.
    Splice {
        nth: u8,
        keep: u8,
        end: Vec<u8>,
    },
    Forge {
        from: u8,
        bytes: Vec<u8>,
    },
    /// A datagram with the right id arrives.
    ForgeFields {
        marks: u8,
        number: u64,
        len: u8,
    },
    Hint {
        bytes: Vec<u8>,
    },
    Answer,
    Pass {
        milliseconds: u16,
    },
    /// A refresh ends the association soon, so few values ask for one.
    Supersede {
        by: u8,
    },
    Reserve {
        random: u64,
    },
}

/// One side of the association.
struct Side {
    table: Table,
    id: AssociationId,
}

fuzz_target!(|steps: Vec<Step>| {
    let limits = SealLimits {
        associations: 4,
        key_bytes: 16 << 10,
        forgeries: 1 << 10,
        ..SealLimits::default()
    };
    let [mut sender, mut receiver] = [0, 1].map(|shard| {
        let mut table = Table::new(shard, limits);
        let id = table.reserve(7).expect("an empty table");
        Side { table, id }
    });
    let peers = [receiver.id, sender.id];
    for ((side, role), peer_id) in
        [(&mut sender, Role::Client), (&mut receiver, Role::Server)].into_iter().zip(peers)
    {
        let installation = Installation {
            secret: PathSecret::new([7; 32]),
            role,
            suite: Suite::Aes128Gcm,
            peer_id,
            path: PathId::new(0, 0),
            address: HOME,
            lifetime: Duration::from_secs(7200),
        };
        side.table.install(Duration::ZERO, side.id, installation).expect("a pending id");
    }
    let mut now = Duration::ZERO;
    let mut sealed: Vec<Vec<u8>> = Vec::new();
    let mut opened = BTreeSet::new();
    // The text of each datagram.
    let mut texts: Vec<Vec<u8>> = Vec::new();
    for step in steps {
        let (from, mut datagram) = match step {
            Step::Seal { level, len, header_words } => {
                let level = Priority::clamped(level % 8);
                let text = vec![texts.len() as u8; usize::from(len) + 28 + 124];
                let mut datagram = vec![0; text.len() + OVERHEAD];
                let result = if header_words % 2 == 0 {
                    datagram[CLEAR_LEN..][..text.len()].copy_from_slice(&text);
                    sender.table.seal_in_place(now, sender.id, level, &mut datagram)
                } else {
                    let header_len = 4 * (14 + usize::from(header_words) % 18);
                    let (payload, header) = text.split_at(text.len() - header_len);
                    sender.table.seal_parts(now, sender.id, level, payload, header, &mut datagram)
                };
                if result.is_ok() {
                    sealed.push(datagram);
                    texts.push(text);
                }
                continue;
            }
            Step::Deliver { nth, from, change } if !sealed.is_empty() => {
                let mut datagram = sealed[usize::from(nth) % sealed.len()].clone();
                if let Some((at, mask)) = change {
                    let at = usize::from(at) % datagram.len();
                    datagram[at] ^= mask;
                }
                (from % 3, datagram)
            }
            Step::Splice { nth, keep, end } if !sealed.is_empty() => {
                let datagram = &sealed[usize::from(nth) % sealed.len()];
                let keep = usize::from(keep).min(datagram.len());
                (HOME, [&datagram[..keep], &end].concat())
            }
            Step::Deliver { .. } | Step::Splice { .. } => continue,
            Step::Forge { from, bytes } => (from % 3, bytes),
            Step::ForgeFields { marks, number, len } => {
                let mut datagram = vec![0, 0, 2, marks];
                datagram.extend_from_slice(&receiver.id.to_bits().to_be_bytes());
                datagram.extend_from_slice(&number.to_be_bytes());
                datagram.resize(datagram.len() + usize::from(len), 0xA5);
                (HOME, datagram)
            }
            Step::Hint { bytes } => {
                let _ignored = receiver.table.handle_hint(now, receiver.id, &bytes);
                continue;
            }
            Step::Answer => {
                let mut answer = vec![0; 64];
                let level = Priority::HIGHEST;
                if receiver.table.seal_in_place(now, receiver.id, level, &mut answer).is_ok()
                    && let Ok(admitted) = sender.table.admit(HOME, &mut answer)
                {
                    let _unknown_epoch = admitted.open_in_place(now);
                }
                continue;
            }
            Step::Pass { milliseconds } => {
                now += Duration::from_millis(milliseconds.into());
                for side in [&mut sender, &mut receiver] {
                    side.table.handle_timeout(now);
                    while side.table.poll_ended().is_some() {}
                }
                continue;
            }
            Step::Supersede { by } => {
                let by = if by == 0 { Successor::Refresh } else { Successor::Crossing };
                receiver.table.supersede(now, receiver.id, by);
                continue;
            }
            Step::Reserve { random } => {
                let _full = receiver.table.reserve(random);
                continue;
            }
        };
        let original = datagram.clone();
        let Ok(admitted) = receiver.table.admit(from, &mut datagram) else { continue };
        let Ok(opened_one) = admitted.open_in_place(now) else { continue };
        assert_eq!(opened_one.is_home, from == HOME);
        let nth = sealed.iter().position(|it| *it == original).expect("it was sealed");
        assert_eq!(*opened_one.text, texts[nth]);
        assert!(opened.insert((nth, from == HOME)), "opened twice");
    }
});
