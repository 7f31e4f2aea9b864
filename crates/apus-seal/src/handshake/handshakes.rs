//! The handshakes of a server: their limits, and the state of each (rule seal-4).
//!
//! The work is split between two threads:
//!
//! ```text
//! under the engine's lock (below 1 µs)         worker thread, without a lock (100 to 200 µs)
//!   Handshakes::handle_request  ── Work<T> ──▶    Work::run
//!   Handshakes::finish          ◀── Worked<T> ──
//!   answer the call; install the path
//! ```
//!
//! While a handshake is with the worker, its place stays taken and holds no session, so a second CONTINUE is refused. If its time
//! passes meanwhile, the place is free at once, and the result of the work is dropped when it comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use crate::AssociationId;
use crate::handshake::failure::{HandshakeError, Limit};
use crate::handshake::frame::{Hello, Request};
use crate::handshake::sides::{Introduction, ServerHandshake, ServerOffer, ServerStep, Tls};

/// The limits of a server's handshakes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HandshakeLimits {
    /// Handshakes at a time: 1 to 1,024, the default. Each takes about 13 KB.
    pub places: u16,
    /// Handshakes at a time of one host, which is an IPv4 address or a /64 of IPv6. Default 8.
    pub per_host: u16,
    /// Handshakes that one host may begin in a second. Default 20.
    pub per_host_and_second: u16,
    /// Time for a handshake. Default 5 s.
    pub time: Duration,
    /// Time for a handshake while three quarters of the places are taken. Default 1 s.
    pub time_if_crowded: Duration,
}

impl Default for HandshakeLimits {
    fn default() -> Self {
        Self {
            places: PLACES_MAX,
            per_host: 8,
            per_host_and_second: 20,
            time: Duration::from_secs(5),
            time_if_crowded: Duration::from_secs(1),
        }
    }
}

/// A host: limits count all addresses of one together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Host(IpAddr);

impl Host {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(address.into()),
            IpAddr::V6(address) => {
                let network = address.to_bits() >> 64 << 64;
                Self(Ipv6Addr::from_bits(network).into())
            }
        }
    }
}

/// A request of a handshake, as its call shows it.
#[derive(Debug)]
pub struct Arrival {
    /// The address of the client.
    pub address: IpAddr,
    /// The deadline of the call, if it has one.
    pub deadline: Option<Duration>,
    /// The body.
    pub body: Vec<u8>,
    /// A random number, from which the handle of a new handshake is made.
    pub random: u64,
}

/// The handshakes of a server. Times are those of one clock that does not go back.
pub struct Handshakes<T> {
    limits: HandshakeLimits,
    places: Vec<Option<Place<T>>>,
    free: Vec<u16>,
    /// Places by the end of their time.
    by_deadline: BTreeSet<(Duration, u16)>,
    /// Places by the begin of their handshake.
    by_age: BTreeSet<(Duration, u16)>,
    under_way: BTreeMap<Host, u16>,
    /// Handshakes that hosts began in the second `current_second`.
    begun: BTreeMap<Host, u16>,
    current_second: u64,
    /// Ids of handshakes that have ended without a path.
    ended: Vec<AssociationId>,
}

struct Place<T> {
    handle: u64,
    /// The server's id of the association.
    id: AssociationId,
    /// The address from which HELLO came.
    address: IpAddr,
    host: Host,
    began: Duration,
    deadline: Duration,
    /// `None` while the handshake is with the worker.
    handshake: Option<Box<ServerHandshake<T>>>,
}

impl<T: Tls> Handshakes<T> {
    /// Creates an empty table.
    ///
    /// # Panics
    ///
    /// If `limits.places` is not 1 to 1,024.
    #[must_use]
    pub fn new(limits: HandshakeLimits) -> Self {
        assert!(
            matches!(limits.places, 1..=PLACES_MAX),
            "1 to 1,024 places, not {}",
            limits.places
        );
        Self {
            limits,
            places: (0..limits.places).map(|_| None).collect(),
            free: (0..limits.places).rev().collect(),
            by_deadline: BTreeSet::new(),
            by_age: BTreeSet::new(),
            under_way: BTreeMap::new(),
            begun: BTreeMap::new(),
            current_second: 0,
            ended: Vec::new(),
        }
    }

