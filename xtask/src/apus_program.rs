//! The program `apus` under which a check runs other programs, and the commit of its sources.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::program::{cargo, output, run, target};

/// A built program `apus`.
#[derive(Clone, Debug)]
pub(crate) struct ApusProgram {
    pub(crate) path: PathBuf,
    /// The commit that records name.
    pub(crate) commit: String,
}

impl ApusProgram {
    /// The program at this path, or else in the variable `APUS`; otherwise the release build of these sources. Paths are relative to
    /// `directory`.
    ///
    /// The commit is the one that the program reports, if it was built with `APUS_COMMIT`, otherwise that of the sources.
    ///
    /// # Errors
    /// If the program cannot be built or started.
    pub(crate) fn find(directory: &Path, path: Option<&str>) -> Result<Self> {
        let variable = std::env::var("APUS").ok().filter(|it| !it.is_empty());
        let Some(path) = path.map(str::to_owned).or(variable) else {
            run(cargo().args(["build", "--release", "--locked", "--quiet", "-p", "apus-cli"]))?;
            let path = PathBuf::from(target()).join("release/apus");
            let path = path.canonicalize().with_context(|| path.display().to_string())?;
            return Ok(Self { path, commit: commit_of_sources()? });
        };
        let path = directory.join(path);
        let path = path.canonicalize().with_context(|| path.display().to_string())?;
        let version = output(Command::new(&path).arg("--version"))?;
        let commit = match commit_in(&version) {
            Some(commit) => commit.to_owned(),
            None => commit_of_sources()?,
        };
        Ok(Self { path, commit })
    }
}

fn commit_of_sources() -> Result<String> {
    output(Command::new("git").args(["describe", "--always", "--dirty", "--exclude=*"]))
}

/// Returns the commit of `apus VERSION (commit COMMIT)`.
fn commit_in(version: &str) -> Option<&str> {
    version.split_once("(commit ")?.1.split_once(')').map(|(commit, _)| commit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commit_is_read_from_the_version() {
        assert_eq!(commit_in("apus 0.1.0 (commit 0590674)"), Some("0590674"));
        assert_eq!(commit_in("apus 0.1.0"), None);
    }
}
