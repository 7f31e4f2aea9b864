//! The files of `/proc` and `/sys`, and texts that replace them in tests.

use std::fs;

use procfs::FromRead;

/// A source of files. Paths are absolute. A missing or unreadable file is `None`.
pub(super) trait Files {
    /// The text of a file, without spaces and line ends at its end.
    fn text(&self, path: &str) -> Option<String>;

    /// The names in a directory, sorted; empty if the directory is missing.
    fn names(&self, directory: &str) -> Vec<String>;

    /// The last name of the path that a link leads to.
    fn target(&self, link: &str) -> Option<String>;
}

/// The number in a file.
pub(super) fn number(files: &dyn Files, path: &str) -> Option<u64> {
    files.text(path)?.parse().ok()
}

/// A file as parsed by procfs.
pub(super) fn parsed<T: FromRead>(files: &dyn Files, path: &str) -> Option<T> {
    T::from_read(files.text(path)?.as_bytes()).ok()
}

/// The files of this machine.
#[derive(Debug)]
pub(super) struct Here;

impl Files for Here {
    fn text(&self, path: &str) -> Option<String> {
        Some(fs::read_to_string(path).ok()?.trim_end().to_owned())
    }

    fn names(&self, directory: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    fn target(&self, link: &str) -> Option<String> {
        fs::read_link(link).ok()?.file_name()?.to_str().map(str::to_owned)
    }
}

/// Paths and texts; a link is a file whose text is its target.
#[cfg(test)]
#[derive(Debug)]
pub(super) struct FakeFiles(pub(super) &'static [(&'static str, &'static str)]);

#[cfg(test)]
impl Files for FakeFiles {
    fn text(&self, path: &str) -> Option<String> {
        let (_, text) = self.0.iter().find(|(name, _)| *name == path)?;
        Some(text.trim_end().to_owned())
    }

    fn names(&self, directory: &str) -> Vec<String> {
        let inside = self.0.iter().filter_map(|(path, _)| path.strip_prefix(directory));
        let names = inside.filter_map(|rest| rest.strip_prefix('/')?.split('/').next());
        let mut names: Vec<_> = names.map(str::to_owned).collect();
        names.sort();
        names.dedup();
        names
    }

    fn target(&self, link: &str) -> Option<String> {
        self.text(link)?.rsplit('/').next().map(str::to_owned)
    }
}
