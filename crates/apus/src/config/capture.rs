//! The setting `capture`: a file to which a node writes its packets.

use std::path::{Path, PathBuf};

/// The text for no file.
const NONE: &str = "none";

/// The allowed values, as a phrase. The path is absolute because a setting has no directory of its own.
const EXPECTED: &str = "none, or the absolute path of a file";

/// The allowed values for a node without a link of its own.
const NO_LINK: &str = "none with the engine of another process, which has the links";

/// Reads the text of the setting. The error names the allowed values.
pub(super) fn parse(text: &str) -> Result<Option<PathBuf>, &'static str> {
    if text == NONE {
        return Ok(None);
    }
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(Some(path)) } else { Err(EXPECTED) }
}

/// Checks that packets can be written there. The error names the allowed values.
pub(super) fn check(path: &Path, has_link: bool) -> Result<(), &'static str> {
    match (path.is_absolute(), has_link) {
        (false, _) => Err(EXPECTED),
        (true, false) => Err(NO_LINK),
        (true, true) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_absolute_paths() {
        assert_eq!(parse("none"), Ok(None));
        assert_eq!(parse("/a/b.pcapng"), Ok(Some("/a/b.pcapng".into())));
        for wrong in ["", "b.pcapng", "./b", "None"] {
            assert_eq!(parse(wrong), Err(EXPECTED), "{wrong}");
            assert_eq!(check(Path::new(wrong), true), Err(EXPECTED), "{wrong}");
        }
        assert_eq!(check(Path::new("/b"), true), Ok(()));
        assert_eq!(check(Path::new("/b"), false), Err(NO_LINK));
    }
}
