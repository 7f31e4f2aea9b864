//! Idle associations, and those that end (seal-3, seal-7, seal-8).

use std::time::Duration;

use apus_seal::{EndReason, OpenError, SealError, SealLimits, Successor, Suite};

use crate::pair::{CLIENT, LIFETIME, Pair, SERVER, Table};

//= docs/protocol.md#seal-8
#[test]
fn an_idle_path_opens_no_datagram_of_before() {
    let mut pair = Pair::new();
    pair.greet();
    let [seen, lost, later] = [0, 1, 2].map(|_| pair.client.seal(7, b""));
    pair.server.open(CLIENT, &seen).expect("a new number");
    let other_lane = pair.client.seal(0, b"");
    pair.server.open(CLIENT, &other_lane).expect("a new number");
    pair.server.advance(500);
    assert_eq!(pair.server.open(CLIENT, &seen), Err(OpenError::TooOld));
    assert_eq!(pair.server.open(CLIENT, &other_lane), Err(OpenError::TooOld));
    pair.server.open(CLIENT, &later).expect("a higher number than before");
    pair.server.open(CLIENT, &lost).expect("a number that has not arrived");
    assert_eq!(pair.server.open(CLIENT, &seen), Err(OpenError::Replayed));
}

//= docs/protocol.md#seal-8
#[test]
fn an_idle_path_is_used_again_without_a_handshake() {
    let mut pair = Pair::new();
    pair.greet();
    for _ in 0..5 {
        pair.advance(600);
        pair.greet();
    }
}

//= docs/protocol.md#seal-8
#[test]
fn an_idle_path_has_no_work_until_it_ends() {
    let mut pair = Pair::new();
    pair.greet();
    pair.advance(500);
    assert_eq!(pair.client.table.poll_timeout(), Some(LIFETIME));
    assert_eq!(pair.server.table.poll_timeout(), Some(LIFETIME));
    let datagram = pair.client.seal(7, b"");
    pair.server.open(CLIENT, &datagram).expect("a new number");
    let next_look = Some(pair.client.now + Duration::from_secs(120));
    assert_eq!(pair.client.table.poll_timeout(), next_look);
    assert_eq!(pair.server.table.poll_timeout(), next_look);
}

//= docs/protocol.md#seal-8
#[test]
fn a_path_that_only_sends_is_not_idle() {
    let limits = SealLimits { associations: 1, ..SealLimits::default() };
    let mut pair = Pair::with(Suite::Aes128Gcm, limits);
    for _ in 0..5 {
        pair.client.seal(7, b"");
        pair.client.advance(121);
        assert_eq!(pair.client.table.reserve(1), None);
    }
}

//= docs/protocol.md#seal-7
#[test]
fn a_path_ends_with_its_lifetime() {
    let mut pair = Pair::new();
    pair.client.advance(LIFETIME.as_secs() - 1);
    pair.client.seal(7, b"");
    pair.client.advance(1);
    assert_eq!(pair.client.try_seal(7, b""), Err(SealError::NoKeys));
    let ended = pair.client.table.poll_ended().expect("one association has ended");
    assert_eq!((ended.reason, ended.path.index()), (EndReason::Expired, 0));
    assert_eq!(pair.client.table.poll_ended(), None);
    assert_eq!(pair.client.table.poll_timeout(), None);
}

//= docs/protocol.md#seal-7
#[test]
fn after_a_refresh_the_old_keys_open_datagrams_for_10_seconds() {
    let mut pair = Pair::new();
    let [soon, late] = [0, 1].map(|_| pair.client.seal(7, b""));
    pair.server.table.supersede(pair.server.now, pair.server.id, Successor::Refresh);
    pair.server.advance(9);
    pair.server.open(CLIENT, &soon).expect("the old keys");
    pair.server.advance(1);
    assert!(matches!(pair.server.open(CLIENT, &late), Err(OpenError::UnknownId(_))));
    assert_eq!(pair.server.table.poll_ended().map(|it| it.reason), Some(EndReason::Superseded));
}

//= docs/protocol.md#seal-3
#[test]
fn after_a_crossing_handshake_the_other_keys_live_while_they_are_used() {
    let mut pair = Pair::new();
    pair.server.table.supersede(pair.server.now, pair.server.id, Successor::Crossing);
    for _ in 0..5 {
        pair.server.advance(500);
        let datagram = pair.client.seal(7, b"");
        pair.server.open(CLIENT, &datagram).expect("keys that are in use");
    }
    pair.server.advance(1_000);
    assert_eq!(pair.server.table.poll_ended().map(|it| it.reason), Some(EndReason::Superseded));
}

