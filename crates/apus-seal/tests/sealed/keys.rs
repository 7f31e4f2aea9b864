//! Updates of keys, and their limits (seal-15).

use apus_seal::{EndReason, OpenError, SealError, SealLimits, Suite};

use crate::pair::{CLIENT, Pair, SERVER};

/// Four datagrams fit a key. Each counts as 1,024 bytes.
const FOUR: SealLimits = SealLimits {
    associations: 10,
    key_bytes: 4 * 1024,
    key_time: SECONDS_120,
    forgeries: 5,
    #[cfg(feature = "holes")]
    hole: None,
};
const SECONDS_120: std::time::Duration = std::time::Duration::from_secs(120);

fn pair() -> Pair {
    Pair::with(Suite::Aes128Gcm, FOUR)
}

/// Returns the two bits of the epoch.
fn epoch(datagram: &[u8]) -> u8 {
    datagram[3] >> 6
}

//= docs/protocol.md#seal-15
#[test]
fn a_key_that_is_used_up_is_followed_by_the_next() {
    let mut pair = pair();
    let mut epochs = Vec::new();
    for _ in 0..20 {
        let datagram = pair.client.seal(7, b"");
        epochs.push(epoch(&datagram));
        pair.server.open(CLIENT, &datagram).expect("one of the keys");
        let answer = pair.server.seal(0, b"");
        pair.client.open(SERVER, &answer).expect("one of the keys");
    }
    assert_eq!(epochs, [[0; 4], [1; 4], [2; 4], [3; 4], [0; 4]].concat());
    assert_eq!(pair.client.table.counters().key_updates, 4);
}

//= docs/protocol.md#seal-15
#[test]
fn long_datagrams_use_up_a_key_by_their_bytes() {
    let mut pair = pair();
    pair.greet();
    let long = vec![0x11; 2_000];
    let epochs: Vec<_> = (0..3).map(|_| epoch(&pair.client.seal(7, &long))).collect();
    assert_eq!(epochs, [0, 1, 1]);
}

//= docs/protocol.md#seal-15
#[test]
fn a_path_whose_peer_is_silent_stops_at_twice_the_limit() {
    let mut pair = pair();
    for _ in 0..8 {
        assert_eq!(epoch(&pair.client.seal(7, b"")), 0);
    }
    assert_eq!(pair.client.try_seal(7, b""), Err(SealError::Exhausted));
    pair.client.advance(0);
    assert_eq!(pair.client.try_seal(7, b""), Err(SealError::NoKeys));
    let ended = pair.client.table.poll_ended().expect("one association has ended");
    assert_eq!((ended.id, ended.reason), (pair.client.id, EndReason::Exhausted));
    assert!(pair.client.table.is_empty());
}

//= docs/protocol.md#seal-15
#[test]
fn a_key_is_followed_by_the_next_after_120_seconds_of_use() {
    let mut pair = Pair::new();
    pair.greet();
    pair.advance(121);
    let datagram = pair.client.seal(7, b"");
    assert_eq!(epoch(&datagram), 1);
    pair.server.open(CLIENT, &datagram).expect("the next key");
}

//= docs/protocol.md#seal-15
#[test]
fn a_key_that_seals_nothing_is_not_followed_by_the_next() {
    let mut pair = Pair::new();
    for _ in 0..5 {
        let datagram = pair.client.seal(7, b"");
        pair.server.open(CLIENT, &datagram).expect("the key of epoch 0");
        pair.advance(121);
    }
    assert_eq!(pair.server.table.counters().key_updates, 0);
}

//= docs/protocol.md#seal-15
#[test]
fn a_key_is_not_followed_by_the_next_while_the_peer_is_silent() {
    let mut pair = Pair::new();
    for _ in 0..3 {
        assert_eq!(epoch(&pair.client.seal(7, b"")), 0);
        pair.advance(121);
    }
}

//= docs/protocol.md#seal-15
#[test]
fn the_key_before_opens_datagrams_for_10_seconds() {
    let mut pair = pair();
    pair.greet();
    let mut old: Vec<_> = (0..3).map(|_| pair.client.seal(7, b"")).collect();
    let new = pair.client.seal(7, b"");
    assert_eq!((epoch(&old[2]), epoch(&new)), (0, 1));
    pair.server.open(CLIENT, &new).expect("the next key");
    pair.server.open(CLIENT, &old.pop().expect("three")).expect("the key before");
    pair.advance(9);
    pair.server.open(CLIENT, &old.pop().expect("two")).expect("the key before");
    pair.advance(1);
    let error = pair.server.open(CLIENT, &old[0]).expect_err("the key before is erased");
    assert!(matches!(error, OpenError::UnknownEpoch(_)));
    assert!(error.hint().is_some());
}

//= docs/protocol.md#seal-15
#[test]
fn a_forged_epoch_does_not_move_the_keys() {
    let mut pair = Pair::new();
    let datagram = pair.client.seal(7, b"");
    let claims = |epoch: u8| {
        let mut claims = datagram.clone();
        claims[3] ^= epoch << 6;
        claims
    };
    assert_eq!(pair.server.open(CLIENT, &claims(1)), Err(OpenError::Forged));
    for unknown in [2, 3] {
        let error = pair.server.open(CLIENT, &claims(unknown)).expect_err("no key");
        assert!(matches!(error, OpenError::UnknownEpoch(_)));
    }
    pair.server.open(CLIENT, &datagram).expect("the key of epoch 0");
    assert_eq!(pair.server.table.counters().dropped_epoch, 2);
}

//= docs/protocol.md#seal-13
#[test]
fn numbers_go_on_after_an_update() {
    let mut pair = pair();
    pair.greet();
    let counters: Vec<_> = (0..8).map(|_| pair.client.seal(7, b"")[19]).collect();
    assert_eq!(counters, [2, 3, 4, 5, 6, 7, 8, 9]);
}

//= docs/protocol.md#seal-15
#[test]
fn too_many_wrong_tags_end_the_path() {
    let mut pair = pair();
    let mut forged = pair.client.seal(7, b"");
    *forged.last_mut().expect("a tag") ^= 1;
    for _ in 0..5 {
        assert_eq!(pair.server.open(CLIENT, &forged), Err(OpenError::Forged));
    }
    pair.server.advance(0);
    let ended = pair.server.table.poll_ended().expect("one association has ended");
    assert_eq!(ended.reason, EndReason::Forgeries);
    assert_eq!(pair.server.table.counters().dropped_forged, 5);
}
