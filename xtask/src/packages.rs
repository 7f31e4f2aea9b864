//! Checks that every crate can be published: it carries its licences and a README, says where it comes from, has the version of all
//! crates, and depends on crates that are published. Also checks what docs.rs needs to show its features.

use anyhow::{Context, Result, bail};
use toml::{Table, Value};

use crate::manifest::{Crate, crates, table};
use crate::program::{cargo, output, read};

/// Files that each package contains.
const FILES: [&str; 3] = ["LICENSE-MIT", "LICENSE-APACHE", "README.md"];

/// Keys of each package's manifest.
const KEYS: [&str; 5] = ["description", "license", "repository", "documentation", "readme"];

/// Crates that are not for crates.io.
const PRIVATE: [&str; 1] = ["apus-book"];

/// Features that only tests have: docs.rs does not show them.
const OF_TESTS: [&str; 1] = ["holes"];

const KINDS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

pub(crate) fn check() -> Result<()> {
    let workspace: Table = read("Cargo.toml")?.parse().context("Cargo.toml")?;
    let workspace = table(&workspace, "workspace");
    let crates = crates()?;
    for krate in &crates {
        let name = krate.name.as_str();
        let mut list = cargo();
        list.args(["package", "--list", "--allow-dirty", "--offline", "--locked", "-p", name]);
        if let Some(file) = missing_file(&output(&mut list)?) {
            bail!("the package {name} lacks {file}");
        }
        if let Some(key) = missing_key(&krate.manifest) {
            bail!("{}/Cargo.toml lacks {key}", krate.path.display());
        }
        // A crate without a library has no features.
        let source = read(krate.path.join("src/lib.rs")).unwrap_or_default();
        let fault = why_not_published(krate, &workspace);
        let fault = fault.or_else(|| why_not_shown(&krate.manifest, &source).map(str::to_owned));
        if let Some(fault) = fault {
            bail!("{}/Cargo.toml: {fault}", krate.path.display());
        }
    }
    println!("every crate carries two licences and a README, and can be published");
    Ok(())
}

/// Returns a reason for which crates.io would refuse a crate, or accept it with another version than that of its neighbours.
fn why_not_published(krate: &Crate, workspace: &Table) -> Option<String> {
    let package = table(&krate.manifest, "package");
    let name = krate.name.as_str();
    let is_private = package.get("publish").and_then(Value::as_bool) == Some(false);
    if is_private != PRIVATE.contains(&name) {
        return Some(format!("publish is {}, unlike in xtask/src/packages.rs", !is_private));
    }
    if is_private {
        return None;
    }
    let inherits = |value: Option<&Value>| {
        value.and_then(|value| value.get("workspace")).and_then(Value::as_bool) == Some(true)
    };
    if !inherits(package.get("version")) {
        return Some("the version is not the workspace's".to_owned());
    }
    // No crate depends on the program, so the workspace has no entry of it.
    let entry = table(workspace, "dependencies").get(name).cloned();
    let version = table(workspace, "package").get("version").cloned();
    if entry.is_some_and(|entry| entry.get("version") != version.as_ref()) {
        return Some("the workspace's dependencies have another version of it, or none".to_owned());
    }
    let dependencies = KINDS.iter().flat_map(|kind| table(&krate.manifest, kind));
    let ours = dependencies.filter(|(name, _)| name.starts_with("apus"));
    ours.filter_map(|(dependency, value)| {
        // A crate whose tests need its features depends on itself, without a version.
        let is_itself = dependency == name && value.get("path").is_some();
        if PRIVATE.contains(&dependency.as_str()) {
            Some(format!("{dependency} is not published"))
        } else if !is_itself && !inherits(Some(&value)) {
            Some(format!("the dependency {dependency} is not the workspace's"))
        } else {
            None
        }
    })
    .next()
}

