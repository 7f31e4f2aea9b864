//! Datagrams in any order, lost and repeated, from several addresses.

use std::collections::BTreeSet;

use apus_seal::{OpenError, SealLimits, Suite};
use proptest::prelude::*;

use crate::pair::{CLIENT, ELSEWHERE, Pair, SERVER};

#[derive(Clone, Debug)]
enum Step {
    Seal { level: u8, len: usize, header_len: Option<usize> },
    Deliver { nth: prop::sample::Index, from: u32 },
    Answer,
    Pass { seconds: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let header_len = prop::option::of((14..=31_usize).prop_map(|words| 4 * words));
    prop_oneof![
        4 => (0..8_u8, 28..200_usize, header_len)
            .prop_map(|(level, len, header_len)| Step::Seal { level, len, header_len }),
        6 => (any::<prop::sample::Index>(), prop_oneof![4 => Just(CLIENT), 1 => Just(ELSEWHERE)])
            .prop_map(|(nth, from)| Step::Deliver { nth, from }),
        1 => Just(Step::Answer),
        1 => (0..10_u64).prop_map(|seconds| Step::Pass { seconds }),
    ]
}

proptest! {
    /// A key seals ten datagrams here, and no path is idle, so datagrams of several epochs overtake each other.
    #[test]
    fn each_datagram_is_opened_once_as_it_was_sealed(steps in prop::collection::vec(step(), 1..200)) {
        let limits = SealLimits { key_bytes: 10 * 1024, ..SealLimits::default() };
        let mut pair = Pair::with(Suite::Aes128Gcm, limits);
        let mut sealed = Vec::new();
        let mut opened = BTreeSet::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Seal { level, len, header_len } => {
                    let payload = vec![number as u8; len];
                    let datagram = match header_len {
                        Some(header_len) => pair.client.seal_parts(level, &payload, header_len),
                        None => pair.client.seal(level, &payload),
                    };
                    sealed.push((datagram, payload, header_len.unwrap_or(0)));
                    pair.greet();
                }
                Step::Deliver { nth, from } if !sealed.is_empty() => {
                    let nth = nth.index(sealed.len());
                    let (datagram, payload, header_len) = &sealed[nth];
                    match pair.server.open(from, datagram) {
                        Ok(text) => {
                            prop_assert_eq!(&text.payload, payload);
                            prop_assert_eq!(text.header, vec![0xEE; *header_len]);
                            prop_assert_eq!(text.is_home, from == CLIENT);
                            prop_assert!(opened.insert((nth, from)));
                            prop_assert!(from == CLIENT || !opened.contains(&(nth, CLIENT)));
                        }
                        Err(OpenError::Replayed) => prop_assert!(
                            opened.contains(&(nth, CLIENT)) || opened.contains(&(nth, from))
                        ),
                        // The key is older than the one before the last, or the second window is past the number.
                        Err(error) => prop_assert!(
                            matches!(error, OpenError::UnknownEpoch(_) | OpenError::Forged)
                                || error == OpenError::TooOld && from == ELSEWHERE
                        ),
                    }
                }
                Step::Deliver { .. } => {}
                Step::Answer => {
                    let answer = pair.server.seal(2, b"answer");
                    pair.client.open(SERVER, &answer).expect("the keys of the client");
                }
                Step::Pass { seconds } => pair.advance(seconds),
            }
        }
    }
}
