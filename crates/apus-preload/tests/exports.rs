//! The library exports the calls that docs/sockets.md lists, and nothing else.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs};

use object::{Object, ObjectSymbol};

#[test]
fn exported_symbols_are_the_documented_calls() {
    let library = fs::read(library()).expect("cargo builds the library before its tests");
    let library = object::File::parse(&*library).expect("it is an ELF file");
    let exported: BTreeSet<String> = library
        .dynamic_symbols()
        .filter(ObjectSymbol::is_definition)
        .map(|symbol| symbol.name().expect("a name is text").to_owned())
        .collect();
    assert_eq!(exported, documented());
}

/// The library of this build: cargo puts it where it puts this test.
fn library() -> PathBuf {
    let test = env::current_exe().expect("a test knows its file");
    test.with_file_name("libapus_preload.so")
}

/// The names in the first column of the table of calls.
fn documented() -> BTreeSet<String> {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sockets.md");
    let text = fs::read_to_string(document).expect("the repository has it");
    let section = text.split("\n## Calls\n").nth(1).expect("it has this section");
    let table = section.lines().skip_while(|line| !line.starts_with('|')).skip(2);
    let rows = table.take_while(|line| line.starts_with('|'));
    rows.flat_map(|row| {
        let names = row.split('|').nth(1).expect("a row has columns");
        names.split('`').filter(|name| !name.trim().is_empty()).map(str::to_owned)
    })
    .collect()
}
