//! Finds the file of libapus_preload.so, and names it to the dynamic linker.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use apus_load::misuse::Misuse;

use super::place::{self, is_listable};
use crate::failure::NotStarted;

const NAME: &str = "libapus_preload.so";

/// The directory of Debian's and RPM's packages.
const PACKAGED: &str = "/usr/lib/apus";

/// The library, which is part of this program. A static program has none.
const BYTES: Option<&[u8]> = apus_preload_bytes::library!();

/// The value of `LD_PRELOAD` with the library behind those that are there. Tools such as sanitizers insist on being the first, and
/// calls that a library in front of ours passes on come to ours.
///
/// # Errors
/// When the library is not found, or its path cannot stand in that variable.
pub(super) fn preloaded() -> Result<OsString> {
    let library = find()?;
    let text = library.as_os_str().as_bytes();
    if !is_listable(&library) {
        let path = library.display();
        return Err(Misuse(format!(
            "`{path}` has a colon or a space, which LD_PRELOAD does not allow"
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

/// Finds the library: as `APUS_PRELOAD` says, else a file with the bytes in this program, which is made if it is missing.
///
/// # Errors
/// When the file is missing and cannot be made.
fn find() -> Result<PathBuf> {
    if let Some(path) = env::var_os("APUS_PRELOAD").filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        return path.canonicalize().map_err(|error| {
            let why = format!("APUS_PRELOAD is `{}`: {error}", path.display());
            NotStarted { code: NotStarted::CANNOT, why }.into()
        });
    }
    let program = env::current_exe().context("cannot find the path of this program")?;
    let directory = program.parent().unwrap_or_else(|| Path::new("/"));
    let installed = candidates(directory).into_iter().filter_map(|path| path.canonicalize().ok());
    match BYTES {
        Some(bytes) => {
            let mut same = installed.filter(|path| is_listable(path) && has(path, bytes));
            same.next().map_or_else(|| place::put(bytes), Ok)
        }
        // Nothing says that a file is the right one, so it must be of a place where no other user can put one.
        None => {
            let is_ours = |path: &PathBuf| path.is_file() && place::stays(path).unwrap_or(false);
            installed.into_iter().find(is_ours).ok_or_else(|| {
                NotStarted { code: NotStarted::CANNOT, why: why_missing(&program) }.into()
            })
        }
    }
}

/// Directories in which packages install the library. `deps` exists in target directories only: cargo puts the library there when
/// it builds this program.
fn candidates(directory: &Path) -> [PathBuf; 4] {
    [
        directory.join("deps").join(NAME),
        directory.join(NAME),
        directory.join("../lib/apus").join(NAME),
        Path::new(PACKAGED).join(NAME),
    ]
}

/// Why a program without the library has found none.
fn why_missing(program: &Path) -> String {
    let reason = if cfg!(target_env = "musl") {
        "linked statically: such a program has no shared library to preload"
    } else {
        "built without its library"
    };
    format!(
        "this `apus` is {reason}. Install the package `apus`, whose library is {PACKAGED}/{NAME}, or set APUS_PRELOAD to the path \
         of {NAME}; it is neither there nor beside `{}` nor in ../lib/apus",
        program.display()
    )
}

/// Whether a file has these bytes. One of another version of Apus has not.
fn has(path: &Path, bytes: &[u8]) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() == bytes.len() as u64)
        && fs::read(path).is_ok_and(|found| found == bytes)
}
