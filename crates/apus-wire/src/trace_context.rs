//! The context of a distributed trace, which goes with a request (rule W35), and its text form.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

/// The place of a call in a distributed trace: the content of a `traceparent` header of W3C Trace Context. Neither id is all zeros.
///
/// Its text form is the value of `traceparent`, for exchange with HTTP:
///
/// ```
/// # use apus_wire::TraceContext;
/// let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let context: TraceContext = text.parse()?;
/// assert!(context.is_sampled());
/// assert_eq!(context.to_string(), text);
/// # Ok::<(), apus_wire::ParseTraceContextError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceContext {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    flags: u8,
}

impl TraceContext {
    /// Length of the encoded form in bytes.
    pub const LEN: usize = 25;

    /// Flag of a caller that may have recorded its span.
    pub const SAMPLED: u8 = 1;

    /// Creates a context with these ids, both in network order. Returns `None` if one of them is all zeros, which stands for no id.
    #[must_use]
    pub fn new(trace_id: [u8; 16], span_id: [u8; 8], flags: u8) -> Option<Self> {
        let both = trace_id != [0; 16] && span_id != [0; 8];
        both.then_some(Self { trace_id, span_id, flags })
    }

    /// Returns the id of the trace, the same in all its spans on all hosts.
    #[must_use]
    pub const fn trace_id(&self) -> [u8; 16] {
        self.trace_id
    }

    /// Returns the id of the caller's span, the parent of the server's.
    #[must_use]
    pub const fn span_id(&self) -> [u8; 8] {
        self.span_id
    }

    /// Returns the flags: [`SAMPLED`](Self::SAMPLED), and others that pass through uninterpreted.
    #[must_use]
    pub const fn flags(&self) -> u8 {
        self.flags
    }

    /// Returns whether the caller may have recorded its span.
    #[must_use]
    pub const fn is_sampled(&self) -> bool {
        self.flags & Self::SAMPLED != 0
    }

    /// Encodes the context: trace id, span id, flags.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [self.flags; Self::LEN];
        bytes[..16].copy_from_slice(&self.trace_id);
        bytes[16..24].copy_from_slice(&self.span_id);
        bytes
    }

    /// Decodes the form of [`to_bytes`](Self::to_bytes). Returns `None` for bytes of another length, and for an id of zeros.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (trace_id, rest) = bytes.split_first_chunk()?;
        let (span_id, rest) = rest.split_first_chunk()?;
        let [flags] = rest else { return None };
        Self::new(*trace_id, *span_id, *flags)
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let trace_id = u128::from_be_bytes(self.trace_id);
        let span_id = u64::from_be_bytes(self.span_id);
        write!(f, "00-{trace_id:032x}-{span_id:016x}-{:02x}", self.flags)
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceContext({self})")
    }
}

/// The error for text that is not the value of a `traceparent` header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParseTraceContextError(());

impl fmt::Display for ParseTraceContextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a traceparent is version, trace id, span id and flags, of 2, 32, 16 and 2 lower-case hexadecimal digits, \
             joined by hyphens; no id is all zeros",
        )
    }
}

impl Error for ParseTraceContextError {}

impl FromStr for TraceContext {
    type Err = ParseTraceContextError;

    /// Parses version 00, and the same fields of later versions, as W3C requires.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text.as_bytes()).ok_or(ParseTraceContextError(()))
    }
}

fn parse(text: &[u8]) -> Option<TraceContext> {
    let (fields, rest) = text.split_at_checked(55)?;
    let mut fields = fields.split(|&byte| byte == b'-');
    let [version] = digits(fields.next()?)?;
    let context = TraceContext::new(
        digits(fields.next()?)?,
        digits(fields.next()?)?,
        u8::from_be_bytes(digits(fields.next()?)?),
    )?;
    let ends = match version {
        0 => rest.is_empty(),
        0xFF => false,
        _ => rest.first().is_none_or(|&byte| byte == b'-'),
    };
    (ends && fields.next().is_none()).then_some(context)
}

/// Decodes lower-case hexadecimal digits into exactly `N` bytes.
fn digits<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_and_written() {
        let context: TraceContext = TEXT.parse().unwrap();
        assert_eq!(context.trace_id()[..4], [0x4b, 0xf9, 0x2f, 0x35]);
        assert_eq!(context.span_id(), 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes());
        assert_eq!((context.flags(), context.is_sampled()), (1, true));
        assert_eq!(context.to_string(), TEXT);
        let later = TEXT.replacen("00", "cc", 1);
        assert_eq!(later.parse(), Ok(context));
        assert_eq!(format!("{later}-what-comes").parse(), Ok(context));
    }

    #[test]
    fn what_is_no_traceparent_is_refused() {
        let zeros = |from: usize, to: usize| {
            let mut text = TEXT.to_owned();
            text.replace_range(from..to, &"0".repeat(to - from));
            text
        };
        let all = [
            String::new(),
            "é".repeat(28),
            TEXT[..54].to_owned(),
            format!("{TEXT}-00"),
            TEXT.to_uppercase(),
            TEXT.replace('-', "_"),
            TEXT.replacen("00", "ff", 1),
            format!("cc{}.later", &TEXT[2..]),
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902-b701".to_owned(),
            zeros(3, 35),
            zeros(36, 52),
        ];
        for text in all {
            assert_eq!(text.parse::<TraceContext>(), Err(ParseTraceContextError(())), "{text}");
        }
    }

    #[test]
    fn bytes_stand_for_it() {
        //= docs/wire.md#W35
        let context: TraceContext = TEXT.parse().unwrap();
        let bytes = context.to_bytes();
        assert_eq!(TraceContext::from_bytes(&bytes), Some(context));
        for length in 0..bytes.len() {
            assert_eq!(TraceContext::from_bytes(&bytes[..length]), None);
        }
        assert_eq!(TraceContext::from_bytes(&[&bytes[..], &[0]].concat()), None);
        for zeros in [0..16, 16..24, 0..25] {
            let mut bytes = bytes;
            bytes[zeros].fill(0);
            assert_eq!(TraceContext::from_bytes(&bytes), None);
        }
    }
}
