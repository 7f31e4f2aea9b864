//! Unscheduled priorities: a level for each message length, computed from the traffic.
//!
//! This module does the work of the Linux module's user program `homa_prio` inside the endpoint: each unscheduled level should
//! carry about the same number of unscheduled bytes, and the share of levels that are unscheduled follows the share of unscheduled
//! bytes (SIGCOMM 2018 section 3.4).
//! Rules `prio-1` to `prio-4` of docs/protocol.md.

use apus_wire::{Cutoffs, MAX_LINUX_MESSAGE, Priority};

/// Number of messages before the cutoffs are computed again.
const MESSAGES_MIN: u64 = 10_000;
/// Cutoff of a level that takes every message, in bytes: the Linux module's longest message.
const EVERYTHING: u32 = MAX_LINUX_MESSAGE;

/// Longest messages of the unscheduled levels before traffic was seen, from the highest level down, in bytes.
const FIRST_CUTOFFS: [u32; 4] = [200, 2_800, 15_000, EVERYTHING];

/// Bytes that a packet takes on the wire beside its payload: Homa, UDP, IP and Ethernet headers, preamble and gap. They dominate
/// among the shortest messages.
const OVERHEAD: u64 = 126;

const TINY: u32 = 4;
const TINY_END: u32 = 64;
const FINE: u32 = 64;
const FINE_END: u32 = 4096;
const COARSE: u32 = 1024;
const COARSE_END: u32 = 131_072;
const TINY_BUCKETS: usize = (TINY_END / TINY) as usize;
const FINE_BUCKETS: usize = TINY_BUCKETS + ((FINE_END - TINY_END) / FINE) as usize;
const BUCKETS: usize = FINE_BUCKETS + ((COARSE_END - FINE_END) / COARSE) as usize + 1;

/// The cutoffs for messages to this host, and the traffic that determines them.
#[derive(Debug)]
pub(crate) struct Traffic {
    count: [u64; BUCKETS],
    bytes: [u64; BUCKETS],
    messages: u64,
    priorities: u8,
    learns: bool,
    current: Cutoffs,
    max_scheduled: u8,
}

impl Traffic {
    /// Starts with the module's default table as `version`. With fewer levels, the table keeps as much of it as fits the upper half
    /// of them.
    pub(crate) fn new(priorities: u8, version: u16) -> Self {
        let mut traffic = Self {
            count: [0; BUCKETS],
            bytes: [0; BUCKETS],
            messages: 0,
            priorities,
            learns: true,
            current: Cutoffs { cutoffs: [0; 8], version: version.max(1) },
            max_scheduled: 0,
        };
        let levels = usize::from(priorities);
        let unscheduled = levels.div_ceil(2);
        let mut table = [0; 8];
        for (level, cutoff) in (levels - unscheduled..levels).rev().zip(FIRST_CUTOFFS) {
            table[level] = cutoff;
        }
        table[levels - unscheduled] = EVERYTHING;
        traffic.install(table);
        traffic
    }

    /// Replaces the table by the user's, if there is one.
    pub(crate) fn with_cutoffs(mut self, table: Option<[u32; 8]>, learns: bool) -> Self {
        self.learns = learns;
        if let Some(table) = table {
            self.install(table);
        }
        self
    }

    pub(crate) fn current(&self) -> &Cutoffs {
        &self.current
    }

    /// Returns the highest level of scheduled packets.
    pub(crate) fn max_scheduled(&self) -> u8 {
        self.max_scheduled
    }

    /// Returns the level of control packets.
    pub(crate) fn control(&self) -> Priority {
        Priority::clamped(self.priorities.saturating_sub(1))
    }

    /// Returns the level of FIFO grants (`homa_grant.c`).
    pub(crate) fn fifo(&self) -> Priority {
        //= docs/protocol.md#prio-5
        Priority::clamped(self.priorities.saturating_sub(2))
    }

    /// Records a complete incoming message of `length` bytes.
    #[inline]
    pub(crate) fn message(&mut self, length: u32) {
        let bucket = bucket(length);
        self.count[bucket] += 1;
        self.bytes[bucket] += u64::from(length);
        self.messages += 1;
    }

