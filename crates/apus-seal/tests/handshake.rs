//! Handshakes with a scripted TLS: frames, states, refreshes, and the limits of a server on a virtual clock.

mod pair;
mod scripted;

use std::time::Duration;

use apus_seal::frame::{
    Continue, FEATURE_PORTS, FEATURE_SEVERAL, FailReason, FrameError, Hello, Response,
};
use apus_seal::{
    Alert, Arrival, CONTINUES_MAX, ClientHandshake, ClientOffer, ClientStep, HandshakeAnswer,
    HandshakeError, HandshakeLimits, Handshakes, Limit, Name, Refresh, RefreshSalt, ServerOffer,
    Suite, Work,
};
use apus_wire::Token;

use pair::{CLIENT_END, SERVER_END, fingerprint, offer, run, shake};
use scripted::Scripted;

const CLIENT: &str = "spiffe://example.org/front/1";
const SERVER: &str = "spiffe://example.org/kv/1";

/// Lengths of the clear fields: HELLO with two suites, and REPLY.
const HELLO_CLEAR: usize = 39;
const REPLY_CLEAR: usize = 36;

fn sessions() -> (Scripted, Scripted) {
    (Scripted::client(SERVER), Scripted::server(CLIENT))
}

//= docs/protocol.md#seal-1
#[test]
fn a_handshake_introduces_both_sides() {
    let (client, server) = sessions();
    let offer = ClientOffer { doubted: Token(77), ..offer() };
    let outcome = run(offer, None, client, server, &mut |_, _| {});
    assert_eq!(outcome.frames.len(), 4);
    let (client, server) = outcome.expect_path();
    assert_eq!((client.ours, client.theirs), (CLIENT_END, SERVER_END));
    assert_eq!((server.doubted, server.suite), (Token(77), Suite::Aes128Gcm));
    assert_eq!((client.peer.name.as_str(), server.peer.name.as_str()), (SERVER, CLIENT));
}

//= docs/wire.md#W58
#[test]
fn each_side_learns_the_features_of_the_other_that_both_know() {
    for (offered, of_client, of_server) in [
        (0, 0, 0),
        (FEATURE_PORTS, FEATURE_PORTS, FEATURE_PORTS),
        (u64::MAX, FEATURE_PORTS | FEATURE_SEVERAL, FEATURE_PORTS | FEATURE_SEVERAL),
    ] {
        let (client, server) = sessions();
        let offer = ClientOffer { features: offered, ..offer() };
        let (client, server) = run(offer, None, client, server, &mut |_, _| {}).expect_path();
        assert_eq!((client.features, server.features), (of_server, of_client));
        assert_eq!((client.label, server.label), (0, 7));
    }
    let (client, server) = sessions();
    let offer = ClientOffer { features: 0, ..offer() };
    let outcome = run(offer, None, client, server, &mut |index, frame: &mut Vec<u8>| {
        if index == 1 {
            frame[35] = 1;
        }
    });
    assert!(matches!(outcome.client, Err(HandshakeError::NotOffered("feature"))));
}

//= docs/wire.md#W50
#[test]
fn a_retry_of_tls_repeats_the_fields_of_reply() {
    let (client, server) = sessions();
    let outcome = shake(client, server.retrying(1));
    assert_eq!(outcome.frames.len(), 6);
    assert_eq!(outcome.frames[1][..REPLY_CLEAR], outcome.frames[3][..REPLY_CLEAR]);
    outcome.expect_path();

    for index in 4..REPLY_CLEAR {
        let (client, server) = sessions();
        let outcome = run(offer(), None, client, server.retrying(1), &mut |frame, body| {
            if frame == 3 {
                body[index] ^= 1;
            }
        });
        let error = outcome.client.expect_err("the fields differ");
        assert_eq!(error, HandshakeError::ReplyChanged, "byte {index}");
        assert!(outcome.server.is_err());
    }
}

