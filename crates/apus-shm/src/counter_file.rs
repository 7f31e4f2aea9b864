//! Files in which processes publish their counters: their location, creation and expiry.
//!
//! The counting process maps its file, and other processes use `read`, so that a file truncated by another program is only an error
//! for its reader. A file outlives its process, however that ends. Truncating a file kills the process that has it mapped, at its
//! next write; only the same user and root can do so. Removing the file does no harm.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::fcntl::{FallocateFlags, OFlag, fallocate};
use nix::unistd::geteuid;

use crate::segment::{Memory, fits_file_limit, map_beyond};

/// A process, identified by PID and start time, which are unique in a pid namespace since the boot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ProcessName {
    /// PID in its pid namespace.
    pub pid: u32,
    /// Start time, as field 22 of `/proc/PID/stat`.
    pub ticks: u64,
    /// Inode of its pid namespace.
    pub namespace: u64,
}

impl ProcessName {
    /// Returns the name of the calling process.
    ///
    /// # Errors
    ///
    /// If `/proc` is not mounted.
    pub fn current() -> io::Result<Self> {
        let pid = std::process::id();
        let (_, ticks) = status_of(pid).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { pid, ticks, namespace: own_namespace()? })
    }

    /// Returns whether the process runs; `None` if it belongs to another pid namespace than the caller.
    #[must_use]
    pub fn is_alive(&self) -> Option<bool> {
        if own_namespace().ok()? != self.namespace {
            return None;
        }
        // A zombie has ended, and its parent has not collected its exit code.
        let runs = |(state, ticks)| ticks == self.ticks && state != 'Z' && state != 'X';
        Some(status_of(self.pid).is_some_and(runs))
    }

    fn file_name(&self) -> String {
        format!("{}.{}.{}", self.pid, self.ticks, self.namespace)
    }

    fn of_file(name: &str) -> Option<Self> {
        let mut numbers = name.split('.');
        let process = Self {
            pid: numbers.next()?.parse().ok()?,
            ticks: numbers.next()?.parse().ok()?,
            namespace: numbers.next()?.parse().ok()?,
        };
        (numbers.next().is_none() && process.file_name() == name).then_some(process)
    }
}

fn own_namespace() -> io::Result<u64> {
    Ok(fs::metadata("/proc/self/ns/pid")?.ino())
}

