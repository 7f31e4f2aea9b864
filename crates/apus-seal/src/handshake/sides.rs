//! The two sides of a handshake, from the first flight of TLS to the secret of a path.
//!
//! Both are values that own their TLS session. The methods that take frames do public-key work (100 to 200 µs) and touch nothing
//! else, so a value can move to a worker thread and come back. [`Handshakes`](crate::Handshakes) does the bookkeeping of a
//! server, and [`Attempts`](crate::Attempts) that of a client, under the lock of an engine.

use std::fmt;
use std::sync::Arc;

use apus_wire::Token;
use zeroize::Zeroizing;

use crate::handshake::failure::{HandshakeError, TlsError};
use crate::handshake::frame::{
    Continue, Done, Hello, PathEnd, REPLY_CLEAR, Reply, Request, Response, context,
};
use crate::identity::name::{Identity, Name};
use crate::{PathSecret, RefreshSalt, Role, Suite};

/// The most CONTINUEs of a handshake. One is usual, a HelloRetryRequest takes two.
pub const CONTINUES_MAX: u8 = 3;

/// One side of a TLS 1.3 handshake on byte slices. Both sides show certificates.
pub trait Tls {
    /// Takes TLS records of the peer.
    ///
    /// # Errors
    ///
    /// The handshake has failed. An alert for the peer may wait in [`Tls::write`].
    fn read(&mut self, records: &[u8]) -> Result<(), TlsError>;

    /// Appends the TLS records that wait for the peer.
    fn write(&mut self, records: &mut Vec<u8>);

    /// Returns whether the peer is verified and has shown that it has the keys.
    fn is_complete(&self) -> bool;

    /// Returns keying material that both sides share and that depends on `context` (RFC 8446, section 7.5).
    ///
    /// # Errors
    ///
    /// The handshake is not complete.
    fn export(&mut self, context: &[u8; 32]) -> Result<Zeroizing<[u8; 32]>, TlsError>;

    /// Returns the identity of the verified peer.
    ///
    /// # Errors
    ///
    /// The handshake is not complete, or the peer's certificate gives no identity.
    fn peer(&self) -> Result<Arc<Identity>, TlsError>;
}

impl<T: Tls + ?Sized> Tls for Box<T> {
    fn read(&mut self, records: &[u8]) -> Result<(), TlsError> {
        (**self).read(records)
    }

    fn write(&mut self, records: &mut Vec<u8>) {
        (**self).write(records);
    }

    fn is_complete(&self) -> bool {
        (**self).is_complete()
    }

    fn export(&mut self, context: &[u8; 32]) -> Result<Zeroizing<[u8; 32]>, TlsError> {
        (**self).export(context)
    }

    fn peer(&self) -> Result<Arc<Identity>, TlsError> {
        (**self).peer()
    }
}

//= docs/protocol.md#seal-7
/// The path that a handshake refreshes.
#[derive(Clone)]
pub struct Refresh {
    /// The parts of the path's secrets that are kept for this: one at the client, and at the server that of each association of the
    /// path. Handshakes that have crossed (seal-3) leave two, and the client's confirmation shows which one it has taken.
    pub salts: Vec<RefreshSalt>,
    /// The name of the peer, which must stay.
    pub peer: Name,
}

/// A complete handshake: the facts that a sealed path is made of.
pub struct Introduction {
    /// The secret of the path.
    pub secret: PathSecret,
    /// This node's side of the handshake.
    pub role: Role,
    /// The chosen suite.
    pub suite: Suite,
    /// This node's end.
    pub ours: PathEnd,
    /// The peer's end.
    pub theirs: PathEnd,
    /// The token of the server that the client doubted; [`Token::NONE`] if none.
    pub doubted: Token,
    /// The peer.
    pub peer: Arc<Identity>,
    /// Features of the other side: of HELLO at the server, and of REPLY at the client.
    pub features: u64,
    /// The number of the server's offer, which has its meaning; 0 at the client.
    pub label: u64,
}

impl fmt::Debug for Introduction {
    /// Leaves the secret out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Introduction")
            .field("role", &self.role)
            .field("suite", &self.suite)
            .field("ours", &self.ours)
            .field("theirs", &self.theirs)
            .field("peer", &self.peer.name)
            .finish_non_exhaustive()
    }
}

