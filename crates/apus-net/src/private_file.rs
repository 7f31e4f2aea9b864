//! Files that only their owner can read: key logs, and captures of plaintext.
//!
//! Nothing here waits, follows a symbolic link at the end of a path, or changes a file of another user.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Opens a file to append to it, or makes it with mode 0600.
///
/// # Errors
///
/// If it cannot be opened, is not a regular file of this user, or other users may read or write it.
pub fn append(path: &Path) -> io::Result<File> {
    let file = open(OpenOptions::new().append(true), path)?;
    let mode = file.metadata()?.mode() & 0o7777;
    if mode & 0o077 != 0 {
        let fault = format!("other users may read or write the file (mode {mode:04o}; chmod 0600)");
        return Err(io::Error::other(fault));
    }
    Ok(file)
}

/// Makes a file with mode 0600, or empties it and gives it that mode.
///
/// # Errors
///
/// If it cannot be opened, or is not a regular file of this user.
pub fn create(path: &Path) -> io::Result<File> {
    let file = open(OpenOptions::new().write(true), path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.set_len(0)?;
    Ok(file)
}

fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = options.create(true).mode(0o600).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    // SAFETY: the call has no arguments, touches no memory and cannot fail.
    if found.uid() != unsafe { libc::geteuid() } {
        return Err(io::Error::other("the file belongs to another user"));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    /// A directory that is removed when dropped.
    struct PrivateDirectory(PathBuf);

    impl PrivateDirectory {
        fn new(name: &str) -> Self {
            let name = format!("apus-private-{}-{name}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&directory);
            fs::create_dir(&directory).unwrap();
            Self(directory)
        }

        fn file(&self, mode: u32) -> PathBuf {
            let path = self.0.join("file");
            fs::write(&path, "old\n").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    impl Drop for PrivateDirectory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn a_new_file_is_private_and_lines_are_appended_to_one_that_exists() {
        let directory = PrivateDirectory::new("append");
        let path = directory.0.join("file");
        append(&path).unwrap().write_all(b"one\n").unwrap();
        assert_eq!(mode(&path), 0o600);
        append(&path).unwrap().write_all(b"two\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one\ntwo\n");
    }

    #[test]
    fn a_file_that_others_may_read_is_not_appended_to() {
        let directory = PrivateDirectory::new("modes");
        for wrong in [0o604, 0o640, 0o620, 0o602, 0o610] {
            let error = append(&directory.file(wrong)).unwrap_err().to_string();
            assert!(error.contains(&format!("(mode {wrong:04o}; chmod 0600)")), "{error}");
        }
        append(&directory.file(0o600)).unwrap();
    }

    #[test]
    fn a_file_that_is_created_is_empty_and_private() {
        let directory = PrivateDirectory::new("create");
        let path = directory.file(0o644);
        create(&path).unwrap();
        assert_eq!((mode(&path), fs::read(&path).unwrap().len()), (0o600, 0));
    }

    #[test]
    fn links_pipes_and_directories_are_refused_at_once() {
        let directory = PrivateDirectory::new("links");
        let target = directory.file(0o600);
        let link = directory.0.join("link");
        symlink(&target, &link).unwrap();
        let pipe = directory.0.join("pipe");
        let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: the name ends with a zero byte.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        for path in [&link, &pipe, &directory.0] {
            append(path).unwrap_err();
            create(path).unwrap_err();
        }
        assert_eq!(fs::read(&target).unwrap(), b"old\n");
    }
}
