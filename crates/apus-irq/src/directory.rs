//! The directory of the state files, opened so that no other user can choose the file that is read, written or removed.
//!
//! The directory has to belong to the user of this process, and no other user may write into it. The module reaches everything in
//! it by its descriptor and a plain name, and a symbolic link is an error.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, renameat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::error::Error;

/// An open state directory.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    fd: OwnedFd,
}

impl Directory {
    /// Opens the directory; `None` if there is none.
    ///
    /// # Errors
    /// When it is no directory, belongs to another user, or is writable by others.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match openat(CWD, path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(refused(path, NO_DIRECTORY)),
            Err(error) => return Err(failed(path, error.into())),
        };
        let stat = fstat(&fd).map_err(|error| failed(path, error.into()))?;
        if let Some(why) = distrust(&stat) {
            return Err(refused(path, &why));
        }
        Ok(Some(Self { path: path.to_owned(), fd }))
    }

    /// Opens the directory, which is made for this user alone if there is none.
    ///
    /// # Errors
    /// As [`open`](Self::open), and when it cannot be made.
    pub(crate) fn made(path: &Path) -> Result<Self, Error> {
        if let Some(directory) = Self::open(path)? {
            return Ok(directory);
        }
        let make = || -> io::Result<()> {
            if let Some(parent) = path.parent() {
                fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
            }
            match fs::DirBuilder::new().mode(0o700).create(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                made => made,
            }
        };
        make().map_err(|error| failed(path, error))?;
        let directory = Self::open(path)?;
        directory.ok_or_else(|| failed(path, io::ErrorKind::NotFound.into()))
    }

    /// The names of its entries, in order.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub(crate) fn names(&self) -> Result<Vec<String>, Error> {
        let read = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in Dir::read_from(&self.fd)?.take(ENTRIES_MAX) {
                names.extend(entry?.file_name().to_str().ok().map(str::to_owned));
            }
            names.sort();
            Ok(names)
        };
        read().map_err(|error| failed(&self.path, error))
    }

    /// The text of a file; `None` if there is none.
    ///
    /// # Errors
    /// When it is not a regular file of this user, is too long, or cannot be read.
    pub(crate) fn read(&self, name: &str) -> Result<Option<String>, Error> {
        // A FIFO would block the call, and is refused as soon as it is open.
        let file = match self.open_file(name, OFlags::RDONLY | OFlags::NONBLOCK) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(None);
            }
            file => file?,
        };
        let mut text = String::new();
        let read = file.take(BYTES_MAX + 1).read_to_string(&mut text);
        read.map_err(|error| failed(&self.path.join(name), error))?;
        if text.len() as u64 > BYTES_MAX {
            return Err(refused(&self.path.join(name), "too long for a state file"));
        }
        Ok(Some(text))
    }

    /// Puts a file into its place, whole or not at all.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write(&self, name: &str, text: &[u8]) -> Result<(), Error> {
        let part = format!("{name}.part");
        // A killed process may have left the part behind.
        self.remove(&part)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut file = self.open_file(&part, flags)?;
        let mut put = || -> io::Result<()> {
            file.write_all(text)?;
            file.sync_all()?;
            Ok(renameat(&self.fd, part.as_str(), &self.fd, name)?)
        };
        put().map_err(|error| failed(&self.path.join(name), error))
    }

    /// Removes a file. A missing file is no error.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub(crate) fn remove(&self, name: &str) -> Result<(), Error> {
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => {
                Err(Error::io(format!("remove `{}`", self.path.join(name).display()), error.into()))
            }
        }
    }

    /// Waits until no other process changes anything in the directory. The lock ends with the returned value.
    ///
    /// # Errors
    /// When the file of the lock is not a regular file of this user, or cannot be locked.
    pub(crate) fn lock(&self) -> Result<Flock<File>, Error> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NONBLOCK;
        let file = self.open_file(LOCK, flags)?;
        Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, errno)| failed(&self.path.join(LOCK), errno.into()))
    }

    /// Opens a plain file of this user, without following a link.
    fn open_file(&self, name: &str, flags: OFlags) -> Result<File, Error> {
        let path = || self.path.join(name);
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR).map_err(
            |error| match error {
                Errno::LOOP => refused(&path(), "a symbolic link"),
                error => failed(&path(), error.into()),
            },
        )?;
        let stat = fstat(&fd).map_err(|error| failed(&path(), error.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(refused(&path(), "not a regular file"));
        }
        match distrust(&stat) {
            Some(why) => Err(refused(&path(), &why)),
            None => Ok(fd.into()),
        }
    }
}