#[test]
fn a_removed_association_is_unknown_and_not_reported() {
    let mut pair = Pair::new();
    let datagram = pair.client.seal(7, b"");
    assert!(pair.server.table.remove(pair.server.id));
    assert!(!pair.server.table.remove(pair.server.id));
    assert!(matches!(pair.server.open(CLIENT, &datagram), Err(OpenError::UnknownId(_))));
    assert_eq!(pair.server.table.poll_ended(), None);
}

#[test]
fn the_place_of_an_ended_association_gets_another_id() {
    let mut table = Table::new(0, SealLimits::default());
    let first = table.reserve(1).expect("an empty table");
    assert!(table.remove(first));
    let second = table.reserve(2).expect("an empty table");
    assert_ne!(first, second);
    assert!(!table.remove(first));
    assert_eq!(table.len(), 1);
}

//= docs/protocol.md#seal-4
#[test]
fn a_full_table_replaces_the_association_that_is_idle_longest() {
    let limits = SealLimits { associations: 3, ..SealLimits::default() };
    let mut pair = Pair::with(Suite::Aes128Gcm, limits);
    let table = &mut pair.server.table;
    let (first, pending) = (pair.server.id, table.reserve(2).expect("a second place"));
    let third = table.reserve(3).expect("a third place");
    let third_keys =
        crate::pair::installation(apus_seal::Role::Server, Suite::Aes128Gcm, pair.client.id);
    table.install(Duration::from_secs(60), third, third_keys).expect("a pending id");
    assert_eq!(table.reserve(4), None);
    pair.server.advance(500);
    let table = &mut pair.server.table;
    let fourth = table.reserve(4).expect("the place of the first");
    let ended = table.poll_ended().expect("one association has ended");
    assert_eq!((ended.id, ended.reason), (first, EndReason::Replaced));
    assert!(table.remove(fourth) && table.remove(third) && table.remove(pending));
}

#[test]
fn a_sweep_looks_at_256_associations_a_call_and_ends_all() {
    let mut table = Table::new(0, SealLimits::default());
    let ids: Vec<_> =
        (0..1_000).map(|random| table.reserve(random).expect("a large table")).collect();
    for &id in &ids {
        let keys = crate::pair::installation(apus_seal::Role::Server, Suite::Aes128Gcm, id);
        table.install(Duration::ZERO, id, keys).expect("a pending id");
        table.supersede(Duration::ZERO, id, Successor::Refresh);
    }
    let now = Duration::from_secs(10);
    for left in [744, 488, 232, 0] {
        assert!(table.poll_timeout().is_some_and(|at| at <= now));
        table.handle_timeout(now);
        assert_eq!(table.len(), left);
    }
    let ended: Vec<_> = std::iter::from_fn(|| table.poll_ended()).map(|it| it.id).collect();
    assert_eq!(ended, ids);
}

#[test]
fn sweeps_are_a_second_apart() {
    let mut table = Table::new(0, SealLimits::default());
    for (random, after) in [(1, 0), (2, 10), (3, 20)] {
        let id = table.reserve(random).expect("a large table");
        let keys = crate::pair::installation(apus_seal::Role::Server, Suite::Aes128Gcm, id);
        let now = Duration::from_millis(after);
        table.install(now, id, keys).expect("a pending id");
        table.supersede(now, id, Successor::Refresh);
    }
    let first = Duration::from_secs(10);
    assert_eq!(table.poll_timeout(), Some(first));
    table.handle_timeout(first);
    let second = first + Duration::from_secs(1);
    assert_eq!((table.len(), table.poll_timeout()), (2, Some(second)));
    table.handle_timeout(second);
    assert_eq!((table.len(), table.poll_timeout()), (0, None));
}

#[test]
fn a_path_in_use_stays() {
    let mut pair = Pair::new();
    for _ in 0..100 {
        pair.greet();
        pair.advance(60);
    }
    let answer = pair.server.seal(7, b"");
    pair.client.open(SERVER, &answer).expect("keys of many updates");
    assert!(pair.client.table.counters().key_updates >= 40);
}
