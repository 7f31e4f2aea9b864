//! Joins the fragments of `changelog.d` with the section "Unreleased" of CHANGELOG.md.
//!
//! A fragment has headings and items as CHANGELOG.md has them. Its items go to the end of the heading's list. Tools for fragments
//! (towncrier, changie) write a section of their own instead, and the first release has one that was written by hand.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::program::read;

const CHANGELOG: &str = "CHANGELOG.md";
const FRAGMENTS: &str = "changelog.d";
const UNRELEASED: &str = "## Unreleased\n";

/// The headings of [Keep a Changelog](https://keepachangelog.com/en/1.1.0/), in the order of a section.
const KINDS: [&str; 6] = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"];

/// Checks the fragments and prints the next section, or writes it as that of a version and a date such as `2026-12-01`.
pub(crate) fn check(release: Option<(&str, &str)>) -> Result<()> {
    let (fragments, text) = (fragments()?, read(CHANGELOG)?);
    let texts = fragments.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    let (before, section, after) = joined(&text, texts)?;
    let Some((version, date)) = release else {
        print!("{UNRELEASED}{section}");
        return Ok(());
    };
    let numbers: Vec<_> = version.split('.').map(str::parse::<u32>).collect();
    ensure!(
        numbers.len() == 3 && numbers.iter().all(Result::is_ok),
        "version '{version}': expected three numbers, such as 0.1.0"
    );
    let is_date = date.len() == 10 && date.split('-').map(str::len).eq([4, 2, 2]);
    ensure!(is_date, "date '{date}': expected a day such as 2026-12-01");
    fs::write(CHANGELOG, format!("{before}{UNRELEASED}\n## {version} - {date}\n{section}{after}"))
        .context(CHANGELOG)?;
    for (name, _) in &fragments {
        fs::remove_file(Path::new(FRAGMENTS).join(name)).with_context(|| name.clone())?;
    }
    println!("{CHANGELOG} has the section {version}, with {} fragments", fragments.len());
    Ok(())
}

/// Returns the fragments in order of their names.
fn fragments() -> Result<Vec<(String, String)>> {
    let mut fragments = Vec::new();
    for entry in fs::read_dir(FRAGMENTS).context(FRAGMENTS)? {
        let entry = entry.context(FRAGMENTS)?;
        let name = entry.file_name().into_string().ok().context("a name is not UTF-8")?;
        if name != "README.md" {
            let text = fs::read_to_string(entry.path()).with_context(|| name.clone())?;
            fragments.push((name, text));
        }
    }
    fragments.sort();
    Ok(fragments)
}

/// Returns the text before the section "Unreleased", the section without its heading and with the fragments, and the text after it.
fn joined<'a>(
    changelog: &'a str,
    fragments: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<(&'a str, String, &'a str)> {
    let (before, rest) = changelog.split_once(UNRELEASED).context("no section \"Unreleased\"")?;
    let end = rest.find("\n## ").map_or(rest.len(), |at| at + 1);
    let (section, after) = rest.split_at(end);
    let mut lists = by_kind(section).context(CHANGELOG)?;
    for (name, text) in fragments {
        let new = items(text).with_context(|| format!("{FRAGMENTS}/{name}"))?;
        for (list, new) in lists.iter_mut().zip(new) {
            list.push_str(&new);
        }
    }
    let lists = KINDS.iter().zip(lists).filter(|(_, list)| !list.is_empty());
    let mut section: String = lists.map(|(kind, list)| format!("\n### {kind}\n\n{list}")).collect();
    if !after.is_empty() {
        section.push('\n');
    }
    Ok((before, section, after))
}

/// Returns the items of a fragment below each heading.
fn items(text: &str) -> Result<[String; KINDS.len()]> {
    let lists = by_kind(text)?;
    ensure!(lists.iter().any(|list| !list.is_empty()), "it has no item");
    for list in &lists {
        let mut lines = list.lines();
        let is_no_item = |line: &&str| !line.starts_with("- ");
        if let Some(first) = lines.next().filter(is_no_item) {
            bail!("'{first}': expected an item, '- …'");
        }
        if let Some(line) = lines.find(|line| is_no_item(line) && !line.starts_with("  ")) {
            bail!("'{line}': expected an item, '- …', or two spaces before its next line");
        }
    }
    Ok(lists)
}

/// Returns the lines below each heading, in the order of [`KINDS`].
fn by_kind(text: &str) -> Result<[String; KINDS.len()]> {
    let mut lists = [const { String::new() }; KINDS.len()];
    let mut current = None;
    for line in text.lines() {
        if let Some(kind) = line.strip_prefix("### ") {
            let place = KINDS.iter().position(|it| *it == kind);
            let place =
                place.with_context(|| format!("'{line}': expected {}", KINDS.join(", ")))?;
            current = Some(place);
        } else if let Some(place) = current {
            let list: &mut String = &mut lists[place];
            if !list.is_empty() || !line.is_empty() {
                list.push_str(line);
                list.push('\n');
            }
        } else {
            ensure!(line.is_empty(), "'{line}': expected a heading before it");
        }
    }
    for list in &mut lists {
        list.truncate(list.trim_end().len());
        if !list.is_empty() {
            list.push('\n');
        }
    }
    Ok(lists)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_of_fragments_are_at_the_end_of_their_lists() {
        let changelog = "# Changelog\n\n## Unreleased\n\n### Added\n\n- a\n  - part\n\n## 0.1.0 - 2026-12-01\n\n- old\n";
        let fragments = [("x.md", "### Fixed\n\n- f\n"), ("y.md", "### Added\n\n- b\n")];
        let (before, section, after) = joined(changelog, fragments.into_iter()).unwrap();
        assert_eq!(before, "# Changelog\n\n");
        assert_eq!(section, "\n### Added\n\n- a\n  - part\n- b\n\n### Fixed\n\n- f\n\n");
        assert_eq!(after, "## 0.1.0 - 2026-12-01\n\n- old\n");
    }

    #[test]
    fn a_wrong_fragment_is_named() {
        for (text, words) in [
            ("- a", "x.md: '- a': expected a heading"),
            ("### New\n- a", "'### New': expected Added, Changed"),
            ("### Added\ntext", "'text': expected an item"),
            ("### Added\n", "it has no item"),
        ] {
            let error = joined("## Unreleased\n", [("x.md", text)].into_iter()).unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains(words), "{error}");
        }
    }
}
