//! Where libapus_preload.so is.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

const NAME: &str = "libapus_preload.so";

/// Finds the library: as `APUS_PRELOAD` says, else beside this program or where packages put it.
///
/// # Errors
/// When it is in none of these places.
pub(super) fn find() -> Result<PathBuf> {
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
