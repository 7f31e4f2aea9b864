//! Counters for everything sent, received, granted, retried, refused, late and dropped. Their names and meanings are in the table of
//! `apus-metrics`.

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
}

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
}
