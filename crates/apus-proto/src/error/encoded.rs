//! The encoding of a failed call's error, from an engine to the process that it works for.

use std::time::Duration;

use apus_wire::PathError;

use crate::error::{Awaited, CallFailed, CallStory};

/// Length of an encoded error in bytes: a code, three numbers, and the progress of the call. A description is its code and its text.
const LENGTH: usize = 1 + 8 * (3 + STORY);

/// Number of numbers in the progress of a call.
const STORY: usize = 9;

/// The code of a description.
const DESCRIBED: u8 = 19;

/// Awaited inputs, in the order of their codes.
const AWAITED: [Awaited; 5] =
    [Awaited::Token, Awaited::Response, Awaited::Grant, Awaited::RestOfResponse, Awaited::Link];

impl CallFailed {
    /// Encodes the error, for [`MessageKind::Failed`](crate::MessageKind::Failed).
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (code, numbers) = match *self {
            Self::PeerTimeout { waited_for, silent_for, probes_unanswered, .. } => {
                (1, [encode_awaited(waited_for), nanos(silent_for), probes_unanswered.into()])
            }
            Self::Unreachable { error, sent } => {
                let [code, port, _] = encode_path_error(error);
                (2, [code, port, sent.into()])
            }
            Self::NoSuchPort => (3, [0; 3]),
            Self::ResponseLost => (4, [0; 3]),
            Self::MayHaveExecuted => (5, [0; 3]),
            Self::OtherVersion { ours, theirs } => (6, [ours.into(), theirs.into(), 0]),
            Self::HandlerPanicked => (7, [0; 3]),
            Self::DeadlineExceeded { after, .. } => (8, [nanos(after), 0, 0]),
            Self::RequestTooLarge { length } => (9, [length.into(), 0, 0]),
            Self::Overloaded { after, .. } => (10, [nanos(after), 0, 0]),
            Self::ResponseTooLarge { length, limit } => (11, [length.into(), limit.into(), 0]),
            Self::EngineEnded => (12, [0; 3]),
            Self::NotSent => (13, [0; 3]),
            Self::EmptyForLinux => (14, [0; 3]),
            Self::NotAllowed => (15, [0; 3]),
            Self::SealedOnly => (16, [0; 3]),
            Self::NotExpected => (17, [0; 3]),
            Self::HandshakeFailed => (18, [0; 3]),
            Self::Described(ref text) => return [&[DESCRIBED], text.as_bytes()].concat(),
        };
        let story = self.story().map_or([0; STORY], |story| story.encode());
        let mut bytes = vec![code; LENGTH];
        for (number, at) in numbers.into_iter().chain(story).zip((1..).step_by(8)) {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Decodes an error of [`encode`](Self::encode).
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if let [DESCRIBED, text @ ..] = bytes {
            let text = str::from_utf8(text).ok().filter(|it| it.len() <= Self::DESCRIPTION_MAX)?;
            return Some(Self::Described(text.into()));
        }
        let bytes: &[u8; LENGTH] = bytes.try_into().ok()?;
        let number = |index: usize| {
            u64::from_le_bytes(std::array::from_fn(|byte| bytes[1 + 8 * index + byte]))
        };
        let short = |index| u32::try_from(number(index)).ok();
        let story =
            || CallStory::decode(std::array::from_fn(|index| number(3 + index))).map(Box::new);
        let version = |index| u8::try_from(number(index)).ok();
        let after = Duration::from_nanos(number(0));
        Some(match bytes[0] {
            1 => Self::PeerTimeout {
                waited_for: decode_awaited(number(0))?,
                silent_for: Duration::from_nanos(number(1)),
                probes_unanswered: short(2)?,
                story: story()?,
            },
            2 => Self::Unreachable {
                error: decode_path_error(number(0), number(1))?,
                sent: number(2) != 0,
            },
            3 => Self::NoSuchPort,
            4 => Self::ResponseLost,
            5 => Self::MayHaveExecuted,
            6 => Self::OtherVersion { ours: version(0)?, theirs: version(1)? },
            7 => Self::HandlerPanicked,
            8 => Self::DeadlineExceeded { after, story: story()? },
            9 => Self::RequestTooLarge { length: short(0)? },
            10 => Self::Overloaded { after, story: story()? },
            11 => Self::ResponseTooLarge { length: short(0)?, limit: short(1)? },
            12 => Self::EngineEnded,
            13 => Self::NotSent,
            14 => Self::EmptyForLinux,
            15 => Self::NotAllowed,
            16 => Self::SealedOnly,
            17 => Self::NotExpected,
            18 => Self::HandshakeFailed,
            _ => return None,
        })
    }
}

