//! What the shards of a node tell each other, so that together they grant, send and hold no more than
//! one engine would.

use std::net::SocketAddr;
use std::sync::Arc;

use apus_net::shard_of;
use apus_proto::HostLoad;

use crate::sync::{AtomicU64, Ordering};

/// One shard's view of all of them.
#[derive(Debug)]
pub(crate) struct ShardLoads {
    loads: Arc<[Load]>,
    me: usize,
}

/// A shard's load, as it was when it last sent; on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Load {
    expected: AtomicU64,
    granting: AtomicU64,
    sent: AtomicU64,
    sending: AtomicU64,
    held: AtomicU64,
    peers: AtomicU64,
    calls: AtomicU64,
}

impl ShardLoads {
    /// A view for each of several shards.
    pub(crate) fn of(shards: usize) -> impl Iterator<Item = Self> {
        let loads: Arc<[Load]> = (0..shards).map(|_| Load::default()).collect();
        (0..shards).map(move |me| Self { loads: Arc::clone(&loads), me })
    }

    /// The traffic with this peer is this shard's.
    pub(crate) fn is_mine(&self, peer: SocketAddr) -> bool {
        shard_of(peer, self.loads.len()) == self.me
    }

    /// What the others hold, summed. The parts may be of slightly different moments.
    pub(crate) fn others(&self) -> HostLoad {
        let others = self.loads.iter().enumerate().filter(|(shard, _)| *shard != self.me);
        others.map(|(_, load)| load.read()).sum()
    }

    /// Tells the others what this one holds.
    pub(crate) fn publish(&self, load: HostLoad) {
        let cell = &self.loads[self.me];
        cell.expected.store(load.expected, Ordering::Relaxed);
        cell.granting.store(load.granting, Ordering::Relaxed);
        cell.sent.store(load.sent, Ordering::Relaxed);
        cell.sending.store(load.sending, Ordering::Relaxed);
        cell.held.store(load.held, Ordering::Relaxed);
        cell.peers.store(load.peers, Ordering::Relaxed);
        cell.calls.store(load.calls, Ordering::Relaxed);
    }
}

impl Load {
    fn read(&self) -> HostLoad {
        HostLoad {
            expected: self.expected.load(Ordering::Relaxed),
            granting: self.granting.load(Ordering::Relaxed),
            sent: self.sent.load(Ordering::Relaxed),
            sending: self.sending.load(Ordering::Relaxed),
            held: self.held.load(Ordering::Relaxed),
            peers: self.peers.load(Ordering::Relaxed),
            calls: self.calls.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sees_what_the_others_hold() {
        let shards: Vec<_> = ShardLoads::of(3).collect();
        for (shard, expected) in shards.iter().zip([1, 10, 100]) {
            shard.publish(HostLoad { expected, ..HostLoad::default() });
        }
        let others: Vec<_> = shards.iter().map(|shard| shard.others().expected).collect();
        assert_eq!(others, [110, 101, 11]);
    }
}