/// The fields of a client's HELLO.
#[derive(Clone)]
pub struct ClientOffer {
    /// The Homa port whose certificate the server is to show, in the clear; 0 for that of the node.
    pub port: u16,
    /// The client's end.
    pub end: PathEnd,
    /// The server's token that the client has and doubts; [`Token::NONE`] if there is none.
    pub doubted: Token,
    /// Optional features that the client offers.
    pub features: u64,
    /// Suites in order of preference: 1 to 255.
    pub suites: Vec<Suite>,
    /// The path to refresh, if the handshake does not make a new one.
    pub refresh: Option<Refresh>,
}

/// The next step of a client.
#[derive(Debug)]
pub enum ClientStep {
    /// TLS goes on: call [`SECURE_PORT`](crate::SECURE_PORT) with this body.
    Continue(Vec<u8>),
    /// The server is verified: install the path, then call with this body. Sealed packets may follow it at once.
    Introduced(Box<Introduction>, Vec<u8>),
    /// The server has verified this node, and the handshake has ended.
    Done,
}

/// The client's side of a handshake.
pub struct ClientHandshake<T> {
    session: T,
    offer: ClientOffer,
    /// The clear fields of HELLO.
    hello: Vec<u8>,
    phase: ClientPhase,
    continues: u8,
}

enum ClientPhase {
    /// REPLY is awaited, for the second time if the first one is here.
    Offered(Option<Agreed>),
    /// DONE with this content is awaited.
    Confirmed(Done),
    /// The handshake is complete, or has failed.
    Ended,
}

/// The clear fields of the first REPLY.
#[derive(Clone, Copy)]
struct Agreed {
    clear: [u8; REPLY_CLEAR],
    suite: Suite,
    server: PathEnd,
    features: u64,
    handle: u64,
}

impl<T: Tls> ClientHandshake<T> {
    //= docs/protocol.md#seal-1
    /// Begins a handshake. Returns it with the body of the first call, HELLO.
    ///
    /// # Panics
    ///
    /// If the offer has more than 255 suites.
    pub fn begin(offer: ClientOffer, mut session: T) -> (Self, Vec<u8>) {
        let mut records = Vec::new();
        session.write(&mut records);
        let suites: Vec<u8> = offer.suites.iter().map(|&suite| suite as u8).collect();
        let ClientOffer { port, end, doubted, features, .. } = offer;
        let hello = Hello { port, end, doubted, features, suites: &suites, records: &records };
        let frame = hello.emit();
        let hello = frame[..hello.clear_len()].to_vec();
        let phase = ClientPhase::Offered(None);
        (Self { session, offer, hello, phase, continues: 0 }, frame)
    }

    /// Takes the response of a call. This is public-key work.
    ///
    /// # Errors
    ///
    /// The handshake has failed, and there is no path. [`ClientHandshake::farewell`] reports it to the server.
    pub fn handle_response(&mut self, body: &[u8]) -> Result<ClientStep, HandshakeError> {
        match (Response::parse(body)?, std::mem::replace(&mut self.phase, ClientPhase::Ended)) {
            (Response::Fail(fail), _) => Err(HandshakeError::Refused(fail)),
            (Response::Reply(reply), ClientPhase::Offered(first)) => {
                let clear = *body.first_chunk().expect("a REPLY has all clear fields");
                let agreed = self.agree(&reply, clear, first)?;
                // Known also if TLS fails now, for the farewell.
                self.phase = ClientPhase::Offered(Some(agreed));
                self.advance(&agreed, reply.records)
            }
            (Response::Done(done), ClientPhase::Confirmed(expected)) => {
                if done.handle == expected.handle
                    && is_equal(&done.confirmation, &expected.confirmation)
                {
                    Ok(ClientStep::Done)
                } else {
                    Err(HandshakeError::WrongConfirmation)
                }
            }
            _ => Err(HandshakeError::OutOfOrder),
        }
    }

