//! What stands between the header of DATA and its payload, towards Apus peers (rule W35).

use crate::{Data, TraceContext};

/// The time that remains until the call's deadline.
const DEADLINE: u8 = 1;

/// Where the call belongs in a distributed trace.
const TRACE: u8 = 2;

/// Bytes of an item before its body: type and length.
const ITEM_HEAD: usize = 2;

/// What a packet says beside its message. It goes with the first byte of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Extension {
    /// Time until the call's deadline when the packet was sent, in microseconds.
    pub deadline: Option<u32>,
    /// Where the call belongs in a distributed trace.
    pub trace: Option<TraceContext>,
}

impl Extension {
    /// Bytes of the longest one that is sent.
    pub const LEN_MAX: usize = Self::len_with(true, true);

    /// Bytes that an extension takes with or without each of its items: whole words of four.
    #[inline]
    #[must_use]
    pub const fn len_with(deadline: bool, trace: bool) -> usize {
        let deadline = if deadline { ITEM_HEAD + 4 } else { 0 };
        let trace = if trace { ITEM_HEAD + TraceContext::LEN } else { 0 };
        (deadline + trace).next_multiple_of(4)
    }

    /// Bytes that this one takes.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        Self::len_with(self.deadline.is_some(), self.trace.is_some())
    }

    /// Whether it says nothing, so that a packet needs none.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.deadline.is_none() && self.trace.is_none()
    }

    /// Writes the items to the beginning of `words`, which is all zeros and has [`len`](Self::len) bytes or more.
    #[inline]
    pub(crate) fn emit(&self, mut words: &mut [u8]) {
        if let Some(micros) = self.deadline {
            let (item, rest) = words.split_at_mut(ITEM_HEAD + 4);
            item[..ITEM_HEAD].copy_from_slice(&[DEADLINE, 4]);
            item[ITEM_HEAD..].copy_from_slice(&micros.to_be_bytes());
            words = rest;
        }
        if let Some(trace) = self.trace {
            let (head, body) = words.split_at_mut(ITEM_HEAD);
            head.copy_from_slice(&[TRACE, TraceContext::LEN as u8]);
            body[..TraceContext::LEN].copy_from_slice(&trace.to_bytes());
        }
    }

    /// What the extension of a DATA packet says, up to an item that does not fit. Items of other types or lengths say nothing here,
    /// and neither does a trace context with an id of zeros. Of two items of a type the first counts.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Self {
        //= docs/wire.md#W35
        let mut extension = Self::default();
        let mut items = Data::extension_words(packet);
        while let [kind, length, rest @ ..] = items {
            let Some((body, after)) = rest.split_at_checked(usize::from(*length)) else { break };
            match *kind {
                DEADLINE if extension.deadline.is_none() => {
                    extension.deadline = body.try_into().ok().map(u32::from_be_bytes);
                }
                TRACE if extension.trace.is_none() => {
                    extension.trace = TraceContext::from_bytes(body);
                }
                _ => {}
            }
            items = after;
        }
        extension
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::FROM_CLIENT;
    use crate::{DataFlags, Packet};

    const REQUEST: Data = Data {
        message_length: 20,
        incoming: 20,
        ack: None,
        cutoff_version: 0,
        retransmit: false,
        flags: DataFlags::INCAST,
        offset: 0,
    };

    fn trace() -> TraceContext {
        TraceContext::new([0xAB; 16], [0xCD; 8], 1).unwrap()
    }

    /// A packet with this extension.
    fn packet(extension: Extension) -> Vec<u8> {
        let mut buffer = [0xA5; Data::LEN_MAX];
        let length = REQUEST.emit_extended(&FROM_CLIENT, &extension, &mut buffer);
        [&buffer[..length], &[7; 20]].concat()
    }

    /// A packet with these words between header and payload.
    fn with_words(words: &[u8]) -> Vec<u8> {
        let mut packet = packet(Extension::default());
        packet[49] |= DataFlags::EXTENDED.0;
        packet[50] = u8::try_from(words.len() / 4).unwrap();
        packet.splice(56..56, words.iter().copied());
        packet
    }

    #[test]
    fn items_are_told_beside_the_payload() {
        //= docs/wire.md#W35
        for (deadline, trace, length) in [
            (None, None, 0),
            (Some(1_500_000), None, 8),
            (None, Some(trace()), 28),
            (Some(u32::MAX), Some(trace()), 36),
        ] {
            let extension = Extension { deadline, trace };
            let packet = packet(extension);
            assert_eq!((extension.len(), packet.len()), (length, 76 + length));
            assert_eq!(packet.len() <= 76, extension.is_empty());
            assert_eq!(Extension::parse(&packet), extension);
            let Ok(Packet::Data { data, payload, .. }) = Packet::parse(&packet) else { panic!() };
            assert_eq!((data.message_length, payload), (20, &[7; 20][..]));
            assert_eq!(data.flags.contains(DataFlags::EXTENDED), length > 0);
            assert!(data.flags.contains(DataFlags::INCAST));
            for cut in 0..packet.len() {
                let told = Extension::parse(&packet[..cut]);
                let whole =
                    if cut >= Data::LEN + length { extension } else { Extension::default() };
                assert_eq!(told, whole, "{cut}");
            }
        }
    }

    #[test]
    fn the_items_have_the_bytes_of_the_rule() {
        //= docs/wire.md#W35
        let packet = packet(Extension { deadline: Some(5), trace: Some(trace()) });
        let expected =
            [&[1, 4, 0, 0, 0, 5][..], &[2, 25], &[0xAB; 16], &[0xCD; 8], &[1], &[0, 0, 0]].concat();
        assert_eq!((packet[50], &packet[56..92]), (9, &expected[..]));
    }

    #[test]
    fn items_that_are_not_understood_say_nothing() {
        //= docs/wire.md#W35
        let told = |words: &[u8]| Extension::parse(&with_words(words));
        let deadline = Extension { deadline: Some(5), trace: None };
        let five = [1, 4, 0, 0, 0, 5];
        // Behind an item of an unknown type, a trace context that is too short, and filler.
        assert_eq!(told(&[&[9, 0][..], &five].concat()), deadline);
        assert_eq!(told(&[&[2, 4, 1, 1, 1, 1][..], &five].concat()), deadline);
        assert_eq!(told(&[&[0, 0][..], &five].concat()), deadline);
        // The first of two counts, and one of another length says nothing.
        assert_eq!(told(&[&five[..], &[1, 4, 0, 0, 0, 6]].concat()), deadline);
        assert_eq!(told(&[1, 2, 0, 9, 1, 4, 0, 0, 0, 5, 0, 0]), deadline);
        // A length beyond the end, alone and behind another item.
        assert_eq!(told(&[1, 200, 0, 0, 0, 5, 0, 0]), Extension::default());
        assert_eq!(told(&[&five[..], &[2, 25]].concat()), deadline);
        // Zeros are no id.
        let item = |context: [u8; 25]| [&[2, 25][..], &context, &[0]].concat();
        let mut context = trace().to_bytes();
        assert_eq!(told(&item(context)).trace, Some(trace()));
        context[..16].fill(0);
        assert_eq!(told(&item(context)), Extension::default());
        assert_eq!(told(&item([0; 25])), Extension::default());
        let mut plain = with_words(&item(trace().to_bytes()));
        plain[49] = 0;
        assert_eq!(Extension::parse(&plain), Extension::default());
    }
}
