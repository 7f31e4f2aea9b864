//! Limits on the requests that are in service at a time.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::code::Code;
use crate::status::Status;

/// Counts the requests in service, of all peers and of each.
#[derive(Debug)]
pub(crate) struct Admission {
    in_service: AtomicUsize,
    limit: usize,
    per_peer: Option<PerPeer>,
    /// Requests of built-in methods, which no limit counts.
    built_in: AtomicUsize,
    /// Requests whose handler was dropped before its end, without built-in ones.
    given_up: AtomicUsize,
    /// Set by the end of a server, which waits until no request is in service.
    is_ending: AtomicBool,
    last: Mutex<Option<Waker>>,
}

#[derive(Debug)]
struct PerPeer {
    limit: usize,
    /// Peers with a request in service; never more than there are such requests.
    in_service: Mutex<HashMap<SocketAddr, usize>>,
}

impl PerPeer {
    fn in_service(&self) -> MutexGuard<'_, HashMap<SocketAddr, usize>> {
        self.in_service.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that was admitted. It leaves when this is dropped, unless it [stays](Self::stay).
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    admission: &'a Admission,
    place: Option<Admittance>,
}

/// The place of a request in service, which is given back by [`Admission::leave`].
#[derive(Debug)]
#[must_use = "a place is given back"]
pub(crate) struct Admittance {
    /// The peer, if the requests of each are counted.
    peer: Option<SocketAddr>,
    is_built_in: bool,
}

impl Admission {
    pub(crate) fn new(limit: usize, per_peer: Option<usize>) -> Self {
        let per_peer = per_peer.map(|limit| PerPeer { limit, in_service: Mutex::default() });
        Self {
            in_service: AtomicUsize::new(0),
            limit,
            per_peer,
            built_in: AtomicUsize::new(0),
            given_up: AtomicUsize::new(0),
            is_ending: AtomicBool::new(false),
            last: Mutex::new(None),
        }
    }

    /// Waits until no request is in service. One task may wait at a time.
    pub(crate) fn idle(&self) -> impl Future<Output = ()> + use<'_> {
        self.until_zero(&self.in_service)
    }

    /// As [`idle`](Self::idle), for requests of built-in methods.
    pub(crate) fn idle_built_in(&self) -> impl Future<Output = ()> + use<'_> {
        self.until_zero(&self.built_in)
    }

    fn until_zero<'a>(&'a self, number: &'a AtomicUsize) -> impl Future<Output = ()> + use<'a> {
        self.is_ending.store(true, Ordering::SeqCst);
        poll_fn(move |task| {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.waker().clone());
            if number.load(Ordering::SeqCst) == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
    }

    /// Number of requests so far whose handler was dropped before its end.
    pub(crate) fn given_up(&self) -> usize {
        self.given_up.load(Ordering::SeqCst)
    }

    /// The handler of a request is dropped before its end.
    pub(crate) fn note_given_up(&self, place: &Admittance) {
        if !place.is_built_in {
            self.given_up.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Takes a place for a request of a built-in method.
    pub(crate) fn admit_built_in(&self) -> Permit<'_> {
        self.built_in.fetch_add(1, Ordering::SeqCst);
        Permit { admission: self, place: Some(Admittance { peer: None, is_built_in: true }) }
    }

    /// Number of requests in service.
    pub(crate) fn in_service(&self) -> usize {
        self.in_service.load(Ordering::SeqCst)
    }

    /// Takes a place for a request of this peer, unless a limit is reached.
    pub(crate) fn admit(&self, peer: SocketAddr) -> Result<Permit<'_>, Status> {
        if self.in_service.fetch_add(1, Ordering::SeqCst) >= self.limit {
            self.in_service.fetch_sub(1, Ordering::SeqCst);
            let text = format!("{} requests are in service: the limit (concurrency)", self.limit);
            return Err(Status::new(Code::ResourceExhausted, text).not_executed());
        }
        let mut permit =
            Permit { admission: self, place: Some(Admittance { peer: None, is_built_in: false }) };
        let Some(per_peer) = &self.per_peer else { return Ok(permit) };
        let mut peers = per_peer.in_service();
        let count = peers.entry(peer).or_default();
        if *count >= per_peer.limit {
            let limit = per_peer.limit;
            if *count == 0 {
                peers.remove(&peer);
            }
            let text =
                format!("{limit} requests of this peer are in service: the limit (per_peer)");
            return Err(Status::new(Code::ResourceExhausted, text).not_executed());
        }
        *count += 1;
        permit.place = Some(Admittance { peer: Some(peer), is_built_in: false });
        Ok(permit)
    }

    /// Gives a place back.
    pub(crate) fn leave(&self, place: Admittance) {
        if let (Some(peer), Some(per_peer)) = (place.peer, &self.per_peer) {
            let mut peers = per_peer.in_service();
            if let Some(count) = peers.get_mut(&peer) {
                *count -= 1;
                if *count == 0 {
                    peers.remove(&peer);
                }
            }
        }
        let number = if place.is_built_in { &self.built_in } else { &self.in_service };
        let was_last = number.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last && self.is_ending.load(Ordering::SeqCst) {
            let waker = self.last.lock().unwrap_or_else(PoisonError::into_inner).take();
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

impl Permit<'_> {
    /// The request goes on: its place is given back later.
    pub(crate) fn stay(mut self) -> Admittance {
        self.place.take().expect("it is taken once")
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.admission.leave(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, number], 20146))
    }

    #[test]
    fn a_peer_has_its_share_and_all_have_a_limit() {
        let admission = Admission::new(3, Some(2));
        let first = admission.admit(peer(1)).expect("room for all");
        let _second = admission.admit(peer(1)).expect("room for all");
        let status = admission.admit(peer(1)).expect_err("the peer has two");
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(!status.may_have_executed() && status.message().contains("per_peer"), "{status}");
        let third = admission.admit(peer(2)).expect("room for another peer");
        let status = admission.admit(peer(3)).expect_err("three are in service");
        assert!(status.message().contains("concurrency"), "{status}");
        drop(first);
        admission.admit(peer(1)).expect("room again");
        drop(third);
        assert_eq!(admission.in_service(), 1);
        let peers = admission.per_peer.as_ref().expect("a limit").in_service();
        assert_eq!(peers.len(), 1, "a peer without a request has no entry");
    }
}