//= docs/wire.md#W50
#[test]
fn a_handshake_has_at_most_three_continues() {
    let (client, server) = sessions();
    shake(client, server.retrying(CONTINUES_MAX - 1)).expect_path();
    let (client, server) = sessions();
    let outcome = shake(client, server.retrying(CONTINUES_MAX));
    assert!(outcome.client.is_err() && outcome.server.is_err());
}

//= docs/wire.md#W52
#[test]
fn a_changed_clear_field_gives_no_path() {
    for (frame, length) in [(0, HELLO_CLEAR), (1, REPLY_CLEAR)] {
        for bit in 0..length * 8 {
            let (client, server) = sessions();
            let mut change = |index: usize, body: &mut Vec<u8>| {
                if index == frame {
                    body[bit / 8] ^= 1 << (bit % 8);
                }
            };
            let outcome = run(offer(), None, client, server, &mut change);
            assert!(outcome.frames.len() <= 4, "within two calls");
            assert!(outcome.client.is_err() && outcome.server.is_err(), "frame {frame}, bit {bit}");
        }
    }
}

#[test]
fn a_changed_confirmation_ends_the_handshake() {
    for (frame, places) in [(2, 12..28), (3, 4..28)] {
        for place in places {
            let (client, server) = sessions();
            let outcome = run(offer(), None, client, server, &mut |index, body| {
                if index == frame {
                    body[place] ^= 0x80;
                }
            });
            assert!(outcome.client.is_err(), "frame {frame}, byte {place}");
            assert_eq!(outcome.server.is_err(), frame == 2, "byte {place}");
        }
    }
}

#[test]
fn records_of_the_wrong_length_are_refused() {
    for frame in 0..3 {
        let (client, server) = sessions();
        let outcome = run(offer(), None, client, server, &mut |index, body| {
            if index == frame {
                body.pop();
            }
        });
        assert!(matches!(outcome.client, Err(HandshakeError::Tls(_) | HandshakeError::Refused(_))));
        assert!(outcome.server.is_err());
    }
}

#[test]
fn a_client_that_refuses_the_server_says_so_in_a_farewell() {
    let (client, server) = sessions();
    let outcome = shake(client.refusing(Alert(48)), server);
    let (client, server) = outcome.expect_none();
    let HandshakeError::Tls(ours) = client else { panic!("{client}") };
    let HandshakeError::Tls(theirs) = server else { panic!("{server}") };
    assert_eq!((ours.alert, ours.from_peer), (Alert(48), false));
    assert_eq!((theirs.alert, theirs.from_peer), (Alert(48), true));
}

//= docs/protocol.md#seal-2
#[test]
fn a_client_that_gives_a_verified_server_up_frees_its_place_by_a_farewell() {
    let mut server = Server::new(HandshakeLimits::default());
    let (mut client, reply) = server.begin();
    assert!(matches!(client.handle_response(&reply), Ok(ClientStep::Introduced(..))));
    let farewell = client.farewell().expect("the server waits for the client's confirmation");
    assert_eq!(client.farewell(), None, "once");
    assert!(matches!(server.answer(farewell), HandshakeAnswer::Failed(..)));
    assert!(server.handshakes.is_empty());
}

//= docs/protocol.md#seal-2
#[test]
fn a_client_whom_the_server_refuses_was_introduced_before() {
    let (client, server) = sessions();
    let outcome = shake(client, server.refusing(Alert(45)));
    assert_eq!(outcome.frames.len(), 4, "CONTINUE was sent");
    let (client, _) = outcome.expect_none();
    let HandshakeError::Refused(fail) = client else { panic!("{client}") };
    assert_eq!((fail.reason, fail.alert), (FailReason::Tls, 45));
    assert_eq!(fail.text, "refused by the script (TLS alert 45 certificate_expired)");
}

