//! The [table](mod@crate::table) as values.

/// A counter or a gauge. A counter counts from the start of its node or process and never decreases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metric {
    /// The group: `protocol`, `link`, `memory`, `delivery`, `streams`, `handshakes`, `identity`, or `process` for the counters of a
    /// shared engine about each process that uses it.
    pub group: &'static str,
    /// The name, unique in the group.
    pub name: &'static str,
    /// The unit, in the plural.
    pub unit: &'static str,
    /// The meaning, in whole sentences.
    pub meaning: &'static str,
    /// `None` for a counter.
    pub gauge: Option<GaugeFold>,
}

/// The way in which the values of a gauge of several engines or processes become one. A gauge shows a present state: it rises and
/// falls, and it may have no value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GaugeFold {
    /// The least value counts.
    Least,
    /// The greatest value counts.
    Greatest,
}

impl GaugeFold {
    /// Returns the value of both; `None` if neither has one.
    #[must_use]
    pub fn fold(self, one: Option<u64>, other: Option<u64>) -> Option<u64> {
        let of_two = match self {
            Self::Least => u64::min,
            Self::Greatest => u64::max,
        };
        one.into_iter().chain(other).reduce(of_two)
    }

    /// Returns the word by which a file of counters marks a gauge.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Least => "least",
            Self::Greatest => "greatest",
        }
    }

    pub(crate) fn of_word(word: &str) -> Option<Self> {
        [Self::Least, Self::Greatest].into_iter().find(|fold| fold.word() == word)
    }
}

/// Defines the list of a group.
macro_rules! list {
    (
        {$list:ident $group:literal}
        $($(#[doc = $doc:literal])+ $name:ident: $unit:ident,)*
        $(; $($(#[doc = $array_doc:literal])+ $array:ident: $array_unit:ident [$($element:literal),+ $(,)?],)*)?
    ) => {
        const $list: &[Metric] = &[
            $(Metric {
                group: $group,
                name: stringify!($name),
                unit: stringify!($unit),
                meaning: concat!($($doc),+),
                gauge: None,
            },)*
        ];
        list! { @arrays $list $group $($($(#[doc = $array_doc])+ $array_unit [$($element),+],)*)? }
    };
    (@arrays PROTOCOL $group:literal $($(#[doc = $doc:literal])+ $unit:ident [$($element:literal),+],)*) => {
        /// The elements of the arrays, which only the protocol has.
        const PROTOCOL_ARRAYS: &[&[Metric]] = &[$(list! { @array $group $unit concat!($($doc),+), $($element)+ }),*];
    };
    (@arrays $list:ident $group:literal) => {};
    (@array $group:literal $unit:ident $meaning:expr, $($element:literal)+) => {
        &[$(Metric { group: $group, name: $element, unit: stringify!($unit), meaning: $meaning, gauge: None }),+]
    };
}

/// Defines the list of a group of gauges.
macro_rules! list_gauges {
    ({$list:ident $group:literal} $($(#[doc = $doc:literal])+ $name:ident: $unit:ident $fold:ident,)*) => {
        const $list: &[Metric] = &[
            $(Metric {
                group: $group,
                name: stringify!($name),
                unit: stringify!($unit),
                meaning: concat!($($doc),+),
                gauge: Some(GaugeFold::$fold),
            },)*
        ];
    };
}

crate::protocol_counters! { list! { PROTOCOL "protocol" } }
crate::link_counters! { list! { LINK "link" } }
crate::memory_counters! { list! { MEMORY "memory" } }
crate::delivery_counters! { list! { DELIVERY "delivery" } }
crate::stream_counters! { list! { STREAMS "streams" } }
crate::handshake_counters! { list! { HANDSHAKES "handshakes" } }
crate::identity_gauges! { list_gauges! { IDENTITY "identity" } }
crate::process_counters! { list! { PROCESS "process" } }

/// Returns the counters of an engine and then its gauges, in the order of its section of a file.
pub fn engine_metrics() -> impl Iterator<Item = &'static Metric> {
    let arrays = PROTOCOL_ARRAYS.iter().copied().flatten();
    let near = MEMORY.iter().chain(DELIVERY).chain(STREAMS).chain(HANDSHAKES).chain(IDENTITY);
    PROTOCOL.iter().chain(arrays).chain(LINK).chain(near)
}

/// Returns the counters of a shared engine about each process that uses it, in the order of the process's section.
pub fn process_metrics() -> impl Iterator<Item = &'static Metric> {
    PROCESS.iter()
}

/// Returns all counters and gauges, in the order in which a file names them.
pub fn metrics() -> impl Iterator<Item = &'static Metric> {
    engine_metrics().chain(process_metrics())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn each_counter_has_a_name_of_its_own_a_unit_and_sentences() {
        let mut names = BTreeSet::new();
        for Metric { group, name, unit, meaning, .. } in metrics() {
            assert!(names.insert((group, name)), "{group}.{name} stands twice");
            let plain = |text: &str| {
                text.bytes().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'_')
            };
            assert!(plain(group) && plain(name) && plain(unit), "{group}.{name}: {unit}");
            let meaning = meaning.trim();
            assert!(
                meaning.starts_with(char::is_uppercase) && meaning.ends_with('.'),
                "{name}: {meaning}"
            );
        }
    }

    #[test]
    fn a_gauge_without_a_value_does_not_count() {
        for (fold, both) in [(GaugeFold::Least, 3), (GaugeFold::Greatest, 5)] {
            assert_eq!(fold.fold(None, None), None);
            assert_eq!((fold.fold(Some(5), None), fold.fold(None, Some(0))), (Some(5), Some(0)));
            assert_eq!(fold.fold(Some(5), Some(3)), Some(both));
            assert_eq!(GaugeFold::of_word(fold.word()), Some(fold));
        }
    }

    /// A section without gauges ends before them.
    #[test]
    fn gauges_follow_all_counters_of_an_engine() {
        let first = engine_metrics().position(|metric| metric.gauge.is_some()).unwrap();
        assert!(engine_metrics().skip(first).all(|metric| metric.gauge.is_some()));
        assert!(process_metrics().all(|metric| metric.gauge.is_none()));
    }

    /// `APUS_UPDATE=1 cargo test -p apus-metrics` rewrites the table.
    #[test]
    fn the_document_has_the_table() {
        let mut table = String::from("| counter | unit | meaning |\n|---|---|---|\n");
        for Metric { group, name, unit, meaning, gauge } in metrics() {
            let mut unit = unit.replace('_', " ");
            unit.push_str(gauge.map_or("", |_| " (gauge)"));
            let meaning = meaning.trim();
            let _ = writeln!(table, "| `{group}.{name}` | {unit} | {meaning} |");
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        let Ok(document) = std::fs::read_to_string(path) else {
            return; // The crate alone, without the repository.
        };
        let (before, rest) = document.split_once(BEGIN).expect("the mark before the table");
        let (present, after) = rest.split_once(END).expect("the mark behind the table");
        if std::env::var_os("APUS_UPDATE").is_some() {
            let document = format!("{before}{BEGIN}\n{table}{END}{after}");
            return std::fs::write(path, document).expect("the document can be written");
        }
        assert_eq!(present.trim(), table.trim(), "run APUS_UPDATE=1 cargo test -p apus-metrics");
    }

    const BEGIN: &str = "<!-- counters: made by a test of apus-metrics -->";
    const END: &str = "<!-- end of the counters -->";
}
