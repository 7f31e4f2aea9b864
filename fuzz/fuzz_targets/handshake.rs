//! A handshake whose frames are changed, cut, replaced or repeated on their way, with a scripted TLS. The server introduces a
//! client only if its HELLO and its REPLY arrived with the clear fields that were sent.
#![no_main]

#[path = "../../crates/apus-seal/tests/pair/mod.rs"]
mod pair;
#[path = "../../crates/apus-seal/tests/scripted/mod.rs"]
mod scripted;

use apus_seal::Alert;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

use pair::{fingerprint, offer, run};
use scripted::Scripted;

/// A change of the frame that passes.
#[derive(Arbitrary, Clone, Debug)]
enum Change {
    None,
    Byte {
        at: u8,
        mask: u8,
    },
    Cut(u8),
    Append(Vec<u8>),
    Replace(Vec<u8>),
    /// The frame before the last one again.
    Repeat,
}

#[derive(Arbitrary, Debug)]
struct Script {
    retries: u8,
    client_refuses: Option<u8>,
    server_refuses: Option<u8>,
    changes: Vec<Change>,
}

const CLIENT: &str = "spiffe://example.org/front/1";
const SERVER: &str = "spiffe://example.org/kv/1";

/// Lengths of the clear fields: HELLO with two suites, and REPLY.
const CLEAR: [usize; 2] = [39, 36];

fuzz_target!(|script: Script| {
    let refusing = |session: Scripted, alert: Option<u8>| match alert {
        Some(alert) => session.refusing(Alert(alert)),
        None => session,
    };
    let client = refusing(Scripted::client(SERVER), script.client_refuses);
    let server =
        refusing(Scripted::server(CLIENT).retrying(script.retries % 5), script.server_refuses);
    let mut sent: Vec<Vec<u8>> = Vec::new();
    let outcome = run(offer(), None, client, server, &mut |frame, body| {
        sent.push(body.clone());
        match script.changes.get(frame) {
            None | Some(Change::None) => {}
            Some(Change::Byte { at, mask }) => {
                if let Some(byte) = body.get_mut(usize::from(*at)) {
                    *byte ^= mask;
                }
            }
            Some(Change::Cut(length)) => body.truncate(usize::from(*length)),
            Some(Change::Append(bytes)) => body.extend_from_slice(bytes),
            Some(Change::Replace(bytes)) => body.clone_from(bytes),
            Some(Change::Repeat) => {
                if let Some(earlier) = frame.checked_sub(2) {
                    body.clone_from(&sent[earlier]);
                }
            }
        }
    });
    let Ok(server) = outcome.server else { return };
    for (frame, length) in CLEAR.into_iter().enumerate() {
        assert_eq!(
            outcome.frames[frame][..length],
            sent[frame][..length],
            "the clear fields are bound"
        );
    }
    if let Ok(client) = outcome.client {
        assert_eq!(fingerprint(&client), fingerprint(&server));
        assert_eq!((client.ours, client.theirs), (server.theirs, server.ours));
    }
});
