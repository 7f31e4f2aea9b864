//! Memory for long messages: segments of chunks, lent to the peer by runs.
//!
//! A message takes a run of chunks of one segment or, beyond [`SEGMENT_SIZE`], one run after another. The peer releases a run by
//! writing the run's generation to a word of its own. A peer that releases a run too early reads another message's bytes and harms
//! only itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::process::own_user;
use crate::segment::{Memory, Segment};

/// Size of a chunk in bytes. A run is a whole number of chunks.
pub(crate) const CHUNK: usize = 16 << 10;

/// Number of chunks of a segment: the bits of a word.
pub(crate) const CHUNKS: usize = 64;

/// Size of a segment in bytes, 1 MiB: the longest message that a peer may read in place.
pub(crate) const SEGMENT_SIZE: usize = CHUNK * CHUNKS;

/// Upper bound on the segments of a pool, which is 8 MiB.
pub(crate) const SEGMENTS_MAX: usize = 8;

/// Segments that the pools of all pairs of a process share.
///
/// | segments of all pools | upper bound for one pool |
/// |---|---|
/// | less than half of the limit | [`SEGMENTS_MAX`] |
/// | less than the limit | 2 |
/// | less than twice the limit | 1 |
/// | more | none |
///
/// Pools for processes of another user count twice among those of that user, so that one user gets at most half of the limit.
#[derive(Debug)]
pub(crate) struct Share {
    taken: AtomicUsize,
    limit: AtomicUsize,
    /// Number of segments of pools for processes of other users, by uid, while there are such pools.
    by_user: Mutex<BTreeMap<u32, Weak<AtomicUsize>>>,
}

static SHARE: Share = Share::new(256);

/// Limits the memory of this process's pools to `bytes`, and to twice as many if there are many pairs. The default is 256 MiB.
pub fn limit_pools(bytes: u64) {
    let segments = usize::try_from(bytes / SEGMENT_SIZE as u64).unwrap_or(usize::MAX);
    SHARE.limit.store(segments.clamp(4, usize::MAX / 2), Ordering::Relaxed);
}

/// Returns the bytes of this process's pools, and their limit.
#[must_use]
pub fn pool_bytes() -> (u64, u64) {
    let bytes = |segments: &AtomicUsize| {
        (segments.load(Ordering::Relaxed) as u64).saturating_mul(SEGMENT_SIZE as u64)
    };
    (bytes(&SHARE.taken), bytes(&SHARE.limit))
}

impl Share {
    const fn new(segments: usize) -> Self {
        let (taken, limit) = (AtomicUsize::new(0), AtomicUsize::new(segments));
        Self { taken, limit, by_user: Mutex::new(BTreeMap::new()) }
    }

    /// Returns the count of segments for another user.
    fn of_user(&self, uid: u32) -> Arc<AtomicUsize> {
        let mut by_user = self.by_user.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = by_user.get(&uid).and_then(Weak::upgrade) {
            return taken;
        }
        by_user.retain(|_, taken| taken.strong_count() > 0);
        let taken = Arc::new(AtomicUsize::new(0));
        by_user.insert(uid, Arc::downgrade(&taken));
        taken
    }

    /// Returns the number of segments that a pool may have now.
    fn of_pool(&self, of_user: Option<&AtomicUsize>) -> usize {
        let limit = self.limit.load(Ordering::Relaxed);
        let of_user = of_user.map_or(0, |taken| taken.load(Ordering::Relaxed));
        match self.taken.load(Ordering::Relaxed).max(2 * of_user) {
            taken if taken < limit / 2 => SEGMENTS_MAX,
            taken if taken < limit => 2,
            taken => usize::from(taken < 2 * limit),
        }
    }
}

/// Consecutive chunks of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) segment: u8,
    pub(crate) first: u8,
    pub(crate) chunks: u8,
    /// Distinguishes the run from others that began at the same chunk. Never 0.
    pub(crate) generation: u32,
}

impl Run {
    /// Returns the offset of the run in its segment.
    pub(crate) fn offset(self) -> usize {
        usize::from(self.first) * CHUNK
    }

    /// Returns the size of the run in bytes.
    pub(crate) fn size(self) -> usize {
        usize::from(self.chunks) * CHUNK
    }

    /// Returns whether a pool can have such a run.
    pub(crate) fn is_possible(self) -> bool {
        let end = usize::from(self.first) + usize::from(self.chunks);
        usize::from(self.segment) < SEGMENTS_MAX && self.chunks > 0 && end <= CHUNKS
    }

    fn mask(self) -> u64 {
        mask(self.first.into(), self.chunks.into())
    }
}

fn mask(first: u32, chunks: u32) -> u64 {
    (u64::MAX >> (u64::BITS - chunks)) << first
}