/// Returns a reason for which docs.rs would not show all of a crate, or for a target that it has not.
fn why_not_shown(manifest: &Table, source: &str) -> Option<&'static str> {
    if table(manifest, "package").get("publish").is_some() {
        return None;
    }
    let package = table(manifest, "package");
    let shown = table(&table(&package, "metadata"), "docs");
    let shown = table(&shown, "rs");
    if !shown.contains_key("targets") {
        return Some(
            "package.metadata.docs.rs has no targets, so docs.rs builds for other systems than Linux",
        );
    }
    let features = table(manifest, "features");
    if features.keys().all(|feature| OF_TESTS.contains(&feature.as_str())) {
        return None;
    }
    if !shown.contains_key("all-features") && !shown.contains_key("features") {
        return Some("package.metadata.docs.rs names no features");
    }
    let flags = shown.get("rustdoc-args").is_some_and(|flags| flags.to_string().contains("docsrs"));
    (!flags || !source.contains("cfg_attr(docsrs, feature(doc_cfg))"))
        .then_some("docs.rs does not show which feature an item needs: --cfg docsrs, and feature(doc_cfg) in src/lib.rs")
}

/// Returns a file that the list of a package's files lacks.
fn missing_file(list: &str) -> Option<&'static str> {
    FILES.into_iter().find(|file| !list.lines().any(|line| line == *file))
}

/// Returns a key that a manifest neither has nor takes from the workspace.
fn missing_key(manifest: &Table) -> Option<&'static str> {
    let package = table(manifest, "package");
    KEYS.into_iter().find(|key| !package.contains_key(*key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_counts_only_at_the_top_of_its_package() {
        assert_eq!(missing_file("LICENSE-APACHE\nLICENSE-MIT\nREADME.md\nsrc/lib.rs"), None);
        let nested = "LICENSE-APACHE\nLICENSE-MIT\ndocs/README.md";
        assert_eq!(missing_file(nested), Some("README.md"));
    }

    #[test]
    fn a_key_may_come_from_the_workspace() {
        let manifest = |text: &str| text.parse::<Table>().unwrap();
        let text = "[package]\ndescription = 'x'\nlicense.workspace = true\nrepository = 'x'\n\
            documentation = 'x'\n";
        assert_eq!(missing_key(&manifest(&format!("{text}readme = 'README.md'"))), None);
        assert_eq!(missing_key(&manifest(&format!("{text}[lib]\nreadme = 'x'"))), Some("readme"));
    }

    #[test]
    fn versions_and_dependencies_are_those_of_the_workspace() {
        let workspace: Table = "package.version = '1.0.0'\n[dependencies]\n\
            apus-a = { path = 'a', version = '1.0.0' }\napus-b = { path = 'b', version = '0.9.0' }"
            .parse()
            .unwrap();
        let fault = |name: &str, text: &str| {
            let manifest = text.parse().unwrap();
            let krate = Crate { name: name.to_owned(), path: name.into(), manifest };
            why_not_published(&krate, &workspace).unwrap_or_default()
        };
        let ours = "[package]\nversion.workspace = true\n";
        assert_eq!(fault("apus-a", ours), "");
        assert!(fault("apus-b", ours).contains("another version"));
        assert_eq!(fault("apus-cli", ours), "");
        assert!(fault("apus-a", "[package]\nversion = '1.0.0'").contains("version is not"));
        assert!(fault("apus-a", "[package]\npublish = false").contains("publish is false"));
        let with = |line: &str| fault("apus-a", &format!("{ours}[dev-dependencies]\n{line}"));
        assert_eq!(with("apus-a = { path = '.' }\napus-c.workspace = true\nserde = '1'"), "");
        assert!(with("apus-c = { path = '../c' }").contains("apus-c is not the workspace's"));
        assert!(with("apus-book.workspace = true").contains("not published"));
    }

    #[test]
    fn docs_rs_shows_features() {
        let fault = |manifest: &str, source: &str| {
            why_not_shown(&manifest.parse().unwrap(), source).unwrap_or_default()
        };
        assert!(fault("[package]", "").contains("no targets"));
        let targets = "[package.metadata.docs.rs]\ntargets = ['x']\n";
        assert_eq!(fault(targets, ""), "");
        assert_eq!(fault(&format!("{targets}[features]\nholes = []"), ""), "");
        assert!(fault(&format!("{targets}[features]\nx = []"), "").contains("names no features"));
        let all = "all-features = true\nrustdoc-args = ['--cfg', 'docsrs']\n[features]\nx = []";
        assert!(fault(&format!("{targets}{all}"), "").contains("which feature"));
        let source = "#![cfg_attr(docsrs, feature(doc_cfg))]";
        assert_eq!(fault(&format!("{targets}{all}"), source), "");
    }
}
