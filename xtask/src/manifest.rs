//! The manifests of the crates below `crates`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use toml::Table;

use crate::program::read;

/// A crate of this repository.
pub(crate) struct Crate {
    /// The name of its directory, which is that of the package.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) manifest: Table,
}

/// Reads all crates, in the order of their names.
///
/// # Errors
/// If a manifest cannot be read.
pub(crate) fn crates() -> Result<Vec<Crate>> {
    let mut crates = Vec::new();
    for entry in std::fs::read_dir("crates").context("crates")? {
        let path = entry.context("crates")?.path();
        let file = path.join("Cargo.toml");
        if !file.exists() {
            continue;
        }
        let name = path.file_name().context("a crate has a name")?.to_string_lossy().into_owned();
        let manifest = read(&file)?.parse().with_context(|| file.display().to_string())?;
        crates.push(Crate { name, path, manifest });
    }
    crates.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(crates)
}

/// Returns a table of a manifest; empty if there is none.
pub(crate) fn table(manifest: &Table, key: &str) -> Table {
    manifest.get(key).and_then(|value| value.as_table()).cloned().unwrap_or_default()
}
