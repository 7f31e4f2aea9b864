//! The result file: the record of a run as JSON.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process;
use std::time::SystemTime;

use anyhow::{Result, anyhow, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::machine::Machine;
use crate::row::Row;
use crate::series::Series;

/// The `schema` of the files that this crate writes and reads.
pub const SCHEMA: &str = "apus-result/1";

/// The figures of one run, and the context needed to judge them.
///
/// Written as one JSON object. New top-level keys may be added under the same schema; a reader ignores unknown ones.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ResultFile {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The exact command line that reproduces these figures.
    pub command: String,
    /// The machine of the run.
    pub machine: Machine,
    /// Start of the run: RFC 3339 in UTC, to the second (`2026-11-20T18:40:00Z`).
    pub started: String,
    /// The complete input of the run, if one value describes it: the plan of a simulation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Value>,
    /// Possible problems with the run, one sentence each. May be empty.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// The figures.
    pub rows: Vec<Row>,
    /// Curves for plots; may be empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Series>,
}

impl ResultFile {
    /// The record of a run that begins now on `machine`, without rows.
    #[must_use]
    pub fn new(command: &str, machine: Machine) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            command: command.to_owned(),
            machine,
            started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            plan: None,
            warnings: Vec::new(),
            rows: Vec::new(),
            series: Vec::new(),
        }
    }

    /// Adds a warning, unless it was added before.
    pub fn warn(&mut self, warning: impl Into<String>) {
        let warning = warning.into();
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// Writes the file's [text](Self::to_json) to `path` atomically: the text is written beside it under another name, which is
    /// then renamed. A symbolic link keeps pointing to the replaced file.
    pub fn write(&self, path: &Path) -> Result<()> {
        let replace = || -> io::Result<()> {
            let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
            let mut name = target.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
            name.push(format!(".{}.part", process::id()));
            let part = target.with_file_name(name);
            let written =
                fs::write(&part, self.to_json()).and_then(|()| fs::rename(&part, &target));
            if written.is_err() {
                // Best effort: the first error is the one to report.
                let _ = fs::remove_file(&part);
            }
            written
        };
        replace().map_err(|error| anyhow!("cannot write result file `{}`: {error}", path.display()))
    }

    /// The file's text, with one line for each top-level key, row, warning and curve.
    #[must_use]
    pub fn to_json(&self) -> String {
        let value = serde_json::to_value(self).expect("all keys are strings");
        let keys = value.as_object().expect("a struct becomes an object");
        let lines: Vec<String> = keys
            .iter()
            .map(|(key, value)| match value.as_array().filter(|items| !items.is_empty()) {
                Some(items) => {
                    let items: Vec<String> =
                        items.iter().map(|item| format!("    {item}")).collect();
                    format!("  \"{key}\": [\n{}\n  ]", items.join(",\n"))
                }
                None => format!("  \"{key}\": {value}"),
            })
            .collect();
        format!("{{\n{}\n}}\n", lines.join(",\n"))
    }

    /// Reads a file written by [`write`](Self::write); `-` is standard input.
    pub fn read(path: &Path) -> Result<Self> {
        let mut text = String::new();
        let read = if path == Path::new("-") {
            io::stdin().lock().read_to_string(&mut text)
        } else {
            fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text))
        };
        read.map_err(|error| anyhow!("cannot read result file `{}`: {error}", path.display()))?;
        Self::parse(&text, path)
    }

    /// Reads a result from its text. `path` is only used in errors.
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        /// Parsed first, to distinguish a file of another kind from a damaged one.
        #[derive(Deserialize)]
        struct Head {
            schema: Option<String>,
        }
        let path = path.display();
        let head: Head = serde_json::from_str(text).map_err(|error| {
            anyhow!("`{path}` is not a result file: not a JSON object ({error})")
        })?;
        let found = head.schema.map_or_else(|| "none".to_owned(), |found| format!("\"{found}\""));
        ensure!(
            found == format!("\"{SCHEMA}\""),
            "`{path}` is not a result file of this version: its `schema` is {found}, expected \"{SCHEMA}\""
        );
        serde_json::from_str(text)
            .map_err(|error| anyhow!("result file `{path}` is damaged: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Latency;
    use std::path::PathBuf;

    /// A directory for one test, removed at the end.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("apus-load-{name}-{}", process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn example() -> ResultFile {
        let mut result = ResultFile::new("apus bench rtt", Machine::default());
        result.rows.push(Row::new("apus-udp").set("p50_us", 4.9).set("calls", 1000_u64));
        result.series.push(Series::latency_cdf("Latency", "apus-udp", &Latency::new()));
        result.warn("something");
        result.warn("something");
        result
    }

    #[test]
    fn written_and_read_it_is_the_same() {
        let directory = Directory::new("round");
        let path = directory.0.join("result.json");
        fs::write(&path, "old").unwrap();
        let result = example();
        result.write(&path).unwrap();
        assert_eq!(ResultFile::read(&path).unwrap(), result);
        assert_eq!(result.warnings, ["something"]);
        let files = fs::read_dir(&directory.0).unwrap().count();
        assert_eq!(files, 1, "nothing is left beside the file");
    }

    #[test]
    fn the_object_has_the_keys_of_the_schema_in_order() {
        let value = serde_json::to_value(example()).unwrap();
        let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["schema", "command", "machine", "started", "warnings", "rows", "series"]);
        let started = value["started"].as_str().unwrap();
        assert!(started.len() == 20 && started.ends_with('Z'), "{started}");
    }

    #[test]
    fn rows_are_on_lines_of_their_own() {
        let text = example().to_json();
        assert!(text.contains("\n  \"rows\": [\n    {\"transport\":\"apus-udp\",\"p50_us\":4.9,\"calls\":1000}\n  ],\n"), "{text}");
        assert!(
            text.starts_with("{\n  \"schema\": \"apus-result/1\",\n") && text.ends_with("\n}\n"),
            "{text}"
        );
    }

    #[test]
    fn unknown_keys_are_ignored() {
        let text = r#"{"schema":"apus-result/1","command":"x","machine":{"new":1},"started":"","rows":[],"later":{}}"#;
        assert!(ResultFile::parse(text, Path::new("x")).is_ok());
    }

    #[test]
    fn errors_name_the_file_and_what_is_wrong() {
        let error =
            |text: &str| ResultFile::parse(text, Path::new("r.json")).unwrap_err().to_string();
        assert!(
            error("nonsense")
                .starts_with("`r.json` is not a result file: not a JSON object (expected")
        );
        assert!(error("[]").starts_with("`r.json` is not a result file: not a JSON object"));
        assert_eq!(
            error("{}"),
            "`r.json` is not a result file of this version: its `schema` is none, expected \"apus-result/1\""
        );
        assert!(
            error(r#"{"schema":"apus-result/2"}"#)
                .contains("its `schema` is \"apus-result/2\", expected")
        );
        let damaged = error(
            "{\"schema\":\"apus-result/1\",\n\"command\":\"x\",\"machine\":{},\"started\":\"\",\"rows\":[{}]}",
        );
        assert!(
            damaged.starts_with(
                "result file `r.json` is damaged: missing field `transport` at line 2"
            ),
            "{damaged}"
        );
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named() {
        let path = Path::new("/nowhere/at/all/result.json");
        let error = example().write(path).unwrap_err().to_string();
        assert!(
            error.starts_with(
                "cannot write result file `/nowhere/at/all/result.json`: No such file"
            ),
            "{error}"
        );
        let error = ResultFile::read(path).unwrap_err().to_string();
        assert!(
            error
                .starts_with("cannot read result file `/nowhere/at/all/result.json`: No such file"),
            "{error}"
        );
    }
}
