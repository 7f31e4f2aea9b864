//! Datagrams that are opened, and those that are refused.

use apus_seal::{OpenError, SealLimits, Suite};

use crate::pair::{CLIENT, ELSEWHERE, Pair, SERVER, text_len};

#[test]
fn a_packet_is_opened_as_it_was_sealed() {
    let mut pair = Pair::new();
    let datagram = pair.client.seal(7, &[0x11; 50]);
    assert_eq!(datagram.len(), 50 + 36);
    let text = pair.server.open(CLIENT, &datagram).expect("the same keys");
    assert_eq!((text.payload, text.header, text.is_home), (vec![0x11; 50], vec![], true));
}

//= docs/wire.md#W45
#[test]
fn the_header_behind_a_payload_comes_back_apart_from_it() {
    let mut pair = Pair::new();
    for header_len in (56..=124).step_by(4) {
        let datagram = pair.server.seal_parts(3, b"payload", header_len);
        let text = pair.client.open(SERVER, &datagram).expect("the same keys");
        assert_eq!((text.payload, text.header), (b"payload".to_vec(), vec![0xEE; header_len]));
    }
}

#[test]
fn every_changed_byte_is_refused() {
    for suite in Suite::ALL {
        let mut pair = Pair::with(suite, SealLimits::default());
        let packet = pair.client.seal(7, &[0x11; 28]);
        let parts = pair.client.seal_parts(6, b"payload", 56);
        for datagram in [packet, parts] {
            for at in 0..datagram.len() {
                for mask in [0x01, 0x80, 0xFF] {
                    let mut changed = datagram.clone();
                    changed[at] ^= mask;
                    let refused = pair.server.open(CLIENT, &changed).expect_err("a changed byte");
                    let expected = match at {
                        4..12 => matches!(refused, OpenError::UnknownId(_)),
                        0..20 => !matches!(refused, OpenError::UnknownId(_)),
                        _ => refused == OpenError::Forged,
                    };
                    assert!(expected, "byte {at}: {refused}");
                }
            }
            pair.server.open(CLIENT, &datagram).expect("forged copies mark no number");
        }
    }
}

#[test]
fn every_missing_byte_is_refused() {
    let mut pair = Pair::new();
    let datagram = pair.client.seal(7, &[0x11; 28]);
    for len in 0..datagram.len() {
        pair.server.open(CLIENT, &datagram[..len]).expect_err("bytes are missing");
    }
    let longer = [&datagram[..], &[0]].concat();
    pair.server.open(CLIENT, &longer).expect_err("a byte too many");
}

#[test]
fn a_datagram_of_this_node_is_not_opened_as_one_of_the_peer() {
    let mut pair = Pair::new();
    let mut datagram = pair.client.seal(7, &[0x11; 28]);
    datagram[4..12].copy_from_slice(&pair.client.id.to_bits().to_be_bytes());
    assert_eq!(pair.client.open(SERVER, &datagram), Err(OpenError::Forged));
}

//= docs/protocol.md#seal-16
#[test]
fn a_datagram_that_is_not_opened_leaves_no_plaintext() {
    let mut pair = Pair::new();
    let mut datagram = pair.client.seal(7, &[0x11; 100]);
    *datagram.last_mut().expect("a tag") ^= 1;
    let mut room = vec![0x77; text_len(&datagram) + 1];
    let admitted = pair.server.table.admit(CLIENT, &mut datagram).expect("a new number");
    assert_eq!(
        admitted.open_into(pair.server.now, &mut room).expect_err("forged"),
        OpenError::Forged
    );
    assert_eq!(room, [vec![0; 100], vec![0x77]].concat());
}

//= docs/protocol.md#seal-14
#[test]
fn a_datagram_is_opened_once() {
    let mut pair = Pair::new();
    let datagrams: Vec<_> = (0..5).map(|_| pair.client.seal(7, b"")).collect();
    for datagram in datagrams.iter().rev() {
        pair.server.open(CLIENT, datagram).expect("a new number");
    }
    for datagram in &datagrams {
        assert_eq!(pair.server.open(CLIENT, datagram), Err(OpenError::Replayed));
    }
    assert_eq!(pair.server.table.counters().dropped_replay, 5);
}

//= docs/protocol.md#seal-14
#[test]
fn a_number_below_the_window_is_refused() {
    let mut pair = Pair::new();
    for (is_split, bits) in [(false, 1_024), (true, 8_192)] {
        let mut seal = || match is_split {
            true => pair.client.seal_parts(5, b"payload", 56),
            false => pair.client.seal(5, b""),
        };
        let [outside, inside] = [seal(), seal()];
        let highest = (0..bits - 1).map(|_| seal()).last().expect("many");
        pair.server.open(CLIENT, &highest).expect("a new number");
        assert_eq!(pair.server.open(CLIENT, &outside), Err(OpenError::TooOld));
        pair.server.open(CLIENT, &inside).expect("the last number of the window");
    }
    assert_eq!(pair.server.table.counters().replay_too_old, 2);
}

//= docs/protocol.md#seal-14
#[test]
fn a_level_that_overtakes_another_does_not_move_its_window() {
    let mut pair = Pair::new();
    let slow = pair.client.seal(0, b"");
    for _ in 0..2_000 {
        let fast = pair.client.seal(7, b"");
        pair.server.open(CLIENT, &fast).expect("a new number");
    }
    pair.server.open(CLIENT, &slow).expect("a number of another lane");
}

//= docs/protocol.md#seal-10
#[test]
fn a_copy_from_another_address_costs_the_original_nothing() {
    let mut pair = Pair::new();
    let datagram = pair.client.seal(7, b"");
    let copy = pair.server.open(ELSEWHERE, &datagram).expect("a new number there");
    assert!(!copy.is_home);
    assert_eq!(pair.server.open(ELSEWHERE, &datagram), Err(OpenError::Replayed));
    let original = pair.server.open(CLIENT, &datagram).expect("a new number here");
    assert!(original.is_home);
    assert_eq!(pair.server.open(CLIENT, &datagram), Err(OpenError::Replayed));
    assert_eq!(pair.server.table.counters().opened_foreign, 1);
}

//= docs/protocol.md#seal-10
#[test]
fn a_copy_behind_the_original_is_refused_from_every_address() {
    let mut pair = Pair::new();
    let datagram = pair.client.seal(7, b"");
    pair.server.open(CLIENT, &datagram).expect("a new number");
    assert_eq!(pair.server.open(ELSEWHERE, &datagram), Err(OpenError::Replayed));
}

//= docs/protocol.md#seal-10
#[test]
fn after_a_move_the_new_address_is_that_of_the_path() {
    let mut pair = Pair::new();
    let before = pair.client.seal(7, b"");
    assert!(!pair.server.open(ELSEWHERE, &before).expect("a new number").is_home);
    let path = apus_wire::PathId::new(9, 9);
    pair.server.table.move_to(pair.server.id, path, ELSEWHERE);
    assert_eq!(pair.server.table.path(pair.server.id), Some(path));
    let after = pair.client.seal(7, b"");
    assert!(pair.server.open(ELSEWHERE, &after).expect("a new number").is_home);
    let late = pair.client.seal(7, b"");
    assert!(!pair.server.open(CLIENT, &late).expect("a new number").is_home);
}