//= docs/wire.md#W49
#[test]
fn the_server_takes_the_first_allowed_suite_of_the_client() {
    let (client, server) = sessions();
    let offer = ClientOffer { suites: vec![Suite::ChaCha20Poly1305, Suite::Aes128Gcm], ..offer() };
    let (client, _) = run(offer, None, client, server, &mut |_, _| {}).expect_path();
    assert_eq!(client.suite, Suite::ChaCha20Poly1305);

    let (client, server) = sessions();
    let outcome = run(pair::offer(), None, client, server, &mut |frame, body| {
        if frame == 0 {
            body[37..39].copy_from_slice(&[9, 10]);
        }
    });
    let (client, server) = outcome.expect_none();
    assert_eq!(server, HandshakeError::NoSuite(vec![9, 10]));
    assert!(
        client.to_string().starts_with("the peer allows none of the offered suites"),
        "{client}"
    );

    let (client, server) = sessions();
    let outcome = run(pair::offer(), None, client, server, &mut |frame, body| {
        if frame == 1 {
            body[2] = Suite::Aes256Gcm as u8;
        }
    });
    assert!(matches!(outcome.client, Err(HandshakeError::NotOffered("suite"))));
}

//= docs/wire.md#W48
#[test]
fn a_peer_of_another_version_names_its_own() {
    let (client, server) = sessions();
    let outcome = run(offer(), None, client, server, &mut |frame, body| match frame {
        0 => body[1] = 3,
        // The FAIL of a node of version 3.
        1 => body[1] = 3,
        _ => {}
    });
    let (client, server) = outcome.expect_none();
    assert_eq!(server, HandshakeError::Frame(FrameError::OtherVersion(3)));
    assert!(client.to_string().starts_with("the peer speaks version 3"), "{client}");
}

/// The salts of client and server, from that of the path.
type Salts = fn(RefreshSalt) -> (RefreshSalt, Vec<RefreshSalt>);

fn other_salt() -> RefreshSalt {
    apus_seal::PathSecret::new([7; 32]).refresh_salt()
}

/// Refreshes the path of a first handshake, with these names as the one that each side knows and sees.
fn refresh(known: &str, seen: &str, salts: Salts) -> (pair::Outcome, [u8; 16]) {
    let (client, server) = sessions();
    let (client, server) = shake(client, server).expect_path();
    let before = fingerprint(&client);
    let (salt, salts) = salts(server.secret.refresh_salt());
    let of_client = Refresh { salts: vec![salt], peer: Name::parse(known).expect("a name") };
    let of_server = Refresh { salts, peer: Name::parse(CLIENT).expect("a name") };
    let offer = ClientOffer { refresh: Some(of_client), ..offer() };
    let sessions = (Scripted::client(seen), Scripted::server(CLIENT));
    (run(offer, Some(of_server), sessions.0, sessions.1, &mut |_, _| {}), before)
}

//= docs/protocol.md#seal-7
#[test]
fn a_refresh_gives_another_secret_to_the_same_names_only() {
    let same: Salts = |salt| (salt.clone(), vec![salt]);
    let (outcome, before) = refresh(SERVER, SERVER, same);
    let (client, _) = outcome.expect_path();
    assert_ne!(fingerprint(&client), before);

    let (outcome, _) = refresh(SERVER, "spiffe://example.org/kv/2", same);
    let error = outcome.client.expect_err("the name differs");
    assert_eq!(
        error.to_string(),
        "the path belongs to spiffe://example.org/kv/1, and the peer is now spiffe://example.org/kv/2"
    );
    assert!(outcome.server.is_err());

    let (outcome, _) = refresh(SERVER, SERVER, |salt| (other_salt(), vec![salt]));
    assert_eq!(outcome.expect_none().1, HandshakeError::WrongConfirmation);
}

//= docs/protocol.md#seal-3
//= docs/protocol.md#seal-7
#[test]
fn a_refresh_follows_any_of_the_secrets_that_crossing_handshakes_have_left() {
    let (outcome, _) = refresh(SERVER, SERVER, |salt| (salt.clone(), vec![other_salt(), salt]));
    let (client, server) = outcome.expect_path();
    assert_eq!(fingerprint(&client), fingerprint(&server));
}

/// A server whose clock and clients are the test's.
struct Server {
    handshakes: Handshakes<Scripted>,
    now: Duration,
    random: u64,
}

