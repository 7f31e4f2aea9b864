//! memcached's binary protocol, Get and Set (memcached's wiki, "BinaryProtocolRevamped"): a header of 24 bytes, then extras, key
//! and value. All numbers are big-endian. The answer echoes the request's number (`opaque`).

use super::answer::{Answer, Malformed, Operation, Parsed, VALUE_MAX, in_words};

const HEADER: usize = 24;
const REQUEST: u8 = 0x80;
const RESPONSE: u8 = 0x81;

/// Status of an answer about a key without a value.
const NOT_FOUND: u16 = 1;

/// Upper bound on bytes of an answer besides the value: extras, and a key.
const BESIDE_VALUE: usize = 1024;

/// Opcodes.
fn opcode(operation: Operation) -> u8 {
    match operation {
        Operation::Get => 0,
        Operation::Set => 1,
    }
}

/// Adds a request for the value of `key`.
pub(super) fn get(key: &[u8], number: u32, out: &mut Vec<u8>) {
    header(Operation::Get, key, 0, 0, number, out);
    out.extend_from_slice(key);
}

/// Adds a request that sets `key` to `value`, without expiry and flags.
pub(super) fn set(key: &[u8], value: &[u8], number: u32, out: &mut Vec<u8>) {
    // Flags and time of expiry.
    let extras = [0; 8];
    header(Operation::Set, key, extras.len() as u8, value.len(), number, out);
    out.extend_from_slice(&extras);
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

fn header(
    operation: Operation,
    key: &[u8],
    extras: u8,
    value: usize,
    number: u32,
    out: &mut Vec<u8>,
) {
    let body = usize::from(extras) + key.len() + value;
    let body = u32::try_from(body).expect("keys and values are far below 4 GiB");
    let key = u16::try_from(key.len()).expect("a key has at most 250 bytes");
    out.extend_from_slice(&[REQUEST, opcode(operation)]);
    out.extend_from_slice(&key.to_be_bytes());
    // Length of the extras, data type, and two bytes of the virtual bucket.
    out.extend_from_slice(&[extras, 0, 0, 0]);
    out.extend_from_slice(&body.to_be_bytes());
    out.extend_from_slice(&number.to_be_bytes());
    // No compare-and-swap.
    out.extend_from_slice(&[0; 8]);
}

/// Reads the answer to the request with this number.
///
/// # Errors
/// If the bytes are not an answer to the request.
pub(super) fn parse(operation: Operation, number: u32, bytes: &[u8]) -> Parsed {
    let Some(header) = bytes.first_chunk::<HEADER>() else {
        return match bytes.first() {
            Some(magic) if *magic != RESPONSE => Err(Malformed::unexpected(operation, bytes)),
            _ => Ok(None),
        };
    };
    let u16_at = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let u32_at = |at: usize| {
        u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    if header[0] != RESPONSE || header[1] != opcode(operation) {
        return Err(Malformed::unexpected(operation, header));
    }
    let (beside, body) = (usize::from(u16_at(2)) + usize::from(header[4]), u32_at(8) as usize);
    if u32_at(12) != number {
        let found = u32_at(12);
        return Err(Malformed(format!("an answer to request {found} instead of {number}")));
    }
    if body > VALUE_MAX as usize + BESIDE_VALUE || beside > body {
        let lengths = format!("{body} bytes, of which {beside} are extras and key");
        return Err(Malformed(format!("the length of an answer is {lengths}")));
    }
    let Some(value) = bytes.get(HEADER + beside..HEADER + body) else { return Ok(None) };
    let answer = match (u16_at(6), operation) {
        (0, Operation::Get) => Answer::Value(value.len()),
        (0, Operation::Set) => Answer::Stored,
        (NOT_FOUND, Operation::Get) => Answer::Miss,
        (status, _) => Answer::Refused(format!("status {status:#06x}, {}", in_words(value))),
    };
    Ok(Some((answer, HEADER + body)))
}

#[cfg(test)]
mod tests {
    use super::super::answer::tests::whole;
    use super::*;

    /// An answer in a server's encoding.
    fn answer(
        operation: Operation,
        status: u16,
        extras: &[u8],
        value: &[u8],
        number: u32,
    ) -> Vec<u8> {
        let mut bytes = vec![RESPONSE, opcode(operation), 0, 0, extras.len() as u8, 0];
        bytes.extend_from_slice(&status.to_be_bytes());
        bytes.extend_from_slice(&((extras.len() + value.len()) as u32).to_be_bytes());
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(&[0; 8]);
        [&bytes, extras, value].concat()
    }

    #[test]
    fn requests_have_the_documented_layout() {
        let mut out = Vec::new();
        get(b"Hello", 7, &mut out);
        let expected = b"\x80\x00\x00\x05\0\0\0\0\0\0\0\x05\0\0\0\x07\0\0\0\0\0\0\0\0Hello";
        assert_eq!(out, expected);
        out.clear();
        set(b"Hello", b"World", 0x0102_0304, &mut out);
        let expected = b"\x80\x01\x00\x05\x08\0\0\0\0\0\0\x12\x01\x02\x03\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0HelloWorld";
        assert_eq!(out, expected);
    }

    #[test]
    fn answers_are_read_whole() {
        let of_get = |bytes: &[u8]| parse(Operation::Get, 7, bytes);
        let of_set = |bytes: &[u8]| parse(Operation::Set, 7, bytes);
        let found = answer(Operation::Get, 0, &[0; 4], b"World", 7);
        assert_eq!(whole(&found, of_get), Answer::Value(5));
        assert_eq!(whole(&answer(Operation::Get, 1, &[], b"Not found", 7), of_get), Answer::Miss);
        assert_eq!(whole(&answer(Operation::Set, 0, &[], b"", 7), of_set), Answer::Stored);
        let refused = whole(&answer(Operation::Set, 3, &[], b"Too large.", 7), of_set);
        assert_eq!(refused, Answer::Refused("status 0x0003, Too large.".to_owned()));
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        let right = answer(Operation::Get, 0, &[0; 4], b"World", 7);
        let changed = |at: usize, byte: u8| {
            let mut bytes = right.clone();
            bytes[at] = byte;
            bytes
        };
        assert!(parse(Operation::Get, 8, &right).is_err(), "another number");
        assert!(parse(Operation::Set, 7, &right).is_err(), "another request");
        assert!(parse(Operation::Get, 7, b"ERROR\r\n").is_err(), "another protocol");
        assert!(parse(Operation::Get, 7, &changed(8, 0xff)).is_err(), "a length of 4 GB");
        assert!(parse(Operation::Get, 7, &changed(4, 0x80)).is_err(), "more extras than bytes");
        assert!(parse(Operation::Get, 7, &changed(2, 0xff)).is_err(), "a longer key than bytes");
    }
}
