//! Datagrams that arrive while a handshake is under way, and hints (seal-2, seal-9).

use apus_seal::{HintError, OpenError, Role, Suite};

use crate::pair::{CLIENT, ELSEWHERE, Pair, SERVER, Table, installation};

/// A server that has not verified its client, whose datagrams arrive already.
fn unverified() -> Pair {
    let mut pair = Pair::new();
    pair.server.table = Table::new(5, apus_seal::SealLimits::default());
    let id = pair.server.table.reserve(0x5A5A).expect("an empty table");
    assert_eq!(id, pair.server.id);
    pair
}

//= docs/protocol.md#seal-2
#[test]
fn datagrams_are_kept_until_the_client_is_verified() {
    let mut pair = unverified();
    let [first, second] = [b"first", b"other"].map(|packet| pair.client.seal(7, packet));
    assert_eq!(pair.server.open(CLIENT, &first), Err(OpenError::Kept));
    assert_eq!(pair.server.open(ELSEWHERE, &second), Err(OpenError::Kept));
    let keys = installation(Role::Server, Suite::Aes128Gcm, pair.client.id);
    let kept = pair.server.table.install(pair.server.now, pair.server.id, keys);
    let kept = kept.expect("a pending id");
    assert_eq!(kept.iter().map(|it| it.from).collect::<Vec<_>>(), [CLIENT, ELSEWHERE]);
    for kept in kept {
        pair.server.open(kept.from, &kept.datagram).expect("the keys of the client");
    }
}

//= docs/protocol.md#seal-2
#[test]
fn sixteen_datagrams_are_kept() {
    let mut pair = unverified();
    let datagrams: Vec<_> = (0..17).map(|_| pair.client.seal(7, b"")).collect();
    for datagram in &datagrams[..16] {
        assert_eq!(pair.server.open(CLIENT, datagram), Err(OpenError::Kept));
    }
    assert_eq!(pair.server.open(CLIENT, &datagrams[16]), Err(OpenError::Unverified));
    let counters = pair.server.table.counters();
    assert_eq!((counters.kept, counters.dropped_unverified), (16, 1));
}

//= docs/protocol.md#seal-2
#[test]
fn kilobytes_that_are_kept_are_32_for_an_id_and_1024_for_all() {
    let mut pair = unverified();
    let long = pair.client.seal(7, &[0x11; (16 << 10) - 36]);
    let ids: Vec<_> = (0..33).map(|random| pair.server.table.reserve(random)).collect();
    let mut open = |id: Option<apus_seal::AssociationId>| {
        let mut datagram = long.clone();
        datagram[4..12].copy_from_slice(&id.expect("a large table").to_bits().to_be_bytes());
        pair.server.open(CLIENT, &datagram).expect_err("no keys")
    };
    for &id in &ids[..32] {
        assert_eq!(
            [open(id), open(id), open(id)],
            [OpenError::Kept, OpenError::Kept, OpenError::Unverified]
        );
    }
    assert_eq!(open(ids[32]), OpenError::Unverified);
    assert!(pair.server.table.remove(ids[0].expect("a large table")));
    let mut datagram = long.clone();
    datagram[4..12].copy_from_slice(&ids[32].expect("a large table").to_bits().to_be_bytes());
    assert_eq!(pair.server.open(CLIENT, &datagram), Err(OpenError::Kept));
    assert_eq!(pair.server.open(CLIENT, &datagram), Err(OpenError::Kept));
    let keys = installation(Role::Server, Suite::Aes128Gcm, pair.client.id);
    let id = ids[1].expect("a large table");
    assert!(pair.server.table.install(pair.server.now, id, keys).is_some());
    let other = pair.server.table.reserve(99);
    datagram[4..12].copy_from_slice(&other.expect("a large table").to_bits().to_be_bytes());
    assert_eq!(pair.server.open(CLIENT, &datagram), Err(OpenError::Kept));
}

#[test]
fn an_id_gets_its_keys_once() {
    let mut pair = Pair::new();
    let keys = || installation(Role::Server, Suite::Aes128Gcm, pair.client.id);
    let (now, id) = (pair.server.now, pair.server.id);
    assert!(pair.server.table.install(now, id, keys()).is_none());
    pair.server.table.remove(id);
    assert!(pair.server.table.install(now, id, keys()).is_none());
    let next = pair.server.table.reserve(7).expect("the same place");
    assert!(pair.server.table.install(now, id, keys()).is_none());
    assert!(pair.server.table.install(now, next, keys()).is_some());
}

