//! memcached's text protocol, `get` and `set` (`doc/protocol.txt` of memcached).

use std::io::Write as _;

use super::answer::{Answer, LINE_MAX, Malformed, Operation, Parsed, in_words, length, line};

/// Adds a request for the value of `key`.
pub(super) fn get(key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"get ");
    out.extend_from_slice(key);
    out.extend_from_slice(b"\r\n");
}

/// Adds a request that sets `key` to `value`, without expiry and flags.
pub(super) fn set(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"set ");
    out.extend_from_slice(key);
    write!(out, " 0 0 {}\r\n", value.len()).expect("a vector takes everything");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Parses the answer to a request about `key`.
///
/// # Errors
/// If the bytes are not an answer to such a request.
pub(super) fn parse(operation: Operation, key: &[u8], bytes: &[u8]) -> Parsed {
    let Some(first) = line(bytes)? else { return Ok(None) };
    let taken = first.len() + 2;
    let answer = match (operation, first) {
        (Operation::Get, b"END") => Answer::Miss,
        (Operation::Set, b"STORED") => Answer::Stored,
        (Operation::Get, _) if first.starts_with(b"VALUE ") => return value(first, key, bytes),
        _ if is_error(first) => Answer::Refused(in_words(first)),
        _ => return Err(Malformed::unexpected(operation, first)),
    };
    Ok(Some((answer, taken)))
}

fn is_error(line: &[u8]) -> bool {
    let starts = [&b"CLIENT_ERROR "[..], b"SERVER_ERROR "];
    line == b"ERROR" || line == b"NOT_STORED" || starts.iter().any(|start| line.starts_with(start))
}

/// `VALUE <key> <flags> <bytes> [<cas>]`, then the value, then `END`.
fn value(first: &[u8], key: &[u8], bytes: &[u8]) -> Parsed {
    let mut words = first.split(|byte| *byte == b' ').skip(1);
    let (Some(named), Some(_flags), Some(digits)) = (words.next(), words.next(), words.next())
    else {
        return Err(Malformed::unexpected(Operation::Get, first));
    };
    if named != key {
        let (named, key) = (in_words(named), in_words(key));
        return Err(Malformed(format!("a value of key '{named}' answers a get of '{key}'")));
    }
    let length = length(digits)?;
    let end = first.len() + 2 + length;
    const AFTER: &[u8] = b"\r\nEND\r\n";
    let there = bytes.get(end..).unwrap_or_default();
    let there = &there[..there.len().min(AFTER.len())];
    if !AFTER.starts_with(there) {
        return Err(Malformed(format!("'{}' follows a value, not END", in_words(there))));
    }
    let is_whole = there.len() == AFTER.len();
    Ok(is_whole.then_some((Answer::Value(length), end + AFTER.len())))
}

const _: () = assert!(LINE_MAX > 250 + 64, "a line has room for the longest key");

#[cfg(test)]
mod tests {
    use super::super::answer::tests::whole;
    use super::*;

    fn of_get(bytes: &[u8]) -> Parsed {
        parse(Operation::Get, b"key", bytes)
    }

    fn of_set(bytes: &[u8]) -> Parsed {
        parse(Operation::Set, b"key", bytes)
    }

    #[test]
    fn requests_are_lines() {
        let mut out = Vec::new();
        get(b"key", &mut out);
        set(b"key", b"abc", &mut out);
        assert_eq!(out, b"get key\r\nset key 0 0 3\r\nabc\r\n");
    }

    #[test]
    fn answers_are_read_whole() {
        let found = whole(b"VALUE key 0 5\r\nab\r\nc\r\nEND\r\n", of_get);
        assert_eq!(found, Answer::Value(5));
        assert_eq!(whole(b"VALUE key 12 0 77\r\n\r\nEND\r\n", of_get), Answer::Value(0));
        assert_eq!(whole(b"END\r\n", of_get), Answer::Miss);
        assert_eq!(whole(b"STORED\r\n", of_set), Answer::Stored);
        let error = "SERVER_ERROR out of memory storing object";
        let answer = whole(format!("{error}\r\n").as_bytes(), of_set);
        assert_eq!(answer, Answer::Refused(error.to_owned()));
        assert_eq!(whole(b"ERROR\r\n", of_get), Answer::Refused("ERROR".to_owned()));
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        for wrong in [
            &b"STORED\r\n"[..],
            b"VALUE key 0\r\n",
            b"VALUE key 0 -1\r\n",
            b"VALUE key 0 4294967295\r\n",
            b"VALUE other 0 1\r\na\r\nEND\r\n",
            b"VALUE key 0 1\r\nabEND\r\n",
            b"VALUE key 0 1\r\na\r\nVALUE key 0 1\r\n",
            b"+OK\r\n",
        ] {
            assert!(of_get(wrong).is_err(), "{}", in_words(wrong));
        }
        assert!(of_set(b"END\r\n").is_err());
        assert!(of_set(&[b'S'; LINE_MAX]).is_err());
    }
}
