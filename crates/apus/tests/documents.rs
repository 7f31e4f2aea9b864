//! Documents say about settings what the table of settings says.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use apus::{Config, Setting};

const HEADER: &str = "| setting | default | range |";

fn document(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn row(setting: &Setting) -> String {
    format!("| `{}` | {} | {} |", setting.key, setting.default, setting.range)
}

#[test]
fn every_setting_is_in_one_table_with_its_default_and_range() {
    let settings: Vec<Setting> = Config::settings().collect();
    let mut missing: BTreeSet<&str> = settings.iter().map(|setting| setting.key).collect();
    for path in ["docs/protocol.md", "docs/links.md"] {
        let text = document(path);
        let mut lines = text.lines();
        while lines.by_ref().any(|line| line == HEADER) {
            for line in lines.by_ref().skip(1).take_while(|line| line.starts_with('|')) {
                let setting = settings
                    .iter()
                    .find(|setting| line.starts_with(&format!("| `{}` |", setting.key)));
                let setting = setting.unwrap_or_else(|| panic!("{path}: no such setting: {line}"));
                assert_eq!(line, row(setting), "{path} differs from the table of settings");
                assert!(missing.remove(setting.key), "{} is there twice", setting.key);
            }
        }
    }
    let rows: Vec<String> =
        settings.iter().filter(|setting| missing.contains(setting.key)).map(row).collect();
    assert!(rows.is_empty(), "in no document:\n{}", rows.join("\n"));
}

/// Sentences that name numbers of settings. `{key}`, `{key.low}` and `{key.high}` stand for the default and the ends
/// of the range.
const SENTENCES: [(&str, &str); 5] = [
    (
        "README.md",
        "Messages of 1 byte to {message_max}**, or to {message_max.high} if you set it so",
    ),
    ("crates/apus/src/lib.rs", "messages have 1 byte to {message_max}"),
    ("docs/which-transport.md", "({message_max} unless set, {message_max.high} at most)"),
    ("docs/linux-homa.md", "`net.core.rmem_max` of {receive_buffer} or more"),
    ("docs/simulator.md", "the core's defaults: {unscheduled} unscheduled until measured"),
];

#[test]
fn sentences_name_the_numbers_of_the_table() {
    for (path, sentence) in SENTENCES {
        let mut wanted = sentence.to_owned();
        for Setting { key, default, range, .. } in Config::settings() {
            let (low, high) = range.split_once(" to ").unwrap_or_default();
            wanted = wanted
                .replace(&format!("{{{key}}}"), default.trim_end_matches(" †"))
                .replace(&format!("{{{key}.low}}"), low)
                .replace(&format!("{{{key}.high}}"), high);
        }
        assert!(document(path).contains(&wanted), "{path} does not say: {wanted}");
    }
}
