//! The endpoints of a channel: the list, the choice among them, and the ejected ones.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::task::Waker;
use std::time::Instant;

use apus::Address;

use crate::client::balance::{Candidates, Pick, below};
use crate::client::channel_counters::{ChannelCounters, count};
use crate::client::ejection::{Ejections, FAILURES_MAX};
use crate::client::endpoint_state::{EndpointState, InFlight};
use crate::client::failure::EndpointOutcome;
use crate::client::resolve::{ENDPOINTS_MAX, Endpoint, Resolve};
use crate::client::tried::Tried;

/// The endpoints of a channel. A choice takes a read lock, and allocates nothing.
pub(crate) struct EndpointSet {
    lists: RwLock<Lists>,
    ejections: Mutex<Ejections>,
    pick: Box<dyn Pick>,
    /// Number of choices.
    picks: AtomicU64,
    /// Number of random numbers beside those of choices.
    randoms: AtomicU64,
    seed: u64,
    resolver: Arc<dyn Resolve>,
    pub(crate) counters: ChannelCounters,
    /// The task that contacts endpoints whose ejection ends.
    upkeep: Mutex<Option<Waker>>,
}

#[derive(Default)]
struct Lists {
    all: Vec<Arc<EndpointState>>,
    /// Those that are not ejected, and serve.
    ready: Vec<Arc<EndpointState>>,
    /// Number of the next endpoint.
    next: u32,
}

/// An endpoint of a channel at one moment. From [`Channel::endpoints`](crate::Channel::endpoints).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct EndpointStatus {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Whether it gets no calls at present, because it has failed or drains.
    pub is_ejected: bool,
    /// Whether its service serves, as it says; see [`ChannelBuilder::health`](crate::ChannelBuilder::health). True without that.
    pub is_healthy: bool,
    /// The load that the channel puts on it; see [`Candidates::load`].
    pub load: u64,
    /// Failures since its last answer.
    pub failures: u32,
}

impl EndpointSet {
    pub(crate) fn new(pick: Box<dyn Pick>, seed: u64, resolver: Arc<dyn Resolve>) -> Self {
        Self {
            lists: RwLock::default(),
            ejections: Mutex::default(),
            pick,
            picks: AtomicU64::new(0),
            randoms: AtomicU64::new(0),
            seed,
            resolver,
            counters: ChannelCounters::default(),
            upkeep: Mutex::default(),
        }
    }

    fn lists(&self) -> RwLockReadGuard<'_, Lists> {
        self.lists.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn ejections(&self) -> MutexGuard<'_, Ejections> {
        self.ejections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A random number, the next one of a sequence that is not that of choices.
    pub(crate) fn random(&self) -> u64 {
        mixed(!self.seed, self.randoms.fetch_add(1, Ordering::Relaxed))
    }

