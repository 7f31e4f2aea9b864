//! The [table](mod@crate::table) as values.

/// A counter. It counts from the start of its node or process and never decreases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metric {
    /// The group: `protocol`, `link`, `memory`, `delivery`, `streams`, or `process` for the counters of a shared engine about each
    /// process that uses it.
    pub group: &'static str,
    /// The name, unique in the group.
    pub name: &'static str,
    /// The unit, in the plural.
    pub unit: &'static str,
    /// The meaning, in whole sentences.
    pub meaning: &'static str,
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
        &[$(Metric { group: $group, name: $element, unit: stringify!($unit), meaning: $meaning }),+]
    };
}

crate::protocol_counters! { list! { PROTOCOL "protocol" } }
crate::link_counters! { list! { LINK "link" } }
crate::memory_counters! { list! { MEMORY "memory" } }
crate::delivery_counters! { list! { DELIVERY "delivery" } }
crate::stream_counters! { list! { STREAMS "streams" } }
crate::handshake_counters! { list! { HANDSHAKES "handshakes" } }
crate::process_counters! { list! { PROCESS "process" } }

/// Returns the counters of an engine, in the order of its section of a file.
pub fn engine_metrics() -> impl Iterator<Item = &'static Metric> {
    let arrays = PROTOCOL_ARRAYS.iter().copied().flatten();
    let near = MEMORY.iter().chain(DELIVERY).chain(STREAMS).chain(HANDSHAKES);
    PROTOCOL.iter().chain(arrays).chain(LINK).chain(near)
}

/// Returns the counters of a shared engine about each process that uses it, in the order of the process's section.
pub fn process_metrics() -> impl Iterator<Item = &'static Metric> {
    PROCESS.iter()
}

/// Returns all counters, in the order in which a file names them.
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
        for Metric { group, name, unit, meaning } in metrics() {
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

    /// `APUS_UPDATE=1 cargo test -p apus-metrics` rewrites the table.
    #[test]
    fn the_document_has_the_table() {
        let mut table = String::from("| counter | unit | meaning |\n|---|---|---|\n");
        for Metric { group, name, unit, meaning } in metrics() {
            let (unit, meaning) = (unit.replace('_', " "), meaning.trim());
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
