//! How handshakes fail: this node's view, the TLS alert, and the peer's words.

use std::fmt;

use thiserror::Error;

use crate::handshake::frame::{Fail, FailReason, FrameError};
use crate::identity::name::Name;

/// A failure of TLS, as this node sees it.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{view} ({alert}{})", if *.from_peer { " from the peer" } else { "" })]
pub struct TlsError {
    /// The alert.
    pub alert: Alert,
    /// Whether the peer sent the alert, so that the cause is there. Otherwise this node sends it.
    pub from_peer: bool,
    /// The cause in words.
    pub view: String,
}

/// The number of a TLS alert (RFC 8446, section 6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Alert(pub u8);

impl Alert {
    /// A message came that the state does not allow.
    pub const UNEXPECTED_MESSAGE: Self = Self(10);
    /// A record was changed on the way.
    pub const BAD_RECORD_MAC: Self = Self(20);
    /// The two sides have no group, suite or signature in common.
    pub const HANDSHAKE_FAILURE: Self = Self(40);
    /// The certificate is malformed, or has no name.
    pub const BAD_CERTIFICATE: Self = Self(42);
    /// A field has a value that the protocol does not allow.
    pub const ILLEGAL_PARAMETER: Self = Self(47);
    /// The peer speaks no allowed version of TLS.
    pub const PROTOCOL_VERSION: Self = Self(70);
    /// Every error without an alert of its own.
    pub const INTERNAL_ERROR: Self = Self(80);
    /// The peer shows no certificate.
    pub const CERTIFICATE_REQUIRED: Self = Self(116);
    /// The two sides have no application protocol in common.
    pub const NO_APPLICATION_PROTOCOL: Self = Self(120);

    const fn name(self) -> &'static str {
        match self.0 {
            0 => "close_notify",
            10 => "unexpected_message",
            20 => "bad_record_mac",
            22 => "record_overflow",
            40 => "handshake_failure",
            42 => "bad_certificate",
            43 => "unsupported_certificate",
            44 => "certificate_revoked",
            45 => "certificate_expired",
            46 => "certificate_unknown",
            47 => "illegal_parameter",
            48 => "unknown_ca",
            49 => "access_denied",
            50 => "decode_error",
            51 => "decrypt_error",
            70 => "protocol_version",
            71 => "insufficient_security",
            80 => "internal_error",
            90 => "user_canceled",
            109 => "missing_extension",
            110 => "unsupported_extension",
            112 => "unrecognized_name",
            116 => "certificate_required",
            120 => "no_application_protocol",
            _ => "unknown",
        }
    }
}

impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TLS alert {} {}", self.0, self.name())
    }
}

/// The cause of a handshake's end without a path. In every case no request was executed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// A frame of the peer cannot be read.
    #[error("{0}")]
    Frame(#[from] FrameError),
    /// TLS failed at this node, or the peer sent an alert.
    #[error("{0}")]
    Tls(#[from] TlsError),
    /// A call of the handshake has failed.
    #[error("{0}")]
    NoAnswer(String),
    /// The server has answered with FAIL.
    #[error("{}", refusal(.0))]
    Refused(Fail),
    /// A limit of this server is reached.
    #[error("busy: {0}")]
    Busy(Limit),
    /// No suite of the client is allowed here.
    #[error("none of the offered suites {0:?} is allowed")]
    NoSuite(Vec<u8>),
    /// A suite or feature was chosen that this client has not offered.
    #[error("the server chose a {0} that was not offered")]
    NotOffered(&'static str),
    /// A repeated REPLY has other clear fields than the first.
    #[error("the fields of a repeated REPLY differ from the first")]
    ReplyChanged,
    /// No handshake has this handle, or its time has passed.
    #[error("no handshake has this handle: its time has passed, or the server was restarted")]
    UnknownHandle,
    /// The confirmation is wrong.
    #[error("the confirmation is wrong: clear fields were changed on the way")]
    WrongConfirmation,
    /// A frame arrived that does not belong to this state, or TLS makes no progress.
    #[error("a frame arrived out of order, or without a whole flight of TLS")]
    OutOfOrder,
    /// The refresh of a path shows another name.
    #[error("the path belongs to {expected}, and the peer is now {found}")]
    NameChanged {
        /// The name of the path.
        expected: Name,
        /// The name in the peer's certificate.
        found: Name,
    },
}

/// The limit of a server that a HELLO exceeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Limit {
    /// Handshakes at a time.
    Places,
    /// Handshakes at a time of one host.
    PerHost,
    /// Handshakes that one host may begin in a second.
    PerHostAndSecond,
    /// Hosts that may begin handshakes in a second.
    Hosts,
    /// Paths of this node.
    Paths,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Places => "too many handshakes are under way",
            Self::PerHost => "too many handshakes of this host are under way",
            Self::PerHostAndSecond => "this host begins too many handshakes in a second",
            Self::Hosts => "too many hosts begin handshakes",
            Self::Paths => "this node has no room for a further path",
        })
    }
}