/// Returns the hint of a node that does not know the datagram.
fn hint_about(datagram: &[u8]) -> Vec<u8> {
    let mut restarted = Table::new(5, apus_seal::SealLimits::default());
    let mut datagram = datagram.to_vec();
    let error = restarted.admit(CLIENT, &mut datagram).err().expect("an empty table");
    let hint = error.hint().expect("an unknown id").emit().to_vec();
    assert!(hint.len() < datagram.len());
    hint
}

//= docs/protocol.md#seal-9
#[test]
fn a_hint_about_a_recent_number_is_believed_and_ends_nothing() {
    let mut pair = Pair::new();
    pair.greet();
    let hint = hint_about(&pair.client.seal(7, b""));
    assert_eq!(pair.client.table.handle_hint(pair.client.now, pair.client.id, &hint), Ok(()));
    pair.greet();
    assert_eq!(pair.client.table.counters().hints_believed, 1);
}

//= docs/protocol.md#seal-9
#[test]
fn a_hint_about_an_old_number_is_ignored() {
    let mut pair = Pair::new();
    pair.greet();
    let [old, recent] = [0, 1].map(|_| hint_about(&pair.client.seal(3, b"")));
    for _ in 0..(1 << 16) - 1 {
        pair.client.seal(3, b"");
    }
    let mut hint =
        |hint: &[u8]| pair.client.table.handle_hint(pair.client.now, pair.client.id, hint);
    assert_eq!(hint(&old), Err(HintError::WrongNumber));
    assert_eq!(hint(&recent), Ok(()));
}

//= docs/protocol.md#seal-9
#[test]
fn a_hint_about_a_number_that_was_not_used_is_ignored() {
    let mut pair = Pair::new();
    pair.greet();
    let mut hint = hint_about(&pair.client.seal(7, b""));
    hint[19] += 1;
    let result = pair.client.table.handle_hint(pair.client.now, pair.client.id, &hint);
    assert_eq!(result, Err(HintError::WrongNumber));
    hint[11] ^= 1;
    let result = pair.client.table.handle_hint(pair.client.now, pair.client.id, &hint);
    assert_eq!(result, Err(HintError::WrongId));
    assert_eq!(pair.client.table.counters().hints_ignored, 2);
}

//= docs/protocol.md#seal-9
#[test]
fn a_client_ignores_hints_until_the_server_has_the_keys() {
    let mut pair = Pair::new();
    let hint = hint_about(&pair.client.seal(7, b""));
    let (now, id) = (pair.client.now, pair.client.id);
    assert_eq!(pair.client.table.handle_hint(now, id, &hint), Err(HintError::Early));
    pair.client.table.confirm(id);
    assert_eq!(pair.client.table.handle_hint(now, id, &hint), Ok(()));
}

//= docs/protocol.md#seal-9
#[test]
fn one_hint_a_second_is_believed() {
    let mut pair = Pair::new();
    pair.greet();
    let hint = hint_about(&pair.client.seal(7, b""));
    let results = [0, 0, 1].map(|seconds| {
        pair.client.advance(seconds);
        pair.client.table.handle_hint(pair.client.now, pair.client.id, &hint)
    });
    assert_eq!(results, [Ok(()), Err(HintError::Frequent), Ok(())]);
}

//= docs/wire.md#W47
#[test]
fn a_hint_of_another_form_is_ignored() {
    let mut pair = Pair::new();
    pair.greet();
    let hint = hint_about(&pair.client.seal(7, b""));
    let longer = [&hint[..], &[0]].concat();
    let mut marked = hint.clone();
    marked[3] = 1;
    for bytes in [&hint[..19], &longer, &marked, &pair.server.seal(7, b"")] {
        let result = pair.client.table.handle_hint(pair.client.now, pair.client.id, bytes);
        assert!(matches!(result, Err(HintError::Malformed(_))));
    }
    assert!(pair.server.open(SERVER, &hint).is_err());
}
