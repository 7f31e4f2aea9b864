//! The frames of a handshake: bodies of calls to [`SECURE_PORT`], and of their responses (rules W48 to W52).
//!
//! ```text
//! client                        server
//!   HELLO     ── call 1 ──▶       clear fields, first flight of TLS
//!             ◀────────────       REPLY or FAIL
//!   CONTINUE  ── call 2 ──▶       confirmation, last flight of TLS
//!             ◀────────────       DONE, FAIL, or REPLY once more (HelloRetryRequest)
//! ```
//!
//! The fields are clear. Those of HELLO and REPLY are bound into the keys by [`context`], so a node that changes one gets no
//! path.

use std::ops::Range;

use apus_wire::Token;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::{AssociationId, Suite};

/// The Homa port at which a node takes handshakes. No service can be bound to it.
pub const SECURE_PORT: u16 = 32_767;

/// The longest request to [`SECURE_PORT`], in bytes: a certificate chain with ML-DSA signatures needs about 20 KiB.
pub const REQUEST_MAX: usize = 64 * 1024;

/// The longest text of a FAIL, in bytes.
pub const TEXT_MAX: usize = 200;

/// Length of the clear fields of a REPLY in bytes.
pub const REPLY_CLEAR: usize = 36;

const VERSION: u8 = 1;

//= docs/wire.md#W58
/// In HELLO: the client keeps a path for a port alone if the server wants that. In REPLY: the path is for the port of HELLO alone,
/// because other ports of the server have other certificates.
pub const FEATURE_PORTS: u64 = 1;
/// In HELLO: the node at the client's address has other identities too.
pub const FEATURE_SEVERAL: u64 = 2;
/// The optional features that this version knows.
const FEATURES: u64 = FEATURE_PORTS | FEATURE_SEVERAL;

const HELLO: u8 = 1;
const REPLY: u8 = 2;
const CONTINUE: u8 = 3;
const DONE: u8 = 4;
const FAIL: u8 = 5;

const ID: Range<usize> = 4..12;
const TOKEN: Range<usize> = 12..20;
const DOUBTED: Range<usize> = 20..28;
const REPLY_HANDLE: Range<usize> = 20..28;
const FEATURE_BITS: Range<usize> = 28..36;
const SUITE_COUNT: usize = 36;
const HANDLE: Range<usize> = 4..12;
const CONFIRMATION: Range<usize> = 12..28;

const HELLO_LEN: usize = 37;
const CONTINUE_LEN: usize = 28;
const FAIL_LEN: usize = 4;

/// One end of a sealed path, as its node announces it in HELLO or REPLY.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathEnd {
    /// The association in datagrams to this end.
    pub id: AssociationId,
    /// The token that this end expects in packets; never [`Token::NONE`].
    pub token: Token,
}

/// HELLO: the client's clear fields and the first flight of TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello<'a> {
    /// The Homa port whose certificate the server is to show; 0 for that of the node.
    pub port: u16,
    /// The client's end.
    pub end: PathEnd,
    /// The server's token that the client has and doubts; [`Token::NONE`] if there is none.
    pub doubted: Token,
    /// Optional features that the client offers.
    pub features: u64,
    /// Numbers of suites in the client's order of preference, unknown ones included; 1 to 255.
    pub suites: &'a [u8],
    /// TLS records.
    pub records: &'a [u8],
}

impl<'a> Hello<'a> {
    //= docs/wire.md#W49
    fn parse(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let (head, rest) = split::<HELLO_LEN>(bytes)?;
        let suites_len = usize::from(head[SUITE_COUNT]);
        if suites_len == 0 {
            return Err(FrameError::NoSuites);
        }
        let Some((suites, records)) = rest.split_at_checked(suites_len) else {
            return Err(FrameError::TooShort {
                length: bytes.len(),
                needed: HELLO_LEN + suites_len,
            });
        };
        Ok(Self {
            port: u16::from_be_bytes([head[2], head[3]]),
            end: end(head)?,
            doubted: Token(read_u64(head, DOUBTED)),
            features: read_u64(head, FEATURE_BITS),
            suites,
            records,
        })
    }