    /// Returns whether enough traffic was seen for [`Traffic::recompute`].
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.learns && self.messages >= MESSAGES_MIN && self.priorities > 1
    }

    /// Computes the table from the traffic since the last call. Returns whether the change is large enough to be announced to the
    /// peers. Bounded work: one pass over the buckets.
    pub(crate) fn recompute(&mut self, unscheduled: u32) -> bool {
        let table = self.table(u64::from(unscheduled));
        self.count = [0; BUCKETS];
        self.bytes = [0; BUCKETS];
        self.messages = 0;
        if !differs(&table, &self.current.cutoffs) {
            return false;
        }
        self.current.version = self.current.version.checked_add(1).unwrap_or(1);
        self.install(table);
        true
    }

    fn table(&self, unscheduled: u64) -> [u32; 8] {
        let levels = u64::from(self.priorities);
        let blind =
            |i: usize| self.bytes[i].min(self.count[i] * unscheduled) + self.count[i] * OVERHEAD;
        let blind_total: u64 = (0..BUCKETS).map(blind).sum();
        let total = self.bytes.iter().sum::<u64>() + self.messages * OVERHEAD;
        //= docs/protocol.md#prio-1
        let share = (2 * levels * blind_total + total) / (2 * total.max(1));
        let unscheduled_levels = share.clamp(1, levels);
        let quota = if unscheduled_levels == levels {
            total / levels + 1
        } else {
            blind_total / unscheduled_levels + 1
        };
        let mut table = [0; 8];
        let top = usize::from(self.priorities) - 1;
        let lowest = usize::from(self.priorities) - unscheduled_levels as usize;
        let (mut level, mut since_cut, mut left) = (top, 0, blind_total);
        for i in 0..BUCKETS - 1 {
            since_cut += blind(i);
            left -= blind(i);
            if since_cut >= quota && level > lowest && left >= quota {
                table[level] = bucket_end(i);
                level -= 1;
                since_cut = 0;
            }
        }
        table[..=level].fill(EVERYTHING);
        table
    }

    fn install(&mut self, mut table: [u32; 8]) {
        let levels = usize::from(self.priorities);
        table[levels..].fill(0);
        table[0] = u32::MAX;
        let everything = (0..levels).rev().find(|&i| table[i] >= EVERYTHING).unwrap_or(0);
        self.max_scheduled = u8::try_from(everything).unwrap_or(0).saturating_sub(1);
        self.current.cutoffs = table;
    }
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "each branch subtracts the bound that it has compared with, and 1 from a nonzero number"
)]
fn bucket(length: u32) -> usize {
    if length <= TINY_END {
        (length.max(1).div_ceil(TINY) - 1) as usize
    } else if length <= FINE_END {
        TINY_BUCKETS + ((length - TINY_END).div_ceil(FINE) - 1) as usize
    } else if length <= COARSE_END {
        FINE_BUCKETS + ((length - FINE_END).div_ceil(COARSE) - 1) as usize
    } else {
        BUCKETS - 1
    }
}

/// Returns the longest message of a bucket other than the last.
#[expect(clippy::arithmetic_side_effects, reason = "fewer than 200 buckets end below u32::MAX")]
fn bucket_end(bucket: usize) -> u32 {
    let bucket = u32::try_from(bucket).expect("fewer than 200 buckets");
    let (tiny, fine) = (TINY_BUCKETS as u32, FINE_BUCKETS as u32);
    if bucket < tiny {
        (bucket + 1) * TINY
    } else if bucket < fine {
        TINY_END + (bucket + 1 - tiny) * FINE
    } else {
        FINE_END + (bucket + 1 - fine) * COARSE
    }
}

/// Returns whether a change is worth telling every peer: some level's cutoff moved by more than a quarter.
fn differs(new: &[u32; 8], old: &[u32; 8]) -> bool {
    new.iter().zip(old).skip(1).any(|(&n, &o)| n.abs_diff(o) > o / 4)
}

