//! Answers of servers in all protocols, and the parsers' common parts.

use thiserror::Error;

/// Upper bound on a value in bytes, in requests and in answers. With its key and header a value stays below 1 MiB, memcached's
/// usual limit for an item.
pub(super) const VALUE_MAX: u32 = 1_000_000;

/// Upper bound on a line of an answer, in bytes. The longest valid line has a key of 250 bytes and two numbers, or is an error.
pub(super) const LINE_MAX: usize = 2048;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Reads the value of a key.
    Get,
    /// Sets a new value for a key.
    Set,
}

/// A server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The key has a value of this many bytes.
    Value(usize),
    /// The key has no value.
    Miss,
    /// The new value was stored.
    Stored,
    /// An error, with the server's text.
    Refused(String),
}

/// Bytes that are not an answer. Later bytes on the connection have no meaning.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub(super) struct Malformed(pub(super) String);

impl Malformed {
    /// Bytes that are not an answer to a request of this operation.
    pub(super) fn unexpected(operation: Operation, bytes: &[u8]) -> Self {
        let asked = match operation {
            Operation::Get => "get",
            Operation::Set => "set",
        };
        let bytes = in_words(bytes);
        Self(format!("'{bytes}' is not an answer to a {asked}: check '--protocol'"))
    }
}

/// The answer at the start of some bytes, with its length in bytes; `None` if it is incomplete.
pub(super) type Parsed = Result<Option<(Answer, usize)>, Malformed>;

/// The line at the start of some bytes, without its CR LF; `None` if it is incomplete.
///
/// # Errors
/// If it is longer than [`LINE_MAX`] or ends with LF alone.
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

/// Parses the length of a value, up to [`VALUE_MAX`], in decimal digits.
pub(super) fn length(digits: &[u8]) -> Result<usize, Malformed> {
    let number =
        str::from_utf8(digits).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    match number.and_then(|text| text.parse::<u32>().ok()) {
        Some(length) if length <= VALUE_MAX => Ok(length as usize),
        Some(length) => {
            Err(Malformed(format!("a value of {length} bytes: at most {VALUE_MAX} are allowed")))
        }
        None => Err(Malformed(format!("'{}' is not a length of a value", in_words(digits)))),
    }
}

/// The first bytes, escaped for messages.
pub(super) fn in_words(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(60)].escape_ascii().to_string()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Parses `bytes`, whose every prefix must be an incomplete answer, and which other bytes may follow.
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