    /// Returns the whole frame.
    ///
    /// # Panics
    ///
    /// If there are more than 255 suites.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let suite_count = u8::try_from(self.suites.len()).expect("at most 255 suites");
        let mut frame = vec![HELLO, VERSION];
        frame.extend_from_slice(&self.port.to_be_bytes());
        for field in [self.end.id.to_bits(), self.end.token.0, self.doubted.0, self.features] {
            frame.extend_from_slice(&field.to_be_bytes());
        }
        frame.push(suite_count);
        frame.extend_from_slice(self.suites);
        frame.extend_from_slice(self.records);
        frame
    }

    /// Returns the length of the clear fields, which stand before the TLS records.
    #[must_use]
    pub fn clear_len(&self) -> usize {
        HELLO_LEN + self.suites.len()
    }

    /// Returns the first of the client's suites that is in `allowed`.
    #[must_use]
    pub fn choose(&self, allowed: &[Suite]) -> Option<Suite> {
        let known = self.suites.iter().filter_map(|&number| Suite::from_number(number));
        known.into_iter().find(|suite| allowed.contains(suite))
    }

    /// Returns the features of both sides.
    #[must_use]
    pub fn known_features(&self) -> u64 {
        self.features & FEATURES
    }
}

/// REPLY: the server's clear fields and its flight of TLS. A repeated REPLY has the same clear fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply<'a> {
    /// The chosen suite.
    pub suite: Suite,
    /// The server's end.
    pub end: PathEnd,
    /// Names the handshake in CONTINUE.
    pub handle: u64,
    /// Those of the offered features that the server knows.
    pub features: u64,
    /// TLS records.
    pub records: &'a [u8],
}

impl<'a> Reply<'a> {
    //= docs/wire.md#W49
    fn parse(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let (head, records) = split::<REPLY_CLEAR>(bytes)?;
        Ok(Self {
            suite: Suite::from_number(head[2]).ok_or(FrameError::UnknownSuite(head[2]))?,
            end: end(head)?,
            handle: read_u64(head, REPLY_HANDLE),
            features: read_u64(head, FEATURE_BITS),
            records,
        })
    }

    /// Returns the clear fields, as they stand before the TLS records.
    #[must_use]
    pub fn emit_clear(&self) -> [u8; REPLY_CLEAR] {
        let mut head = [0; REPLY_CLEAR];
        head[..3].copy_from_slice(&[REPLY, VERSION, self.suite as u8]);
        head[ID].copy_from_slice(&self.end.id.to_bits().to_be_bytes());
        head[TOKEN].copy_from_slice(&self.end.token.0.to_be_bytes());
        head[REPLY_HANDLE].copy_from_slice(&self.handle.to_be_bytes());
        head[FEATURE_BITS].copy_from_slice(&self.features.to_be_bytes());
        head
    }
}

/// CONTINUE: the client's next flight of TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Continue<'a> {
    /// Copied from REPLY.
    pub handle: u64,
    /// The client's confirmation; zeros while TLS goes on.
    pub confirmation: [u8; 16],
    /// TLS records.
    pub records: &'a [u8],
}

impl<'a> Continue<'a> {
    //= docs/wire.md#W50
    fn parse(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let (head, records) = split::<CONTINUE_LEN>(bytes)?;
        Ok(Self { handle: read_u64(head, HANDLE), confirmation: confirmation(head), records })
    }

    /// Returns the whole frame.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut frame = confirmed(CONTINUE, self.handle, &self.confirmation);
        frame.extend_from_slice(self.records);
        frame
    }
}

/// DONE: the server has verified the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// Copied from CONTINUE.
    pub handle: u64,
    /// The server's confirmation.
    pub confirmation: [u8; 16],
}

impl Done {
    //= docs/wire.md#W50
    fn parse(bytes: &[u8]) -> Result<Self, FrameError> {
        let (head, _) = split::<CONTINUE_LEN>(bytes)?;
        Ok(Self { handle: read_u64(head, HANDLE), confirmation: confirmation(head) })
    }

    /// Returns the whole frame.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        confirmed(DONE, self.handle, &self.confirmation)
    }
}

/// The number of a FAIL's cause. Its texts are for people, this is for programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[repr(u8)]
pub enum FailReason {
    /// A number that this program does not know.
    Unstated = 0,
    /// The frame is of another version. The version of FAIL is that of its sender.
    OtherVersion = 1,
    /// A frame is malformed or out of order.
    Malformed = 2,
    /// A limit is reached: the client may try again later.
    Busy = 3,
    /// TLS failed; the alert says why.
    Tls = 4,
    /// The server allows none of the offered suites.
    NoSuite = 5,
    /// No handshake has this handle, or its time has passed.
    UnknownHandle = 6,
    /// The confirmation is wrong: clear fields were changed on the way.
    WrongConfirmation = 7,
    /// The refresh of a path shows another name than the path has.
    NameChanged = 8,
}