/// Why a file or directory must not be trusted; `None` if it may be.
fn distrust(stat: &Stat) -> Option<String> {
    let own = geteuid().as_raw();
    if stat.st_uid != own {
        return Some(format!(
            "owned by user {}, while this process runs as user {own}",
            stat.st_uid
        ));
    }
    let others = stat.st_mode & 0o022;
    (others != 0).then(|| format!("writable by other users (mode {:o})", stat.st_mode & 0o7777))
}

fn refused(path: &Path, why: &str) -> Error {
    Error::UnsafeState { path: path.to_owned(), why: why.to_owned() }
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::io(format!("state `{}`", path.display()), error)
}

/// The file that is locked.
const LOCK: &str = "lock";

const NO_DIRECTORY: &str = "not a directory, or a symbolic link";

/// Upper bound on entries that are read. Each device, program and group of listeners has one.
const ENTRIES_MAX: usize = 65_536;

/// Upper bound on the bytes of a file. A device with a thousand queues takes 200 kB.
const BYTES_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A path for one test, removed at its end.
    struct ScratchDirectory(PathBuf);

    impl ScratchDirectory {
        fn new(test: &str) -> Self {
            Self(std::env::temp_dir().join(format!("apus-irq-{test}-{}", std::process::id())))
        }
    }

    impl Drop for ScratchDirectory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn files_are_written_read_listed_and_removed() {
        let scratch = ScratchDirectory::new("files");
        let path = scratch.0.join("deep/state");
        assert!(Directory::open(&path).unwrap().is_none());
        let directory = Directory::made(&path).unwrap();
        assert_eq!(directory.read("a").unwrap(), None);
        directory.write("a", b"one").unwrap();
        // A part that a kill has left behind is no obstacle.
        fs::write(path.join("a.part"), "torn").unwrap();
        directory.write("a", b"two").unwrap();
        assert_eq!(directory.read("a").unwrap().as_deref(), Some("two"));
        drop(directory.lock().unwrap());
        assert_eq!(directory.names().unwrap(), [".", "..", "a", "lock"]);
        directory.remove("a").unwrap();
        directory.remove("a").unwrap();
        assert_eq!(directory.read("a").unwrap(), None);
    }

    #[test]
    fn links_in_the_directory_are_refused_and_their_targets_untouched() {
        let scratch = ScratchDirectory::new("links");
        let directory = Directory::made(&scratch.0.join("state")).unwrap();
        let target = scratch.0.join("target");
        fs::write(&target, "precious").unwrap();
        for name in ["lock", "a.json", "b.json.part"] {
            symlink(&target, scratch.0.join("state").join(name)).unwrap();
        }
        let refused = [directory.lock().err(), directory.read("a.json").err()];
        for error in refused.map(|error| error.expect("it is a link").to_string()) {
            assert!(error.contains("a symbolic link"), "{error}");
        }
        directory.write("b.json", b"{}").unwrap();
        assert_eq!(fs::read_to_string(target).unwrap(), "precious");
    }

    #[test]
    fn a_directory_that_others_may_write_into_or_that_is_a_link_is_refused() {
        let scratch = ScratchDirectory::new("open");
        let path = scratch.0.join("state");
        drop(Directory::made(&path).unwrap());
        let link = scratch.0.join("link");
        symlink(&path, &link).unwrap();
        let error = Directory::made(&link).unwrap_err().to_string();
        assert!(error.contains("not a directory, or a symbolic link"), "{error}");
        for mode in [0o1777, 0o770, 0o702] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = Directory::open(&path).unwrap_err().to_string();
            assert!(
                error.contains("writable by other users") && error.contains("state"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_fifo_is_refused_at_once() {
        let scratch = ScratchDirectory::new("fifo");
        let path = scratch.0.join("state");
        let directory = Directory::made(&path).unwrap();
        nix::unistd::mkfifo(&path.join("a.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = directory.read("a.json").unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }
}
