//! One word for one thing: docs/glossary.md defines each term once, no file contains a word of its *not* column, and few types share
//! a name.
//!
//! A word in backticks must not be part of a name in code: `see_to` is found in `see_to_it` and in `SeeTo`. A word without
//! backticks must be neither part of a name nor a word of a comment or a document.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Upper bound on the types of the workspace that share a name.
const NAMESAKES_MAX: usize = 4;

struct Banned {
    /// The parts of a name, or the words of a phrase.
    words: Vec<String>,
    names_only: bool,
    /// The term to use.
    term: String,
}

#[test]
fn the_glossary_defines_each_term_once() {
    let mut lines: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (number, row) in rows() {
        for term in row[0].split(", ") {
            lines.entry(term.trim_matches('`').to_lowercase()).or_default().push(number);
        }
    }
    let twice: Vec<_> = lines.iter().filter(|(_, lines)| lines.len() > 1).collect();
    assert!(twice.is_empty(), "docs/glossary.md defines these terms in several lines: {twice:?}");
}

#[test]
fn no_file_has_a_word_that_the_glossary_replaces() {
    let banned = banned();
    assert!(banned.len() > 20, "the table of docs/glossary.md has another form");
    let mut found = Vec::new();
    for file in files() {
        let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let is_code = file.extension().is_some_and(|it| it == "rs" || it == "c" || it == "h");
        for (number, line) in text.lines().enumerate() {
            let (code, prose) = if is_code { split(line) } else { ("", line) };
            let (names, words) = (names(code), words(prose));
            for banned in &banned {
                let in_names = names.iter().any(|parts| contains(parts, &banned.words));
                let in_prose = !banned.names_only && contains(&words, &banned.words);
                if in_names || in_prose {
                    let file = file.strip_prefix(root()).unwrap_or(&file).display();
                    let word = banned.words.join(if in_names { "_" } else { " " });
                    found.push(format!("{file}:{}: {word}, use: {}", number + 1, banned.term));
                }
            }
        }
    }
    assert!(found.is_empty(), "{} words:\n{}", found.len(), found.join("\n"));
}

#[test]
fn few_types_share_a_name() {
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files() {
        let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let file = file.strip_prefix(root()).unwrap_or(&file).display().to_string();
        if file.starts_with("crates/") && file.contains("/src/") {
            for name in text.lines().filter_map(defined_type) {
                types.entry(name.to_owned()).or_default().push(file.clone());
            }
        }
    }
    assert!(types.len() > 1_000, "definitions of types have another form");
    // Each subcommand declares its arguments under this name, as the documentation of clap does.
    types.remove("Args");
    types.retain(|_, files| files.len() > NAMESAKES_MAX);
    assert!(types.is_empty(), "more than {NAMESAKES_MAX} types share a name: {types:#?}");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// The rows of all tables of the glossary, with their line numbers.
fn rows() -> Vec<(usize, Vec<String>)> {
    let text = fs::read_to_string(root().join("docs/glossary.md")).expect("docs/glossary.md");
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let rows = text.lines().enumerate().filter(|(_, line)| line.starts_with('|'));
    rows.map(|(number, line)| (number + 1, cells(line)))
        .filter(|(_, row)| row[0] != "term" && !row[0].starts_with("--"))
        .collect()
}

fn banned() -> Vec<Banned> {
    let mut banned = Vec::new();
    for (_, row) in rows() {
        for word in row.get(2).map_or("", String::as_str).split(", ").filter(|it| !it.is_empty()) {
            let names_only = word.starts_with('`');
            let words = word.trim_matches('`').split(['_', ' ']).map(str::to_lowercase).collect();
            banned.push(Banned { words, names_only, term: row[0].clone() });
        }
    }
    banned
}

/// Sources and documents, except the glossary and this test.
fn files() -> Vec<PathBuf> {
    let root = root();
    let mut directories: Vec<PathBuf> =
        ["crates", "docs", "fuzz", "rivals", "examples", "python", "spec", ".ci", "xtask"]
            .map(|it| root.join(it))
            .into();
    let mut files: Vec<PathBuf> = fs::read_dir(&root)
        .expect("the workspace")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|it| it == "md"))
        .collect();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten() {
            let path = entry.expect("an entry of a directory").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_text = [".rs", ".c", ".h", ".md"].iter().any(|it| name.ends_with(it));
            if path.is_dir() && !["target", "measurements", "corpus"].contains(&name.as_str()) {
                directories.push(path);
            } else if is_text && !["glossary.md", "words.rs"].contains(&name.as_str()) {
                files.push(path);
            }
        }
    }
    files
}

/// The code and the comment of a line of Rust or C.
fn split(line: &str) -> (&str, &str) {
    match line.find("//") {
        Some(at) if !line[..at].ends_with(':') => line.split_at(at),
        _ => (line, ""),
    }
}

/// The names in a line of code, each as its parts in lower case. Text in quotes is left out.
fn names(code: &str) -> Vec<Vec<String>> {
    let unquoted: String = code.split('"').step_by(2).collect::<Vec<_>>().join(" ");
    let is_of_name = |c: char| c.is_alphanumeric() || c == '_';
    unquoted.split(|c| !is_of_name(c)).filter(|name| !name.is_empty()).map(parts).collect()
}

/// The name of the type that a line of code defines.
fn defined_type(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let (keyword, rest) = line.split_once(' ')?;
    let is_type = ["struct", "enum", "union", "trait"].contains(&keyword);
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next();
    name.filter(|name| is_type && name.starts_with(char::is_uppercase))
}

fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && was_lower) {
            parts.push(String::new());
        }
        if c != '_' {
            parts.last_mut().expect("there is one").extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase();
    }
    parts
}

fn words(prose: &str) -> Vec<String> {
    let words = prose.split(|c: char| !c.is_alphanumeric() && c != '\'');
    words.filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

fn contains(parts: &[String], words: &[String]) -> bool {
    parts.windows(words.len()).any(|window| window == words)
}

#[test]
fn names_fall_apart_into_their_parts() {
    assert_eq!(parts("SeeTo"), ["see", "to"]);
    assert_eq!(names("fn see_to(x: LED)"), [vec!["fn"], vec!["see", "to"], vec!["x"], vec!["led"]]);
    assert_eq!(split("a(); // so many"), ("a(); ", "// so many"));
}

#[test]
fn a_line_defines_a_type() {
    let names = ["pub(crate) struct Queue<T> {", "enum Event {", "    pub trait Link: Send {"];
    assert_eq!(names.map(defined_type), [Some("Queue"), Some("Event"), Some("Link")]);
    assert_eq!(defined_type("struct of_c {"), None);
    assert_eq!(defined_type("let trait_of = enum_of(x);"), None);
}
