//! The log of a carrier: standard error, which is the journal under systemd, or a file.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::{env, mem};

use anyhow::{Context, Result};
use tracing_subscriber::fmt::fmt;

/// Bytes after which a file is renamed, in place of the one that was renamed before.
const FILE_MAX: u64 = 1 << 20;

/// The file of a carrier in the background: beside the state of other programs of the user.
pub(super) fn default_file(port: u16) -> Option<PathBuf> {
    let set = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(state.join("apus").join(format!("carrier-{port}.log")))
}

/// Whether this process may log to a default file.
pub(super) fn may_have(path: &Path) -> bool {
    LogFile::open(path.to_owned()).is_ok()
}

/// Logs to a file from now on, or to standard error. Returns where.
///
/// # Errors
/// When the file cannot be written.
pub(super) fn begin(file: Option<&Path>) -> Result<String> {
    let format = fmt().with_target(false).with_max_level(tracing::Level::INFO);
    if let Some(path) = file {
        let cannot = || format!("cannot log to '{}'", path.display());
        let log = LogFile::open(path.to_owned()).with_context(cannot)?;
        format.with_ansi(false).with_writer(Mutex::new(log)).init();
        return Ok(path.display().to_string());
    }
    let format = format.with_ansi(io::stderr().is_terminal()).with_writer(io::stderr);
    if env::var_os("JOURNAL_STREAM").is_some() {
        format.without_time().init(); // The journal has times of its own.
        return Ok("journal".to_owned());
    }
    format.init();
    Ok("standard error".to_owned())
}

/// A file that is renamed when it is long, so that there are two of limited length.
#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    file: File,
    length: u64,
}

impl LogFile {
    fn open(path: PathBuf) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
        let length = file.metadata()?.len();
        Ok(Self { path, file, length })
    }

    fn begin_anew(&mut self) -> io::Result<()> {
        let mut old = self.path.clone().into_os_string();
        old.push(".old");
        fs::rename(&self.path, &old)?;
        let new = Self::open(mem::take(&mut self.path))?;
        *self = new;
        Ok(())
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.length >= FILE_MAX {
            self.begin_anew()?;
        }
        let count = self.file.write(bytes)?;
        self.length += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_a_limited_length() {
        let directory = env::temp_dir().join(format!("apus-log-{}", std::process::id()));
        let path = directory.join("state/carrier.log");
        let mut log = LogFile::open(path.clone()).expect("the directory is made");
        let line = [b'x'; 1 << 16];
        for _ in 0..40 {
            log.write_all(&line).expect("there is room");
        }
        let length = |path: &Path| fs::metadata(path).expect("it is there").len();
        assert_eq!((length(&path), length(&path.with_extension("log.old"))), (8 << 16, FILE_MAX));
        let again = LogFile::open(path).expect("as before");
        assert_eq!(again.length, 8 << 16);
        fs::remove_dir_all(directory).expect("it was made here");
    }
}
