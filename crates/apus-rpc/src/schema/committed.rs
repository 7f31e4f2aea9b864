//! The file of a schema, compared in a test.

use std::env;
use std::fmt::Write;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use crate::schema::text::Schema;

/// Set to `write`, it has the file written.
const VARIABLE: &str = "APUS_RPC_SCHEMA";

impl Schema {
    /// Compares the schema with a file, for a test. The path is relative to the directory of the package, where cargo runs tests.
    ///
    /// With `APUS_RPC_SCHEMA=write` in the environment, the file is written, unless a change breaks programs with the earlier
    /// schema.
    ///
    /// # Panics
    ///
    /// If the file is missing or differs, or if a change breaks one of the [rules](crate::schema#rules). The message lists the broken
    /// rules and says how to go on.
    #[track_caller]
    pub fn assert_committed(&self, path: impl AsRef<Path>) {
        let may_write = env::var_os(VARIABLE).is_some_and(|value| value == "write");
        if let Err(text) = self.compare(path.as_ref(), may_write) {
            panic!("{text}");
        }
    }

    /// As [`assert_committed`](Self::assert_committed), with the text for people as the error.
    pub(crate) fn compare(&self, path: &Path, may_write: bool) -> Result<(), String> {
        let name = path.display();
        let text = self.to_string();
        let write = || fs::write(path, &text).map_err(|error| format!("{name}: {error}"));
        let committed = match fs::read_to_string(path) {
            Ok(committed) => committed,
            Err(error) if error.kind() == ErrorKind::NotFound && may_write => return write(),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let how = format!("`{VARIABLE}=write cargo test` writes it");
                return Err(format!(
                    "{name}: there is no such file yet; {how}, and it is committed"
                ));
            }
            Err(error) => return Err(format!("{name}: {error}")),
        };
        let earlier: Self = committed.parse().map_err(|error| format!("{name}: {error}"))?;
        let breaks = self.check(&earlier);
        if !breaks.is_empty() {
            let service = &self.service;
            let mut text = format!("{service} breaks programs that have the schema in {name}:\n");
            for one in breaks {
                let _ = writeln!(text, "  {one}");
            }
            text.push_str(
                "A method that no program uses any more goes after its lines in that file.",
            );
            return Err(text);
        }
        if earlier == *self {
            return Ok(());
        }
        if may_write {
            return write();
        }
        let how = format!("`{VARIABLE}=write cargo test` writes the new one");
        Err(format!("{name}: the schema has changed, and earlier programs tolerate it; {how}"))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process;

    use super::*;

    /// A file that is removed when the test ends.
    struct Scratch(PathBuf);

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    fn schema(argument: &str) -> Schema {
        let text = format!("service a.B\ncodec postcard\nmethod A\n{argument}    returns u8\n");
        text.parse().expect("a schema")
    }

    #[test]
    fn a_file_is_written_on_request_and_never_over_a_break() {
        let name = format!("apus-rpc-{}.schema", process::id());
        let file = Scratch(env::temp_dir().join(name));
        let compare = |schema: &Schema, may_write| schema.compare(&file.0, may_write);
        let first = schema("    a: u8\n");
        let text = compare(&first, false).expect_err("no file");
        assert!(text.contains("APUS_RPC_SCHEMA=write cargo test"), "{text}");
        assert_eq!(compare(&first, true), Ok(()));
        assert_eq!(compare(&first, false), Ok(()));
        let second = schema("    a: u8\n    b: option<u8>\n");
        let text = compare(&second, false).expect_err("another schema");
        assert!(text.contains("earlier programs tolerate it"), "{text}");
        assert_eq!((compare(&second, true), compare(&second, false)), (Ok(()), Ok(())));
        let third = schema("    a: u16\n");
        for may_write in [false, true] {
            let text = compare(&third, may_write).expect_err("a break");
            assert!(text.contains("  method A: argument 1 (a) was u8 and is u16"), "{text}");
        }
        assert_eq!(compare(&second, false), Ok(()), "the file stays");
    }
}
