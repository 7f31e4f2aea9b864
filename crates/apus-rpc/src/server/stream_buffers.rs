//! Bytes of streams that wait at a server outside of the budgets of its node, and the limits on them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts the waiting bytes of all streams, and those of each host.
//= docs/rpc-wire.md#E24
#[derive(Debug)]
pub(crate) struct StreamBuffers {
    all: AtomicUsize,
    limit: usize,
    per_host: usize,
    /// Hosts of which bytes were counted, as long as they have streams.
    hosts: Mutex<HashMap<IpAddr, Arc<AtomicUsize>>>,
}

/// The waiting bytes of one direction of a stream.
#[derive(Debug)]
pub(crate) struct BufferShare {
    buffers: Arc<StreamBuffers>,
    host: IpAddr,
    /// Those of the host, once there were any.
    of_host: Option<Arc<AtomicUsize>>,
    bytes: usize,
}

impl StreamBuffers {
    pub(crate) fn new(limit: usize, per_host: usize) -> Self {
        Self { all: AtomicUsize::new(0), limit, per_host, hosts: Mutex::default() }
    }

    fn hosts(&self) -> MutexGuard<'_, HashMap<IpAddr, Arc<AtomicUsize>>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The share of a stream of this host.
    pub(crate) fn share(self: &Arc<Self>, host: IpAddr) -> BufferShare {
        BufferShare { buffers: Arc::clone(self), host, of_host: None, bytes: 0 }
    }
}

impl BufferShare {
    /// Adds bytes if they have room.
    pub(crate) fn try_add(&mut self, bytes: usize) -> bool {
        if bytes == 0 {
            return true;
        }
        let (all, of_host) = self.add(bytes);
        if all > self.buffers.limit || of_host > self.buffers.per_host {
            self.remove(bytes);
            return false;
        }
        true
    }

    /// Removes bytes.
    pub(crate) fn remove(&mut self, bytes: usize) {
        if bytes > 0 {
            self.bytes -= bytes;
            self.buffers.all.fetch_sub(bytes, Ordering::Relaxed);
            if let Some(of_host) = &self.of_host {
                of_host.fetch_sub(bytes, Ordering::Relaxed);
            }
        }
    }

    /// Makes it this number of bytes, whether or not there is room.
    pub(crate) fn set(&mut self, bytes: usize) {
        if bytes > self.bytes {
            let _ = self.add(bytes - self.bytes);
        } else {
            self.remove(self.bytes - bytes);
        }
    }

    /// Whether there is room for further bytes.
    pub(crate) fn has_room(&self) -> bool {
        let of_host = self.of_host.as_ref().map_or(0, |it| it.load(Ordering::Relaxed));
        let all = self.buffers.all.load(Ordering::Relaxed);
        all < self.buffers.limit && of_host < self.buffers.per_host
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds bytes, and returns those of all streams and those of the host.
    fn add(&mut self, bytes: usize) -> (usize, usize) {
        let of_host = self.of_host.get_or_insert_with(|| {
            let mut hosts = self.buffers.hosts();
            Arc::clone(hosts.entry(self.host).or_default())
        });
        self.bytes += bytes;
        let of_host = of_host.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let all = self.buffers.all.fetch_add(bytes, Ordering::Relaxed) + bytes;
        (all, of_host)
    }
}

impl Drop for BufferShare {
    fn drop(&mut self) {
        self.remove(self.bytes);
        if let Some(of_host) = self.of_host.take() {
            let mut hosts = self.buffers.hosts();
            // Under the lock: of two last shares that are dropped at a time, the second one finds the entry alone.
            drop(of_host);
            if hosts.get(&self.host).is_some_and(|entry| Arc::strong_count(entry) == 1) {
                hosts.remove(&self.host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::thread;

    use super::*;

    #[test]
    fn a_host_has_its_share_and_all_have_a_limit() {
        let buffers = Arc::new(StreamBuffers::new(100, 60));
        let host = |number| IpAddr::V4(Ipv4Addr::new(10, 0, 0, number));
        let (mut first, mut second) = (buffers.share(host(1)), buffers.share(host(1)));
        assert!(first.try_add(50));
        assert!(!second.try_add(20), "the host has 50 of 60");
        assert!(second.try_add(0) && second.try_add(10) && !second.has_room());
        let mut other = buffers.share(host(2));
        assert!(!other.try_add(50), "all have 60 of 100");
        assert!(other.try_add(40));
        first.remove(30);
        assert!(second.try_add(20));
        second.set(5);
        assert_eq!((first.bytes(), second.bytes(), other.bytes()), (20, 5, 40));
        drop((first, other));
        assert_eq!(buffers.all.load(Ordering::Relaxed), 5);
        assert_eq!(buffers.hosts().len(), 1, "a host without streams has no entry");
        drop(second);
        assert_eq!((buffers.all.load(Ordering::Relaxed), buffers.hosts().len()), (0, 0));
    }

    #[test]
    fn hosts_whose_last_shares_are_dropped_at_a_time_leave_no_entry() {
        let buffers = Arc::new(StreamBuffers::new(usize::MAX, usize::MAX));
        let shares = || -> Vec<BufferShare> {
            let share = |number: u32| {
                let mut share = buffers.share(IpAddr::V4(Ipv4Addr::from_bits(number)));
                assert!(share.try_add(1));
                share
            };
            (0..50_000).map(share).collect()
        };
        let threads = [shares(), shares()].map(|shares| thread::spawn(move || drop(shares)));
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!((buffers.all.load(Ordering::Relaxed), buffers.hosts().len()), (0, 0));
    }
}
