//! The choice of an endpoint for a call.

use std::sync::Arc;

use crate::client::endpoint_state::EndpointState;
use crate::client::resolve::Endpoint;

/// Chooses the endpoint of each call.
///
/// ```
/// use apus_rpc::{Candidates, Pick};
///
/// /// Prefers endpoints of a zone.
/// struct Zone(&'static str);
///
/// impl Pick for Zone {
///     fn pick(&self, candidates: Candidates<'_>, _number: u64, random: u64) -> usize {
///         let near = |&index: &usize| candidates.endpoint(index).attribute("zone") == Some(self.0);
///         let count = (0..candidates.len()).filter(near).count() as u64;
///         let nth = random.checked_rem(count).unwrap_or(0) as usize;
///         (0..candidates.len()).filter(near).nth(nth).unwrap_or(random as usize)
///     }
/// }
/// ```
pub trait Pick: Send + Sync + 'static {
    /// The index of the chosen candidate. An index beyond the end counts on from the beginning. `number` counts the choices of
    /// the channel, and `random` is a random number of them. An endpoint at which this call has failed before is a candidate as
    /// well; the channel takes the next one instead. This runs on the thread that calls; it must be quick, and not use the
    /// channel.
    fn pick(&self, candidates: Candidates<'_>, number: u64, random: u64) -> usize;
}

/// The ways of the library to choose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Balance {
    /// The first endpoint of the list that has not failed since its last answer; if all have, the one with the fewest failures.
    /// The default for the addresses of one host.
    PickFirst,
    /// One after the other.
    RoundRobin,
    /// The less loaded of two random endpoints. The load of an endpoint are its calls under way and the bytes of their requests,
    /// where 1 KiB counts as a call, divided by its weight; of equal ones, the one with fewer failures since its last answer. The
    /// default for several servers.
    LeastOutstanding,
}

/// The endpoints among which a [`Pick`] chooses, at least one: those that are not ejected.
#[derive(Clone, Copy, Debug)]
pub struct Candidates<'a> {
    states: &'a [Arc<EndpointState>],
}

impl<'a> Candidates<'a> {
    pub(crate) fn new(states: &'a [Arc<EndpointState>]) -> Self {
        Self { states }
    }

    /// Number of endpoints, at least 1.
    #[must_use]
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Whether there are none: never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// An endpoint.
    ///
    /// # Panics
    ///
    /// If there is none with this index; so do the other functions.
    #[must_use]
    pub fn endpoint(&self, index: usize) -> &'a Endpoint {
        &self.states[index].endpoint
    }

    /// The load of an endpoint, in bytes: those of the requests of its calls under way from this channel, and 1 KiB for each
    /// call.
    #[must_use]
    pub fn load(&self, index: usize) -> u64 {
        self.states[index].load()
    }

    /// Failures of an endpoint since its last answer.
    #[must_use]
    pub fn failures(&self, index: usize) -> u32 {
        self.states[index].failures()
    }

    /// The load for each unit of weight, to be compared as `load × weight of the other`.
    fn is_lighter(&self, one: usize, other: usize) -> bool {
        let share = |a, b| u128::from(self.load(a)) * u128::from(self.endpoint(b).weight());
        let (left, right) = (share(one, other), share(other, one));
        left < right || left == right && self.failures(one) < self.failures(other)
    }
}

impl Pick for Balance {
    fn pick(&self, candidates: Candidates<'_>, number: u64, random: u64) -> usize {
        let count = candidates.len();
        match self {
            _ if count < 2 => 0,
            Self::PickFirst => {
                let failures = |index: &usize| candidates.failures(*index);
                let well = (0..count).find(|index| failures(index) == 0);
                well.unwrap_or_else(|| (0..count).min_by_key(failures).unwrap_or(0))
            }
            Self::RoundRobin => below(number, count),
            Self::LeastOutstanding => {
                let one = below(random & u64::from(u32::MAX), count);
                let other = (one + 1 + below(random >> 32, count - 1)) % count;
                if candidates.is_lighter(other, one) { other } else { one }
            }
        }
    }
}

/// A number below `count`, which is not 0.
pub(crate) fn below(number: u64, count: usize) -> usize {
    usize::try_from(number % count as u64).expect("less than a usize")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::endpoint_state::InFlight;

    fn states(weights: &[u32]) -> Vec<Arc<EndpointState>> {
        let state = |(index, &weight): (usize, &u32)| {
            let address = format!("10.0.0.{index}:1").parse().expect("an address");
            let endpoint = Endpoint::new(address).with_weight(weight);
            Arc::new(EndpointState::new(endpoint, u32::try_from(index).expect("few")))
        };
        weights.iter().enumerate().map(state).collect()
    }

    #[test]
    fn the_first_is_chosen_until_it_fails() {
        let states = states(&[1, 1, 1]);
        let pick = || Balance::PickFirst.pick(Candidates::new(&states), 7, 7);
        assert_eq!(pick(), 0);
        states[0].fail();
        assert_eq!(pick(), 1);
        states[1].fail();
        states[1].fail();
        states[2].fail();
        states[2].fail();
        assert_eq!(pick(), 0, "the fewest failures");
        states[2].answered();
        assert_eq!(pick(), 2);
    }

    #[test]
    fn a_round_has_each_once() {
        let states = states(&[1, 1, 1]);
        let pick = |number| Balance::RoundRobin.pick(Candidates::new(&states), number, 0);
        assert_eq!([3, 4, 5, 6].map(pick), [0, 1, 2, 0]);
    }

    #[test]
    fn the_less_loaded_of_two_is_chosen_with_respect_to_weights() {
        let states = states(&[1, 1, 4]);
        let pick =
            |random: u64| Balance::LeastOutstanding.pick(Candidates::new(&states), 0, random);
        // The pairs (0, 1), (1, 2) and (2, 0).
        let pairs = [0, 1, 2];
        assert_eq!(pairs.map(pick), [0, 1, 2]);
        let _calls =
            [0, 0, 1, 2, 2].map(|index: usize| InFlight::new(Arc::clone(&states[index]), 0));
        assert_eq!(pairs.map(pick), [1, 2, 2]);
        let long = InFlight::new(Arc::clone(&states[2]), 1 << 20);
        assert_eq!(pairs.map(pick), [1, 1, 0]);
        drop(long);
        assert_eq!(states[2].load(), 2048);
    }

    #[test]
    fn both_of_two_differ_and_all_are_reached() {
        let states = states(&[1; 5]);
        let mut seen = [0_u32; 5];
        for random in 0..1_000_u64 {
            let random = random.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            seen[Balance::LeastOutstanding.pick(Candidates::new(&states), 0, random)] += 1;
        }
        assert!(seen.iter().all(|&count| count > 100), "{seen:?}");
    }
}