    /// Returns the body of a last call, by which a client that gives the handshake up ends it at the server: the handshake has
    /// failed, or the client does not want the path. It carries the alert of TLS, if TLS has failed. `None` if the server has not
    /// taken the handshake or has ended it. The response has no meaning.
    pub fn farewell(&mut self) -> Option<Vec<u8>> {
        let handle = match std::mem::replace(&mut self.phase, ClientPhase::Ended) {
            ClientPhase::Offered(agreed) => agreed?.handle,
            ClientPhase::Confirmed(done) => done.handle,
            ClientPhase::Ended => return None,
        };
        let mut records = Vec::new();
        self.session.write(&mut records);
        Some(Continue { handle, confirmation: [0; 16], records: &records }.emit())
    }

    fn agree(
        &self,
        reply: &Reply<'_>,
        clear: [u8; REPLY_CLEAR],
        first: Option<Agreed>,
    ) -> Result<Agreed, HandshakeError> {
        match first {
            Some(first) if first.clear == clear => Ok(first),
            Some(_) => Err(HandshakeError::ReplyChanged),
            None if !self.offer.suites.contains(&reply.suite) => {
                Err(HandshakeError::NotOffered("suite"))
            }
            None if reply.features & !self.offer.features != 0 => {
                Err(HandshakeError::NotOffered("feature"))
            }
            None => {
                let Reply { suite, end: server, features, handle, .. } = *reply;
                Ok(Agreed { clear, suite, server, features, handle })
            }
        }
    }

    fn advance(&mut self, agreed: &Agreed, records: &[u8]) -> Result<ClientStep, HandshakeError> {
        self.session.read(records)?;
        let mut records = Vec::new();
        self.session.write(&mut records);
        self.continues += 1;
        if records.is_empty() || self.continues > CONTINUES_MAX {
            return Err(HandshakeError::OutOfOrder);
        }
        if !self.session.is_complete() {
            let frame =
                Continue { handle: agreed.handle, confirmation: [0; 16], records: &records };
            return Ok(ClientStep::Continue(frame.emit()));
        }
        let context = context(&self.hello, &agreed.clear);
        let (secrets, peer) =
            agree_secrets(&mut self.session, self.offer.refresh.as_ref(), &context)?;
        let secret = secrets.into_iter().next().ok_or(HandshakeError::OutOfOrder)?;
        let confirmation = secret.confirmation(Role::Client, &context);
        let frame = Continue { handle: agreed.handle, confirmation, records: &records };
        self.phase = ClientPhase::Confirmed(Done {
            handle: agreed.handle,
            confirmation: secret.confirmation(Role::Server, &context),
        });
        let introduction = Introduction {
            secret,
            role: Role::Client,
            suite: agreed.suite,
            ours: self.offer.end,
            theirs: agreed.server,
            doubted: self.offer.doubted,
            peer,
            features: agreed.features,
            label: 0,
        };
        Ok(ClientStep::Introduced(Box::new(introduction), frame.emit()))
    }
}

/// The fields of a server's REPLY, and the session that answers.
pub struct ServerOffer<T> {
    /// The server's end: the id that [`Associations::reserve`](crate::Associations::reserve) gave, and the token of contact-3 or the known one.
    pub end: PathEnd,
    /// The suites that are allowed.
    pub suites: Vec<Suite>,
    /// The features of REPLY, as far as the client offers them.
    pub features: u64,
    /// A number that comes back in [`Introduction::label`].
    pub label: u64,
    /// A new session. It shows the certificate for [`Hello::port`].
    pub session: T,
    /// The sealed path by which HELLO arrived, if it refreshes that path.
    pub refresh: Option<Refresh>,
}

/// The next step of a server.
#[derive(Debug)]
pub enum ServerStep {
    /// TLS goes on: answer with this body.
    Reply(Vec<u8>),
    /// The client is verified: install the path, then answer with this body.
    Introduced(Box<Introduction>, Vec<u8>),
}

/// The server's side of a handshake.
pub struct ServerHandshake<T> {
    session: T,
    handle: u64,
    suite: Suite,
    ours: PathEnd,
    theirs: PathEnd,
    doubted: Token,
    /// The client's features.
    features: u64,
    label: u64,
    refresh: Option<Refresh>,
    /// The clear fields of REPLY.
    reply: [u8; REPLY_CLEAR],
    context: [u8; 32],
    continues: u8,
}