impl FailReason {
    const ALL: [Self; 8] = [
        Self::OtherVersion,
        Self::Malformed,
        Self::Busy,
        Self::Tls,
        Self::NoSuite,
        Self::UnknownHandle,
        Self::WrongConfirmation,
        Self::NameChanged,
    ];

    fn from_number(number: u8) -> Self {
        Self::ALL.into_iter().find(|&reason| reason as u8 == number).unwrap_or(Self::Unstated)
    }
}

/// FAIL: the server ends the handshake. The layout is the same in every version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fail {
    /// Version of the sender.
    pub version: u8,
    /// The cause.
    pub reason: FailReason,
    /// The TLS alert (RFC 8446, section 6); 0 if there is none.
    pub alert: u8,
    /// The server's view, for people: at most [`TEXT_MAX`] printable ASCII characters.
    pub text: String,
}

impl Fail {
    /// Creates a FAIL of this version. Longer text is cut.
    #[must_use]
    pub fn new(reason: FailReason, alert: u8, text: &str) -> Self {
        Self { version: VERSION, reason, alert, text: printable(text.as_bytes()) }
    }

    //= docs/wire.md#W51
    fn parse(bytes: &[u8]) -> Result<Self, FrameError> {
        let (head, text) = split::<FAIL_LEN>(bytes)?;
        let [_, version, reason, alert] = *head;
        Ok(Self { version, reason: FailReason::from_number(reason), alert, text: printable(text) })
    }

    /// Returns the whole frame.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut frame = vec![FAIL, self.version, self.reason as u8, self.alert];
        frame.extend_from_slice(self.text.as_bytes());
        frame
    }
}

/// A frame that a client sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request<'a> {
    /// The first call of a handshake.
    Hello(Hello<'a>),
    /// Each further call.
    Continue(Continue<'a>),
}

impl<'a> Request<'a> {
    /// Parses the body of a request to [`SECURE_PORT`].
    ///
    /// # Errors
    ///
    /// The frame is longer than [`REQUEST_MAX`], of another version, or malformed.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FrameError> {
        if bytes.len() > REQUEST_MAX {
            return Err(FrameError::TooLong(bytes.len()));
        }
        match kind(bytes)? {
            HELLO => Hello::parse(bytes).map(Self::Hello),
            CONTINUE => Continue::parse(bytes).map(Self::Continue),
            kind => Err(FrameError::UnexpectedKind(kind)),
        }
    }
}

/// A frame that a server sends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response<'a> {
    /// TLS goes on.
    Reply(Reply<'a>),
    /// The handshake is complete.
    Done(Done),
    /// The handshake has failed.
    Fail(Fail),
}

impl<'a> Response<'a> {
    /// Parses the body of a response from [`SECURE_PORT`].
    ///
    /// # Errors
    ///
    /// The frame is of another version or malformed. A FAIL of any version is read.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FrameError> {
        //= docs/wire.md#W48
        if bytes.first() == Some(&FAIL) {
            return Fail::parse(bytes).map(Self::Fail);
        }
        match kind(bytes)? {
            REPLY => Reply::parse(bytes).map(Self::Reply),
            DONE => Done::parse(bytes).map(Self::Done),
            kind => Err(FrameError::UnexpectedKind(kind)),
        }
    }
}

//= docs/wire.md#W52
/// Returns the hash of the clear fields of HELLO and REPLY, which is the context of TLS's exporter and of the confirmations.
#[must_use]
pub fn context(hello: &[u8], reply: &[u8; REPLY_CLEAR]) -> [u8; 32] {
    Sha256::new().chain_update(hello).chain_update(reply).finalize().into()
}

/// The cause for which a frame is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Fields are missing.
    #[error("the frame has {length} bytes and needs {needed}")]
    TooShort {
        /// Bytes of the frame.
        length: usize,
        /// Bytes that its fields need.
        needed: usize,
    },
    /// The request is longer than [`REQUEST_MAX`].
    #[error("the frame has {0} bytes; at most {REQUEST_MAX} are allowed")]
    TooLong(usize),
    /// The frame is of another version.
    #[error("the frame is of version {0}; this node speaks version {VERSION}")]
    OtherVersion(u8),
    /// The frame's kind is unknown, or comes from the wrong side.
    #[error("a frame of kind {0} is not expected")]
    UnexpectedKind(u8),
    /// An id or token is 0.
    #[error("the {0} is 0")]
    Zero(&'static str),
    /// HELLO offers no suite.
    #[error("no suite is offered")]
    NoSuites,
    /// REPLY chooses a suite that this program does not know.
    #[error("suite {0} is not known")]
    UnknownSuite(u8),
}

