//! What servers answer, in whatever protocol, and what the parsers of all protocols share.

use thiserror::Error;

/// Longest value in bytes that is set, and that an answer may claim. With its key and header it stays below 1 MiB, memcached's
/// usual limit for an item.
pub(super) const VALUE_MAX: u32 = 1_000_000;

/// Longest line of an answer, in bytes. The longest that is meant has a key of 250 bytes and two numbers, or is an error.
pub(super) const LINE_MAX: usize = 2048;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The value of a key.
    Get,
    /// A new value for a key.
    Set,
}

/// What a server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The key has a value of so many bytes.
    Value(usize),
    /// The key has no value.
    Miss,
    /// The new value is in its place.
    Stored,
    /// An error, in the server's words.
    Refused(String),
}

/// Bytes that cannot be an answer. Whatever comes behind them on that connection means nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub(super) struct Malformed(pub(super) String);

impl Malformed {
    /// Bytes that are none of the answers to a request of this kind.
    pub(super) fn unexpected(kind: Kind, bytes: &[u8]) -> Self {
        let asked = match kind {
            Kind::Get => "get",
            Kind::Set => "set",
        };
        let bytes = in_words(bytes);
        Self(format!("'{bytes}' is no answer to a {asked}: is '--protocol' that of the server?"))
    }
}

/// The answer at the front of some bytes, with the number of bytes that it takes; `None` when it is not there to its end.
pub(super) type Parsed = Result<Option<(Answer, usize)>, Malformed>;

/// The line at the front of some bytes, without its CR LF; `None` when its end is not there.
///
/// # Errors
/// When it is longer than [`LINE_MAX`] or ends with LF alone.
pub(super) fn line(bytes: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    let window = &bytes[..bytes.len().min(LINE_MAX)];
    match window.iter().position(|byte| *byte == b'\n') {
        Some(end) => match window[..end].strip_suffix(b"\r") {
            Some(line) => Ok(Some(line)),
            None => Err(Malformed(format!("'{}' does not end with CR LF", in_words(window)))),
        },
        None if bytes.len() >= LINE_MAX => {
            Err(Malformed(format!("a line of an answer is longer than {LINE_MAX} bytes")))
        }
        None => Ok(None),
    }
}

/// A length in decimal digits, of a value that is not longer than [`VALUE_MAX`].
pub(super) fn length(digits: &[u8]) -> Result<usize, Malformed> {
    let number =
        str::from_utf8(digits).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    match number.and_then(|text| text.parse::<u32>().ok()) {
        Some(length) if length <= VALUE_MAX => Ok(length as usize),
        Some(length) => {
            Err(Malformed(format!("a value of {length} bytes, where {VALUE_MAX} is the most")))
        }
        None => Err(Malformed(format!("'{}' is not the length of a value", in_words(digits)))),
    }
}

/// The beginning of some bytes, for messages.
pub(super) fn in_words(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(60)].escape_ascii().to_string()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Parses `bytes`, of which every shorter piece must be an incomplete answer, and which other bytes may follow.
    pub(in super::super) fn whole(bytes: &[u8], parse: impl Fn(&[u8]) -> Parsed) -> Answer {
        for end in 0..bytes.len() {
            assert_eq!(parse(&bytes[..end]), Ok(None), "{end} bytes of {}", in_words(bytes));
        }
        let (answer, taken) = parse(bytes).unwrap().expect("it is complete");
        assert_eq!(taken, bytes.len());
        let more = [bytes, b"more"].concat();
        assert_eq!(parse(&more), Ok(Some((answer.clone(), taken))));
        answer
    }

    #[test]
    fn a_line_ends_with_cr_lf_and_has_a_limit() {
        assert_eq!(line(b"END\r\nmore"), Ok(Some(&b"END"[..])));
        assert_eq!(line(b"END\r"), Ok(None));
        assert!(line(b"END\n").is_err());
        assert!(line(&[b'x'; LINE_MAX]).is_err());
        assert_eq!(line(&[b'x'; LINE_MAX - 1]), Ok(None));
    }

    #[test]
    fn lengths_are_digits_within_the_limit() {
        assert_eq!((length(b"0"), length(b"1000000")), (Ok(0), Ok(1_000_000)));
        for wrong in [&b""[..], b"-1", b"+1", b" 1", b"1000001", b"99999999999999999999", b"\xff"] {
            assert!(length(wrong).is_err(), "{}", in_words(wrong));
        }
    }
}