fn server_offer() -> ServerOffer<Scripted> {
    ServerOffer {
        end: SERVER_END,
        suites: Suite::ALL.to_vec(),
        features: 0,
        label: 0,
        session: Scripted::server(CLIENT),
        refresh: None,
    }
}

impl Server {
    fn new(limits: HandshakeLimits) -> Self {
        Self { handshakes: Handshakes::new(limits), now: Duration::from_secs(100), random: 0 }
    }

    fn request(&mut self, address: &str, body: Vec<u8>) -> Result<Work<Scripted>, HandshakeError> {
        self.random += 1;
        let arrival = Arrival {
            address: address.parse().expect("an address"),
            deadline: None,
            body,
            random: self.random,
        };
        self.handshakes.handle_request(self.now, arrival, |_| Ok(server_offer()))
    }

    /// Takes a request of 10.0.0.1, and does its work.
    fn answer(&mut self, body: Vec<u8>) -> HandshakeAnswer {
        let work = self.request("10.0.0.1", body).expect("it is within the limits");
        self.handshakes.finish(work.run())
    }

    /// Begins a handshake of 10.0.0.1. Returns the client, and REPLY.
    fn begin(&mut self) -> (ClientHandshake<Scripted>, Vec<u8>) {
        let (client, hello) = ClientHandshake::begin(offer(), Scripted::client(SERVER));
        match self.answer(hello) {
            HandshakeAnswer::Reply(reply) => (client, reply),
            other => panic!("{other:?}"),
        }
    }

    fn hello(&mut self, address: &str) -> Result<Work<Scripted>, HandshakeError> {
        let (_, hello) = ClientHandshake::begin(offer(), Scripted::client(SERVER));
        self.request(address, hello)
    }

    fn limit(&mut self, address: &str) -> Limit {
        match self.hello(address).map(|_| ()) {
            Err(HandshakeError::Busy(limit)) => limit,
            other => panic!("{other:?}"),
        }
    }

    /// Lets clients of an address begin handshakes until one is refused, and returns their number.
    fn admitted(&mut self, address: &str) -> usize {
        let mut count = 0;
        while let Ok(work) = self.hello(address) {
            assert!(matches!(self.handshakes.finish(work.run()), HandshakeAnswer::Reply(_)));
            count += 1;
        }
        count
    }
}

/// Returns the frame with which a client confirms a handshake.
fn confirm(client: &mut ClientHandshake<Scripted>, reply: &[u8]) -> Vec<u8> {
    match client.handle_response(reply) {
        Ok(ClientStep::Introduced(_, body)) => body,
        other => panic!("{other:?}"),
    }
}

//= docs/protocol.md#seal-4
#[test]
fn a_host_has_eight_handshakes_under_way() {
    let mut server = Server::new(HandshakeLimits::default());
    assert_eq!(server.admitted("10.0.0.1"), 8);
    assert_eq!(server.admitted("::ffff:10.0.0.1"), 0, "the same host");
    assert_eq!(server.admitted("10.0.0.2"), 8);
    assert_eq!(server.admitted("2001:db8::1"), 8);
    assert_eq!(server.admitted("2001:db8::2:1"), 0, "the same /64");
    assert_eq!(server.admitted("2001:db8:0:1::1"), 8);
    assert_eq!(server.limit("10.0.0.1"), Limit::PerHost);
    assert_eq!(HandshakeError::Busy(Limit::PerHost).fail().reason, FailReason::Busy);
}