fn kind(bytes: &[u8]) -> Result<u8, FrameError> {
    let ([kind, version], _) = split::<2>(bytes)?;
    //= docs/wire.md#W48
    if *version != VERSION {
        return Err(FrameError::OtherVersion(*version));
    }
    Ok(*kind)
}

fn split<const N: usize>(bytes: &[u8]) -> Result<(&[u8; N], &[u8]), FrameError> {
    bytes.split_first_chunk().ok_or(FrameError::TooShort { length: bytes.len(), needed: N })
}

fn end(head: &[u8]) -> Result<PathEnd, FrameError> {
    let id = AssociationId::from_bits(read_u64(head, ID));
    let id = id.ok_or(FrameError::Zero("id of the association"))?;
    match Token(read_u64(head, TOKEN)) {
        Token::NONE => Err(FrameError::Zero("token")),
        token => Ok(PathEnd { id, token }),
    }
}

fn confirmation(head: &[u8; CONTINUE_LEN]) -> [u8; 16] {
    head[CONFIRMATION].try_into().expect("the range of a confirmation spans 16 bytes")
}

fn confirmed(kind: u8, handle: u64, confirmation: &[u8; 16]) -> Vec<u8> {
    let mut frame = vec![0; CONTINUE_LEN];
    frame[..2].copy_from_slice(&[kind, VERSION]);
    frame[HANDLE].copy_from_slice(&handle.to_be_bytes());
    frame[CONFIRMATION].copy_from_slice(confirmation);
    frame
}

fn read_u64(bytes: &[u8], at: Range<usize>) -> u64 {
    u64::from_be_bytes(bytes[at].try_into().expect("the range of a u64 field spans eight bytes"))
}

