//! Charges to a budget, and for an RPC.

use std::collections::BTreeSet;
use std::ops::Bound;

use crate::slab::RpcKey;

/// Bytes charged for an RPC beside its messages, which bounds tiny requests too.
pub(crate) const RPC_BYTES: u64 = 512;

/// Owner of kept bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Account {
    /// An own call.
    Own,
    /// A request of others, and its response.
    Theirs,
}

/// Charges to one budget.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// All charged bytes.
    pub(crate) charged: u64,
    /// Part of `charged` for requests of others and their responses.
    pub(crate) theirs: u64,
    /// Bytes for outgoing messages, by account: requests of unfinished calls, and responses to requests of others.
    pub(crate) ours: [u64; 2],
    /// The outgoing message of each account that had no room and began because it was the only one.
    pub(crate) exempt: [Option<RpcKey>; 2],
    /// Arriving messages by length, for each account.
    arriving: [BTreeSet<(u32, RpcKey)>; 2],
    /// Length of the longest arriving message of each account.
    longest: [u32; 2],
    /// Sum of `longest`: an upper bound on the bytes reserved in the budget.
    reserved_max: u64,
}

impl Usage {
    pub(crate) fn begin(&mut self, account: Account, length: u32, rpc: RpcKey) {
        self.arriving[account as usize].insert((length, rpc));
        self.note_longest(account);
    }

    pub(crate) fn end(&mut self, account: Account, length: u32, rpc: RpcKey) {
        self.arriving[account as usize].remove(&(length, rpc));
        self.note_longest(account);
    }

    /// Charges bytes that belong to no RPC.
    #[inline]
    pub(crate) fn add(&mut self, change: i64) {
        self.charged = self.charged.saturating_add_signed(change);
    }

    fn note_longest(&mut self, account: Account) {
        self.longest[account as usize] = self.longest(account).map_or(0, |(length, _)| length);
        self.reserved_max = self.longest.map(u64::from).iter().sum();
    }

    /// Returns the arriving messages of an account, by length.
    pub(crate) fn all_arriving(
        &self,
        account: Account,
    ) -> impl Iterator<Item = (u32, RpcKey)> + '_ {
        self.arriving[account as usize].iter().copied()
    }

    /// Returns the arriving messages of an account, by length, beginning after a place.
    pub(crate) fn arriving(
        &self,
        account: Account,
        after: (u32, RpcKey),
    ) -> impl Iterator<Item = (u32, RpcKey)> + '_ {
        let all = &self.arriving[account as usize];
        let behind = all.range((Bound::Excluded(after), Bound::Unbounded));
        behind.chain(all.range(..=after)).copied()
    }

    /// Returns whether any message is arriving.
    #[inline]
    pub(crate) fn are_arriving(&self) -> bool {
        self.reserved_max > 0
    }

    pub(crate) fn longest(&self, account: Account) -> Option<(u32, RpcKey)> {
        self.arriving[account as usize].last().copied()
    }

    /// Returns whether a budget of `budget` bytes, with charges of `others`, has room for `bytes` more for any purpose.
    #[inline]
    pub(crate) fn has_plenty(&self, bytes: u64, others: u64, budget: u64) -> bool {
        self.charged + others + bytes + self.reserved_max <= budget / 2
    }

    /// Returns the bytes for which [`has_plenty`](Self::has_plenty) is true.
    pub(crate) fn plenty(&self, others: u64, budget: u64) -> u64 {
        (budget / 2).saturating_sub(self.charged + others + self.reserved_max)
    }

    /// Returns the bytes that may be charged more for a complete message. The budget has `all` bytes, of which requests of others
    /// may use `theirs`, and charges of `others`.
    #[inline]
    pub(crate) fn room(&self, others: u64, account: Account, all: u64, theirs: u64) -> u64 {
        let besides = others + self.reserved_max;
        let of_all = all.saturating_sub(self.charged + besides);
        match account {
            Account::Own => of_all,
            Account::Theirs => of_all.min(theirs.saturating_sub(self.theirs + besides)),
        }
    }

    pub(crate) fn is_longest(&self, account: Account, rpc: RpcKey) -> bool {
        self.longest(account).is_some_and(|(_, longest)| longest == rpc)
    }
}

/// Charges for one RPC, in each of its budgets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Charge {
    pub(crate) bytes: u64,
    /// Part of `bytes` for an outgoing message.
    pub(crate) ours: u64,
    /// Whether they are also charged to the pool of unconfirmed clients.
    pub(crate) unconfirmed: bool,
}

/// The difference between two charges of an RPC: the same in each of its budgets.
#[derive(Clone, Copy)]
pub(crate) struct Change {
    bytes: i64,
    /// The part of them for requests of others: all or none.
    theirs: i64,
    ours: i64,
    account: Account,
}

impl Change {
    #[inline]
    pub(crate) fn new(before: Charge, now: Charge, account: Account) -> Self {
        let bytes = now.bytes.wrapping_sub(before.bytes).cast_signed();
        let ours = now.ours.wrapping_sub(before.ours).cast_signed();
        let theirs = if account == Account::Theirs { bytes } else { 0 };
        Self { bytes, theirs, ours, account }
    }

    #[inline]
    pub(crate) fn is_for_others(self) -> bool {
        self.account == Account::Theirs
    }

    #[inline]
    pub(crate) fn apply(self, usage: &mut Usage) {
        usage.charged = usage.charged.wrapping_add_signed(self.bytes);
        usage.theirs = usage.theirs.wrapping_add_signed(self.theirs);
        let ours = &mut usage.ours[self.account as usize];
        *ours = ours.wrapping_add_signed(self.ours);
    }
}

impl Account {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Own => Self::Theirs,
            Self::Theirs => Self::Own,
        }
    }
}
