//! Bodies that this process reads in the peer's memory.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;

use crate::bell;
use crate::channel::Channel;
use crate::layout;
use crate::pool::Run;
use crate::segment::{Memory, PeerSegment};

/// Sends reports to the peer, also from threads that drop a body.
#[derive(Debug)]
pub(crate) struct Receipts {
    /// The first page of this process's segment ([`layout`]).
    pub(crate) words: Memory,
    pub(crate) channel: Channel,
    peer: PeerSegment,
    /// The peer's word at the last wake-up of each of its bells.
    woken: [AtomicU64; 2],
    /// Bytes of bodies held in place.
    held: AtomicUsize,
    is_current: IsCurrent,
}

/// Returns whether the calling process is the one that made the pair, and not a child of it.
pub(crate) struct IsCurrent(pub(crate) Box<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for IsCurrent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.0)().fmt(f)
    }
}

/// The event that a peer waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bell {
    Frame = 0,
    Room = 1,
}

/// The message that wakes the peer.
pub(crate) const WAKE: u8 = b'W';

impl Receipts {
    pub(crate) fn new(
        words: Memory,
        channel: Channel,
        peer: PeerSegment,
        is_current: IsCurrent,
    ) -> Self {
        let (woken, held) = (Default::default(), AtomicUsize::new(0));
        Self { words, channel, peer, woken, held, is_current }
    }

    /// Wakes the peer if it sleeps and waits for this event. Only then it costs a system call.
    #[inline]
    pub(crate) fn ring(&self, bell: Bell) {
        let word = layout::BELLS[bell as usize];
        let asleep = bell::asked::<AtomicU64>(|| self.peer.load(word, Ordering::Relaxed));
        let Some(count) = asleep else { return };
        if self.woken[bell as usize].swap(count, Ordering::Relaxed) != count {
            // A full socket has wake-ups enough, and another place detects the end of a peer.
            let _ = self.channel.send(&[WAKE], &[]);
        }
    }

    /// Returns the bytes of bodies held in place.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns the run to the peer for reuse.
    pub(crate) fn release(&self, run: Run) {
        let word = layout::released(run.segment.into(), run.first.into());
        self.words.half_word(word).store(run.generation, Ordering::Release);
        self.ring(Bell::Room);
    }
}

/// A body in the memory of a trusted peer.
#[derive(Debug)]
struct InPlace {
    peer: PeerSegment,
    range: Range<usize>,
    run: Run,
    receipts: Arc<Receipts>,
}

/// The bytes of a run in place, released when the last clone of the [`Bytes`] is dropped.
///
/// # Safety
///
/// The conditions of [`PeerSegment::in_place`], until that drop.
pub(crate) unsafe fn in_place(
    peer: PeerSegment,
    run: Run,
    length: usize,
    receipts: Arc<Receipts>,
) -> Bytes {
    receipts.held.fetch_add(length, Ordering::Relaxed);
    let range = run.offset()..run.offset() + length;
    Bytes::from_owner(InPlace { peer, range, run, receipts })
}

impl AsRef<[u8]> for InPlace {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the caller of `in_place` vouches for the peer.
        unsafe { self.peer.in_place(self.range.clone()) }
    }
}

impl Drop for InPlace {
    fn drop(&mut self) {
        // In a child the memory of `words` is not mapped, and the body belongs to the parent.
        if (self.receipts.is_current.0)() {
            self.receipts.held.fetch_sub(self.range.len(), Ordering::Relaxed);
            self.receipts.release(self.run);
        }
    }
}
