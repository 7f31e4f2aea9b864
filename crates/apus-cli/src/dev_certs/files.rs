//! The files of a directory. None is ever replaced.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use apus_load::misuse::Misuse;

/// The directory of the files, by its absolute path.
pub(super) struct CertificateDirectory(PathBuf);

impl CertificateDirectory {
    /// Creates the directory with mode 0700 unless it exists.
    ///
    /// # Errors
    /// When it cannot be created, other users may write there, or a setting cannot have its path.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let cannot = || format!("cannot create the directory '{}'", path.display());
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => created.with_context(cannot)?,
        }
        let found = fs::metadata(path).with_context(cannot)?;
        ensure!(found.is_dir(), "'{}' exists and is no directory", path.display());
        let mode = found.mode() & 0o7777;
        ensure!(
            mode & 0o022 == 0,
            "other users may write to '{0}' (mode {mode:04o}): chmod 0700 '{0}'",
            path.display()
        );
        let path = path.canonicalize().with_context(cannot)?;
        let fits = |text: &str| !text.contains(',') && !text.chars().any(char::is_control);
        if !path.to_str().is_some_and(fits) {
            let name = path.display();
            let allowed = "expected a path of UTF-8 without commas and control characters";
            return Err(Misuse(format!("DIR '{name}': {allowed}, which settings can name")).into());
        }
        Ok(Self(path))
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(super) fn into_path(self) -> PathBuf {
        self.0
    }
}

/// Files that do not exist yet.
#[derive(Default)]
pub(super) struct NewFiles(Vec<(PathBuf, String)>);

impl NewFiles {
    pub(super) fn add(&mut self, path: &Path, text: String) {
        self.0.push((path.to_owned(), text));
    }

    /// Writes all files with mode 0600, or none of them.
    ///
    /// # Errors
    /// When one exists, or cannot be written.
    pub(super) fn write(self) -> Result<()> {
        let exists = self.0.iter().find(|(path, _)| path.symlink_metadata().is_ok());
        if let Some((path, _)) = exists {
            return Err(taken(path));
        }
        for (index, (path, text)) in self.0.iter().enumerate() {
            if let Err(error) = write_new(path, text) {
                // A file that another process made in the meantime is not this one's.
                let own = index + usize::from(error.kind() != ErrorKind::AlreadyExists);
                for (path, _) in &self.0[..own] {
                    // The file may not be there. The first error is the one to report.
                    let _ = fs::remove_file(path);
                }
                return Err(match error.kind() {
                    ErrorKind::AlreadyExists => taken(path),
                    _ => anyhow::Error::new(error)
                        .context(format!("cannot write '{}'", path.display())),
                });
            }
        }
        Ok(())
    }
}

fn taken(path: &Path) -> anyhow::Error {
    anyhow::anyhow!(
        "'{}' exists and is not replaced: expected another directory or another --name",
        path.display()
    )
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}
