//! Errors of calls that the core has no words for, from an engine to the process that called.

use std::net::SocketAddr;

use apus_proto::CallFailed;

use crate::error::{CallError, WrongPeer};

/// The parts of a description stand between these.
const BETWEEN: char = '\n';

/// Bytes of the longest part, so that a description fits a message that no other one overtakes.
const PART_MAX: usize = 1_000;

const _: () = assert!(3 * (PART_MAX + 1) + 64 <= CallFailed::DESCRIPTION_MAX);

/// Returns an error of the engine as the process is to get it. Errors that no engine has become [`CallFailed::NotSent`].
pub(crate) fn describe(error: &CallError) -> CallFailed {
    let parts = match error {
        CallError::WrongPeer(wrong) => {
            let WrongPeer { address, name, expected } = &**wrong;
            vec!["wrong-peer".to_owned(), address.to_string(), cut(name), cut(expected)]
        }
        CallError::HandshakeFailed { reason, sent } => {
            vec!["handshake-failed".to_owned(), sent.to_string(), cut(reason)]
        }
        CallError::PeerUnreachable { error, sent } => {
            return CallFailed::Unreachable { error: *error, sent: *sent };
        }
        CallError::NoIdentity => vec!["no-identity".to_owned()],
        CallError::NoPlainPeer => vec!["no-plain-peer".to_owned()],
        CallError::PlainOnly => vec!["plain-only".to_owned()],
        CallError::Forbidden => return CallFailed::NotAllowed,
        CallError::SealedOnly => return CallFailed::SealedOnly,
        _ => return CallFailed::NotSent,
    };
    CallFailed::Described(parts.join(&BETWEEN.to_string()).into())
}

/// Returns the error that an engine has described. An unknown description says nothing about the request.
pub(crate) fn read(text: &str) -> CallError {
    let mut parts = text.split(BETWEEN);
    let mut part = || parts.next().unwrap_or_default();
    match part() {
        "wrong-peer" => {
            let address = part().parse().unwrap_or_else(|_| SocketAddr::from(([0; 4], 0)));
            let (name, expected) = (part().to_owned(), part().to_owned());
            CallError::WrongPeer(Box::new(WrongPeer { address, name, expected }))
        }
        "handshake-failed" => {
            let sent = part() != "false";
            CallError::HandshakeFailed { reason: part().to_owned(), sent }
        }
        "no-identity" => CallError::NoIdentity,
        "no-plain-peer" => CallError::NoPlainPeer,
        "plain-only" => CallError::PlainOnly,
        _ => CallError::Other,
    }
}

/// A part of a description.
fn cut(text: &str) -> String {
    let end = (0..=text.len().min(PART_MAX)).rev().find(|&end| text.is_char_boundary(end));
    text[..end.unwrap_or(0)].replace(BETWEEN, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_stay_what_they_are() {
        let address = "[fd00::1]:20146".parse().unwrap();
        let wrong = |name: &str, expected: &str| {
            let (name, expected) = (name.to_owned(), expected.to_owned());
            CallError::WrongPeer(Box::new(WrongPeer { address, name, expected }))
        };
        let failed = |sent| CallError::HandshakeFailed { reason: "an alert: x".to_owned(), sent };
        for error in [
            wrong("spiffe://example.org/db", "10.0.0.2, spiffe://example.org/kv/*"),
            wrong("", ""),
            failed(true),
            failed(false),
            CallError::NoIdentity,
            CallError::NoPlainPeer,
            CallError::PlainOnly,
        ] {
            let CallFailed::Described(text) = describe(&error) else { panic!("{error}") };
            assert_eq!(read(&text), error);
        }
        assert_eq!(read("something else"), CallError::Other);
        assert_eq!(describe(&CallError::Closed), CallFailed::NotSent);
    }

    #[test]
    fn a_long_description_is_cut_and_stays_whole() {
        let long = "ü\n".repeat(5_000);
        let wrong = WrongPeer { name: long.clone(), expected: long, ..WrongPeer::default() };
        let CallFailed::Described(text) = describe(&CallError::WrongPeer(Box::new(wrong))) else {
            panic!("it is described");
        };
        assert!(text.len() <= CallFailed::DESCRIPTION_MAX);
        let CallError::WrongPeer(read) = read(&text) else { panic!("it stays what it is") };
        assert_eq!((read.name.len(), read.expected.len()), (999, 999));
    }
}
