//! Counters for everything sent, received, granted, retried, refused, late and dropped. Their names and meanings are in the table of
//! `apus-metrics`.

use std::time::Duration;

use crate::time::nanos;

macro_rules! counters {
    (
        {}
        $($(#[doc = $doc:literal])+ $name:ident: $unit:ident,)*
        ;
        $($(#[doc = $array_doc:literal])+ $array:ident: $array_unit:ident [$($element:literal),+ $(,)?],)*
    ) => {
        /// Counters of an [`Endpoint`](crate::Endpoint) since its creation. They never decrease.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: u64,)*
            $($(#[doc = $array_doc])+ pub $array: [u64; [$($element),+].len()],)*
        }

        impl Counters {
            /// Adds the counters of another endpoint of the same host.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
                $(for (mine, theirs) in self.$array.iter_mut().zip(other.$array) {
                    *mine += theirs;
                })*
            }

            /// Returns every counter with its name, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
                [$((stringify!($name), self.$name)),*]
                    .into_iter()
                    $(.chain([$($element),+].into_iter().zip(self.$array)))*
            }

            /// Returns every counter without its name, in the same order.
            #[inline]
            pub fn values(&self) -> impl Iterator<Item = u64> + '_ {
                [$(self.$name),*].into_iter()$(.chain(self.$array.iter().copied()))*
            }
        }
    };
}

apus_metrics::protocol_counters! { counters! {} }

impl Counters {
    /// Counts a complete received message of `bytes` bytes.
    #[inline]
    pub(crate) fn message_received(&mut self, bytes: u64) {
        self.received_by_size[size_class(bytes)] += bytes;
    }

    /// Counts a message of `bytes` bytes from the application.
    #[inline]
    pub(crate) fn message_given(&mut self, bytes: u64) {
        self.sent_by_size[size_class(bytes)] += bytes;
    }

    /// A call that was chosen to be timed got its response after `took`.
    pub(crate) fn call_timed(&mut self, took: Duration) {
        self.timed_calls_ns += nanos(took);
        self.timed_calls[time_class(took)] += 1;
    }
}

/// Chooses the calls to be timed: about one in 64 of the completed ones, with varying gaps, because calls may come in a pattern.
#[derive(Debug)]
pub(crate) struct Sampler {
    /// Number of the next call to be timed.
    next: u64,
}

impl Sampler {
    pub(crate) const fn new() -> Self {
        Self { next: FIRST }
    }

    /// Whether the call with the `number`th response is timed.
    #[inline]
    pub(crate) fn chooses(&mut self, number: u64) -> bool {
        number >= self.next && self.advance(number)
    }

    #[cold]
    fn advance(&mut self, number: u64) -> bool {
        let gap = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & (2 * SAMPLED - 1);
        self.next = number.saturating_add(gap.max(1));
        true
    }
}

/// The first call that is timed: not the one that meets its peer, and early enough for a program that makes few calls.
const FIRST: u64 = 4;

/// One call in this many is timed. A power of two.
const SAMPLED: u64 = 64;

/// Returns the time class of a call. The first class ends at 1 µs, each next one at twice the time; the last one holds calls beyond
/// 2^24 µs.
fn time_class(took: Duration) -> usize {
    let micros = nanos(took).div_ceil(1_000);
    let doublings = u64::BITS.saturating_sub(micros.saturating_sub(1).leading_zeros());
    (doublings as usize).min(TIME_CLASSES - 1)
}

/// Classes of timed calls.
const TIME_CLASSES: usize = 26;

/// Returns the size class of a message. The first class ends at 64 bytes, each next one at twice as many; the last one holds
/// messages beyond 1 MiB.
#[inline]
fn size_class(bytes: u64) -> usize {
    let doublings = u64::BITS.saturating_sub((bytes.saturating_sub(1) >> 6).leading_zeros());
    (doublings as usize).min(CLASSES - 1)
}

/// Number of size classes.
const CLASSES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_in_the_class_whose_name_has_their_size() {
        let mut counters = Counters::default();
        for bytes in [0, 1, 64, 65, 128, 129, 1 << 20, (1 << 20) + 1, u64::MAX >> 1] {
            counters = Counters::default();
            counters.message_received(bytes);
            counters.message_given(bytes);
            let limit = |name: &str| match name.rsplit('_').next() {
                Some("beyond") => u64::MAX,
                number => number.and_then(|it| it.parse().ok()).unwrap_or(0),
            };
            let names: Vec<_> = counters.iter().filter(|it| it.1 > 0).map(|it| it.0).collect();
            let expected = if bytes == 0 { 0 } else { 2 };
            assert_eq!(names.len(), expected, "{bytes}: {names:?}");
            assert!(names.iter().all(|name| bytes <= limit(name)), "{bytes}: {names:?}");
            let most = limit(names.first().unwrap_or(&"beyond")) / 2;
            assert!(bytes <= 64 || bytes > most || bytes > 1 << 20, "{bytes}: {names:?}");
        }
        assert!(counters.values().eq(counters.iter().map(|(_, value)| value)));
    }

    #[test]
    fn calls_are_counted_in_the_class_whose_name_has_their_time() {
        for nanos in [0, 1, 1_000, 1_001, 2_000, 2_001, 1_000 << 24, (1_000 << 24) + 1, u64::MAX] {
            let mut counters = Counters::default();
            counters.call_timed(Duration::from_nanos(nanos));
            let is_class = |it: &(&str, u64)| it.0 != "timed_calls_ns" && it.1 > 0;
            let names: Vec<_> = counters.iter().filter(is_class).map(|it| it.0).collect();
            let [name] = names[..] else { panic!("{nanos}: {names:?}") };
            let micros = name.strip_prefix("timed_calls_to_").and_then(|it| it.strip_suffix("_us"));
            let most = micros.map_or(u64::MAX, |it| it.parse::<u64>().unwrap() * 1_000);
            let least = if micros.is_some() { most / 2 } else { 1_000 << 24 };
            assert!(nanos <= most && (nanos > least || most == 1_000), "{nanos}: {name}");
        }
    }

    #[test]
    fn one_call_in_about_64_is_timed_whatever_the_pattern() {
        let mut sampler = Sampler::new();
        let chosen: Vec<_> = (1..=640_000_u64).filter(|&it| sampler.chooses(it)).collect();
        assert!((9_000..11_000).contains(&chosen.len()), "{}", chosen.len());
        for pattern in [2, 3, 8, 64, 100] {
            let share = chosen.len() as u64 / pattern;
            for place in 0..pattern {
                let here = chosen.iter().filter(|it| *it % pattern == place).count() as u64;
                assert!(here * 2 > share && here < share * 2, "{place} of {pattern}: {here}");
            }
        }
    }
}