impl<T: Tls> ServerHandshake<T> {
    /// Begins a handshake with the clear fields of HELLO, without public-key work. `handle` names it in CONTINUE, and cannot be
    /// guessed. The frame is then passed to [`ServerHandshake::handle_request`].
    ///
    /// # Errors
    ///
    /// [`HandshakeError::NoSuite`].
    pub fn begin(
        handle: u64,
        hello: &Hello<'_>,
        frame: &[u8],
        offer: ServerOffer<T>,
    ) -> Result<Self, HandshakeError> {
        let suite = hello.choose(&offer.suites);
        let suite = suite.ok_or_else(|| HandshakeError::NoSuite(hello.suites.to_vec()))?;
        //= docs/wire.md#W49
        let features = offer.features & hello.known_features();
        let reply = Reply { suite, end: offer.end, handle, features, records: &[] }.emit_clear();
        Ok(Self {
            session: offer.session,
            handle,
            suite,
            ours: offer.end,
            theirs: hello.end,
            doubted: hello.doubted,
            features: hello.known_features(),
            label: offer.label,
            refresh: offer.refresh,
            reply,
            context: context(&frame[..hello.clear_len()], &reply),
            continues: 0,
        })
    }

    /// Takes HELLO, and then each CONTINUE. This is public-key work.
    ///
    /// # Errors
    ///
    /// The handshake has failed. [`HandshakeError::fail`] is the answer.
    pub fn handle_request(&mut self, body: &[u8]) -> Result<ServerStep, HandshakeError> {
        let (records, confirmation) = match Request::parse(body)? {
            Request::Hello(hello) => (hello.records, None),
            Request::Continue(go_on) => {
                self.continues += 1;
                if self.continues > CONTINUES_MAX {
                    return Err(HandshakeError::OutOfOrder);
                }
                (go_on.records, Some(go_on.confirmation))
            }
        };
        self.session.read(records)?;
        if self.session.is_complete() {
            return self.complete(&confirmation.ok_or(HandshakeError::OutOfOrder)?);
        }
        let mut frame = self.reply.to_vec();
        self.session.write(&mut frame);
        if frame.len() == REPLY_CLEAR {
            return Err(HandshakeError::OutOfOrder);
        }
        Ok(ServerStep::Reply(frame))
    }

    fn complete(&mut self, confirmation: &[u8; 16]) -> Result<ServerStep, HandshakeError> {
        let (secrets, peer) =
            agree_secrets(&mut self.session, self.refresh.as_ref(), &self.context)?;
        let confirms = |secret: &PathSecret| {
            is_equal(confirmation, &secret.confirmation(Role::Client, &self.context))
        };
        let secret = secrets.into_iter().find(confirms).ok_or(HandshakeError::WrongConfirmation)?;
        let confirmation = secret.confirmation(Role::Server, &self.context);
        let done = Done { handle: self.handle, confirmation };
        let introduction = Introduction {
            secret,
            role: Role::Server,
            suite: self.suite,
            ours: self.ours,
            theirs: self.theirs,
            doubted: self.doubted,
            peer,
            features: self.features,
            label: self.label,
        };
        Ok(ServerStep::Introduced(Box::new(introduction), done.emit()))
    }

    /// Returns whether the handshake refreshes a path.
    #[must_use]
    pub fn is_refresh(&self) -> bool {
        self.refresh.is_some()
    }
}

/// Returns the secrets that the path may have and the peer, once TLS is complete.
fn agree_secrets<T: Tls>(
    session: &mut T,
    refresh: Option<&Refresh>,
    context: &[u8; 32],
) -> Result<(Vec<PathSecret>, Arc<Identity>), HandshakeError> {
    let peer = session.peer()?;
    let exported = session.export(context)?;
    let Some(refresh) = refresh else { return Ok((vec![PathSecret::new(*exported)], peer)) };
    //= docs/protocol.md#seal-7
    if refresh.peer != peer.name {
        let (expected, found) = (refresh.peer.clone(), peer.name.clone());
        return Err(HandshakeError::NameChanged { expected, found });
    }
    Ok((refresh.salts.iter().map(|salt| salt.refreshed(&exported)).collect(), peer))
}

/// Compares in a time that does not depend on the bytes.
fn is_equal(one: &[u8; 16], other: &[u8; 16]) -> bool {
    one.iter().zip(other).fold(0, |differences, (one, other)| differences | (one ^ other)) == 0
}