impl HandshakeError {
    /// Returns the frame by which a server reports this error.
    #[must_use]
    pub fn fail(&self) -> Fail {
        let (reason, alert) = match self {
            Self::Frame(FrameError::OtherVersion(_)) => (FailReason::OtherVersion, 0),
            Self::Frame(_)
            | Self::OutOfOrder
            | Self::NoAnswer(_)
            | Self::Refused(_)
            | Self::NotOffered(_)
            | Self::ReplyChanged => (FailReason::Malformed, 0),
            Self::Tls(error) => (FailReason::Tls, error.alert.0),
            Self::Busy(_) => (FailReason::Busy, 0),
            Self::NoSuite(_) => (FailReason::NoSuite, 0),
            Self::UnknownHandle => (FailReason::UnknownHandle, 0),
            Self::WrongConfirmation => (FailReason::WrongConfirmation, 0),
            Self::NameChanged { .. } => (FailReason::NameChanged, 0),
        };
        Fail::new(reason, alert, &self.to_string())
    }

    /// Returns whether the server only has no room at the moment.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy(_) | Self::Refused(Fail { reason: FailReason::Busy, .. }))
    }
}

fn refusal(fail: &Fail) -> String {
    let reason = match fail.reason {
        FailReason::Unstated => "the peer refuses the handshake".to_owned(),
        FailReason::OtherVersion => format!("the peer speaks version {}", fail.version),
        FailReason::Malformed => "the peer cannot read a frame".to_owned(),
        FailReason::Busy => "the peer has no room for a handshake".to_owned(),
        FailReason::Tls => format!("TLS failed at the peer ({})", Alert(fail.alert)),
        FailReason::NoSuite => "the peer allows none of the offered suites".to_owned(),
        FailReason::UnknownHandle => "the peer does not know the handshake".to_owned(),
        FailReason::WrongConfirmation => {
            "the peer has other keys: fields were changed on the way".to_owned()
        }
        FailReason::NameChanged => "the peer knows this path by another name".to_owned(),
    };
    if fail.text.is_empty() { reason } else { format!("{reason}; the peer says: {}", fail.text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_states_the_alert_and_its_side() {
        let ours = TlsError { alert: Alert(48), from_peer: false, view: "unknown issuer".into() };
        assert_eq!(ours.to_string(), "unknown issuer (TLS alert 48 unknown_ca)");
        let theirs = TlsError { from_peer: true, ..ours };
        assert_eq!(theirs.to_string(), "unknown issuer (TLS alert 48 unknown_ca from the peer)");
    }

    #[test]
    fn a_refusal_quotes_the_peer() {
        let error = HandshakeError::Tls(TlsError {
            alert: Alert(45),
            from_peer: false,
            view: "certificate expired".into(),
        });
        let refused = HandshakeError::Refused(error.fail());
        assert_eq!(
            refused.to_string(),
            "TLS failed at the peer (TLS alert 45 certificate_expired); \
             the peer says: certificate expired (TLS alert 45 certificate_expired)"
        );
        assert!(!refused.is_busy());
        assert!(HandshakeError::Refused(HandshakeError::Busy(Limit::Places).fail()).is_busy());
    }
}