/// Returns state and start time of a process.
fn status_of(pid: u32) -> Option<(char, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name, in parentheses, may contain any characters.
    let (_, rest) = text.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// A directory with the counter files of a user's processes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CounterDirectory(PathBuf);

impl CounterDirectory {
    /// Returns the directory of the calling user: `apus-UID` in `/dev/shm`. Every host and container has `/dev/shm`, and both
    /// services and shells of the user find it, unlike `XDG_RUNTIME_DIR`.
    #[must_use]
    pub fn of_user() -> Self {
        Self(format!("/dev/shm/apus-{}", geteuid()).into())
    }

    /// Returns the directory at a path.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the processes with a file, in their order.
    ///
    /// # Errors
    ///
    /// If the directory does not exist or cannot be read, or belongs to another user and the caller is not root.
    pub fn list(&self) -> io::Result<Vec<ProcessName>> {
        self.check_owner(true)?;
        let names = fs::read_dir(&self.0)?.flatten();
        let mut found: Vec<_> = names
            .filter_map(|entry| ProcessName::of_file(entry.file_name().to_str()?))
            .take(LISTED_MAX)
            .collect();
        found.sort_unstable();
        Ok(found)
    }

    /// Reads a file of at most `most` bytes.
    ///
    /// # Errors
    ///
    /// If the file does not exist, cannot be read, is longer, or is not a regular file.
    pub fn read(&self, process: &ProcessName, most: usize) -> io::Result<Vec<u8>> {
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let path = self.0.join(process.file_name());
        let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.len() > most as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a file of this kind"));
        }
        let mut bytes = Vec::new();
        file.take(most as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Creates the file of a process, which begins with `header` and grows up to `size` bytes, and removes outdated files of ended
    /// processes: files last written, according to `written`, more than an hour ago, and the oldest beyond 64. Creates the
    /// directory if necessary.
    ///
    /// # Errors
    ///
    /// If the directory cannot be created or belongs to another user, or no memory is left.
    pub fn create(
        &self,
        process: &ProcessName,
        header: &[u8],
        size: usize,
        written: impl Fn(&[u8]) -> Option<SystemTime>,
    ) -> io::Result<CounterFile> {
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => self.check_owner(false)?,
        }
        self.remove_outdated(written);
        CounterFile::create(&self.0.join(process.file_name()), header, size)
    }

    /// Checks that no other user can put files or links there. Root may read directories of others, and creates nothing there.
    fn check_owner(&self, reads: bool) -> io::Result<()> {
        let found = fs::symlink_metadata(&self.0)?;
        let entitled = found.uid() == geteuid().as_raw() || reads && geteuid().is_root();
        if !found.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        if !entitled || found.mode() & 0o022 != 0 && found.mode() & 0o1000 == 0 {
            let text = "it belongs to another user, or other users may write to it";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(())
    }

    fn remove_outdated(&self, written: impl Fn(&[u8]) -> Option<SystemTime>) {
        let Ok(found) = self.list() else { return };
        let now = SystemTime::now();
        let mut ended: Vec<(SystemTime, ProcessName)> = Vec::new();
        for process in found {
            let alive = process.is_alive();
            if alive == Some(true) {
                continue;
            }
            let read = self.read(&process, OUTDATED_READ_MAX).ok();
            let last = read.and_then(|bytes| written(&bytes)).unwrap_or(SystemTime::UNIX_EPOCH);
            let age = now.duration_since(last).unwrap_or_default();
            // The end of a process in another pid namespace cannot be detected.
            let kept = if alive.is_none() { FOREIGN_KEPT } else { KEPT };
            if age > kept {
                self.remove(&process);
            } else if alive == Some(false) {
                ended.push((last, process));
            }
        }
        ended.sort_unstable();
        let beyond = ended.len().saturating_sub(KEPT_MAX);
        ended.iter().take(beyond).for_each(|(_, process)| self.remove(process));
    }

    fn remove(&self, process: &ProcessName) {
        let _ = fs::remove_file(self.0.join(process.file_name())); // Another process may have removed it first.
    }
}

/// A file that this process has mapped and writes.
#[derive(Debug)]
pub struct CounterFile {
    file: File,
    whole: Memory,
}

impl CounterFile {
    fn create(path: &Path, header: &[u8], size: usize) -> io::Result<Self> {
        fits_file_limit(header.len() as u64)?;
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(path)?;
        let mapped = file.write_all_at(header, 0).and_then(|()| map_beyond(file.as_fd(), size));
        if mapped.is_err() {
            let _ = fs::remove_file(path); // No process has read it.
        }
        Ok(Self { whole: mapped?, file })
    }

    /// Returns a part of the file for this process to write: `length` bytes from `offset` on. Each part must have one caller only.
    /// The memory is allocated, so no write fails for lack of memory.
    ///
    /// # Errors
    ///
    /// If no memory is left, the part exceeds the size of the file, or [`fits_file_limit`] fails.
    pub fn part(&self, offset: usize, length: usize) -> io::Result<Memory> {
        let end = offset.checked_add(length).filter(|end| *end <= self.whole.size());
        let end = end.ok_or(io::ErrorKind::InvalidInput)?;
        fits_file_limit(end as u64)?;
        let end = i64::try_from(end).map_err(io::Error::other)?;
        fallocate(&self.file, FallocateFlags::empty(), 0, end)?;
        Ok(self.whole.part(offset, length))
    }
}

/// Time for which the file of an ended process is kept.
const KEPT: Duration = Duration::from_secs(3_600);

/// Upper bound on the kept files of ended processes.
const KEPT_MAX: usize = 64;

/// Time for which the file of a process in another pid namespace is kept.
const FOREIGN_KEPT: Duration = Duration::from_secs(86_400);

/// Upper bound on the files of a directory that are examined.
const LISTED_MAX: usize = 4_096;

/// Upper bound on the bytes of a file that are read for the time of its last write.
const OUTDATED_READ_MAX: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::Ordering;

    use super::*;

    /// A test's own directory, removed at its end.
    struct Scratch(CounterDirectory);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("apus-{name}-{}", std::process::id()));
            Self(CounterDirectory::at(&path))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(self.0.path()); // Its test may have failed before creating it.
        }
    }

    fn long_ago(_: &[u8]) -> Option<SystemTime> {
        Some(SystemTime::UNIX_EPOCH)
    }

    fn just_now(_: &[u8]) -> Option<SystemTime> {
        Some(SystemTime::now())
    }

    #[test]
    fn what_is_written_can_be_read_by_its_user_alone() {
        let scratch = Scratch::new("counters");
        let process = ProcessName::current().unwrap();
        assert_eq!(process.is_alive(), Some(true));
        let file = scratch.0.create(&process, b"header", 1 << 20, long_ago).unwrap();
        let part = file.part(64, 128).unwrap();
        part.word(8).store(7, Ordering::Relaxed);
        assert!(file.part(1 << 20, 8).is_err());
        assert_eq!(scratch.0.list().unwrap(), [process]);
        let bytes = scratch.0.read(&process, 1 << 20).unwrap();
        assert_eq!((&bytes[..6], &bytes[72..80]), (&b"header"[..], &7u64.to_ne_bytes()[..]));
        assert_eq!(bytes.len(), 192);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(scratch.0.path()), 0o700);
        assert_eq!(mode(&scratch.0.path().join(process.file_name())), 0o600);
        assert!(scratch.0.read(&process, 100).is_err(), "longer than is read");
        assert!(scratch.0.create(&process, b"header", 4096, long_ago).is_err(), "it is there");
    }

    #[test]
    fn files_of_processes_that_have_ended_are_removed_when_they_are_old_or_many() {
        let scratch = Scratch::new("outdated");
        let me = ProcessName::current().unwrap();
        let ended = |pid| ProcessName { pid, ticks: 1, ..me };
        let others = [ended(me.pid), ProcessName { namespace: 1, ..ended(7) }];
        let add = |process: &ProcessName, written: fn(&[u8]) -> Option<SystemTime>| {
            drop(scratch.0.create(process, b"", 4096, written).unwrap());
        };
        others.iter().for_each(|process| add(process, just_now));
        add(&me, just_now);
        assert_eq!(scratch.0.list().unwrap().len(), 3);
        (0..70).for_each(|pid| add(&ended(u32::MAX - pid), just_now));
        let kept = scratch.0.list().unwrap();
        assert!(kept.contains(&me) && kept.contains(&others[1]), "{kept:?}");
        // The last file was created after the last cleanup.
        assert_eq!(kept.len(), KEPT_MAX + 3);
        add(&ended(3), long_ago);
        assert_eq!(scratch.0.list().unwrap(), [ended(3), me].to_vec());
    }

    #[test]
    fn root_makes_no_file_in_a_directory_of_another_user() {
        if !geteuid().is_root() {
            return eprintln!("skipped: only root may give a directory away");
        }
        let scratch = Scratch::new("foreign");
        fs::create_dir(scratch.0.path()).unwrap();
        fs::set_permissions(scratch.0.path(), fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(scratch.0.path(), Some(65_534), None).unwrap();
        let me = ProcessName::current().unwrap();
        assert!(scratch.0.create(&me, b"", 4096, long_ago).is_err());
        assert_eq!(scratch.0.list().unwrap(), []);
    }

    #[test]
    fn a_directory_that_others_may_write_is_not_used() {
        let scratch = Scratch::new("open");
        fs::create_dir(scratch.0.path()).unwrap();
        fs::set_permissions(scratch.0.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let me = ProcessName::current().unwrap();
        assert!(scratch.0.list().is_err());
        assert!(scratch.0.create(&me, b"", 4096, long_ago).is_err());
    }
}
