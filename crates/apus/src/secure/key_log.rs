//! The key log: a file with the keys of sealed paths, for tools that look into captured packets.
//!
//! The [driver](super::driver) takes the keys from the link, and the thread for public-key work writes them.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use apus_net::private_file;
use apus_seal::LoggedKey;

use crate::error::IdentityError;
use crate::sync::{AtomicU64, Mutex, Ordering, PoisonError};

/// A key log that is open.
pub(super) struct KeyLog {
    path: PathBuf,
    /// The file. Nodes and processes may have one together: each line is one write at its end.
    file: Mutex<File>,
    /// 1 after a write has failed.
    broken: AtomicU64,
}

impl KeyLog {
    /// Opens the file, or makes it, and reports on standard error that keys are written.
    ///
    /// # Errors
    ///
    /// As [`private_file::append`] says.
    pub(super) fn open(path: &Path) -> Result<Self, IdentityError> {
        let file = private_file::append(path).map_err(|error| {
            let reason = format!("no keys can be written: {error}");
            IdentityError::Malformed { file: path.to_owned(), reason }
        })?;
        let warning = "writes the keys of sealed paths, so a reader can read all messages, to";
        report(&format!("{warning} {}", path.display()));
        Ok(Self { path: path.to_owned(), file: Mutex::new(file), broken: AtomicU64::new(0) })
    }

    /// Returns whether keys are written.
    pub(super) fn is_written(&self) -> bool {
        self.broken.load(Ordering::Relaxed) == 0
    }

    /// Writes keys. After the first error no more are written.
    pub(super) fn write(&self, keys: &[LoggedKey]) {
        if !self.is_written() {
            return;
        }
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let written = keys.iter().try_for_each(|key| {
            let mut line = key.line();
            line.push('\n');
            file.write_all(line.as_bytes())
        });
        if let Err(error) = written {
            self.broken.store(1, Ordering::Relaxed);
            report(&format!("writes no more keys to {}: {error}", self.path.display()));
        }
    }
}

/// Writes a line to standard error. An error of that is not reported.
fn report(text: &str) {
    let _ = writeln!(io::stderr(), "apus: {text}");
}
