//! Every rule of docs/rpc-wire.md is cited in the code and in a test, and every citation names a rule.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The line before the unit tests of a file.
const UNIT_TESTS: &str = "#[cfg(test)]\nmod tests";

#[derive(Default)]
struct Citations {
    code: BTreeSet<String>,
    tests: BTreeSet<String>,
}

impl Citations {
    fn read(&mut self, folder: &Path) {
        for entry in fs::read_dir(folder).expect("a folder of the crate") {
            let path = entry.expect("a readable folder").path();
            if path.is_dir() {
                self.read(&path);
                continue;
            }
            let text = fs::read_to_string(&path).expect("a source file");
            let is_code = path.components().any(|part| part.as_os_str() == "src");
            let (code, tests) = match text.split_once(UNIT_TESTS) {
                Some(parts) => parts,
                None if is_code => (text.as_str(), ""),
                None => ("", text.as_str()),
            };
            let mark = concat!("docs/rpc-wire.md", "#");
            self.code.append(&mut names(code, mark));
            self.tests.append(&mut names(tests, mark));
        }
    }
}

/// Returns the text after each `before` in `text`, up to the first character that is not part of a rule's name.
fn names(text: &str, before: &str) -> BTreeSet<String> {
    let name = |rest: &str| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric());
        rest[..end.unwrap_or(rest.len())].to_owned()
    };
    text.split(before).skip(1).map(name).collect()
}

#[test]
fn every_rule_is_kept_and_tested_and_every_citation_has_its_rule() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("../../docs/rpc-wire.md")).expect("the rules");
    let rules = names(&text, "<a id=\"");
    assert!(rules.len() >= 17);
    let mut cited = Citations::default();
    for folder in ["src", "tests"] {
        cited.read(&root.join(folder));
    }
    // The address of a rule in a document comment is a citation, too.
    assert_eq!(cited.code, rules, "cited in code, and the rules");
    assert_eq!(cited.tests, rules, "cited in tests, and the rules");
}