/// Returns the level of the unscheduled packets of a message of `length` bytes to a peer with this table, or level 6 of 8 if the
/// peer's table is unknown (rule `prio-2`). Levels above this node's highest become its highest.
#[inline]
pub(crate) fn unscheduled_priority(
    table: Option<&Cutoffs>,
    priorities: u8,
    length: u32,
) -> Priority {
    // Messages longer than the module's longest use the level of the longest.
    let length = length.min(EVERYTHING);
    let level = match table {
        //= docs/protocol.md#prio-2
        None => priorities.saturating_sub(2),
        Some(table) => (1..8).rev().find(|&i| table.cutoffs[i] >= length).unwrap_or(0) as u8,
    };
    Priority::clamped(level.min(priorities.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(traffic: &Traffic, length: u32) -> u8 {
        unscheduled_priority(Some(traffic.current()), 8, length).get()
    }

    #[test]
    fn the_first_table_is_the_modules() {
        let traffic = Traffic::new(8, 1);
        let levels = [1, 200, 201, 2_800, 15_000, 15_001, 2_000_000].map(|n| level(&traffic, n));
        assert_eq!(levels, [7, 7, 6, 6, 5, 4, 4]);
        assert_eq!(traffic.max_scheduled(), 3);
    }

    #[test]
    fn a_table_of_the_users_comes_first() {
        let table = [0, 0, 0, 0, 0, 0, 0, EVERYTHING];
        let traffic = Traffic::new(8, 1).with_cutoffs(Some(table), true);
        assert_eq!((level(&traffic, 5_000), traffic.max_scheduled()), (7, 6));
    }

    #[test]
    fn small_messages_alone_spread_over_the_levels() {
        let mut traffic = Traffic::new(8, 1);
        for length in (1..=1_000).cycle().take(20_000) {
            traffic.message(length);
        }
        assert!(traffic.is_due() && traffic.recompute(40_000));
        assert_eq!(traffic.current().version, 2);
        assert_eq!(level(&traffic, 1), 7);
        let distinct: std::collections::BTreeSet<u8> =
            (1..1_000).map(|n| level(&traffic, n)).collect();
        assert!(distinct.len() >= 5, "{distinct:?}");
    }

    #[test]
    fn long_messages_leave_one_unscheduled_level() {
        let mut traffic = Traffic::new(8, 1);
        for _ in 0..10_000 {
            traffic.message(10_000_000);
        }
        assert!(traffic.recompute(40_000));
        assert_eq!(level(&traffic, 100), 7);
        assert_eq!(traffic.max_scheduled(), 6);
        assert!(!traffic.is_due());
    }

    #[test]
    fn tiny_messages_are_distinguished() {
        // W1: two fifths of the messages have 11 bytes or fewer; headers are most of their bytes.
        let mut traffic = Traffic::new(8, 1);
        for _ in 0..4_000 {
            for length in [2, 11, 60, 200, 400] {
                traffic.message(length);
            }
        }
        assert!(traffic.recompute(10_000));
        assert!(level(&traffic, 2) > level(&traffic, 60), "{:?}", traffic.current());
    }

    #[test]
    fn buckets_cover_every_length() {
        for length in [1, 4, 5, 64, 65, 128, 4_096, 4_097, 5_120, 131_072] {
            let end = bucket_end(bucket(length));
            assert!(end >= length && end - length < COARSE, "{length} in bucket up to {end}");
        }
        assert_eq!(bucket(131_073), BUCKETS - 1);
    }

    #[test]
    fn fewer_levels_are_shared_between_unscheduled_and_scheduled() {
        for priorities in 1..=8 {
            let mut traffic = Traffic::new(priorities, 1);
            let top = priorities - 1;
            for _ in 0..2 {
                let table = traffic.current();
                let level = |length| unscheduled_priority(Some(table), priorities, length).get();
                assert_eq!(level(1), top);
                let lowest = level(1_000_000);
                assert!(traffic.max_scheduled() < lowest.max(1), "{priorities}: {table:?}");
                assert!((1..1_000_000).step_by(997).all(|n| level(n) >= lowest && level(n) <= top));
                assert!(traffic.control().get() == top && traffic.fifo().get() <= top);
                for length in (1..=10_000).chain((100_000..=1_000_000).step_by(100_000)) {
                    traffic.message(length);
                }
                assert_eq!(traffic.is_due(), priorities > 1);
                traffic.recompute(40_000);
            }
        }
    }

    #[test]
    fn a_peer_with_more_levels_is_understood() {
        let table = *Traffic::new(8, 1).current();
        let levels =
            [100, 1_000, 10_000, 100_000].map(|n| unscheduled_priority(Some(&table), 2, n));
        assert_eq!(levels.map(Priority::get), [1, 1, 1, 1]);
    }

    #[test]
    fn unknown_peers_get_level_six() {
        assert_eq!(unscheduled_priority(None, 8, 5).get(), 6);
        assert_eq!(unscheduled_priority(None, 1, 5).get(), 0);
    }
}