    //= docs/protocol.md#seal-4
    /// Takes a request to [`SECURE_PORT`](crate::SECURE_PORT), and returns the work that it makes. For a HELLO within the limits,
    /// `offer` gives the server's fields and a new session, or refuses; it must do no public-key work.
    ///
    /// # Errors
    ///
    /// The request is refused. [`HandshakeError::fail`] is the answer.
    pub fn handle_request(
        &mut self,
        now: Duration,
        arrival: Arrival,
        offer: impl FnOnce(&Hello<'_>) -> Result<ServerOffer<T>, HandshakeError>,
    ) -> Result<Work<T>, HandshakeError> {
        self.expire(now);
        match Request::parse(&arrival.body)? {
            Request::Hello(hello) => {
                let host = Host::of(arrival.address);
                let index = self.admit(now, host)?;
                let handle = arrival.random << INDEX_BITS | u64::from(index);
                let offer = offer(&hello)?;
                let id = offer.end.id;
                let handshake = ServerHandshake::begin(handle, &hello, &arrival.body, offer)
                    .inspect_err(|_| self.ended.push(id))?;
                let time_out = now + self.limits.time;
                let deadline = arrival.deadline.map_or(time_out, |call| call.min(time_out));
                let address = arrival.address;
                let place =
                    Place { handle, id, address, host, began: now, deadline, handshake: None };
                self.take(index, place);
                Ok(Work { handle, handshake: Box::new(handshake), body: arrival.body })
            }
            Request::Continue(go_on) => {
                //= docs/protocol.md#seal-2
                // A copy from a forged address neither ends the handshake nor becomes its client.
                let place = self.place(go_on.handle).filter(|it| it.address == arrival.address);
                let place = place.ok_or(HandshakeError::UnknownHandle)?;
                let handshake = place.handshake.take().ok_or(HandshakeError::OutOfOrder)?;
                Ok(Work { handle: go_on.handle, handshake, body: arrival.body })
            }
        }
    }

    /// Takes the result of work, and returns the answer to the call.
    pub fn finish(&mut self, worked: Worked<T>) -> HandshakeAnswer {
        let Worked { handle, handshake, result } = worked;
        let Some(place) = self.place(handle) else {
            return HandshakeAnswer::failed(HandshakeError::UnknownHandle);
        };
        match result {
            Ok(ServerStep::Reply(body)) => {
                place.handshake = Some(handshake);
                HandshakeAnswer::Reply(body)
            }
            Ok(ServerStep::Introduced(introduction, body)) => {
                self.release(index_of(handle));
                HandshakeAnswer::Introduced(introduction, body)
            }
            Err(error) => {
                self.end(index_of(handle));
                HandshakeAnswer::failed(error)
            }
        }
    }

    //= docs/protocol.md#seal-4
    /// Ends the handshakes whose time has passed, and returns their number.
    pub fn expire(&mut self, now: Duration) -> usize {
        let mut expired = 0;
        while let Some((_, index)) = self.next_to_end().filter(|&(time, _)| time <= now) {
            self.end(index);
            expired += 1;
        }
        expired
    }

    /// Returns the time at which [`Handshakes::expire`] has work.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        self.next_to_end().map(|(time, _)| time)
    }

    /// Returns the id that a handshake had reserved and that ended without a path, once for each.
    pub fn poll_ended(&mut self) -> Option<AssociationId> {
        self.ended.pop()
    }

