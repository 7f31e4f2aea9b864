//! Every example for users ends by itself, and prints the text in the comment at its beginning.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

/// Examples that measure, or whose output is that of their arguments.
const OTHERS: [&str; 3] = ["increments", "rpc_cost", "typed"];

/// The text that an example promises: the block of kind `text` in its first comment.
fn promised(source: &str) -> String {
    let lines = source.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let block = lines.skip_while(|line| *line != "```text").skip(1);
    block.take_while(|line| *line != "```").fold(String::new(), |text, line| text + line + "\n")
}

/// The path of an example, which `cargo test` builds with the tests.
fn program(name: &str) -> PathBuf {
    let test = env::current_exe().expect("this program has a path");
    let program = test.ancestors().nth(2).expect("cargo's directories").join("examples").join(name);
    if !program.exists() {
        let mut build = Command::new(env!("CARGO"));
        let built = build.args(["build", "-p", "apus-rpc", "--locked", "--example", name]).status();
        assert!(built.is_ok_and(|status| status.success()), "{name} cannot be built");
    }
    program
}

#[test]
fn examples_print_what_they_promise() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut checked = 0;
    for entry in fs::read_dir(&directory).expect("there are examples") {
        let path = entry.expect("a file").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
        if OTHERS.contains(&name.as_str()) {
            continue;
        }
        let promised = promised(&fs::read_to_string(&path).expect("a text"));
        assert!(!promised.is_empty(), "{name} promises nothing");
        let output = Command::new(program(&name)).stdin(Stdio::null()).output().expect("it runs");
        let printed = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(printed, promised, "{name}: {errors}");
        assert!(output.status.success(), "{name}: {errors}");
        checked += 1;
    }
    assert!(checked >= 9, "{checked} examples");
}