//= docs/protocol.md#seal-4
#[test]
fn a_host_begins_twenty_handshakes_in_a_second() {
    let mut server = Server::new(HandshakeLimits::default());
    let mut begin_and_end = |millis| {
        server.now = Duration::from_millis(millis);
        let work = server.hello("10.0.0.1").ok()?;
        let HandshakeAnswer::Reply(reply) = server.handshakes.finish(work.run()) else {
            panic!("no REPLY")
        };
        // An alert of the client ends the handshake.
        let Ok(Response::Reply(reply)) = Response::parse(&reply) else { panic!("no REPLY") };
        let alert = Continue { handle: reply.handle, confirmation: [0; 16], records: &[21, 48] };
        let work = server.request("10.0.0.1", alert.emit()).expect("the handshake is known");
        assert!(matches!(server.handshakes.finish(work.run()), HandshakeAnswer::Failed(..)));
        assert!(server.handshakes.is_empty());
        Some(())
    };
    let begun = (0..30).filter(|&count| begin_and_end(5_000 + count).is_some()).count();
    assert_eq!(begun, 20);
    assert!(begin_and_end(5_999).is_none());
    assert!(begin_and_end(6_000).is_some());
}

//= docs/protocol.md#seal-4
#[test]
fn a_handshake_ends_after_five_seconds_or_after_one_if_the_table_is_crowded() {
    let limits = HandshakeLimits { places: 8, per_host: 2, ..HandshakeLimits::default() };
    let mut server = Server::new(limits);
    assert_eq!(server.handshakes.next_timeout(), None);
    assert_eq!(server.admitted("10.0.0.1") + server.admitted("10.0.0.2"), 4);
    assert_eq!(server.handshakes.next_timeout(), Some(Duration::from_secs(105)));
    assert_eq!(server.handshakes.expire(Duration::from_millis(104_999)), 0);
    assert_eq!(server.handshakes.expire(Duration::from_secs(105)), 4);

    assert_eq!(["10.0.0.3", "10.0.0.4", "10.0.0.5"].map(|host| server.admitted(host)), [2; 3]);
    assert_eq!(server.handshakes.next_timeout(), Some(Duration::from_secs(101)));
    assert_eq!(server.admitted("10.0.0.6"), 2);
    assert_eq!(server.limit("10.0.0.7"), Limit::Places);
    server.now = Duration::from_secs(101);
    assert_eq!(server.handshakes.expire(server.now), 3, "the oldest, until a quarter is free");
    assert_eq!(server.handshakes.next_timeout(), Some(Duration::from_secs(105)));
    assert_eq!(server.admitted("10.0.0.7"), 2);
}

//= docs/protocol.md#seal-4
#[test]
fn the_deadline_of_a_call_shortens_its_handshake() {
    let mut server = Server::new(HandshakeLimits::default());
    let (_, body) = ClientHandshake::begin(offer(), Scripted::client(SERVER));
    let address = "10.0.0.1".parse().expect("an address");
    let arrival = Arrival { address, deadline: Some(Duration::from_secs(102)), body, random: 1 };
    let offer = |_: &Hello<'_>| Ok(server_offer());
    assert!(server.handshakes.handle_request(server.now, arrival, offer).is_ok());
    assert_eq!(server.handshakes.next_timeout(), Some(Duration::from_secs(102)));
}

#[test]
fn work_that_comes_back_too_late_is_dropped() {
    let mut server = Server::new(HandshakeLimits::default());
    let work = server.hello("10.0.0.1").expect("there is room");
    let worked = work.run();
    assert_eq!(server.handshakes.expire(Duration::from_secs(105)), 1);
    let HandshakeAnswer::Failed(error, _) = server.handshakes.finish(worked) else {
        panic!("its time has passed")
    };
    assert_eq!(error, HandshakeError::UnknownHandle);
    assert_eq!(server.admitted("10.0.0.1"), 8, "the place is free once");
}

#[test]
fn a_second_continue_is_refused_while_the_first_is_at_work() {
    let mut server = Server::new(HandshakeLimits::default());
    let (mut client, reply) = server.begin();
    let body = confirm(&mut client, &reply);
    let work = server.request("10.0.0.1", body.clone()).expect("the handshake is known");
    let second = server.request("10.0.0.1", body.clone()).map(|_| ());
    assert_eq!(second, Err(HandshakeError::OutOfOrder));
    let HandshakeAnswer::Introduced(_, done) = server.handshakes.finish(work.run()) else {
        panic!("no path")
    };
    assert!(matches!(client.handle_response(&done), Ok(ClientStep::Done)));
    let third = server.request("10.0.0.1", body).map(|_| ());
    assert_eq!(third, Err(HandshakeError::UnknownHandle), "a copy after the end");
}