    /// Returns the number of handshakes under way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Returns whether no handshake is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the place for a new handshake of the host, and counts it towards the rate of the host.
    fn admit(&mut self, now: Duration, host: Host) -> Result<u16, HandshakeError> {
        if now.as_secs() != self.current_second {
            self.current_second = now.as_secs();
            self.begun.clear();
        }
        let index = *self.free.last().ok_or(HandshakeError::Busy(Limit::Places))?;
        if self.under_way.get(&host).is_some_and(|&count| count >= self.limits.per_host) {
            return Err(HandshakeError::Busy(Limit::PerHost));
        }
        if self.begun.len() == HOSTS_MAX && !self.begun.contains_key(&host) {
            return Err(HandshakeError::Busy(Limit::Hosts));
        }
        let begun = self.begun.entry(host).or_default();
        if *begun >= self.limits.per_host_and_second {
            return Err(HandshakeError::Busy(Limit::PerHostAndSecond));
        }
        *begun += 1;
        Ok(index)
    }

    fn place(&mut self, handle: u64) -> Option<&mut Place<T>> {
        let place = self.places.get_mut(usize::from(index_of(handle)))?.as_mut();
        place.filter(|place| place.handle == handle)
    }

    /// Returns the place whose time ends next, and that time.
    fn next_to_end(&self) -> Option<(Duration, u16)> {
        let is_crowded = self.len() * 4 >= self.places.len() * 3;
        let oldest = self.by_age.first().filter(|_| is_crowded);
        let oldest = oldest.map(|&(began, index)| (began + self.limits.time_if_crowded, index));
        self.by_deadline.first().copied().into_iter().chain(oldest).min()
    }

    fn take(&mut self, index: u16, place: Place<T>) {
        self.free.pop();
        self.by_deadline.insert((place.deadline, index));
        self.by_age.insert((place.began, index));
        *self.under_way.entry(place.host).or_default() += 1;
        self.places[usize::from(index)] = Some(place);
    }

    /// Ends a handshake without a path.
    fn end(&mut self, index: u16) {
        let place = self.release(index);
        self.ended.extend(place.map(|place| place.id));
    }

    fn release(&mut self, index: u16) -> Option<Place<T>> {
        let place = self.places[usize::from(index)].take()?;
        self.free.push(index);
        self.by_deadline.remove(&(place.deadline, index));
        self.by_age.remove(&(place.began, index));
        if let Some(count) = self.under_way.get_mut(&place.host) {
            *count -= 1;
            if *count == 0 {
                self.under_way.remove(&place.host);
            }
        }
        Some(place)
    }
}

/// A frame and the handshake that it belongs to: work for a thread that does not hold the engine's lock.
pub struct Work<T> {
    handle: u64,
    handshake: Box<ServerHandshake<T>>,
    body: Vec<u8>,
}

impl<T: Tls> Work<T> {
    /// Does the public-key work.
    #[must_use]
    pub fn run(mut self) -> Worked<T> {
        let result = self.handshake.handle_request(&self.body);
        Worked { handle: self.handle, handshake: self.handshake, result }
    }

    /// Returns whether the work refreshes a path, and so goes before other work.
    #[must_use]
    pub fn is_refresh(&self) -> bool {
        self.handshake.is_refresh()
    }
}

/// Work that is done, for [`Handshakes::finish`].
pub struct Worked<T> {
    handle: u64,
    handshake: Box<ServerHandshake<T>>,
    result: Result<ServerStep, HandshakeError>,
}

/// The answer to a request.
#[derive(Debug)]
pub enum HandshakeAnswer {
    /// TLS goes on: answer with this body.
    Reply(Vec<u8>),
    /// The client is verified: install the path, then answer with this body.
    Introduced(Box<Introduction>, Vec<u8>),
    /// The handshake has failed: answer with this body, and log the error.
    Failed(HandshakeError, Vec<u8>),
}

impl HandshakeAnswer {
    fn failed(error: HandshakeError) -> Self {
        let body = error.fail().emit();
        Self::Failed(error, body)
    }
}

const PLACES_MAX: u16 = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 10;

/// The most hosts whose rate is counted in one second. One core accepts fewer handshakes in a second.
const HOSTS_MAX: usize = 16_384;

fn index_of(handle: u64) -> u16 {
    u16::try_from(handle % u64::from(PLACES_MAX)).expect("the index has 10 bits")
}
