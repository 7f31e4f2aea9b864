//! Checks that every crate carries its licences and a README, and says where it comes from.

use anyhow::{Result, bail};
use toml::Table;

use crate::manifest::{crates, table};
use crate::program::{cargo, output};

/// Files that each package contains.
const FILES: [&str; 3] = ["LICENSE-MIT", "LICENSE-APACHE", "README.md"];

/// Keys of each package's manifest.
const KEYS: [&str; 5] = ["description", "license", "repository", "documentation", "readme"];

pub(crate) fn check() -> Result<()> {
    for krate in crates()? {
        let name = krate.name.as_str();
        let mut list = cargo();
        list.args(["package", "--list", "--allow-dirty", "--offline", "--locked", "-p", name]);
        if let Some(file) = missing_file(&output(&mut list)?) {
            bail!("the package {name} lacks {file}");
        }
        if let Some(key) = missing_key(&krate.manifest) {
            bail!("{}/Cargo.toml lacks {key}", krate.path.display());
        }
    }
    println!("every crate carries two licences and a README");
    Ok(())
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
}