/// The pool of the writing process.
#[derive(Debug)]
pub(crate) struct Pool {
    share: &'static Share,
    /// Number of segments of its user, if that is not the user of this process.
    of_user: Option<Arc<AtomicUsize>>,
    segments: Vec<PoolSegment>,
    generation: u32,
    /// Number of times that the pool was given up.
    pub(crate) epoch: u8,
}

#[derive(Debug)]
struct PoolSegment {
    memory: Memory,
    /// A bit for each chunk without a run.
    free: u64,
    /// Runs that the peer has not released.
    lent: Vec<Run>,
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Pool {
    /// Creates a pool for a process of this user.
    pub(crate) fn for_user(uid: u32) -> Self {
        Self::of(&SHARE, (uid != own_user()).then_some(uid))
    }

    fn of(share: &'static Share, other: Option<u32>) -> Self {
        let of_user = other.map(|uid| share.of_user(uid));
        Self { share, of_user, segments: Vec::new(), generation: 0, epoch: 0 }
    }

    fn give_back(&self) {
        let count = self.segments.len();
        self.share.taken.fetch_sub(count, Ordering::Relaxed);
        if let Some(taken) = &self.of_user {
            taken.fetch_sub(count, Ordering::Relaxed);
        }
    }

    fn may_grow(&self) -> bool {
        self.segments.len() < self.share.of_pool(self.of_user.as_deref())
    }

    /// Takes a run of at least `bytes`, 1 to [`SEGMENT_SIZE`]. Returns `None` until the peer has released enough, or
    /// [`grow`](Self::grow) has added memory. `released` returns the peer's word for a chunk.
    pub(crate) fn take(
        &mut self,
        bytes: usize,
        released: impl Fn(usize, usize) -> u32,
    ) -> Option<Run> {
        let chunks = u32::try_from(bytes.div_ceil(CHUNK)).ok()?;
        let generation = self.generation.wrapping_add(1).max(1);
        for (segment, part) in self.segments.iter_mut().enumerate() {
            let first = part.find(chunks).or_else(|| {
                part.reclaim(|first| released(segment, first));
                part.find(chunks)
            });
            let Some(first) = first else { continue };
            let run = Run {
                segment: segment as u8,
                first: first as u8,
                chunks: chunks as u8,
                generation,
            };
            part.free &= !run.mask();
            part.lent.push(run);
            self.generation = generation;
            return Some(run);
        }
        None
    }

    /// Adds a segment of [`SEGMENT_SIZE`]. Returns its descriptor for the peer, or `None` if the pool is at its limit.
    pub(crate) fn grow(&mut self) -> std::io::Result<Option<std::os::fd::OwnedFd>> {
        if !self.may_grow() {
            return Ok(None);
        }
        let segment = Segment::create(SEGMENT_SIZE)?;
        let descriptor = segment.descriptor().try_clone_to_owned()?;
        self.add(segment.into_memory());
        Ok(Some(descriptor))
    }

    pub(crate) fn add(&mut self, memory: Memory) {
        self.share.taken.fetch_add(1, Ordering::Relaxed);
        if let Some(taken) = &self.of_user {
            taken.fetch_add(1, Ordering::Relaxed);
        }
        self.segments.push(PoolSegment { memory, free: u64::MAX, lent: Vec::new() });
    }

    /// Returns whether the peer holds unreleased runs.
    pub(crate) fn is_lent(&mut self, released: impl Fn(usize, usize) -> u32) -> bool {
        let mut is_lent = false;
        for (segment, part) in self.segments.iter_mut().enumerate() {
            part.reclaim(|first| released(segment, first));
            is_lent |= !part.lent.is_empty();
        }
        is_lent
    }

    /// Gives up all memory. None of it may be lent.
    pub(crate) fn clear(&mut self) {
        self.give_back();
        self.segments.clear();
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Copies bytes into a run, beginning `offset` bytes after its start.
    pub(crate) fn copy_in(&mut self, run: Run, offset: usize, bytes: &[u8]) {
        debug_assert!(offset + bytes.len() <= run.size());
        let part = &mut self.segments[usize::from(run.segment)];
        part.memory.copy_in(run.offset() + offset, bytes);
    }

    /// Returns the size of the memory in bytes.
    pub(crate) fn size(&self) -> usize {
        self.segments.len() * SEGMENT_SIZE
    }
}

impl PoolSegment {
    /// Returns the first of `chunks` consecutive free chunks.
    fn find(&self, chunks: u32) -> Option<u32> {
        // Bit n of `begins` is set if the `length` chunks from n on are free; doubling the length takes log steps.
        let (mut begins, mut length) = (self.free, 1);
        while length < chunks {
            let step = length.min(chunks - length);
            begins &= begins >> step;
            length += step;
        }
        (begins != 0).then(|| begins.trailing_zeros())
    }

    /// Frees the runs that the peer has released.
    fn reclaim(&mut self, released: impl Fn(usize) -> u32) {
        self.lent.retain(|run| {
            let held = released(run.first.into()) != run.generation;
            if !held {
                self.free |= run.mask();
            }
            held
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::PAGE;

    fn pool(segments: usize) -> Pool {
        let mut pool = Pool::for_user(own_user());
        (0..segments).for_each(|_| pool.add(Memory::private(SEGMENT_SIZE)));
        pool
    }

    const NOTHING: fn(usize, usize) -> u32 = |_, _| 0;

    #[test]
    fn runs_are_as_long_as_needed_and_do_not_overlap() {
        let mut pool = pool(1);
        let lengths = [1, CHUNK, CHUNK + 1, 10 * CHUNK, 50 * CHUNK];
        let runs = lengths.map(|bytes| pool.take(bytes, NOTHING).unwrap());
        assert_eq!(runs.map(|run| run.chunks), [1, 1, 2, 10, 50]);
        let mut seen = 0;
        for run in runs {
            assert_eq!(seen & run.mask(), 0);
            seen |= run.mask();
        }
        assert_eq!(seen, u64::MAX);
        assert_eq!(pool.take(1, NOTHING), None);
    }

    #[test]
    fn the_pools_of_a_process_share_a_limit() {
        static SHARE: Share = Share::new(16);
        let grow = |pool: &mut Pool| {
            while pool.may_grow() {
                pool.add(Memory::private(PAGE));
            }
            pool.segments.len()
        };
        let mut pools: Vec<_> = (0..40).map(|_| Pool::of(&SHARE, None)).collect();
        let sizes: Vec<_> = pools.iter_mut().map(grow).collect();
        assert_eq!(sizes[..6], [8, 2, 2, 2, 2, 1], "the first has all that it wants");
        assert_eq!(sizes.iter().sum::<usize>(), 32);
        assert_eq!(sizes.iter().filter(|size| **size > 0).count(), 21);
        pools[0].clear();
        assert_eq!(grow(&mut pools[30]), 1, "one gets what another one gives up");
        drop(pools);
        assert_eq!(SHARE.taken.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_pools_of_another_user_have_half_of_it() {
        static SHARE: Share = Share::new(16);
        let grow = |pool: &mut Pool| {
            while pool.may_grow() {
                pool.add(Memory::private(PAGE));
            }
            pool.segments.len()
        };
        let mut greedy: Vec<_> = (0..40).map(|_| Pool::of(&SHARE, Some(7))).collect();
        let sizes: Vec<_> = greedy.iter_mut().map(grow).collect();
        assert_eq!(sizes.iter().sum::<usize>(), 16);
        let mut others = [Pool::of(&SHARE, Some(8)), Pool::of(&SHARE, None)];
        assert_eq!(others.iter_mut().map(grow).collect::<Vec<_>>(), [1, 1]);
        greedy.clear();
        others[0].clear();
        assert_eq!(grow(&mut others[0]), 4, "until it has a quarter of the limit");
        drop(others);
        assert_eq!(SHARE.taken.load(Ordering::Relaxed), 0);
        assert!(SHARE.by_user.lock().unwrap().values().all(|taken| taken.strong_count() == 0));
    }

    #[test]
    fn a_run_is_used_again_once_the_peer_has_released_this_very_run() {
        let mut pool = pool(1);
        let first = pool.take(SEGMENT_SIZE, NOTHING).unwrap();
        assert_eq!(pool.take(1, |_, _| first.generation.wrapping_sub(1)), None);
        let second = pool.take(1, |_, _| first.generation).unwrap();
        assert_ne!(first.generation, second.generation);
        assert_eq!(
            pool.take(SEGMENT_SIZE, |_, _| first.generation),
            None,
            "an earlier run's release"
        );
    }

    #[test]
    fn a_pool_is_lent_until_every_run_is_released() {
        let mut pool = pool(2);
        assert!(!pool.is_lent(NOTHING));
        let run = pool.take(CHUNK, NOTHING).unwrap();
        assert!(pool.is_lent(NOTHING));
        assert!(!pool.is_lent(|_, _| run.generation));
        pool.clear();
        assert_eq!((pool.size(), pool.epoch), (0, 1));
    }

    #[test]
    fn gaps_between_runs_are_found() {
        let mut part =
            PoolSegment { memory: Memory::private(CHUNK), free: 0b0111_0110, lent: vec![] };
        assert_eq!([1, 2, 3, 4].map(|chunks| part.find(chunks)), [Some(1), Some(1), Some(4), None]);
        part.free = u64::MAX;
        assert_eq!([64, 63].map(|chunks| part.find(chunks)), [Some(0), Some(0)]);
        part.free = 0;
        assert_eq!(part.find(1), None);
    }
}
