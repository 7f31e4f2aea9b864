//! RESP, the protocol of Redis and Valkey: `GET` and `SET` as arrays of bulk strings. The parser accepts answers of versions 2 and
//! 3.

use std::io::Write as _;

use super::answer::{Answer, Malformed, Operation, Parsed, in_words, length, line};

/// Adds a request for the value of `key`.
pub(super) fn get(key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
    bulk(key, out);
}

/// Adds a request that sets `key` to `value`.
pub(super) fn set(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
    bulk(key, out);
    bulk(value, out);
}

fn bulk(bytes: &[u8], out: &mut Vec<u8>) {
    write!(out, "${}\r\n", bytes.len()).expect("a vector takes everything");
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Parses the answer to a request.
///
/// # Errors
/// If the bytes are not an answer to such a request.
pub(super) fn parse(operation: Operation, bytes: &[u8]) -> Parsed {
    let Some(first) = line(bytes)? else { return Ok(None) };
    let taken = first.len() + 2;
    let answer = match (operation, first) {
        (Operation::Get, b"$-1" | b"_") => Answer::Miss,
        (Operation::Set, b"+OK") => Answer::Stored,
        (Operation::Get, [b'$', digits @ ..]) => return value(taken, length(digits)?, bytes),
        (_, [b'-', error @ ..]) => Answer::Refused(in_words(error)),
        _ => return Err(Malformed::unexpected(operation, first)),
    };
    Ok(Some((answer, taken)))
}

/// The bytes of a bulk string and CR LF.
fn value(start: usize, length: usize, bytes: &[u8]) -> Parsed {
    let end = start + length;
    match bytes.get(end..).unwrap_or_default() {
        [] | [b'\r'] => Ok(None),
        [b'\r', b'\n', ..] => Ok(Some((Answer::Value(length), end + 2))),
        other => Err(Malformed(format!("'{}' follows a value, not CR LF", in_words(other)))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::answer::tests::whole;
    use super::*;

    fn of_get(bytes: &[u8]) -> Parsed {
        parse(Operation::Get, bytes)
    }

    fn of_set(bytes: &[u8]) -> Parsed {
        parse(Operation::Set, bytes)
    }

    #[test]
    fn requests_are_arrays_of_bulk_strings() {
        let mut out = Vec::new();
        get(b"key", &mut out);
        set(b"key", b"", &mut out);
        assert_eq!(
            out,
            b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$0\r\n\r\n"
        );
    }

    #[test]
    fn answers_are_read_whole() {
        assert_eq!(whole(b"$5\r\na\r\nbc\r\n", of_get), Answer::Value(5));
        assert_eq!(whole(b"$0\r\n\r\n", of_get), Answer::Value(0));
        assert_eq!(whole(b"$-1\r\n", of_get), Answer::Miss);
        assert_eq!(whole(b"_\r\n", of_get), Answer::Miss);
        assert_eq!(whole(b"+OK\r\n", of_set), Answer::Stored);
        let refused = whole(b"-NOAUTH Authentication required.\r\n", of_get);
        assert_eq!(refused, Answer::Refused("NOAUTH Authentication required.".to_owned()));
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        for wrong in [
            &b"$-2\r\n"[..],
            b"$536870912\r\n",
            b"$\r\n",
            b"$1\r\nab\r\n",
            b"*1\r\n",
            b"+OK\r\n",
            b"END\r\n",
        ] {
            assert!(of_get(wrong).is_err(), "{}", in_words(wrong));
        }
        assert!(of_set(b"$2\r\nOK\r\n").is_err());
    }
}
