//! Programs in C and C++ compile with the header, without a warning, and run with the library that cargo has built.

#[path = "../../apus-net/tests/skipped/mod.rs"]
mod skipped;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

use skipped::skipped;

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-Wpedantic"];

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A directory with the library by its names, as if it was installed.
fn directory(test: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    // Cargo puts the library where it puts this test.
    let library = env::current_exe().unwrap().with_file_name("libapus_capi.so");
    assert!(library.exists(), "{}", library.display());
    for name in ["libapus.so", "libapus.so.0"] {
        symlink(&library, directory.join(name)).unwrap();
    }
    directory
}

/// Runs a compiler; `None` if it is missing.
fn compile(compiler: &str, arguments: &[&str]) -> Option<Output> {
    let include = format!("-I{}", here("include").display());
    let mut compiler = Command::new(compiler);
    compiler.args(WARNINGS).arg(include).args(arguments).output().ok()
}

#[track_caller]
fn succeeds(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}: {}", output.status, text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_program_in_c_uses_every_function() {
    let directory = directory("c");
    let (source, program) = (here("tests/c/library.c"), directory.join("library"));
    let (source, program) = (source.to_str().unwrap(), program.to_str().unwrap());
    let search = format!("-L{}", directory.display());
    let arguments = ["-std=gnu11", "-g", "-o", program, source, &search, "-lapus", "-pthread"];
    let Some(compiled) = compile("cc", &arguments) else {
        return skipped("the C compiler cc is not installed");
    };
    succeeds(&compiled);
    for link in ["auto", "udp"] {
        let mut run = Command::new(program);
        let run = run.env("LD_LIBRARY_PATH", &directory).env("APUS_LINK", link);
        assert_eq!(succeeds(&run.output().unwrap()), "passed\n");
    }
}

#[test]
fn the_headers_are_those_of_every_standard() {
    let directory = directory("headers");
    let unit = directory.join("unit.c");
    // The macros of initial values are expanded in each language.
    let text = "#include <apus/apus.h>\n\
        apus_address address = APUS_ADDRESS_INIT;\n\
        apus_call_options options = APUS_CALL_OPTIONS_INIT;\n\
        apus_completion completion = APUS_COMPLETION_INIT;\n\
        apus_stat stat_of_node = APUS_STAT_INIT;\n";
    fs::write(&unit, text).unwrap();
    let unit = unit.to_str().unwrap();
    for standard in ["-std=c99", "-std=c11", "-std=gnu17"] {
        match compile("cc", &["-fsyntax-only", standard, unit]) {
            Some(compiled) => _ = succeeds(&compiled),
            None => return skipped("the C compiler cc is not installed"),
        }
    }
    for standard in ["-std=c++11", "-std=c++17", "-std=c++20"] {
        match compile("c++", &["-fsyntax-only", standard, "-x", "c++", unit]) {
            Some(compiled) => _ = succeeds(&compiled),
            None => return skipped("the C++ compiler c++ is not installed"),
        }
    }
}
