//! Sources of Debian's packages, and their builds, in `target/suites`.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};

use super::suite::{Skip, Sources};
use crate::program::{is_installed, read, target};

const DEBIAN: &str = "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main\n";

/// The directory of sources, builds and logs.
pub(super) fn work() -> PathBuf {
    let target = PathBuf::from(target());
    std::path::absolute(&target).unwrap_or(target).join("suites")
}

/// Returns the standard output of a command that has to succeed.
///
/// # Errors
/// [`Skip`] with the last line of its output if it fails.
pub(crate) fn required(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let arguments = command.get_args().take(3).map(OsStr::to_string_lossy);
    let words = arguments.fold(program, |words, word| format!("{words} {word}"));
    let done =
        command.stdin(Stdio::null()).output().map_err(|error| Skip(format!("{words}: {error}")))?;
    let [stdout, stderr] =
        [done.stdout, done.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    if done.status.success() {
        return Ok(stdout);
    }
    let said = if stderr.trim().is_empty() { stdout } else { stderr };
    let last = said.trim().lines().next_back().unwrap_or_default().to_owned();
    Err(Skip(format!("{words}: {last}")).into())
}

/// Checks that programs are installed.
///
/// # Errors
/// [`Skip`] with the missing ones.
pub(super) fn needs(programs: &[&str]) -> Result<()> {
    let missing: Vec<&str> =
        programs.iter().copied().filter(|program| !is_installed(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Skip(format!("{} is not installed", missing.join(", "))).into())
}

/// The unchanged sources of a package of Debian.
///
/// # Errors
/// [`Skip`] if they cannot be downloaded.
pub(super) fn debian(package: &str) -> Result<Sources> {
    needs(&["apt-get", "tar"])?;
    let lists = work().join("apt");
    fs::create_dir_all(lists.join("partial")).context("target/suites")?;
    let path = work().join("apt.list");
    let file = File::options().append(true).create(true).open(&path).context("target/suites")?;
    // Another run of this check may need sources as well.
    let mut file = Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, error)| error)
        .context("the lock of target/suites")?;
    file.set_len(0).context("target/suites")?;
    file.write_all(DEBIAN.as_bytes()).context("target/suites")?;
    let directory = work().join(package);
    let stamp = directory.join("version");
    if !stamp.exists() {
        let _ = fs::remove_dir_all(&directory); // It may not exist.
        fs::create_dir_all(&directory).context("target/suites")?;
        let version = download(package, &directory, &lists, &path)?;
        fs::write(&stamp, version).context("target/suites")?;
    }
    Ok(Sources { directory, version: read(&stamp)? })
}

/// Downloads and unpacks a package. Returns its version.
fn download(package: &str, directory: &Path, lists: &Path, list: &Path) -> Result<String> {
    let apt = || {
        let mut apt = Command::new("apt-get");
        apt.arg(format!("-oDir::Etc::SourceList={}", list.display()));
        apt.arg(format!("-oDir::State::Lists={}", lists.display()));
        apt.args(["-oDir::Etc::SourceParts=/dev/null", "-oAPT::Sandbox::User=root"]);
        apt.args(["-oDir::Cache::pkgcache=", "-oDir::Cache::srcpkgcache="]);
        apt
    };
    if !names(lists)?.iter().any(|name| name.contains("Sources")) {
        required(apt().arg("update"))?;
    }
    let options = ["source", "--download-only", "--only-source", package];
    required(apt().args(options).current_dir(directory))?;
    let archives = names(directory)?;
    let mut archives = archives.iter().filter(|name| version_of(name).is_some());
    let (archive, None) = (archives.next(), archives.next()) else {
        return Err(Skip(format!("{package}: several archives")).into());
    };
    let archive = archive.ok_or_else(|| Skip(format!("{package}: no archive")))?;
    let unpack = ["--strip-components=1", "-xf", archive];
    required(Command::new("tar").args(unpack).current_dir(directory))?;
    Ok(version_of(archive).unwrap_or_default().to_owned())
}

fn names(directory: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// The version in the name of an archive, `PACKAGE_VERSION.orig.tar.xz`.
fn version_of(archive: &str) -> Option<&str> {
    let (name, suffix) = archive.split_once(".orig.tar.")?;
    let is_word = !suffix.is_empty() && suffix.bytes().all(|it| it.is_ascii_alphanumeric());
    name.rsplit_once('_').map(|(_, version)| version).filter(|_| is_word)
}

/// Runs the steps of a build once.
///
/// # Errors
/// [`Skip`] if a step fails.
pub(super) fn build(directory: &Path, steps: &[&[&str]]) -> Result<()> {
    let stamp = directory.join("built");
    if stamp.exists() {
        return Ok(());
    }
    for step in steps {
        let (program, arguments) = step.split_first().context("a step of a build")?;
        required(Command::new(program).args(arguments).current_dir(directory))?;
    }
    fs::write(&stamp, "").context("target/suites")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_a_part_of_the_name_of_the_archive() {
        assert_eq!(version_of("libevent_2.1.12-stable.orig.tar.gz"), Some("2.1.12-stable"));
        assert_eq!(version_of("libevent_2.1.12-stable.orig.tar.gz.asc"), None);
        assert_eq!(version_of("libevent_2.1.12-stable-8.dsc"), None);
    }

    #[test]
    fn a_command_that_fails_is_a_reason_to_skip() {
        let error = required(Command::new("sh").args(["-c", "echo a; echo 'no way' >&2; exit 1"]))
            .unwrap_err();
        let skip = error.downcast_ref::<Skip>().unwrap();
        assert!(skip.0.ends_with(": no way"), "{skip}");
        assert_eq!(required(Command::new("echo").arg("a")).unwrap(), "a\n");
        assert!(needs(&["no-such-program"]).unwrap_err().is::<Skip>());
    }
}
