//! The key log: each key is reported once, and opens what was sealed with it.

use apus_seal::{AwsAead, LoggedKey, LoggedKeys, NotOpened, SealLimits, Suite};

use crate::pair::{CLIENT, Pair, SERVER, Side};

fn keys(side: &mut Side) -> Vec<LoggedKey> {
    std::iter::from_fn(|| side.table.poll_logged_key()).collect()
}

/// The keys of both directions in their order, without those that both sides have reported.
fn collection(keys: &[LoggedKey]) -> LoggedKeys<AwsAead> {
    let mut collection = LoggedKeys::new();
    keys.iter().for_each(|key| _ = collection.add(key));
    collection
}

#[test]
fn each_key_is_reported_once_when_it_is_used_and_opens_all_datagrams() {
    for suite in Suite::ALL {
        let mut pair = Pair::with(suite, SealLimits::default());
        pair.client.table.log_keys();
        pair.server.table.log_keys();
        let mut datagrams = Vec::new();
        for round in 0..6 {
            let request = pair.client.seal_parts(6, &[round; 40], 56);
            pair.server.open(CLIENT, &request).unwrap();
            let response = pair.server.seal(7, &[round; 30]);
            pair.client.open(SERVER, &response).unwrap();
            datagrams.extend([(round, 56, request), (round, 0, response)]);
            assert!(pair.client.table.has_logged_keys());
            let epochs = keys(&mut pair.client);
            let epochs: Vec<_> = epochs.iter().map(|key| (key.id, key.epoch)).collect();
            let (ours, theirs) = (pair.client.id, pair.server.id);
            assert_eq!(epochs, [(theirs, u32::from(round)), (ours, u32::from(round))]);
            // Idle paths give their expanded keys up, and expand them again.
            pair.advance(121);
        }
        let logged = keys(&mut pair.server);
        assert_eq!(logged.len(), 12);
        let mut collection = collection(&logged);
        assert!(logged.iter().all(|key| !collection.add(key)), "known");
        assert_eq!(collection.len(), 12);
        let mut room = Vec::new();
        for (round, header_len, datagram) in datagrams.iter().chain(datagrams.iter().rev()) {
            let opened = collection.open(datagram, &mut room).unwrap();
            assert_eq!((opened.text[0], opened.header_len), (*round, *header_len));
        }
    }
}

#[test]
fn a_key_is_not_reported_again_after_an_idle_time() {
    let mut pair = Pair::new();
    pair.client.table.log_keys();
    pair.greet();
    assert_eq!(keys(&mut pair.client).len(), 2);
    pair.client.advance(500);
    let datagram = pair.server.seal(7, b"later");
    pair.client.open(SERVER, &datagram).unwrap();
    assert!(!pair.client.table.has_logged_keys(), "the key of epoch 0 is known");
}

#[test]
fn nothing_is_reported_unless_asked_for_and_nothing_because_of_forged_datagrams() {
    let mut pair = Pair::new();
    pair.greet();
    assert!(!pair.client.table.has_logged_keys() && keys(&mut pair.client).is_empty());
    let mut pair = Pair::new();
    pair.server.table.log_keys();
    for epoch in 0..4 {
        let mut datagram = pair.client.seal(7, b"forged");
        datagram[3] |= epoch << 6;
        *datagram.last_mut().unwrap() ^= 1;
        pair.server.open(CLIENT, &datagram).unwrap_err();
    }
    assert!(!pair.server.table.has_logged_keys());
}

#[test]
fn a_datagram_without_a_fitting_key_is_not_opened() {
    let mut pair = Pair::new();
    pair.client.table.log_keys();
    let datagram = pair.client.seal(7, b"hello");
    let mut room = Vec::new();
    let mut none = LoggedKeys::<AwsAead>::new();
    assert_eq!(none.open(&datagram, &mut room).unwrap_err(), NotOpened::NoKey);
    let mut collection = collection(&keys(&mut pair.client));
    for at in 0..datagram.len() {
        let mut changed = datagram.clone();
        changed[at] ^= 0x80;
        collection.open(&changed, &mut room).unwrap_err();
    }
    assert!(collection.open(&datagram[..63], &mut room).is_err());
    assert_eq!(collection.open(&datagram, &mut room).unwrap().text[..5], *b"hello");
}

#[test]
fn two_paths_with_one_id_have_their_own_keys() {
    let mut both = Vec::new();
    let mut datagrams = Vec::new();
    for suite in [Suite::Aes128Gcm, Suite::Aes256Gcm] {
        let mut pair = Pair::with(suite, SealLimits::default());
        pair.client.table.log_keys();
        datagrams.push(pair.client.seal(7, b"hello"));
        both.extend(keys(&mut pair.client));
    }
    assert_eq!(both[0].id, both[1].id);
    let (mut collection, mut room) = (collection(&both), Vec::new());
    for datagram in datagrams.iter().chain(&datagrams) {
        assert_eq!(collection.open(datagram, &mut room).unwrap().text[..5], *b"hello");
    }
}
