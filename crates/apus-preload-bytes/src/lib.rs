//! Gives a program the bytes of `libapus_preload.so`.
//!
//! A crate that depends on `apus-preload` has cargo build two files of it, side by side in one run of the compiler: the rlib, which the
//! compiler gets as `--extern apus_preload=PATH`, and the shared library, for which cargo passes no path. Its path follows from that of the rlib.
//! Cargo offers no other stable way: dependencies on artifacts are unstable, and a build script runs before the dependencies of its
//! package are built, so it would have to build the library a second time.
//!
//! A compiler that only checks (`cargo check`, clippy, an editor) gets a file of metadata instead of the rlib. There is no library then,
//! and no program either.

#![forbid(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro::{Literal, TokenStream};

/// The dependency, as the compiler knows it.
const CRATE: &str = "apus_preload=";

/// `Some(&[u8])` with the library, of type `Option<&'static [u8]>`; `None` where it is not built.
#[proc_macro]
pub fn library(_: TokenStream) -> TokenStream {
    let path = arguments().iter().find_map(|argument| beside(argument));
    let code = match path.as_deref().and_then(Path::to_str) {
        Some(path) => {
            let path = Literal::string(path);
            format!("::core::option::Option::Some(::core::include_bytes!({path}) as &'static [u8])")
        }
        None => "::core::option::Option::<&'static [u8]>::None".to_owned(),
    };
    code.parse().expect("both are expressions")
}

/// The arguments of the compiler. Cargo writes them to a file when they are too long for a command line.
fn arguments() -> Vec<String> {
    let text = |argument: OsString| argument.into_string().ok();
    env::args_os()
        .filter_map(text)
        .flat_map(|argument| match argument.strip_prefix('@').map(fs::read_to_string) {
            Some(Ok(lines)) => lines.lines().map(str::to_owned).collect(),
            _ => vec![argument],
        })
        .collect()
}

/// The shared library beside the rlib that an argument names, if both are there.
fn beside(argument: &str) -> Option<PathBuf> {
    let (_, rlib) = argument.split_once(CRATE)?;
    let rlib = Path::new(rlib);
    let library = rlib.with_extension("so");
    (rlib.extension()? == "rlib" && library.is_file())
        .then(|| fs::canonicalize(library).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_rlib_has_a_library() {
        let directory = env::temp_dir().join(format!("apus-bytes-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("libapus_preload-1.so"), "library").unwrap();
        let at = |name: &str| format!("apus_preload={}/{name}", directory.display());
        let found = beside(&at("libapus_preload-1.rlib"));
        let metadata = beside(&at("libapus_preload-1.rmeta"));
        let other = beside(&at("libapus_preload-2.rlib"));
        fs::remove_dir_all(&directory).unwrap();
        assert!(found.is_some_and(|path| path.ends_with("libapus_preload-1.so")));
        assert_eq!((metadata, other), (None, None));
        assert_eq!(beside("apus_preload"), None);
    }
}
