//! The record: docs/measurements/sockets-suites.json has the entries of all suites, and docs/measurements/sockets-suites.md shows them.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};
use serde_json::ser::PrettyFormatter;
use serde_json::{Map, Serializer, Value, json};

use super::SUITES;
use super::comparison::Comparison;
use crate::program::read;

const PAGE: &str = "docs/measurements/sockets-suites.md";
const DATA: &str = "docs/measurements/sockets-suites.json";

/// A suite in the record.
pub(super) struct Entry {
    pub(super) suite: &'static str,
    /// The comparison, or the reason why the suite was skipped.
    pub(super) comparison: Result<Comparison, String>,
    pub(super) date: String,
    pub(super) commit: String,
}

/// Writes the record: these entries, and the present ones of other suites.
pub(super) fn write(entries: &[Entry]) -> Result<()> {
    let before = if fs::exists(DATA).unwrap_or(false) { read(DATA)? } else { "{}".to_owned() };
    let mut data: Map<String, Value> = serde_json::from_str(&before).context(DATA)?;
    data.extend(entries.iter().map(|entry| (entry.suite.to_owned(), entry.value())));
    let mut bytes = Vec::new();
    let format = PrettyFormatter::with_indent(b" ");
    serde::Serialize::serialize(&data, &mut Serializer::with_formatter(&mut bytes, format))?;
    bytes.push(b'\n');
    fs::write(DATA, bytes).context(DATA)?;
    fs::write(PAGE, page(&data)).context(PAGE)
}

impl Entry {
    fn value(&self) -> Value {
        let Self { suite, date, commit, .. } = self;
        match &self.comparison {
            Err(reason) => {
                json!({ "suite": suite, "skip": reason, "date": date, "commit": commit })
            }
            Ok(it) => json!({
                "suite": suite,
                "version": it.version,
                "about": it.about,
                "tests": it.tests,
                "skipped": it.skipped,
                "plain": it.plain,
                "carried": it.carried,
                "differ": it.differ,
                "known": it.known,
                "seconds": it.seconds,
                "runs": it.runs,
                "date": date,
                "commit": commit,
            }),
        }
    }
}

fn page(data: &Map<String, Value>) -> String {
    let mut page = "# Suites of other projects, plain and under `apus run`\n\n\
        Made by `cargo xtask sockets-suites all --record`. A test *fails* if it passes in none of up to three runs, and *differs* if no \
        plain run of it has the result of a carried one.\n\n\
        Connections are carried from the first call on (`APUS_SOCKETS=early`): most tests end before that is worth it.\n\n\
        | suite | version | tests | skipped by the suite | fail plain | fail carried | differ | run |\n\
        |---|---|---:|---:|---:|---:|---:|---|\n"
        .to_owned();
    let entries = || SUITES.into_iter().filter_map(|name| Some((name, data.get(name)?)));
    for (name, entry) in entries() {
        page += &row(name, entry);
    }
    for (name, entry) in entries().filter(|(_, entry)| entry.get("skip").is_none()) {
        page += &section(name, entry);
    }
    page
}

fn row(name: &str, entry: &Value) -> String {
    let run = format!("{}, {}", text(&entry["date"]), text(&entry["commit"]));
    if let Some(reason) = entry.get("skip") {
        return format!("| {name} | — | — | — | — | — | — | skipped: {} ({run}) |\n", text(reason));
    }
    let count = |key: &str| {
        let of_list = entry[key].as_array().map(Vec::len);
        of_list.or_else(|| entry[key].as_object().map(Map::len)).unwrap_or(0)
    };
    format!(
        "| {name} | {} | {} | {} | {} | {} | {} | {run} |\n",
        text(&entry["version"]),
        entry["tests"],
        entry["skipped"],
        count("plain"),
        count("carried"),
        count("differ")
    )
}

fn section(name: &str, entry: &Value) -> String {
    let mut section = format!("\n## {name}\n\n{}\n", text(&entry["about"]));
    let carried = list(&entry["carried"]);
    let both = list(&entry["plain"]).into_iter().filter(|test| carried.contains(test));
    let both: Vec<String> = both.map(|test| format!("`{test}`")).collect();
    if !both.is_empty() {
        let _ = writeln!(section, "\nThese fail plain and carried: {}.", both.join(", "));
    }
    for (test, reason) in entry["known"].as_object().into_iter().flatten() {
        let reason = text(reason);
        let _ = writeln!(
            section,
            "\n- `{test}` differs on purpose: {reason} ([table](../sockets.md#differences))."
        );
    }
    for (test, results) in entry["differ"].as_object().into_iter().flatten() {
        let [plain, carried] = [0, 1].map(|which| list(&results[which]).join(" or "));
        let _ = writeln!(section, "\n- `{test}` differs. Plain: {plain}. Carried: {carried}.");
    }
    section
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().map(text).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn entry(suite: &'static str, comparison: Result<Comparison, String>) -> (String, Value) {
        let (date, commit) = ("2026-11-25".to_owned(), "a215632".to_owned());
        (suite.to_owned(), Entry { suite, comparison, date, commit }.value())
    }

    #[test]
    fn the_page_has_a_row_and_a_section_for_each_suite() {
        let both = [vec!["ok".to_owned()], vec!["no end".to_owned(), "status 7".to_owned()]];
        let comparison = Comparison {
            version: "1.44.2".to_owned(),
            about: "The tests.",
            tests: 381,
            skipped: 10,
            plain: vec!["a".to_owned(), "b".to_owned()],
            carried: vec!["a".to_owned()],
            differ: BTreeMap::from([("c".to_owned(), both)]),
            ..Comparison::default()
        };
        let skipped = Err("cmake is not installed".to_owned());
        let data = [entry("libuv", Ok(comparison)), entry("curl", skipped)].into_iter().collect();
        let page = page(&data);
        assert!(
            page.contains("| libuv | 1.44.2 | 381 | 10 | 2 | 1 | 1 | 2026-11-25, a215632 |\n"),
            "{page}"
        );
        assert!(page.contains("| curl | — | — | — | — | — | — | skipped: cmake is not installed (2026-11-25, a215632) |\n"));
        assert!(page.contains("\n## libuv\n\nThe tests.\n\nThese fail plain and carried: `a`.\n\n- `c` differs. Plain: ok. Carried: no end or status 7.\n"));
        assert!(!page.contains("## curl"));
    }

    #[test]
    fn the_present_data_has_a_row_for_each_suite() {
        let data = include_str!("../../../docs/measurements/sockets-suites.json");
        let page = page(&serde_json::from_str(data).unwrap());
        let record = include_str!("../../../docs/measurements/sockets-suites.md");
        let rows = |page: &str| -> Vec<String> {
            page.lines().filter(|line| line.starts_with("| ")).map(str::to_owned).collect()
        };
        assert_eq!(rows(&page), rows(record));
    }
}
