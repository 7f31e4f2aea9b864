//! The file of a unix socket in a directory that other users may write in.
//!
//! Such a file gets its mode after its creation, because the umask belongs to the whole process. The owner of the directory may
//! replace the file meanwhile: by a link to a private file of this user, such as a socket of root. So this module first opens the
//! file ([`O_PATH`](OFlag::O_PATH)), checks it, and sets its mode through that descriptor.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use nix::fcntl::{AT_FDCWD, OFlag, open};
use nix::sys::stat::{FchmodatFlags, FileStat, Mode, SFlag, fchmodat, fstat};
use nix::unistd::geteuid;

/// The file of a socket, even if its name refers to another file by now.
#[derive(Debug)]
pub struct SocketFile {
    file: OwnedFd,
    status: FileStat,
}

impl SocketFile {
    /// Opens the file at a path, right after this process has bound a socket there.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::AlreadyExists`] if another file is there: a file of another user, a file that is not a socket, or a socket
    /// with more than one name; otherwise the errors of the system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = open(path, flags, Mode::empty())?;
        let status = fstat(&file)?;
        let is_socket =
            SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT == SFlag::S_IFSOCK;
        if !is_socket || status.st_uid != geteuid().as_raw() || status.st_nlink != 1 {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        Ok(Self { file, status })
    }

    /// Permits all processes that reach the directory to connect from now on, whatever the umask is.
    ///
    /// # Errors
    ///
    /// The errors of the system, also where `/proc` is missing.
    pub fn open_to_everyone(&self) -> io::Result<()> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let everyone = Mode::from_bits_truncate(0o666);
        Ok(fchmodat(AT_FDCWD, path.as_str(), everyone, FchmodatFlags::FollowSymlink)?)
    }

    /// Returns its device and inode number, which distinguish it from a later file of the same name.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        (self.status.st_dev, self.status.st_ino)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("apus-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        /// Makes a socket that only its user may access.
        fn private(&self, name: &str) -> (PathBuf, UnixListener) {
            let path = self.0.join(name);
            let listener = UnixListener::bind(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            (path, listener)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn a_file_that_takes_its_place_keeps_its_mode() {
        let directory = Directory::new("swapped");
        let (bound, _socket) = directory.private("bound");
        let (other, _other) = directory.private("other");
        let file = SocketFile::open(&bound).unwrap();
        let moved = directory.0.join("moved");
        fs::rename(&bound, &moved).unwrap();
        fs::rename(&other, &bound).unwrap();
        file.open_to_everyone().unwrap();
        assert_eq!((mode(&bound), mode(&moved)), (0o600, 0o666));
        let moved = fs::metadata(&moved).unwrap();
        assert_eq!(file.identity(), (moved.dev(), moved.ino()));
    }

    #[test]
    fn a_link_to_another_file_is_refused() {
        let directory = Directory::new("linked");
        let (private, _socket) = directory.private("private");
        let (link, name, plain) =
            (directory.0.join("link"), directory.0.join("name"), directory.0.join("plain"));
        symlink(&private, &link).unwrap();
        assert_eq!(SocketFile::open(&link).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        fs::hard_link(&private, &name).unwrap();
        assert_eq!(SocketFile::open(&name).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        fs::write(&plain, "").unwrap();
        assert_eq!(SocketFile::open(&plain).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(mode(&private), 0o600);
    }
}