impl CallStory {
    fn encode(&self) -> [u64; STORY] {
        let plus_one = |value: Option<u64>| value.map_or(0, |value| value.saturating_add(1));
        [
            self.id.into(),
            encode_awaited(self.waited_for),
            self.request.into(),
            self.sent.into(),
            self.granted.into(),
            plus_one(self.response.map(u64::from)),
            self.received.into(),
            plus_one(self.peer_silent_for.map(nanos)),
            self.probes_unanswered.into(),
        ]
    }

    fn decode(numbers: [u64; STORY]) -> Option<Self> {
        let [id, awaited, request, sent, granted, response, received, silent, probes] = numbers;
        let short = |number: u64| u32::try_from(number).ok();
        Some(Self {
            id: short(id)?,
            waited_for: decode_awaited(awaited)?,
            request: short(request)?,
            sent: short(sent)?,
            granted: short(granted)?,
            response: response.checked_sub(1).map(u32::try_from).transpose().ok()?,
            received: short(received)?,
            peer_silent_for: silent.checked_sub(1).map(Duration::from_nanos),
            probes_unanswered: short(probes)?,
        })
    }
}

fn encode_awaited(awaited: Awaited) -> u64 {
    AWAITED.iter().position(|&it| it == awaited).unwrap_or(0) as u64
}

fn decode_awaited(number: u64) -> Option<Awaited> {
    AWAITED.get(usize::try_from(number).ok()?).copied()
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn encode_path_error(error: PathError) -> [u64; 3] {
    match error {
        PathError::PortUnreachable => [1, 0, 0],
        PathError::NoService(port) => [2, port.into(), 0],
        PathError::ProtocolUnreachable => [4, 0, 0],
        PathError::PermissionDenied => [5, 0, 0],
        PathError::NoLink => [6, 0, 0],
        // `HostUnreachable`, and errors of later links.
        _ => [3, 0, 0],
    }
}

fn decode_path_error(code: u64, port: u64) -> Option<PathError> {
    Some(match code {
        1 => PathError::PortUnreachable,
        2 => PathError::NoService(u16::try_from(port).ok()?),
        3 => PathError::HostUnreachable,
        4 => PathError::ProtocolUnreachable,
        5 => PathError::PermissionDenied,
        6 => PathError::NoLink,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_stay_what_they_are() {
        let after = Duration::from_nanos(1_234_567_890);
        let story = CallStory {
            id: 1,
            waited_for: Awaited::Link,
            request: 2,
            sent: 3,
            granted: 4,
            response: Some(u32::MAX),
            received: 5,
            peer_silent_for: Some(after),
            probes_unanswered: 6,
        };
        let timeout = |waited_for| CallFailed::PeerTimeout {
            waited_for,
            silent_for: after,
            probes_unanswered: 7,
            story: Box::new(story),
        };
        let errors = [
            CallFailed::Unreachable { error: PathError::NoService(4_000), sent: true },
            CallFailed::Unreachable { error: PathError::NoLink, sent: false },
            CallFailed::NoSuchPort,
            CallFailed::ResponseLost,
            CallFailed::MayHaveExecuted,
            CallFailed::OtherVersion { ours: 3, theirs: 4 },
            CallFailed::HandlerPanicked,
            CallFailed::DeadlineExceeded { after, story: Box::new(story) },
            CallFailed::RequestTooLarge { length: u32::MAX },
            CallFailed::Overloaded {
                after,
                story: Box::new(CallStory { response: None, peer_silent_for: None, ..story }),
            },
            CallFailed::ResponseTooLarge { length: 5, limit: 4 },
            CallFailed::EngineEnded,
            CallFailed::NotSent,
            CallFailed::EmptyForLinux,
            CallFailed::NotAllowed,
            CallFailed::SealedOnly,
            CallFailed::NotExpected,
            CallFailed::HandshakeFailed,
            CallFailed::Described("the words of an engine".into()),
            CallFailed::Described("x".repeat(CallFailed::DESCRIPTION_MAX).into()),
        ];
        for error in errors.into_iter().chain(AWAITED.map(timeout)) {
            assert_eq!(CallFailed::decode(&error.encode()), Some(error));
        }
        for bytes in [&[][..], &[0; LENGTH], &[1; LENGTH], &[1; LENGTH + 1]] {
            assert_eq!(CallFailed::decode(bytes), None);
        }
        let longer = CallFailed::Described("x".repeat(CallFailed::DESCRIPTION_MAX + 1).into());
        assert_eq!(CallFailed::decode(&longer.encode()), None);
        assert_eq!(CallFailed::decode(&[DESCRIBED, 0xff]), None);
    }
}
