//! Puts the library that this program contains where the dynamic linker can load it.
//!
//! The file is in a directory of this user that no other user can change, under a name that follows from its bytes. An existing
//! file is used if its owner, its mode and all its bytes are right, and is replaced otherwise. Directories that are read-only,
//! mounted `noexec` or writable for others are skipped. Without any directory, the library is in memory, and the program inherits
//! its descriptor.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process;

use anyhow::Result;
use nix::unistd::geteuid;
use rustix::fs::{AtFlags, MemfdFlags, Mode, OFlags, SealFlags, StatVfsMountFlags};
use rustix::process::{Resource, getrlimit};

use crate::failure::{self, NotStarted};

/// Write permission of group and others.
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;
/// All users may load it, and none may change it: a server may start programs after it has given up its user.
const FILE_MODE: u32 = 0o555;
const DIRECTORY_MODE: u32 = 0o755;

/// The least number of the descriptor of a library in memory, out of the way of a program's own.
const DESCRIPTOR_MIN: i32 = 500;

/// Whether `LD_PRELOAD` can hold a path.
pub(super) fn is_listable(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|byte| b": \t\n".contains(byte))
}

/// A path of a file with these bytes.
///
/// # Errors
/// When no place takes it, with the reason of each.
pub(super) fn put(bytes: &[u8]) -> Result<PathBuf> {
    let mut reasons = Vec::new();
    for directory in directories() {
        match put_in(&directory, bytes) {
            Ok(path) => return Ok(path),
            Err(reason) => reasons.push(format!("{}: {reason}", directory.display())),
        }
    }
    let reasons = reasons.join("; ");
    match in_memory(bytes) {
        Ok(path) => {
            failure::note(&format!(
                "no directory can hold the library ({reasons}); it is in memory, and children of a program that closes all \
                 descriptors run without it"
            ));
            Ok(path)
        }
        Err(error) => {
            let why = format!("no place for the library ({reasons}; memory: {error})");
            Err(NotStarted { code: NotStarted::CANNOT, why }.into())
        }
    }
}

/// Directories that this user has, the best first. They end with a name of Apus.
fn directories() -> Vec<PathBuf> {
    let variable = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let user = geteuid();
    let of_user = format!("apus-preload-{user}");
    let runtime = variable("XDG_RUNTIME_DIR").map(|path| path.join("apus"));
    let system = user.is_root().then(|| PathBuf::from("/run/apus-preload"));
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let cache = cache.map(|path| path.join("apus"));
    let shared = ["/dev/shm", "/var/tmp"].map(|path| Some(Path::new(path).join(&of_user)));
    let temporary = Some(env::temp_dir().join(&of_user));
    let [memory, disk] = shared;
    [runtime, system, cache, memory, temporary, disk].into_iter().flatten().collect()
}

fn put_in(directory: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    if !is_listable(directory) {
        return Err(io::Error::other("LD_PRELOAD does not allow a colon or a space"));
    }
    // Before anything is made there: a path of the environment may lead through directories of others.
    let is_missing = directory.symlink_metadata().is_err();
    if is_missing && !directory.parent().is_some_and(|parent| stays(parent).unwrap_or(false)) {
        return Err(io::Error::other("other users could change it"));
    }
    match DirBuilder::new().mode(DIRECTORY_MODE).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let opened = rustix::fs::open(
        directory,
        OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let is_ours = File::from(opened.try_clone()?).metadata()?.uid() == geteuid().as_raw();
    if !is_ours || !is_safe(directory)? {
        return Err(io::Error::other("other users could change it"));
    }
    if rustix::fs::fstatvfs(&opened)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(io::Error::other("mounted noexec"));
    }
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    let name = format!("libapus_preload-{:016x}.so", hasher.finish());
    if !is_there(&opened, &name, bytes) {
        write(&opened, &name, bytes)?;
    }
    Ok(fs::canonicalize(directory)?.join(name))
}

/// Whether only this user and root can change a directory or move it away.
fn is_safe(directory: &Path) -> io::Result<bool> {
    let is_changed = fs::metadata(directory)?.mode() & WRITABLE_BY_OTHERS != 0;
    Ok(!is_changed && stays(directory)?)
}

/// Whether only this user and root can put another file or directory in the place of this one, or of one above it.
pub(super) fn stays(path: &Path) -> io::Result<bool> {
    for ancestor in fs::canonicalize(path)?.ancestors() {
        let found = fs::symlink_metadata(ancestor)?;
        let is_trusted = [0, geteuid().as_raw()].contains(&found.uid());
        let is_writable = found.mode() & WRITABLE_BY_OTHERS != 0;
        // In a sticky directory, users cannot move the directory of another user.
        if !is_trusted || is_writable && found.mode() & STICKY == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the directory has the file with these bytes, and no other user could have changed it.
fn is_there(directory: &OwnedFd, name: &str, bytes: &[u8]) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(opened) = rustix::fs::openat(directory, name, flags, Mode::empty()) else {
        return false;
    };
    let file = File::from(opened);
    let is_right = file.metadata().is_ok_and(|found| {
        found.is_file()
            && found.uid() == geteuid().as_raw()
            && found.mode() & 0o777 == FILE_MODE
            && found.len() == bytes.len() as u64
    });
    let mut found = Vec::new();
    is_right && file.take(bytes.len() as u64 + 1).read_to_end(&mut found).is_ok() && found == bytes
}

/// Writes the file under another name, then renames it: it appears whole or not at all.
fn write(directory: &OwnedFd, name: &str, bytes: &[u8]) -> io::Result<()> {
    check_file_size(bytes.len())?;
    let part = format!(".{name}.{}", process::id());
    // A process with this number that was killed may have left it.
    let _ = rustix::fs::unlinkat(directory, &part, AtFlags::empty());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(directory, &part, flags, Mode::RUSR)?);
    let written = file
        .write_all(bytes)
        .and_then(|()| file.set_permissions(fs::Permissions::from_mode(FILE_MODE)))
        .and_then(|()| Ok(rustix::fs::renameat(directory, &part, directory, name)?));
    if written.is_err() {
        let _ = rustix::fs::unlinkat(directory, &part, AtFlags::empty());
    }
    written
}

/// A write beyond `RLIMIT_FSIZE` would end this process by a signal.
fn check_file_size(bytes: usize) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if limit < bytes as u64 => {
            Err(io::Error::other(format!("RLIMIT_FSIZE is {limit} bytes")))
        }
        _ => Ok(()),
    }
}

/// A sealed file in memory that the program inherits; this process keeps it to its end.
fn in_memory(bytes: &[u8]) -> io::Result<PathBuf> {
    check_file_size(bytes.len())?;
    let memory = rustix::fs::memfd_create(
        "libapus_preload.so",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?;
    let mut file = File::from(memory);
    file.write_all(bytes)?;
    file.set_permissions(fs::Permissions::from_mode(FILE_MODE))?;
    let all = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, all)?;
    let kept = rustix::io::fcntl_dupfd_cloexec(&file, DESCRIPTOR_MIN)
        .or_else(|_| rustix::io::fcntl_dupfd_cloexec(&file, 3))?;
    rustix::io::fcntl_setfd(kept.as_fd(), rustix::io::FdFlags::empty())?;
    let path = OsString::from(format!("/proc/self/fd/{}", kept.as_raw_fd()));
    let _ = kept.into_raw_fd();
    Ok(path.into())
}