#[test]
fn the_id_of_a_handshake_without_a_path_is_reported_once() {
    let mut server = Server::new(HandshakeLimits::default());
    let ended = |server: &mut Server| {
        std::iter::from_fn(|| server.handshakes.poll_ended()).collect::<Vec<_>>()
    };
    let id = SERVER_END.id;

    let work = server.hello("10.0.0.1").expect("there is room");
    assert_eq!(server.handshakes.expire(Duration::from_secs(105)), 1);
    assert_eq!(ended(&mut server), [id], "its time has passed");
    server.handshakes.finish(work.run());
    assert_eq!(ended(&mut server), []);

    let (mut client, reply) = server.begin();
    let body = confirm(&mut client, &reply);
    assert!(matches!(server.answer(body), HandshakeAnswer::Introduced(..)));
    assert_eq!(ended(&mut server), [], "the path has the id");

    let (_, hello) = ClientHandshake::begin(offer(), Scripted::client(SERVER));
    let mut broken = hello.clone();
    broken.pop();
    assert!(matches!(server.answer(broken), HandshakeAnswer::Failed(..)));
    assert_eq!(ended(&mut server), [id], "TLS has failed");

    let mut unknown_suites = hello;
    unknown_suites[37..39].copy_from_slice(&[9, 10]);
    assert!(server.request("10.0.0.1", unknown_suites).is_err());
    assert_eq!(ended(&mut server), [id], "no suite fits");
}

#[test]
fn a_server_without_room_for_a_path_refuses_hello() {
    let mut server = Server::new(HandshakeLimits::default());
    let (_, body) = ClientHandshake::begin(offer(), Scripted::client(SERVER));
    let address = "10.0.0.1".parse().expect("an address");
    let arrival = Arrival { address, deadline: None, body, random: 1 };
    let full = HandshakeError::Busy(Limit::Paths);
    let result = server.handshakes.handle_request(server.now, arrival, |_| Err(full.clone()));
    assert_eq!(result.map(|_| ()), Err(full));
    assert!(server.handshakes.is_empty());
}

#[test]
fn a_guessed_handle_disturbs_no_handshake() {
    let mut server = Server::new(HandshakeLimits::default());
    let (mut client, reply) = server.begin();
    let Ok(Response::Reply(fields)) = Response::parse(&reply) else { panic!("no REPLY") };
    for bit in 0..64 {
        let guess = fields.handle ^ (1 << bit);
        let frame = Continue { handle: guess, confirmation: [0; 16], records: &[21, 48] }.emit();
        let result = server.request("10.0.0.9", frame).map(|_| ());
        assert_eq!(result, Err(HandshakeError::UnknownHandle), "bit {bit}");
    }
    let body = confirm(&mut client, &reply);
    assert!(matches!(server.answer(body), HandshakeAnswer::Introduced(..)));
}

//= docs/protocol.md#seal-2
#[test]
fn a_copy_of_continue_from_another_address_disturbs_no_handshake() {
    let mut server = Server::new(HandshakeLimits::default());
    let (mut client, reply) = server.begin();
    let body = confirm(&mut client, &reply);
    let copy = server.request("10.0.0.9", body.clone()).map(|_| ());
    assert_eq!(copy, Err(HandshakeError::UnknownHandle));
    assert!(matches!(server.answer(body), HandshakeAnswer::Introduced(..)));
}

#[test]
fn a_response_after_the_end_is_out_of_order() {
    let (mut client, _) = ClientHandshake::begin(offer(), Scripted::client(SERVER));
    assert!(client.handle_response(&HandshakeError::Busy(Limit::Places).fail().emit()).is_err());
    let error =
        client.handle_response(&apus_seal::frame::Done { handle: 1, confirmation: [0; 16] }.emit());
    assert_eq!(error.map(|_| ()), Err(HandshakeError::OutOfOrder));
    assert_eq!(client.farewell(), None);
}
