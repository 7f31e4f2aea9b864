//! Bodies that are read where the peer has written them.

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

/// What this process tells its peer, also from threads that drop a body.
#[derive(Debug)]
pub(crate) struct Receipts {
    /// The first page of this process's segment ([`layout`]).
    pub(crate) words: Memory,
    pub(crate) channel: Channel,
    peer: PeerSegment,
    /// The peer's word at the last wake-up, for each of its bells.
    woken: [AtomicU64; 2],
    /// Bytes of bodies that are held in place.
    held: AtomicUsize,
    is_current: IsCurrent,
}

/// Whether the calling process is the one that made the pair, and not a child of it.
pub(crate) struct IsCurrent(pub(crate) Box<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for IsCurrent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.0)().fmt(f)
    }
}

/// What a peer waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bell {
    Frame = 0,
    Room = 1,
}

/// A message to wake the peer.
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

    /// Wakes the peer if it sleeps and waits for this. Costs a system call only then.
    #[inline]
    pub(crate) fn ring(&self, bell: Bell) {
        let word = layout::BELLS[bell as usize];
        let asleep = bell::asked::<AtomicU64>(|| self.peer.load(word, Ordering::Relaxed));
        let Some(count) = asleep else { return };
        if self.woken[bell as usize].swap(count, Ordering::Relaxed) != count {
            // A full socket has wake-ups enough, and the end of a peer is noticed elsewhere.
            let _ = self.channel.send(&[WAKE], &[]);
        }
    }

    /// Bytes of bodies that are held in place.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// The peer may use the run again.
    pub(crate) fn release(&self, run: Run) {
        let word = layout::released(run.segment.into(), run.first.into());
        self.words.half_word(word).store(run.generation, Ordering::Release);
        self.ring(Bell::Room);
    }
}

/// A body in the memory of a peer that is trusted.
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
/// As [`PeerSegment::in_place`], until that drop.
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
        // SAFETY: whoever made this value vouches for the peer.
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
