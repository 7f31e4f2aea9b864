//! Checks the licences of all dependencies against the list in `deny.toml`, and that they come from crates.io. `cargo deny`, which
//! `.ci/deep` runs, reads the licence files, too.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use toml::{Table, Value};

use crate::program::{cargo, output, read};

/// The only source of dependencies.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

pub(crate) fn check() -> Result<()> {
    let allowed = allowed(&read("deny.toml")?)?;
    let mut tree = cargo();
    tree.args(["tree", "--workspace", "--all-features", "--target", "all", "--locked"]);
    let tree = output(tree.args(["--prefix", "none", "--format", "{p}|{l}"]))?;
    let mut wrong = Vec::new();
    for (package, licence) in packages(&tree) {
        if !is_allowed(licence, &allowed) {
            wrong.push(format!("{package}: the licence '{licence}' is not in deny.toml"));
        }
    }
    let own = ["fuzz/Cargo.lock", "crates/apus-tonic/codegen/Cargo.lock", "python/Cargo.lock"];
    for lock in ["Cargo.lock"].into_iter().chain(own) {
        for source in other_sources(&read(lock)?).with_context(|| lock)? {
            wrong.push(format!("a dependency comes from {source}"));
        }
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    println!("every dependency comes from crates.io under a licence of deny.toml");
    Ok(())
}

/// Returns the licences that `deny.toml` allows.
fn allowed(deny: &str) -> Result<BTreeSet<String>> {
    let deny: Table = deny.parse().context("deny.toml")?;
    let list = deny.get("licenses").and_then(|it| it.get("allow")).and_then(Value::as_array);
    let list = list.context("deny.toml has no licenses.allow")?;
    Ok(list.iter().filter_map(|licence| Some(licence.as_str()?.to_owned())).collect())
}

/// Returns the packages of `cargo tree` with their licences, each once.
fn packages(tree: &str) -> BTreeSet<(&str, &str)> {
    let lines = tree.lines().map(|line| line.strip_suffix(" (*)").unwrap_or(line));
    lines
        .filter(|line| !line.is_empty())
        .map(|line| line.split_once('|').unwrap_or((line, "")))
        .collect()
}

/// Returns whether a licence such as `(A OR B) AND C` is allowed: C, and one of A and B.
fn is_allowed(licence: &str, allowed: &BTreeSet<String>) -> bool {
    let licence = licence.replace(['(', ')'], "");
    let is_one_allowed = |part: &str| {
        part.replace('/', " OR ").split(" OR ").any(|one| allowed.contains(one.trim()))
    };
    licence.split(" AND ").all(is_one_allowed)
}

/// Returns the sources in a lock file other than crates.io.
fn other_sources(lock: &str) -> Result<BTreeSet<String>> {
    let lock: Table = lock.parse()?;
    let packages = lock.get("package").and_then(Value::as_array).context("no packages")?;
    let sources = packages.iter().filter_map(|package| package.get("source")?.as_str());
    Ok(sources.filter(|source| *source != CRATES_IO).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn licences(list: &[&str]) -> BTreeSet<String> {
        list.iter().map(|&licence| licence.to_owned()).collect()
    }

    #[test]
    fn one_alternative_of_each_part_is_enough() {
        let allowed = licences(&["MIT", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"]);
        for licence in [
            "MIT",
            "MIT/Apache-2.0",
            "Apache-2.0 / MIT",
            "Apache-2.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "GPL-3.0 OR Apache-2.0 WITH LLVM-exception",
        ] {
            assert!(is_allowed(licence, &allowed), "{licence}");
        }
        for licence in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR Apache-2.0) AND BSD-3-Clause"] {
            assert!(!is_allowed(licence, &allowed), "{licence}");
        }
    }

    #[test]
    fn a_tree_names_a_package_several_times() {
        let tree = "a v1|MIT\nb v1 (proc-macro)|MIT OR Apache-2.0\na v1|MIT (*)\n\nc v1|";
        let expected = [("a v1", "MIT"), ("b v1 (proc-macro)", "MIT OR Apache-2.0"), ("c v1", "")];
        assert_eq!(packages(tree), expected.into());
    }

    #[test]
    fn a_dependency_from_elsewhere_is_found() {
        let package = |source: &str| format!("[[package]]\nname = \"a\"\n{source}\n");
        let registry = package(&format!("source = \"{CRATES_IO}\""));
        let lock = format!("{}{registry}", package(""));
        assert!(other_sources(&lock).unwrap().is_empty());
        let git = package("source = \"git+https://example.org/a\"");
        assert_eq!(
            other_sources(&(lock + &git)).unwrap(),
            licences(&["git+https://example.org/a"])
        );
    }

    #[test]
    fn the_list_of_this_repository_is_read() {
        let text = include_str!("../../deny.toml");
        assert!(allowed(text).unwrap().contains("MIT"));
    }
}
