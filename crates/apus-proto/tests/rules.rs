//! Every rule of docs/protocol.md is cited in the code, and every citation names a rule.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Returns the text after each `before` in `text`, up to the first character that is not part of a rule's name.
fn names(text: &str, before: &str) -> BTreeSet<String> {
    let name = |rest: &str| {
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        rest[..end.unwrap_or(rest.len())].to_owned()
    };
    text.split(before).skip(1).map(name).collect()
}

fn citations(folder: &Path) -> BTreeSet<String> {
    let mut cited = BTreeSet::new();
    for entry in fs::read_dir(folder).expect("a folder of the crate") {
        let path = entry.expect("a readable folder").path();
        if path.is_dir() {
            cited.append(&mut citations(&path));
        } else {
            let text = fs::read_to_string(&path).expect("a source file");
            cited.append(&mut names(&text, concat!("docs/protocol.md", "#")));
        }
    }
    cited
}

#[test]
fn every_rule_is_kept_somewhere_and_every_citation_has_its_rule() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("../../docs/protocol.md")).expect("the rules");
    let rules = names(&text, "<a id=\"");
    assert!(rules.len() >= 60);
    let mut cited = citations(&root.join("src"));
    // Rules of sealed paths are kept by the crate of records and handshakes, and by the link.
    for krate in ["apus-seal", "apus-net"] {
        let kept = citations(&root.join("..").join(krate).join("src"));
        cited.extend(kept.into_iter().filter(|rule| rule.starts_with("seal-")));
    }
    assert_eq!(cited, rules, "cited in src, and the rules");
    let tested = citations(&root.join("tests"));
    assert!(tested.is_subset(&rules), "{:?}", tested.difference(&rules));
}