    /// Takes a new list, up to its [`ENDPOINTS_MAX`]. An empty one changes nothing. Endpoints that were in the list before keep
    /// their state.
    pub(crate) fn update(&self, endpoints: Vec<Endpoint>) {
        if endpoints.is_empty() {
            return;
        }
        let mut ejections = self.ejections();
        let mut lists = self.lists.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut lists.all);
        for endpoint in endpoints.into_iter().take(ENDPOINTS_MAX) {
            let known = before.iter().find(|state| state.endpoint == endpoint);
            let state = known.cloned().unwrap_or_else(|| {
                lists.next = lists.next.wrapping_add(1);
                Arc::new(EndpointState::new(endpoint, lists.next))
            });
            lists.all.push(state);
        }
        ejections.retain(|address| lists.all.iter().any(|it| it.endpoint.address() == address));
        lists.refresh(&ejections);
    }

    /// Chooses an endpoint for a request of this length, one where the call was not tried if there is one. If all are ejected,
    /// one of them is chosen. `None` without endpoints.
    pub(crate) fn begin(&self, tried: &Tried, length: usize) -> Option<InFlight> {
        let lists = self.lists();
        let states = lists.choice();
        let count = states.len();
        let state = match count {
            0 => return None,
            1 => &states[0],
            _ => {
                let number = self.picks.fetch_add(1, Ordering::Relaxed);
                let random = mixed(self.seed, number);
                let chosen = self.pick.pick(Candidates::new(states), number, random);
                let mut others = (0..count)
                    .map(|step| &states[below((chosen as u64).wrapping_add(step as u64), count)]);
                others
                    .find(|state| !tried.has(state.number))
                    .unwrap_or_else(|| &states[below(chosen as u64, count)])
            }
        };
        Some(InFlight::new(Arc::clone(state), length))
    }

    /// Whether a call has endpoints left at which it was not tried.
    pub(crate) fn has_untried(&self, tried: &Tried) -> bool {
        self.lists().choice().iter().any(|state| !tried.has(state.number))
    }

    /// An attempt has ended.
    pub(crate) fn ended(&self, state: &EndpointState, outcome: EndpointOutcome) {
        match outcome {
            EndpointOutcome::Answered => state.answered(),
            EndpointOutcome::Unknown => {}
            EndpointOutcome::Failed => self.failed(state, Instant::now()),
            EndpointOutcome::Drains => self.drained(state, Instant::now()),
        }
    }

    #[cold]
    fn failed(&self, state: &EndpointState, now: Instant) {
        let failures = state.fail();
        self.resolver.refresh();
        if failures >= FAILURES_MAX {
            let address = state.endpoint.address();
            self.change(address, |ejections, endpoints| ejections.failed(address, endpoints, now));
        }
    }

    #[cold]
    fn drained(&self, state: &EndpointState, now: Instant) {
        // The only endpoint stays: the next server may have its address.
        if self.lists().all.len() > 1 {
            self.resolver.refresh();
            let address = state.endpoint.address();
            self.change(address, |ejections, endpoints| {
                endpoints > 1 && ejections.drained(address, now)
            });
        }
    }

    /// Ejects an endpoint if the function says so, which gets the number of endpoints. One that has left the list is not ejected.
    fn change(&self, address: Address, eject: impl FnOnce(&mut Ejections, usize) -> bool) {
        // A list is replaced under this lock.
        let mut ejections = self.ejections();
        let (endpoints, is_listed) = {
            let all = &self.lists().all;
            (all.len(), all.iter().any(|it| it.endpoint.address() == address))
        };
        if is_listed && eject(&mut ejections, endpoints) {
            count(&self.counters.ejections);
            self.lists.write().unwrap_or_else(PoisonError::into_inner).refresh(&ejections);
            drop(ejections);
            let upkeep = self.upkeep.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(waker) = upkeep {
                waker.wake();
            }
        }
    }

    /// Takes the health of an endpoint that is in the list.
    pub(crate) fn set_health(&self, address: Address, serves: bool) {
        let mut ejections = self.ejections();
        let is_listed = self.lists().all.iter().any(|it| it.endpoint.address() == address);
        if is_listed && ejections.set_health(address, serves) {
            count(&self.counters.health_changes);
            self.lists.write().unwrap_or_else(PoisonError::into_inner).refresh(&ejections);
        }
    }

    /// Wakes the task after the next ejection.
    pub(crate) fn wake_when_ejected(&self, waker: &Waker) {
        *self.upkeep.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
    }

    /// The next endpoint that is to be asked whether it serves, by its ejection.
    pub(crate) fn due(&self, now: Instant) -> Option<Address> {
        self.ejections().due(now)
    }

    /// The time of the next [`due`](Self::due).
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.ejections().next()
    }

    /// An ejected endpoint was asked.
    pub(crate) fn asked(&self, address: Address, serves: bool, now: Instant) {
        let mut ejections = self.ejections();
        ejections.asked(address, serves, now);
        if serves {
            let mut lists = self.lists.write().unwrap_or_else(PoisonError::into_inner);
            lists.refresh(&ejections);
            lists
                .ready
                .iter()
                .filter(|it| it.endpoint.address() == address)
                .for_each(|it| it.answered());
        }
    }

    /// A contact with the first of these endpoints has failed, or was late.
    pub(crate) fn pass_over(&self, address: Address) {
        let lists = self.lists();
        let state = lists.all.iter().find(|state| state.endpoint.address() == address);
        state.map(|state| state.fail());
    }

    pub(crate) fn addresses(&self) -> Vec<Address> {
        self.lists().all.iter().map(|state| state.endpoint.address()).collect()
    }

    /// The first address of the list; `None` without endpoints.
    pub(crate) fn first(&self) -> Option<Address> {
        Some(self.lists().all.first()?.endpoint.address())
    }

    pub(crate) fn statuses(&self) -> Vec<EndpointStatus> {
        let ejections = self.ejections();
        let status = |state: &Arc<EndpointState>| EndpointStatus {
            endpoint: state.endpoint.clone(),
            is_ejected: ejections.is_out(state.endpoint.address()),
            is_healthy: !ejections.is_unhealthy(state.endpoint.address()),
            load: state.load(),
            failures: state.failures(),
        };
        self.lists().all.iter().map(status).collect()
    }
}

