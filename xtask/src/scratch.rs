//! A directory that is removed with everything in it when it is dropped.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Context, Result, bail};

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
        for number in 0_u32.. {
            let path = base.join(format!("{name}-{}-{number}", process::id()));
            match fs::create_dir(&path) {
                // Another thread, or an earlier process with this id.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => {
                    return made.with_context(|| path.display().to_string()).map(|()| Self(path));
                }
            }
        }
        bail!("every name of {name} in {} is taken", base.display())
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
    use std::collections::BTreeSet;
    use std::thread;

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

    #[test]
    fn threads_that_make_directories_at_the_same_time_get_one_each() {
        let make = || std::iter::repeat_with(|| ScratchDirectory::new("at-once").unwrap());
        let made: Vec<Vec<_>> = thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(|| make().take(50).collect()));
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let paths: BTreeSet<_> = made.iter().flatten().map(ScratchDirectory::path).collect();
        assert_eq!(paths.len(), 200);
    }
}
