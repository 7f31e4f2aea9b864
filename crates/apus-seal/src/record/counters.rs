//! Counters of sealed paths.

/// Events since the table was created.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SealCounters {
    /// Datagrams that were sealed.
    pub sealed: u64,
    /// Datagrams that were opened.
    pub opened: u64,
    /// Those of them that came from another address than that of their path (seal-10).
    pub opened_foreign: u64,
    /// Dropped: bytes that no node of this version sends (W43).
    pub dropped_malformed: u64,
    /// Dropped: the id is not known (seal-9).
    pub dropped_unknown_id: u64,
    /// Dropped: the key of the epoch is not known, or no more (seal-15).
    pub dropped_epoch: u64,
    /// Dropped: the tag does not fit.
    pub dropped_forged: u64,
    /// Dropped: a datagram with the same number was opened (seal-14).
    pub dropped_replay: u64,
    /// Dropped: the number is below the replay window (seal-14).
    pub replay_too_old: u64,
    /// Kept until the client is verified (seal-2).
    pub kept: u64,
    /// Dropped: too much is kept already (seal-2).
    pub dropped_unverified: u64,
    /// Hints that put a path in doubt (seal-9).
    pub hints_believed: u64,
    /// Hints that did not (seal-9).
    pub hints_ignored: u64,
    /// Updates of keys with which this node seals (seal-15).
    pub key_updates: u64,
}
