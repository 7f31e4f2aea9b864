//! The words of both sides in shared memory.

use std::sync::atomic::Ordering;

use apus_shm::{Memory, PeerSegment};
use apus_sockets::direction::{ReceiverWord, ReceiverWords, SenderWord, SenderWords, Store};
use apus_sockets::layout;

/// Writes this side's words.
pub(crate) struct Own<'a>(pub(crate) &'a Memory);

impl Own<'_> {
    #[inline]
    fn load(&self, offset: usize) -> u64 {
        self.0.word(offset).load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn sender(&self) -> SenderWords {
        SenderWords {
            epoch: self.load(layout::EPOCH),
            offset: self.load(layout::OFFSET),
            written: self.load(layout::WRITTEN),
            ended: self.load(layout::ENDED),
            end: self.load(layout::END),
            refilled: self.load(layout::REFILLED),
        }
    }

    #[inline]
    pub(crate) fn receiver(&self) -> ReceiverWords {
        ReceiverWords {
            offered: self.load(layout::OFFERED),
            read: self.load(layout::READ),
            recalled: self.load(layout::RECALLED),
            drained: self.load(layout::DRAINED),
        }
    }
}

impl Store<SenderWord> for Own<'_> {
    #[inline]
    fn store(&mut self, word: SenderWord, value: u64) {
        let offset = match word {
            SenderWord::Epoch => layout::EPOCH,
            SenderWord::Offset => layout::OFFSET,
            SenderWord::Written => layout::WRITTEN,
            SenderWord::Ended => layout::ENDED,
            SenderWord::End => layout::END,
            SenderWord::Refilled => layout::REFILLED,
        };
        self.0.word(offset).store(value, Ordering::Release);
    }
}

impl Store<ReceiverWord> for Own<'_> {
    #[inline]
    fn store(&mut self, word: ReceiverWord, value: u64) {
        let offset = match word {
            ReceiverWord::Offered => layout::OFFERED,
            ReceiverWord::Read => layout::READ,
            ReceiverWord::Recalled => layout::RECALLED,
            ReceiverWord::Drained => layout::DRAINED,
        };
        self.0.word(offset).store(value, Ordering::Release);
    }
}

/// The words of a sending peer. Words that make others valid are loaded first.
#[inline]
pub(crate) fn sender_of(peer: &PeerSegment) -> SenderWords {
    let load = |offset| peer.load(offset, Ordering::Acquire);
    SenderWords {
        ended: load(layout::ENDED),
        epoch: load(layout::EPOCH),
        written: load(layout::WRITTEN),
        offset: load(layout::OFFSET),
        end: load(layout::END),
        refilled: load(layout::REFILLED),
    }
}

/// The words of a receiving peer.
#[inline]
pub(crate) fn receiver_of(peer: &PeerSegment) -> ReceiverWords {
    let load = |offset| peer.load(offset, Ordering::Acquire);
    ReceiverWords {
        recalled: load(layout::RECALLED),
        offered: load(layout::OFFERED),
        read: load(layout::READ),
        drained: 0,
    }
}
