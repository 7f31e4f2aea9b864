//! The setting `shm_dir`: a directory in which nodes of several network namespaces meet.

use std::path::{Path, PathBuf};

use apus_shm::Place;

/// The text for no directory.
const NONE: &str = "none";

/// The allowed values, as a phrase. The length is that of [`Place::DIRECTORY_MAX`].
const EXPECTED: &str = "none, or the absolute path, of up to 54 bytes, of a directory that exists";

/// Reads the text of the setting. The error names the allowed values.
pub(super) fn parse(text: &str) -> Result<Option<PathBuf>, &'static str> {
    if text == NONE {
        return Ok(None);
    }
    let path = PathBuf::from(text);
    check(&path).map(|()| Some(path))
}

/// Checks that nodes can meet there. The error names the allowed values.
pub(super) fn check(path: &Path) -> Result<(), &'static str> {
    let fits = path.as_os_str().len() <= Place::DIRECTORY_MAX;
    if path.is_absolute() && fits && path.is_dir() { Ok(()) } else { Err(EXPECTED) }
}

/// The text of a value.
pub(super) fn show(path: Option<&Path>) -> String {
    path.map_or_else(|| NONE.to_owned(), |path| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_read_as_they_are_written() {
        for text in ["none", "/", "/proc"] {
            assert_eq!(show(parse(text).unwrap().as_deref()), text);
        }
        let long = format!("/{}", "./".repeat(Place::DIRECTORY_MAX / 2));
        for wrong in ["", "proc", "./", "/nonexistent", "/proc/version", "None", &long] {
            assert_eq!(parse(wrong), Err(EXPECTED), "{wrong}");
        }
        assert!(EXPECTED.contains(&format!("{} bytes", Place::DIRECTORY_MAX)));
    }
}
