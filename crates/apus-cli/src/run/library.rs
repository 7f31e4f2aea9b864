//! Where libapus_preload.so is, and how the dynamic linker is told.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use apus_load::misuse::Misuse;

const NAME: &str = "libapus_preload.so";

/// The value of `LD_PRELOAD` with the library behind those that are there. Tools such as sanitizers insist on being the first, and
/// calls that a library in front of ours passes on come to ours.
///
/// # Errors
/// When the library is not found, or its path cannot stand in that variable.
pub(super) fn preloaded() -> Result<OsString> {
    let library = find()?;
    let text = library.as_os_str().as_bytes();
    if text.iter().any(|byte| b": \t\n".contains(byte)) {
        let path = library.display();
        return Err(Misuse(format!(
            "`{path}` has a colon or a space, which LD_PRELOAD cannot hold"
        ))
        .into());
    }
    let before = env::var_os("LD_PRELOAD").unwrap_or_default();
    let names = before.as_bytes().split(|byte| b": ".contains(byte));
    if names.into_iter().any(|name| name == text) {
        return Ok(before);
    }
    let separator = OsStr::new(if before.is_empty() { "" } else { ":" });
    Ok([before.as_os_str(), separator, library.as_os_str()].into_iter().collect())
}

/// Finds the library: as `APUS_PRELOAD` says, else beside this program or where packages put it.
///
/// # Errors
/// When it is in none of these places.
fn find() -> Result<PathBuf> {
    if let Some(path) = env::var_os("APUS_PRELOAD").filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        return path
            .canonicalize()
            .with_context(|| format!("APUS_PRELOAD is `{}`", path.display()));
    }
    let program = env::current_exe().context("cannot tell where this program is")?;
    let directory = program.parent().unwrap_or_else(|| Path::new("/"));
    let found = candidates(directory).into_iter().find(|path| path.is_file());
    let Some(path) = found else {
        bail!(
            "`{NAME}` is neither beside `{}` nor in ../lib/apus; in a checkout, `cargo build --release -p apus-preload` makes it, \
             and the variable APUS_PRELOAD can name it",
            program.display()
        );
    };
    path.canonicalize().with_context(|| format!("cannot resolve `{}`", path.display()))
}

/// `deps` is in target directories only: there cargo puts the library when it builds this program. The copy beside the program may be
/// older, because only a build of the library itself renews it.
fn candidates(directory: &Path) -> [PathBuf; 3] {
    [
        directory.join("deps").join(NAME),
        directory.join(NAME),
        directory.join("../lib/apus").join(NAME),
    ]
}
