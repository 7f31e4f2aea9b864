//! A client and a server whose frames pass through the test. The fuzz target `handshake` uses it too.

use std::time::Duration;

use apus_seal::{
    Arrival, AssociationId, ClientHandshake, ClientOffer, ClientStep, HandshakeAnswer,
    HandshakeError, HandshakeLimits, Handshakes, Introduction, Limit, PathEnd, Refresh, Role,
    ServerOffer, Suite, Tls, frame,
};
use apus_wire::Token;

pub(crate) const CLIENT_END: PathEnd = PathEnd {
    id: AssociationId::from_bits(0x0400_0012_3456_789a).expect("not 0"),
    token: Token(0xc11e_c11e_c11e_c11e),
};
pub(crate) const SERVER_END: PathEnd = PathEnd {
    id: AssociationId::from_bits(0x0800_0012_3456_789a).expect("not 0"),
    token: Token(0x5e1e_5e1e_5e1e_5e1e),
};

/// The results of both sides. The client's is `Ok` only after DONE.
pub(crate) struct Outcome {
    pub client: Result<Introduction, HandshakeError>,
    pub server: Result<Introduction, HandshakeError>,
    /// All frames, as they arrived.
    pub frames: Vec<Vec<u8>>,
}

#[allow(dead_code, reason = "each test uses a part")]
impl Outcome {
    /// Returns both introductions, after a check that they belong together.
    pub(crate) fn expect_path(self) -> (Introduction, Introduction) {
        let client = self.client.expect("the client has a path");
        let server = self.server.expect("the server has a path");
        assert_eq!((client.role, server.role), (Role::Client, Role::Server));
        assert_eq!((client.ours, client.theirs), (server.theirs, server.ours));
        assert_eq!((client.suite, client.doubted), (server.suite, server.doubted));
        assert_eq!(fingerprint(&client), fingerprint(&server));
        (client, server)
    }

    pub(crate) fn expect_none(self) -> (HandshakeError, HandshakeError) {
        let client = self.client.expect_err("the client has no path");
        (client, self.server.expect_err("the server has no path"))
    }
}

/// Returns a number that stands for the secret.
pub(crate) fn fingerprint(introduction: &Introduction) -> [u8; 16] {
    introduction.secret.confirmation(Role::Client, &[0; 32])
}

#[allow(dead_code, reason = "each test uses a part")]
pub(crate) fn offer() -> ClientOffer {
    ClientOffer {
        port: 4000,
        end: CLIENT_END,
        doubted: Token::NONE,
        features: frame::FEATURE_PORTS,
        suites: vec![Suite::Aes128Gcm, Suite::ChaCha20Poly1305],
        refresh: None,
    }
}

/// Runs a handshake between two sessions.
#[allow(dead_code, reason = "each test uses a part")]
pub(crate) fn shake<T: Tls>(client: T, server: T) -> Outcome {
    run(offer(), None, client, server, &mut |_, _| {})
}

/// Runs a handshake, and passes each frame with its index through `change`.
pub(crate) fn run<T: Tls>(
    offer: ClientOffer,
    refresh: Option<Refresh>,
    client: T,
    server: T,
    change: &mut dyn FnMut(usize, &mut Vec<u8>),
) -> Outcome {
    let mut handshakes = Handshakes::new(HandshakeLimits::default());
    let mut session = Some((server, refresh));
    let mut server_result = Err(HandshakeError::UnknownHandle);
    let mut frames: Vec<Vec<u8>> = Vec::new();
    let mut exchange = |mut body: Vec<u8>| {
        change(frames.len(), &mut body);
        frames.push(body.clone());
        let (result, mut answer) = serve(&mut handshakes, body, &mut session);
        if let Some(result) = result {
            server_result = result;
        }
        change(frames.len(), &mut answer);
        frames.push(answer.clone());
        answer
    };
    let (mut handshake, hello) = ClientHandshake::begin(offer, client);
    let mut answer = exchange(hello);
    let mut introduced = None;
    let client = loop {
        match handshake.handle_response(&answer) {
            Ok(ClientStep::Continue(body)) => answer = exchange(body),
            Ok(ClientStep::Introduced(introduction, body)) => {
                introduced = Some(*introduction);
                answer = exchange(body);
            }
            Ok(ClientStep::Done) => {
                break Ok(introduced.take().expect("the client is introduced before DONE"));
            }
            Err(error) => {
                if let Some(body) = handshake.farewell() {
                    exchange(body);
                }
                break Err(error);
            }
        }
    };
    Outcome { client, server: server_result, frames }
}

/// Takes one request with both halves of the server's work, and returns the result of the handshake, if it ended, with the
/// answer.
fn serve<T: Tls>(
    handshakes: &mut Handshakes<T>,
    body: Vec<u8>,
    session: &mut Option<(T, Option<Refresh>)>,
) -> (Option<Result<Introduction, HandshakeError>>, Vec<u8>) {
    if session.is_none() && body.first() == Some(&1) {
        // A changed CONTINUE may be a second HELLO.
        return (None, HandshakeError::Busy(Limit::Places).fail().emit());
    }
    let address = "10.0.0.1".parse().expect("an address");
    let arrival = Arrival { address, deadline: None, body, random: 0x0123_4567_89ab_cdef };
    let work = handshakes.handle_request(Duration::ZERO, arrival, |_| {
        let (session, refresh) = session.take().expect("one HELLO");
        let (end, suites) = (SERVER_END, Suite::ALL.to_vec());
        Ok(ServerOffer { end, suites, features: u64::MAX, label: 7, session, refresh })
    });
    match work.map(|work| handshakes.finish(work.run())) {
        Ok(HandshakeAnswer::Reply(body)) => (None, body),
        Ok(HandshakeAnswer::Introduced(introduction, body)) => (Some(Ok(*introduction)), body),
        Ok(HandshakeAnswer::Failed(error, body)) => (Some(Err(error)), body),
        Err(error) => (Some(Err(error.clone())), error.fail().emit()),
    }
}
