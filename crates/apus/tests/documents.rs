//! Documents agree with the tables of settings and errors, are pages of the book, and have valid links.

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use apus::{Config, Setting};

const HEADER: &str = "| setting | default | range |";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn document(path: &str) -> String {
    let path = repository().join(path);
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

/// `APUS_UPDATE=1 cargo test -p apus --test documents` writes the table anew.
#[test]
fn the_page_of_settings_has_every_setting() {
    let mut table = String::from("| setting | default | range | meaning |\n|---|---|---|---|\n");
    for Setting { key, default, range, text, .. } in Config::settings() {
        let meaning = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
        writeln!(table, "| `{key}` | {default} | {range} | {meaning} |").expect("it is a text");
    }
    let page = document("docs/settings.md");
    let (before, rest) = page.split_once(BEGIN).expect("the mark before the table");
    let (present, after) = rest.split_once(END).expect("the mark behind the table");
    if env::var_os("APUS_UPDATE").is_some() {
        let page = format!("{before}{BEGIN}\n\n{table}\n{END}{after}");
        return fs::write(repository().join("docs/settings.md"), page).expect("it can be written");
    }
    assert_eq!(
        present.trim(),
        table.trim(),
        "run APUS_UPDATE=1 cargo test -p apus --test documents"
    );
}

const BEGIN: &str = "<!-- settings: made by a test of apus -->";
const END: &str = "<!-- end of the settings -->";

#[test]
fn every_page_is_in_the_book() {
    let summary = document("docs/SUMMARY.md");
    let listed: BTreeSet<&str> = links(&summary).collect();
    let docs = repository().join("docs");
    for path in pages() {
        let Ok(page) = path.strip_prefix(&docs) else { continue };
        let page = page.to_str().expect("it is text");
        assert!(page == "SUMMARY.md" || listed.contains(page), "docs/SUMMARY.md lacks {page}");
    }
}

/// Every variant of the API's errors is in the page of errors, and every variant in the page exists.
#[test]
fn the_page_of_errors_has_every_variant() {
    let page = document("docs/errors.md");
    let source = sources(&repository().join("crates/apus/src"));
    for error in [
        "CallError",
        "ReplyError",
        "RecvError",
        "OpenError",
        "StartError",
        "CloseError",
        "ConfigError",
        "ResolveError",
        "RuleError",
        "IdentityError",
    ] {
        let start = format!("pub enum {error} {{\n");
        let source = source.split_once(&start).unwrap_or_else(|| panic!("no {error}")).1;
        let source = source.split_once("\n}").expect("it ends").0;
        let variants: BTreeSet<&str> = source
            .lines()
            .filter_map(|line| line.strip_prefix("    "))
            .filter(|line| line.starts_with(char::is_uppercase))
            .map(|line| line.split([' ', '(', ',', '{']).next().expect("it has a name"))
            .collect();
        let section = page.split_once(&format!("\n## {error}\n")).expect("it has a section").1;
        let section = section.split("\n## ").next().expect("there is a first part");
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        let described: BTreeSet<&str> = rows
            .flat_map(|row| row.split('|').nth(1).expect("a row has columns").split('`'))
            .filter(|name| name.starts_with(char::is_uppercase))
            .collect();
        assert_eq!(described, variants, "docs/errors.md differs from {error}");
    }
}

/// The text of all files of a crate.
fn sources(directory: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(directory).expect("a directory of sources") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            text.push_str(&sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(&path).expect("it is text"));
        }
    }
    text
}

/// Sentences with numbers of settings. `{key}`, `{key.low}` and `{key.high}` stand for the default and the ends of the range.
const SENTENCES: [(&str, &str); 5] = [
    (
        "docs/features.md",
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

/// The lines of a document outside code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

/// The targets of the links of a document, except links to other sites.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let links = prose(text).flat_map(|line| line.split("](").skip(1));
    let targets = links.filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains(':'))
}

/// The valid targets of links into a document: its headings, as GitHub names them, and ids given by hand.
fn anchors(text: &str) -> BTreeSet<String> {
    let by_hand = prose(text).flat_map(|line| line.split("<a id=\"").skip(1));
    let by_hand = by_hand.filter_map(|rest| rest.split('"').next()).map(str::to_owned);
    let headings = prose(text).filter(|line| line.starts_with('#'));
    let headings = headings.map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    });
    by_hand.chain(headings).collect()
}

/// The documents of the repository.
fn pages() -> Vec<PathBuf> {
    let mut documents: Vec<PathBuf> = Vec::new();
    for directory in ["", "docs", "docs/measurements"] {
        let entries = fs::read_dir(repository().join(directory)).expect("a part of the repository");
        documents.extend(entries.map(|entry| entry.expect("readable").path()));
    }
    documents.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    assert!(documents.len() > 20, "{documents:?}");
    documents
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for path in &pages() {
        let text = fs::read_to_string(path).expect("readable");
        for link in links(&text) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let directory = path.parent().expect("a file is in a directory");
            let target = if file.is_empty() { path.clone() } else { directory.join(file) };
            let is_markdown = target.extension().is_some_and(|extension| extension == "md");
            let leads = if anchor.is_empty() {
                target.exists()
            } else {
                is_markdown
                    && fs::read_to_string(&target).is_ok_and(|text| anchors(&text).contains(anchor))
            };
            if !leads {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}