/// Text of a peer goes to terminals and logs, so only printable ASCII is left of it.
pub(crate) fn printable(text: &[u8]) -> String {
    let cut = &text[..text.len().min(TEXT_MAX)];
    cut.iter()
        .map(|&byte| if matches!(byte, b' '..=b'~') { char::from(byte) } else { '?' })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: PathEnd = PathEnd {
        id: AssociationId::from_bits(0x0102_0304_0506_0708).expect("not 0"),
        token: Token(0x1112_1314_1516_1718),
    };
    const HELLO_FRAME: Hello<'static> = Hello {
        port: 4000,
        end: END,
        doubted: Token(0x2122_2324_2526_2728),
        features: 0,
        suites: &[1, 3],
        records: &[0x16, 0x03],
    };
    const REPLY_FRAME: Reply<'static> = Reply {
        suite: Suite::ChaCha20Poly1305,
        end: END,
        handle: 0x3132_3334_3536_3738,
        features: 0,
        records: &[],
    };

    fn reply(frame: &Reply<'_>) -> Vec<u8> {
        [&frame.emit_clear()[..], frame.records].concat()
    }

    //= docs/wire.md#W49
    #[test]
    fn hello_and_reply_have_their_fields_in_place() {
        let frame = HELLO_FRAME.emit();
        let expected = [
            &[1, 1, 0x0f, 0xa0][..],
            &[1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18],
            &[0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0, 0, 0, 0, 0, 0, 0, 0],
            &[2, 1, 3, 0x16, 3],
        ];
        assert_eq!(frame, expected.concat());
        assert_eq!(Request::parse(&frame), Ok(Request::Hello(HELLO_FRAME)));
        assert_eq!(HELLO_FRAME.clear_len(), 39);

        let frame = reply(&REPLY_FRAME);
        let expected = [
            &[2, 1, 3, 0][..],
            &[1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18],
            &[0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38, 0, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(frame, expected.concat());
        assert_eq!(Response::parse(&frame), Ok(Response::Reply(REPLY_FRAME)));
    }

    //= docs/wire.md#W50
    #[test]
    fn continue_and_done_carry_a_handle_and_a_confirmation() {
        let go_on = Continue { handle: 7, confirmation: [0xcc; 16], records: &[1, 2] };
        let frame = go_on.emit();
        let head = [3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
        assert_eq!(frame, [&head[..], &[0xcc; 16], &[1, 2]].concat());
        assert_eq!(Request::parse(&frame), Ok(Request::Continue(go_on)));

        let done = Done { handle: 7, confirmation: [0xdd; 16] };
        let mut frame = done.emit();
        assert_eq!(frame[..4], [4, 1, 0, 0]);
        frame.extend_from_slice(b"fields of a later version");
        assert_eq!(Response::parse(&frame), Ok(Response::Done(done)));
    }

    //= docs/wire.md#W51
    #[test]
    fn the_text_of_fail_is_printable_and_short() {
        let fail = Fail::new(FailReason::Tls, 45, &format!("ex\u{1b}[2Jpired{}", "x".repeat(300)));
        let frame = fail.emit();
        assert_eq!(frame[..4], [5, 1, 4, 45]);
        assert_eq!(frame.len(), FAIL_LEN + TEXT_MAX);
        assert!(fail.text.starts_with("ex?[2Jpired"));
        assert_eq!(Response::parse(&frame), Ok(Response::Fail(fail)));
        let Ok(Response::Fail(fail)) = Response::parse(b"\x05\x01\xff\x00a\nb\xff") else {
            panic!()
        };
        assert_eq!((fail.reason, fail.text.as_str()), (FailReason::Unstated, "a?b?"));
    }

    //= docs/wire.md#W48
    #[test]
    fn only_fail_is_read_in_another_version() {
        for frame in
            [HELLO_FRAME.emit(), Continue { handle: 1, confirmation: [0; 16], records: &[] }.emit()]
        {
            let mut frame = frame;
            frame[1] = 2;
            assert_eq!(Request::parse(&frame), Err(FrameError::OtherVersion(2)));
        }
        let mut frame = reply(&REPLY_FRAME);
        frame[1] = 2;
        assert_eq!(Response::parse(&frame), Err(FrameError::OtherVersion(2)));
        let mut frame = Fail::new(FailReason::OtherVersion, 0, "").emit();
        frame[1] = 2;
        let Ok(Response::Fail(fail)) = Response::parse(&frame) else { panic!() };
        assert_eq!((fail.version, fail.reason), (2, FailReason::OtherVersion));
    }

    //= docs/wire.md#W49
    #[test]
    fn unknown_suites_and_features_are_skipped() {
        let hello = Hello { suites: &[200, 3, 1], features: u64::MAX, ..HELLO_FRAME };
        let frame = hello.emit();
        assert_eq!(Request::parse(&frame), Ok(Request::Hello(hello)));
        assert_eq!(hello.choose(&Suite::ALL), Some(Suite::ChaCha20Poly1305));
        assert_eq!(hello.choose(&[Suite::Aes256Gcm]), None);
        assert_eq!(hello.known_features(), FEATURE_PORTS | FEATURE_SEVERAL);
    }

    //= docs/wire.md#W52
    #[test]
    fn the_context_covers_every_clear_byte() {
        let hello = HELLO_FRAME.emit();
        let clear = &hello[..HELLO_FRAME.clear_len()];
        let reply = REPLY_FRAME.emit_clear();
        let original = context(clear, &reply);
        for index in 0..clear.len() {
            let mut changed = clear.to_vec();
            changed[index] ^= 1;
            assert_ne!(context(&changed, &reply), original);
        }
        for index in 0..REPLY_CLEAR {
            let mut changed = reply;
            changed[index] ^= 1;
            assert_ne!(context(clear, &changed), original);
        }
    }

    #[test]
    fn malformed_frames_are_refused() {
        let parse = |change: fn(&mut Vec<u8>)| {
            let mut frame = HELLO_FRAME.emit();
            change(&mut frame);
            Request::parse(&frame).map(|_| ()).expect_err("the frame is malformed")
        };
        assert_eq!(parse(|frame| frame[0] = REPLY), FrameError::UnexpectedKind(REPLY));
        assert_eq!(parse(|frame| frame[ID].fill(0)), FrameError::Zero("id of the association"));
        assert_eq!(parse(|frame| frame[TOKEN].fill(0)), FrameError::Zero("token"));
        assert_eq!(parse(|frame| frame[SUITE_COUNT] = 0), FrameError::NoSuites);
        let missing = FrameError::TooShort { length: 41, needed: 42 };
        assert_eq!(parse(|frame| frame[SUITE_COUNT] = 5), missing);
        assert_eq!(parse(|frame| frame.resize(REQUEST_MAX + 1, 0)), FrameError::TooLong(65_537));
        for length in 0..HELLO_LEN {
            let frame = &HELLO_FRAME.emit()[..length];
            assert!(matches!(Request::parse(frame), Err(FrameError::TooShort { .. })));
        }
        let mut frame = reply(&REPLY_FRAME);
        frame[2] = 0;
        assert_eq!(Response::parse(&frame), Err(FrameError::UnknownSuite(0)));
    }
}
