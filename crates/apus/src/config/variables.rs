//! All environment variables of Apus, so that misspelt ones can be reported.

use std::fmt;

/// Begins the name of each variable.
const PREFIX: &str = "APUS_";

/// Variables that are no settings of a node. Each is described in docs/ or CONTRIBUTING.md.
const OTHERS: &[&str] = &[
    // The time trace.
    "APUS_TRACE",
    "APUS_TRACE_CALLS",
    "APUS_TRACE_KERNEL",
    "APUS_TRACE_SLOWER_THAN",
    // `apus run`, and the library that it loads.
    "APUS_CARRIER",
    "APUS_CARRIER_HOSTS",
    "APUS_EPOLL",
    "APUS_EPOLL_REPEAT",
    "APUS_EXPLAIN",
    "APUS_PRELOAD",
    "APUS_SOCKETS",
    // Scripts of deploy/.
    "APUS_JOBS",
    "APUS_RESULTS",
    "APUS_TASKS",
    // Builds, tests and the lab's own processes.
    "APUS_COMMIT",
    "APUS_LAB_UNSHARED",
    "APUS_LINUX_HOMA_PCAP",
    "APUS_MUTATED_SECONDS",
    "APUS_MUTATED_SEED",
    "APUS_RPC_SCHEMA",
    "APUS_SKIPPED",
    "APUS_TEST_ENGINE",
    "APUS_TEST_ROLE",
    "APUS_TEST_SEALED",
    "APUS_TEST_SERVER",
    "APUS_UPDATE",
];

/// An environment variable that is probably meant to be another one. From `Config::misspelt_variables`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MisspeltVariable {
    /// Its name, which means nothing to Apus.
    pub name: String,
    /// The most similar name that means something.
    pub nearest: String,
}

impl MisspeltVariable {
    /// Reports it to subscribers of `tracing`.
    #[cfg(feature = "tracing")]
    pub(super) fn warn(&self) {
        tracing::warn!("{self}");
    }
}

impl fmt::Display for MisspeltVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown variable {}: did you mean {}?", self.name, self.nearest)
    }
}

/// The names of all variables, including those of `settings`.
fn known(settings: &[String]) -> impl Iterator<Item = &str> {
    settings.iter().map(String::as_str).chain(OTHERS.iter().copied())
}

/// The variable that a name probably stands for, if the name is not one of a variable itself.
pub(super) fn misspelt(name: &str, settings: &[String]) -> Option<MisspeltVariable> {
    // Capitals may be part of the mistake.
    let upper = name.to_uppercase();
    let rest = upper.strip_prefix(PREFIX)?;
    if known(settings).any(|known| known == name) {
        return None;
    }
    let distance = |known: &str| strsim::damerau_levenshtein(known, &upper);
    let nearest = known(settings).min_by_key(|known| distance(known))?;
    let is_similar = distance(nearest) <= rest.len().div_ceil(LETTERS).min(MISTAKES_MAX);
    let nearest = nearest.to_owned();
    is_similar.then(|| MisspeltVariable { name: name.to_owned(), nearest })
}

/// A name of this many letters may have one mistake, and one more for each further time as many,
const LETTERS: usize = 5;

/// up to this many.
const MISTAKES_MAX: usize = 3;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn settings() -> Vec<String> {
        crate::config::Config::settings().map(|setting| setting.variable).collect()
    }

    #[test]
    fn a_misspelt_variable_is_reported_with_the_nearest_right_one() {
        for (name, nearest) in [
            ("APUS_LINKS", "APUS_LINK"),
            ("APUS_DELIVRY", "APUS_DELIVERY"),
            ("APUS_MESAGE_MAX", "APUS_MESSAGE_MAX"),
            ("APUS_PEER_TIME_OUT", "APUS_PEER_TIMEOUT"),
            ("APUS_TRACE_CALL", "APUS_TRACE_CALLS"),
            ("apus_link", "APUS_LINK"),
        ] {
            let found = misspelt(name, &settings()).unwrap_or_else(|| panic!("{name}"));
            assert_eq!((found.name.as_str(), found.nearest.as_str()), (name, nearest));
            let text = format!("unknown variable {name}: did you mean {nearest}?");
            assert_eq!(found.to_string(), text);
        }
        // Kubernetes sets the last ones for a service named apus.
        let settings = settings();
        let others =
            ["PATH", "APUS_", "APUS_PORT", "APUS_SERVICE_HOST", "APUS_PORT_80_TCP", "APUS_HOME"];
        for name in known(&settings).chain(others) {
            assert_eq!(misspelt(name, &settings), None);
        }
    }

    /// Words in a text that look like the name of a variable.
    fn names(text: &str) -> impl Iterator<Item = &str> {
        let is_part =
            |letter: char| letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_';
        let words = text.split(move |letter| !is_part(letter));
        words.filter(|word| {
            word.starts_with(PREFIX) && word.len() > PREFIX.len() && !word.ends_with('_')
        })
    }

    fn files(below: &Path, ending: &str, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(below).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                files(&path, ending, found);
            } else if path.extension().is_some_and(|it| it == ending) {
                found.push(path);
            }
        }
    }

    #[test]
    fn the_list_has_every_variable_of_all_crates_and_documents_describe_each() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let read = |path: &PathBuf| fs::read_to_string(path).unwrap();
        let settings = settings();
        // The constants of the C library have the same prefix.
        let include = root.join("crates/apus-capi/include/apus");
        let headers = ["apus.h", "apus.hpp"].map(|file| read(&include.join(file))).concat();
        let known: BTreeSet<&str> = known(&settings).chain(names(&headers)).collect();
        let mut sources = Vec::new();
        files(&root.join("crates"), "rs", &mut sources);
        for path in sources.iter().filter(|path| !path.ends_with("config/variables.rs")) {
            for name in names(&read(path)) {
                // A position in a packet.
                let is_known = known.contains(name) || name == "APUS_FLAGS";
                assert!(is_known, "{}: {name} is not in the list", path.display());
            }
        }
        let mut documents = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
        files(&root.join("docs"), "md", &mut documents);
        files(&root.join("deploy"), "md", &mut documents);
        let mut described = BTreeSet::new();
        for path in &documents {
            for name in names(&read(path)) {
                // A placeholder.
                let is_known = known.contains(name) || name == "APUS_NAME";
                assert!(is_known, "{}: {name} is not in the list", path.display());
                described.insert(name.to_owned());
            }
        }
        for name in OTHERS {
            assert!(described.contains(*name), "no document describes {name}");
        }
    }
}
