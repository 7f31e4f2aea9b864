//! A directory that is removed with everything in it when it is dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Context, Result};

/// A new directory for temporary files.
#[derive(Debug)]
pub(crate) struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    /// Makes a directory. `name` is a part of its name.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn new(name: &str) -> Result<Self> {
        let base = std::env::temp_dir();
        let path = |number: u32| base.join(format!("{name}-{}-{number}", process::id()));
        let free = (0..).map(path).find(|path| !path.exists()).context("a free name")?;
        fs::create_dir(&free).with_context(|| free.display().to_string())?;
        Ok(Self(free))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        // A process that was left behind may still write into it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_have_their_own_names_and_are_removed() {
        let (one, other) =
            (ScratchDirectory::new("of").unwrap(), ScratchDirectory::new("of").unwrap());
        assert_ne!(one.path(), other.path());
        fs::write(one.join("file"), "x").unwrap();
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists() && other.path().exists());
    }
}
