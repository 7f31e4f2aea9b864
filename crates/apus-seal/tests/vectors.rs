//! The bytes of sealed datagrams: vectors that `vectors.py` computes without this crate.

#![cfg(feature = "rustls")]

#[expect(clippy::disallowed_types, reason = "a skipped test reports that in a file")]
#[path = "../../apus-net/tests/skipped/mod.rs"]
mod skipped;

use std::process::Command;
use std::time::Duration;

use apus_seal::{
    AssociationId, Associations, AwsAead, DirectionSecret, Installation, PathSecret, Role,
    SealLimits, Suite,
};
use apus_wire::{PathId, Priority};
use serde_json::Value;
use skipped::skipped;

type Table = Associations<AwsAead, u8>;

const SENDER: u8 = 1;
const RECEIVER: u8 = 2;

#[test]
fn keys_of_three_epochs_are_those_of_the_vectors() {
    let vectors = vectors();
    let secret = PathSecret::new(array(&vectors["path_secret"]));
    for (name, role) in [("client", Role::Client), ("server", Role::Server)] {
        let mut direction = secret.direction(role);
        for epoch in vectors[name]["epochs"].as_array().expect("a list") {
            for suite in Suite::ALL {
                assert_eq!(epoch[(suite as u8).to_string()], hex(&key_and_iv(&direction, suite)));
            }
            direction = direction.next();
        }
        let confirmation = secret.confirmation(role, &array(&vectors["context"]));
        assert_eq!(vectors[name]["confirmation"], hex(&confirmation));
    }
}

//= docs/protocol.md#seal-7
#[test]
fn the_secret_after_a_refresh_is_that_of_the_vectors() {
    let vectors = vectors();
    let before = PathSecret::new(array(&vectors["path_secret"]));
    let exported = array(&vectors["refresh"]["exported"]);
    let after = PathSecret::new(array(&vectors["refresh"]["path_secret"]));
    for refreshed in [before.refreshed(&exported), before.refresh_salt().refreshed(&exported)] {
        let [refreshed, after] = [&refreshed, &after]
            .map(|secret| key_and_iv(&secret.direction(Role::Client), Suite::Aes256Gcm));
        assert_eq!(refreshed, after);
    }
}

//= docs/wire.md#W43
//= docs/wire.md#W44
//= docs/wire.md#W45
#[test]
fn datagrams_are_those_of_the_vectors() {
    let vectors = vectors();
    let id = u64::from_str_radix(text(&vectors["id"]), 16).expect("hexadecimal digits");
    for vector in vectors["datagrams"].as_array().expect("a list") {
        let [payload, header, datagram] =
            ["payload", "header", "datagram"].map(|name| bytes(&vector[name]));
        let (mut sender, sender_id) = table(vector, id, SENDER);
        let (mut receiver, _) = table(vector, id, RECEIVER);
        let now = enter_epoch(&mut sender, sender_id, vector);
        let level = Priority::new(number(&vector["level"]) as u8).expect("a level");
        let mut sealed = vec![0; datagram.len()];
        // The numbers of a lane are those of all epochs.
        for _ in number(&vector["epoch"])..number(&vector["counter"]) {
            if header.is_empty() {
                sealed[20..20 + payload.len()].copy_from_slice(&payload);
                sender.seal_in_place(now, sender_id, level, &mut sealed).expect("keys");
            } else {
                sender
                    .seal_parts(now, sender_id, level, &payload, &header, &mut sealed)
                    .expect("keys");
            }
        }
        assert_eq!(hex(&sealed), vector["datagram"]);
        let opened = receiver.admit(SENDER, &mut sealed).expect("a known id");
        let mut room = vec![0; payload.len() + header.len()];
        let opened = opened.open_into(now, &mut room).expect("the same keys");
        assert_eq!(opened.parts(), (&payload[..], &header[..]));
        assert!(opened.is_home);
    }
}

//= docs/wire.md#W47
#[test]
fn the_hint_of_an_unknown_datagram_is_that_of_the_vectors() {
    let mut table = Table::new(1, SealLimits::default());
    for vector in vectors()["datagrams"].as_array().expect("a list") {
        let error = table.admit(SENDER, &mut bytes(&vector["datagram"])).err().expect("unknown");
        let hint = error.hint().expect("an id that is not known is answered");
        assert_eq!(hex(&hint.emit()), vector["hint"]);
    }
}

#[test]
fn another_implementation_computes_the_same_vectors() {
    let python = |arguments: &[&str]| Command::new("python3").args(arguments).output();
    match python(&["-c", "import cryptography"]) {
        Err(error) => return skipped(format!("python3: {error}")),
        Ok(output) if !output.status.success() => {
            return skipped("python3 has no package cryptography");
        }
        Ok(_) => {}
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors.py");
    let output = python(&[script]).expect("python3 was found");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Creates the table of one side, whose own id is that of the vectors.
fn table(vector: &Value, id: u64, side: u8) -> (Table, AssociationId) {
    let mut table = Table::new((id >> 58) as u8, SealLimits::default());
    let own_id = table.reserve(id).expect("an empty table");
    assert_eq!(own_id.to_bits(), id);
    let sender = if vector["sender"] == "client" { Role::Client } else { Role::Server };
    let suite = Suite::from_number(number(&vector["suite"]) as u8).expect("a suite");
    let installation = Installation {
        secret: PathSecret::new(array(&vector["path_secret"])),
        role: if side == SENDER { sender } else { sender.peer() },
        suite,
        peer_id: own_id,
        path: PathId::new(0, 0),
        address: SENDER + RECEIVER - side,
        lifetime: Duration::from_secs(7200),
    };
    table.install(Duration::ZERO, own_id, installation).expect("a pending id");
    (table, own_id)
}

/// Lets the keys of the sender reach the epoch of the vector. Each epoch takes one number.
fn enter_epoch(sender: &mut Table, id: AssociationId, vector: &Value) -> Duration {
    let mut now = Duration::ZERO;
    if number(&vector["epoch"]) == 0 {
        return now;
    }
    let level = Priority::new(number(&vector["level"]) as u8).expect("a level");
    let header = bytes(&vector["header"]);
    let mut sealed = vec![0; 36 + 28 + header.len()];
    let result = if header.is_empty() {
        sender.seal_in_place(now, id, level, &mut sealed)
    } else {
        sender.seal_parts(now, id, level, &[0; 28], &header, &mut sealed)
    };
    result.expect("keys");
    let mut answer = answer(vector, id);
    sender.admit(RECEIVER, &mut answer).expect("an answer").open_in_place(now).expect("its keys");
    now += Duration::from_secs(120);
    sender.handle_timeout(now);
    assert_eq!(sender.counters().key_updates, 1);
    now
}

/// Returns a datagram of the receiver.
fn answer(vector: &Value, id: AssociationId) -> Vec<u8> {
    let (mut receiver, _) = table(vector, id.to_bits(), RECEIVER);
    let mut sealed = vec![0; 64];
    receiver.seal_in_place(Duration::ZERO, id, Priority::HIGHEST, &mut sealed).expect("keys");
    sealed
}

fn key_and_iv(secret: &DirectionSecret, suite: Suite) -> Vec<u8> {
    let key = secret.record_key(suite);
    [key.key(), key.iv()].concat()
}

fn vectors() -> Value {
    serde_json::from_str(include_str!("vectors.json")).expect("vectors.py writes JSON")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

fn bytes(value: &Value) -> Vec<u8> {
    let digits = text(value);
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits"))
        .collect()
}

fn array(value: &Value) -> [u8; 32] {
    bytes(value).try_into().expect("32 bytes")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
