//! Checks that each crate compiles without features and with all of them, or also with each feature alone, and that nothing has the
//! feature that brings holes back for tests.

use anyhow::{Result, bail};
use toml::{Table, Value};

use crate::manifest::{Crate, crates, table};
use crate::program::{cargo, run};

/// A feature of crates in which tests of the fault campaign bring holes back. Only a command may choose it.
const HOLES: &str = "holes";

/// Checks the features; `each`: also each alone, which takes four times as long.
pub(crate) fn check(each: bool) -> Result<()> {
    for krate in crates()? {
        if let Some(place) = chooses_holes(&krate) {
            bail!("{}: {place} chooses the feature {HOLES}, which only tests may have", krate.name);
        }
        let features = table(&krate.manifest, "features");
        if features.is_empty() {
            continue;
        }
        let alone = features.keys().filter(|_| each).map(|it| format!("--features={it}"));
        for choice in [String::new()].into_iter().chain(alone).chain(["--all-features".to_owned()])
        {
            println!("{} {choice}", krate.name);
            let mut clippy = cargo();
            clippy.args(["clippy", "-p", &krate.name, "--no-default-features"]);
            clippy.args((!choice.is_empty()).then_some(choice));
            run(clippy.args(["--locked", "--quiet", "--", "-D", "warnings"]))?;
        }
    }
    Ok(())
}

/// Returns the part of a manifest that chooses the feature of holes, if there is one.
fn chooses_holes(krate: &Crate) -> Option<String> {
    let names_it = |value: &Value| {
        let named = value.as_str().is_some_and(|name| name.rsplit('/').next() == Some(HOLES));
        named.then_some(())
    };
    let lists_it = |list: Option<&Value>| list?.as_array()?.iter().find_map(names_it);
    let features = table(&krate.manifest, "features");
    let by_feature = features.iter().filter(|(name, _)| *name != HOLES);
    let by_feature = by_feature.filter_map(|(name, list)| lists_it(Some(list)).map(|()| name));
    let dependencies = ["dependencies", "dev-dependencies", "build-dependencies"];
    let dependencies = dependencies.map(|kind| table(&krate.manifest, kind));
    let by_dependency = dependencies.iter().flat_map(Table::iter).filter_map(|(name, value)| {
        let features = value.as_table().and_then(|table| table.get("features"));
        lists_it(features).map(|()| name)
    });
    by_feature.chain(by_dependency).next().cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(manifest: &str) -> Option<String> {
        let (name, path) = ("a".to_owned(), "a".into());
        chooses_holes(&Crate { name, path, manifest: manifest.parse().expect("a manifest") })
    }

    #[test]
    fn only_the_feature_itself_may_pass_it_on() {
        assert_eq!(place("[features]\nholes = [\"b/holes\"]\nother = [\"b/more\"]"), None);
        assert_eq!(place("[features]\ndefault = [\"holes\"]").as_deref(), Some("default"));
        assert_eq!(place("[features]\nother = [\"b/holes\"]").as_deref(), Some("other"));
        let dependency = "[dev-dependencies]\nb = { workspace = true, features = [\"holes\"] }";
        assert_eq!(place(dependency).as_deref(), Some("b"));
    }
}
