//! A key of a key log: the line that stands for it, and the key that a line stands for.

use std::fmt::Write as _;

use zeroize::Zeroizing;

use crate::record::datagram::AssociationId;
use crate::schedule::{IV_LEN, KEY_LEN_MAX, RecordKey};
use crate::suite::Suite;

/// The first word of a line. The digit is the version of records.
const MARK: &str = "APUS2";

/// The key of one direction of a path in one epoch, as a key log has it. It opens the datagrams that carry the id.
#[derive(Clone)]
pub struct LoggedKey {
    /// The path id in the datagrams, which their receiver chose.
    pub id: AssociationId,
    /// The epoch, from 0 on. Datagrams carry its two lowest bits.
    pub epoch: u32,
    /// The key and its vector.
    pub key: RecordKey,
}

/// The reason why a line of a key log is not a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("expected 'APUS2 PATH-ID EPOCH SUITE KEY IV' in hexadecimal digits")]
pub struct KeyLogError;

impl LoggedKey {
    /// Returns the line of the key, without its end: `APUS2 <path id> <epoch> <suite> <key> <iv>`, all in hexadecimal digits. Erased
    /// when dropped.
    #[must_use]
    pub fn line(&self) -> Zeroizing<String> {
        // Memory that grows would leave copies of the key behind. The caller may add an end.
        let mut line = Zeroizing::new(String::with_capacity(LINE_MAX + 2));
        let (id, epoch, suite) = (self.id.to_bits(), self.epoch, self.key.suite() as u8);
        let _ = write!(line, "{MARK} {id:016x} {epoch:x} {suite:x} ");
        push_hex(&mut line, self.key.key());
        line.push(' ');
        push_hex(&mut line, self.key.iv());
        line
    }

    /// Reads a line, without its end. `None`: the line is empty or a comment, which begins with `#`.
    ///
    /// # Errors
    ///
    /// If the line is anything else.
    pub fn parse(line: &str) -> Result<Option<Self>, KeyLogError> {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        Self::parse_words(line).map(Some).ok_or(KeyLogError)
    }

    fn parse_words(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        if words.next()? != MARK {
            return None;
        }
        let mut id = [0; 8];
        parse_hex(words.next()?, &mut id)?;
        let id = AssociationId::from_bits(u64::from_be_bytes(id))?;
        let epoch = parse_number(words.next()?)?;
        let suite = Suite::from_number(u8::try_from(parse_number(words.next()?)?).ok()?)?;
        let (mut key, mut iv) = (Zeroizing::new([0; KEY_LEN_MAX]), [0; IV_LEN]);
        parse_hex(words.next()?, &mut key[..suite.key_len()])?;
        parse_hex(words.next()?, &mut iv)?;
        let is_whole = words.next().is_none();
        is_whole.then(|| Self { id, epoch, key: RecordKey::of_parts(suite, key, iv) })
    }
}

/// The length of the longest line: that of a key of 32 bytes.
pub const LINE_MAX: usize = MARK.len() + " ".len() * 5 + 16 + 8 + 1 + 64 + 24;

fn push_hex(line: &mut String, bytes: &[u8]) {
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            line.push(char::from(b"0123456789abcdef"[usize::from(digit)]));
        }
    }
}

fn parse_number(word: &str) -> Option<u32> {
    // The standard library would take a sign.
    let is_hex = word.bytes().all(|byte| byte.is_ascii_hexdigit());
    u32::from_str_radix(word, 16).ok().filter(|_| is_hex)
}

/// Reads as many bytes as there is room for, and no fewer.
fn parse_hex(word: &str, bytes: &mut [u8]) -> Option<()> {
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|it| u8::try_from(it).ok());
    if word.len() != 2 * bytes.len() {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(word.as_bytes().chunks_exact(2)) {
        *byte = digit(digits[0])? << 4 | digit(digits[1])?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{PathSecret, Role};

    fn logged(suite: Suite) -> LoggedKey {
        let id = AssociationId::from_bits(0x0400_0012_3456_789A).unwrap();
        let secret = PathSecret::new(std::array::from_fn(|at| at as u8)).direction(Role::Client);
        LoggedKey { id, epoch: 0, key: secret.record_key(suite) }
    }

    /// The key of the vector in docs/wire.md.
    const LINE: &str =
        "APUS2 040000123456789a 0 1 1fca58a4f5965f6ae5edfb64290ba5bb b9f763ecbce6855a7ea37ca2";

    #[test]
    fn a_line_has_the_key_in_hexadecimal_digits() {
        assert_eq!(*logged(Suite::Aes128Gcm).line(), LINE);
        let longest = LoggedKey { epoch: u32::MAX, ..logged(Suite::ChaCha20Poly1305) };
        assert_eq!(longest.line().len(), LINE_MAX);
    }

    #[test]
    fn a_line_that_is_written_is_read() {
        for (suite, epoch) in Suite::ALL.into_iter().zip([0, 26, u32::MAX]) {
            let written = LoggedKey { epoch, ..logged(suite) };
            let read = LoggedKey::parse(&written.line()).unwrap().unwrap();
            assert_eq!((read.id, read.epoch, read.key.suite()), (written.id, epoch, suite));
            assert_eq!((read.key.key(), read.key.iv()), (written.key.key(), written.key.iv()));
        }
        let upper = format!("\t{} \r", LINE.to_uppercase());
        assert_eq!(*LoggedKey::parse(&upper).unwrap().unwrap().line(), LINE);
        assert!(LoggedKey::parse("").unwrap().is_none());
        assert!(LoggedKey::parse(" # a comment").unwrap().is_none());
    }

    #[test]
    fn other_lines_are_refused() {
        for (from, to) in [
            ("APUS2", "APUS3"),
            ("APUS2", "CLIENT_RANDOM"),
            ("040000123456789a", "0000000000000000"),
            ("040000123456789a", "40000123456789a"),
            (" 0 1 ", " 0 4 "),
            (" 0 1 ", " 0 2 "),
            (" 0 1 ", " 0 101 "),
            (" 0 1 ", " +0 1 "),
            (" 0 1 ", " 100000000 1 "),
            (" 0 1 ", " 1 "),
            ("1fca", "1fc"),
            ("1fca", "1fxa"),
            ("1fca", "+fca"),
            ("7ca2", "7ca2 0"),
            ("7ca2", "7ca2ff"),
        ] {
            let line = LINE.replacen(from, to, 1);
            assert!(line != LINE && LoggedKey::parse(&line).is_err(), "{line}");
        }
    }
}
