//! The extension between the header of DATA and its payload, for Apus peers (rule W35).

use crate::TraceContext;

/// Type of the item with the time that remains until the call's deadline.
const DEADLINE: u8 = 1;

/// Type of the item with the call's context in a distributed trace.
const TRACE: u8 = 2;

/// Length in bytes of an item's own header: type and length.
const ITEM_HEAD: usize = 2;

/// The optional items of a packet, sent with the first byte of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Extension {
    /// Time from the transmission to the call's deadline, in microseconds.
    pub deadline: Option<u32>,
    /// The call's context in a distributed trace.
    pub trace: Option<TraceContext>,
}

impl Extension {
    /// Length of the longest extension that Apus sends, in bytes.
    pub const LEN_MAX: usize = Self::len_with(true, true);

    /// Returns the length in bytes, a multiple of four, of an extension with or without each of its items.
    #[inline]
    #[must_use]
    pub const fn len_with(deadline: bool, trace: bool) -> usize {
        let deadline = if deadline { ITEM_HEAD + 4 } else { 0 };
        let trace = if trace { ITEM_HEAD + TraceContext::LEN } else { 0 };
        (deadline + trace).next_multiple_of(4)
    }

    /// Returns the length of this extension in bytes.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        Self::len_with(self.deadline.is_some(), self.trace.is_some())
    }

    /// Returns whether the extension has no item, so that a packet needs none.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.deadline.is_none() && self.trace.is_none()
    }

    /// Writes the items to the beginning of `words`, which must be all zeros and at least [`len`](Self::len) bytes long.
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

    /// Parses the items in these words ([`Data::extension`](crate::Data::extension)).
    pub(crate) fn parse(words: &[u8]) -> Self {
        //= docs/wire.md#W35
        let mut extension = Self::default();
        let mut items = words;
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
