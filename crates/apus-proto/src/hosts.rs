//! Joint charges to the peers of one host (rule `hostile-12`). A host can have any number of tokens, and counts as one peer.

use std::collections::BTreeMap;

use crate::slab::PeerKey;
use crate::usage::{Account, Usage};

/// A host with several peers, by its index in [`Hosts`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HostKey(u32);

/// The hosts of the peers, as their links identify them.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    by_number: BTreeMap<u32, Host>,
    /// Usage of hosts that have had several peers at a time. The requests of a host's only peer are charged to that peer alone.
    usages: Vec<Usage>,
    free: Vec<HostKey>,
}

#[derive(Debug)]
struct Host {
    peers: u32,
    first: PeerKey,
    shared: Option<HostKey>,
}

/// Accounting of a newly known peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Joined {
    /// The only peer of its host, or a peer of an unknown host.
    Alone,
    /// The host has a joint usage already.
    Shared(HostKey),
    /// The host had this one other peer, and has a joint usage from now on.
    Second(HostKey, PeerKey),
}

impl Hosts {
    /// Adds a peer of the host with this number.
    pub(crate) fn join(&mut self, number: u32, peer: PeerKey) -> Joined {
        if number == 0 {
            return Joined::Alone;
        }
        let new = || Host { peers: 0, first: peer, shared: None };
        let host = self.by_number.entry(number).or_insert_with(new);
        host.peers = host.peers.saturating_add(1);
        if let Some(key) = host.shared {
            return Joined::Shared(key);
        }
        if host.peers < 2 {
            return Joined::Alone;
        }
        let key = self.free.pop().unwrap_or_else(|| {
            self.usages.push(Usage::default());
            HostKey(u32::try_from(self.usages.len().saturating_sub(1)).expect("few peers"))
        });
        host.shared = Some(key);
        Joined::Second(key, host.first)
    }

    /// Removes a peer of the host with this number, after its charges were subtracted.
    pub(crate) fn leave(&mut self, number: u32) {
        let Some(host) = self.by_number.get_mut(&number) else { return };
        host.peers = host.peers.saturating_sub(1);
        if host.peers == 0 {
            self.free.extend(host.shared);
            self.by_number.remove(&number);
        }
    }

    /// Returns the charges to a host for the requests of its peers and their responses.
    #[inline]
    pub(crate) fn usage(&self, key: HostKey) -> &Usage {
        &self.usages[key.0 as usize]
    }

    #[inline]
    pub(crate) fn usage_mut(&mut self, key: HostKey) -> &mut Usage {
        &mut self.usages[key.0 as usize]
    }

    /// Adds a peer's charges to its host's.
    pub(crate) fn add(&mut self, key: HostKey, peer: &Usage) {
        let usage = self.usage_mut(key);
        let theirs = Account::Theirs as usize;
        usage.charged = usage.charged.saturating_add(peer.theirs);
        usage.theirs = usage.theirs.saturating_add(peer.theirs);
        usage.ours[theirs] = usage.ours[theirs].saturating_add(peer.ours[theirs]);
        usage.exempt[theirs] = usage.exempt[theirs].or(peer.exempt[theirs]);
        for (length, rpc) in peer.all_arriving(Account::Theirs) {
            usage.begin(Account::Theirs, length, rpc);
        }
    }

    /// Subtracts a peer's charges from its host's.
    pub(crate) fn subtract(&mut self, key: HostKey, peer: &Usage) {
        let usage = self.usage_mut(key);
        let theirs = Account::Theirs as usize;
        usage.charged = usage.charged.saturating_sub(peer.theirs);
        usage.theirs = usage.theirs.saturating_sub(peer.theirs);
        usage.ours[theirs] = usage.ours[theirs].saturating_sub(peer.ours[theirs]);
        for (length, rpc) in peer.all_arriving(Account::Theirs) {
            usage.end(Account::Theirs, length, rpc);
        }
    }
}