impl Lists {
    /// The endpoints among which calls choose.
    fn choice(&self) -> &[Arc<EndpointState>] {
        if self.ready.is_empty() { &self.all } else { &self.ready }
    }

    /// Makes the list of endpoints that are not ejected.
    fn refresh(&mut self, ejections: &Ejections) {
        let is_ready = |state: &&Arc<EndpointState>| {
            let address = state.endpoint.address();
            !ejections.is_out(address) && !ejections.is_unhealthy(address)
        };
        self.ready = self.all.iter().filter(is_ready).cloned().collect();
    }
}

/// A random number from the seed and the number in the sequence (SplitMix64).
fn mixed(seed: u64, number: u64) -> u64 {
    let mut mixed = seed.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::task::Wake;
    use std::time::Duration;

    use super::*;
    use crate::client::balance::Balance;
    use crate::client::system_resolver::SystemResolver;

    fn endpoint(number: usize) -> Endpoint {
        Endpoint::new(format!("10.0.0.{number}:1").parse().expect("an address"))
    }

    fn set(balance: Balance, endpoints: usize) -> EndpointSet {
        let set = EndpointSet::new(Box::new(balance), 7, Arc::new(SystemResolver::new()));
        set.update((0..endpoints).map(endpoint).collect());
        set
    }

    fn pick(set: &EndpointSet, tried: &Tried) -> Address {
        set.begin(tried, 0).expect("an endpoint").address()
    }

    #[test]
    fn an_empty_list_keeps_the_one_before_and_a_new_one_keeps_known_endpoints() {
        let set = set(Balance::PickFirst, 2);
        set.update(Vec::new());
        assert_eq!(set.addresses().len(), 2);
        let call = set.begin(&Tried::default(), 0).expect("an endpoint");
        call.state.fail();
        set.update(vec![endpoint(2), endpoint(0)]);
        let failures: Vec<_> = set.statuses().iter().map(|it| (it.failures, it.load)).collect();
        assert_eq!(failures, [(0, 0), (1, 1024)]);
    }

    #[test]
    fn a_call_goes_where_it_was_not_tried() {
        let set = set(Balance::PickFirst, 3);
        let mut tried = Tried::default();
        for number in 0..3 {
            assert!(set.has_untried(&tried));
            let call = set.begin(&tried, 0).expect("an endpoint");
            assert_eq!(call.address(), endpoint(number).address());
            tried.add(call.state.number);
        }
        assert!(!set.has_untried(&tried));
        assert_eq!(pick(&set, &tried), endpoint(0).address(), "the choice, for want of others");
    }

    #[test]
    fn endpoints_that_fail_are_ejected_and_come_back_with_an_answer() {
        struct Flag(AtomicBool);
        impl Wake for Flag {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let (set, now) = (set(Balance::RoundRobin, 4), Instant::now());
        let flag = Arc::new(Flag(AtomicBool::new(false)));
        set.wake_when_ejected(&Waker::from(Arc::clone(&flag)));
        let first = set.begin(&Tried::default(), 0).expect("an endpoint");
        for _ in 0..FAILURES_MAX - 1 {
            set.failed(&first.state, now);
        }
        assert!(!set.statuses().iter().any(|it| it.is_ejected));
        set.ended(&first.state, EndpointOutcome::Answered);
        for _ in 0..FAILURES_MAX {
            assert!(!flag.0.load(Ordering::SeqCst));
            set.failed(&first.state, now);
        }
        assert!(flag.0.load(Ordering::SeqCst), "the task is to ask it");
        assert!((0..8).all(|_| pick(&set, &Tried::default()) != first.address()));
        assert_eq!(set.next_due(), Some(now + Duration::from_secs(30)));
        assert_eq!(set.due(now + Duration::from_secs(30)), Some(first.address()));
        set.asked(first.address(), true, now);
        assert!((0..8).any(|_| pick(&set, &Tried::default()) == first.address()));
        assert_eq!(set.counters.ejections(), 1);
    }

    #[test]
    fn a_drain_ejects_at_once_and_all_ejected_are_better_than_none() {
        let (set, now) = (set(Balance::RoundRobin, 2), Instant::now());
        for number in 0..2 {
            let call = set.begin(&Tried::default(), 0).expect("an endpoint");
            set.drained(&call.state, now);
            assert_eq!(set.statuses().iter().filter(|it| it.is_ejected).count(), number + 1);
        }
        assert!(set.begin(&Tried::default(), 0).is_some());
        let one = set_of_one();
        let call = one.begin(&Tried::default(), 0).expect("an endpoint");
        one.drained(&call.state, now);
        assert!(!one.statuses()[0].is_ejected, "the only one stays");
    }

    #[test]
    fn a_list_has_a_bound() {
        let set = set(Balance::RoundRobin, 0);
        let endpoint = |number: usize| {
            Endpoint::new(format!("10.0.0.1:{}", number + 1).parse().expect("an address"))
        };
        set.update((0..ENDPOINTS_MAX + 1).map(endpoint).collect());
        let addresses = set.addresses();
        assert_eq!(addresses.len(), ENDPOINTS_MAX);
        assert_eq!(addresses.last(), Some(&endpoint(ENDPOINTS_MAX - 1).address()));
    }

    #[test]
    fn random_numbers_are_no_choices() {
        let set = set(Balance::RoundRobin, 2);
        let picked = [0, 1, 0].map(|number| {
            set.random();
            (pick(&set, &Tried::default()), endpoint(number).address())
        });
        assert!(picked.iter().all(|(chosen, expected)| chosen == expected), "{picked:?}");
        assert_ne!(set.random(), set.random());
    }

    #[test]
    fn an_endpoint_that_has_left_the_list_is_not_ejected() {
        let (set, now) = (set(Balance::PickFirst, 4), Instant::now());
        let [failed, drained] = [(); 2].map(|()| set.begin(&Tried::default(), 0).expect("one"));
        set.update((1..4).map(endpoint).collect());
        for _ in 0..FAILURES_MAX {
            set.failed(&failed.state, now);
        }
        set.drained(&drained.state, now);
        assert_eq!((set.next_due(), set.counters.ejections()), (None, 0));
    }

    fn set_of_one() -> EndpointSet {
        set(Balance::PickFirst, 1)
    }

    #[test]
    fn a_choice_beyond_the_end_counts_on() {
        struct Beyond;
        impl Pick for Beyond {
            fn pick(&self, _: Candidates<'_>, _: u64, _: u64) -> usize {
                usize::MAX
            }
        }
        let set = EndpointSet::new(Box::new(Beyond), 7, Arc::new(SystemResolver::new()));
        assert!(set.begin(&Tried::default(), 0).is_none(), "no endpoints");
        set.update((0..4).map(endpoint).collect());
        assert_eq!(pick(&set, &Tried::default()), endpoint(3).address());
    }
}
