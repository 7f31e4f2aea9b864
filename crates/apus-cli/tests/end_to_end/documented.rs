//! The commands of documents: blocks of `sh` are shell code, commands name programs, files, crates, examples and tests that exist, and
//! those that are quick, safe and need no privilege run. `src/samples.rs` has the test that the command line understands those of `apus`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use toml::{Table, Value};

use crate::program::{Server, stderr};
use crate::run::Directory;
use crate::shell::{Page, ShellLine, apus_arguments, commands, pages, root};

/// Programs of others, and programs that a page makes, copies or stands for.
const PROGRAMS: [&str; 31] = [
    "./hello",
    "PROGRAM",
    "apus-irq",
    "c++",
    "cc",
    "cd",
    "cp",
    "cp_node",
    "docker",
    "dpkg",
    "export",
    "gh",
    "go",
    "install",
    "ip",
    "java",
    "javac",
    "kill",
    "ldconfig",
    "mdbook",
    "pip",
    "rpm",
    "setcap",
    "sha256sum",
    "skopeo",
    "sleep",
    "sysctl",
    "systemctl",
    "tar",
    "tcpdump",
    "wireshark",
];

/// A command of a document that is run.
struct Run {
    /// As in the document, with one space between words.
    command: &'static str,
    /// Words that make it quick in a debug build, in place of others.
    quicker: &'static [(&'static str, &'static str)],
    /// Further words for the same.
    more: &'static str,
    /// Exit codes of success.
    codes: &'static [i32],
}

impl Run {
    const fn new(command: &'static str) -> Self {
        Self { command, quicker: &[], more: "", codes: &[0] }
    }

    const fn quicker(mut self, words: &'static [(&'static str, &'static str)]) -> Self {
        self.quicker = words;
        self
    }

    const fn more(mut self, words: &'static str) -> Self {
        self.more = words;
        self
    }

    const fn codes(mut self, codes: &'static [i32]) -> Self {
        self.codes = codes;
        self
    }

    /// Its arguments, of which the document has `words`.
    fn arguments(&self, words: &[String]) -> Vec<String> {
        let quicker = |word: &String| {
            let found = self.quicker.iter().find(|(slow, _)| slow == word);
            found.map_or_else(|| word.clone(), |(_, quick)| (*quick).to_owned())
        };
        let more = self.more.split_whitespace().map(str::to_owned);
        words[1..].iter().map(quicker).chain(more).collect()
    }
}

/// Other commands need privilege, other hosts or a server that stays, measure, or take long.
const RUNS: [Run; 19] = [
    Run::new("apus --version"),
    Run::new("apus dev-certs certs --name kv --name front"),
    // 1: a finding is bad.
    Run::new("apus doctor").codes(&[0, 1]),
    Run::new("apus doctor --json doctor.json").codes(&[0, 1]),
    Run::new("apus irq show --presets"),
    Run::new(
        "apus report docs/measurements/delivery.json --markdown docs/measurements/delivery.md --svg docs/images",
    ),
    Run::new("apus report docs/measurements/irq-letter.json"),
    Run::new("apus report docs/measurements/sockets.json --markdown -"),
    Run::new("apus sim check --seeds 0..10000").quicker(&[("0..10000", "0..3")]),
    Run::new("apus sim compare --html compare.html")
        .more("--workloads w1 --scale 0.01 --set topology=single-4"),
    Run::new("apus sim run --workload sizes.csv --load 0.5 --csv out.csv")
        .more("--topology single-4 --sim-ms 0.2"),
    Run::new("apus sim run --workload w3 --set homa.priorities=4 --set links.host_gbps=100")
        .more("--topology single-4 --sim-ms 0.05"),
    Run::new("apus sim run --workload w4 --load 0.8 --sim-ms 100")
        .quicker(&[("100", "0.05")])
        .more("--topology single-4"),
    Run::new("apus stat"),
    Run::new("apus stat --diff before.json after.json"),
    Run::new("apus stat --ended"),
    Run::new("apus stat --json after.json"),
    Run::new("apus stat --json before.json"),
    Run::new("apus top --once"),
];

/// Calls `check` with each command of all blocks, and returns its faults with page and line.
fn faults_of_commands(mut check: impl FnMut(&[String]) -> Vec<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for page in pages() {
        for line in page.blocks().iter().flatten() {
            for command in commands(&line.text) {
                faults.extend(check(&command).iter().map(|it| place(&page, line, it)));
            }
        }
    }
    faults
}

fn place(page: &Page, line: &ShellLine, fault: &str) -> String {
    format!("{}:{}: {fault}", page.name, line.number)
}

#[test]
fn blocks_are_shell_code() {
    let mut faults = Vec::new();
    for page in pages() {
        for block in page.blocks() {
            let mut shell = Command::new("sh");
            shell.arg("-n").stdin(Stdio::piped()).stderr(Stdio::piped());
            let mut shell = shell.spawn().expect("the system has a shell");
            let code: Vec<&str> = block.iter().map(|line| &*line.text).collect();
            let mut input = shell.stdin.take().expect("it is a pipe");
            input.write_all(code.join("\n").as_bytes()).expect("the shell reads all of it");
            drop(input);
            let output = shell.wait_with_output().expect("it is a child of this process");
            if !output.status.success() {
                faults.push(place(&page, &block[0], &stderr(&output)));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn programs_and_files_exist() {
    let faults = faults_of_commands(|command| {
        let program = program(command).filter(|it| !is_known(it));
        let unknown = program.map(|it| format!("{it}: no program that documents name"));
        missing_files(command).into_iter().chain(unknown).collect()
    });
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The program of a command, behind variables and programs that start another one.
fn program(command: &[String]) -> Option<&str> {
    let is_before = |word: &&str| {
        ["sudo", "nice"].contains(word) || word.starts_with('-') || word.contains('=')
    };
    command.iter().map(String::as_str).find(|word| !is_before(word))
}

/// Whether a program is one of ours or of [`PROGRAMS`]. [`missing_files`] checks paths.
fn is_known(program: &str) -> bool {
    ["apus", "cargo"].contains(&program)
        || PROGRAMS.contains(&program)
        || (program.contains('/') && !program.starts_with("./"))
}

/// Files of the repository that a command names and that do not exist.
fn missing_files(command: &[String]) -> Vec<String> {
    let root = root();
    let is_of_repository = |path: &str| {
        let here = path.strip_prefix("./");
        let is_ours = match here.unwrap_or(path).split_once('/') {
            Some((first, _)) => !["", "target"].contains(&first) && root.join(first).is_dir(),
            None => here.is_some(),
        };
        is_ours && !path.contains(['*', '$', ' ']) && !PROGRAMS.contains(&path)
    };
    let pieces = command.iter().flat_map(|word| word.split(['=', ':', ',', '[']));
    let missing = pieces.filter(|it| is_of_repository(it) && !root.join(it).exists());
    missing.map(|it| format!("{it}: no such file")).collect()
}

/// A package of the repository.
struct Package {
    directory: PathBuf,
    manifest: Table,
}

impl Package {
    /// All packages of the workspace by name.
    fn all() -> BTreeMap<String, Self> {
        let crates = fs::read_dir(root().join("crates")).expect("the tests run in a checkout");
        let crates = crates.map(|entry| entry.expect("it can be read").path());
        let others = ["spec", "xtask", "xtask/counted"].map(|it| root().join(it));
        let packages = crates.chain(others).filter_map(|directory| {
            let text = fs::read_to_string(directory.join("Cargo.toml")).ok()?;
            let manifest: Table = text.parse().expect("cargo has read it");
            let name = manifest["package"]["name"].as_str()?.to_owned();
            Some((name, Self { directory, manifest }))
        });
        packages.collect()
    }

    /// Whether it has the target `name`: a file of a directory, or an entry of the manifest's array `key`.
    fn has_target(&self, directory: &str, key: &str, name: &str) -> bool {
        let path = self.directory.join(directory);
        let entries = self.manifest.get(key).and_then(Value::as_array).into_iter().flatten();
        let finds = self.manifest["package"].get(format!("auto{directory}").as_str());
        let finds = finds.and_then(Value::as_bool) != Some(false);
        let is_file = path.join(format!("{name}.rs")).exists();
        (finds && (is_file || path.join(name).join("main.rs").exists()))
            || entries.into_iter().any(|it| it.get("name").and_then(Value::as_str) == Some(name))
    }

    /// Whether it has a feature, also that of an optional dependency.
    fn has_feature(&self, feature: &str) -> bool {
        let in_table = |table| self.manifest.get(table).is_some_and(|it| it.get(feature).is_some());
        in_table("features") || in_table("dependencies")
    }
}

#[test]
fn commands_of_cargo_name_what_exists() {
    let packages = Package::all();
    assert!(packages.len() > 25, "only {} packages were found", packages.len());
    let mut faults = faults_of_commands(|command| faults_of_cargo(&packages, command));
    let mut count = 0;
    for page in pages() {
        for (number, code) in inline_code(&page.text) {
            for command in commands(code).iter().filter(|it| program(it) == Some("cargo")) {
                count += 1;
                let found = faults_of_cargo(&packages, command);
                faults.extend(found.iter().map(|it| format!("{}:{number}: {it}", page.name)));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count > 20, "only {count} commands of cargo were found in the lines");
}

/// The code between backticks in the lines outside of blocks, with their numbers.
fn inline_code(text: &str) -> Vec<(usize, &str)> {
    let mut is_in_fence = false;
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_in_fence = !is_in_fence;
        } else if !is_in_fence {
            found.extend(line.split('`').skip(1).step_by(2).map(|code| (index + 1, code)));
        }
    }
    found
}

/// Packages, examples, tests and features that a command of cargo names and that do not exist.
fn faults_of_cargo(packages: &BTreeMap<String, Package>, command: &[String]) -> Vec<String> {
    let Some(at) = command.iter().position(|word| word == "cargo") else { return Vec::new() };
    let words = command[at + 1..].iter().map(String::as_str);
    let words: Vec<&str> = words.take_while(|word| *word != "--").collect();
    let values = |option: &'static str| {
        words.windows(2).filter(move |pair| pair[0] == option).map(|pair| pair[1])
    };
    let is_of_others = words.contains(&"--manifest-path") || words.first() == Some(&"init");
    let is_package = |word: &&str| {
        word.starts_with("apus") && word.chars().all(|c| c.is_ascii_lowercase() || c == '-')
    };
    let named: BTreeSet<&str> =
        words.iter().copied().filter(is_package).chain(values("-p")).collect();
    let named: Vec<&str> = named.into_iter().collect();
    let mut faults = Vec::new();
    for name in named.iter().filter(|name| !packages.contains_key(**name)) {
        faults.push(format!("{name}: no package of the workspace"));
    }
    let of: Vec<&Package> = match named[..] {
        [] => packages.values().collect(),
        _ => named.iter().filter_map(|name| packages.get(*name)).collect(),
    };
    if is_of_others {
        return faults;
    }
    for (option, directory, key) in [
        ("--example", "examples", "example"),
        ("--test", "tests", "test"),
        ("--bench", "benches", "bench"),
    ] {
        // A name in capitals stands for each of them.
        for target in values(option).filter(|it| it.chars().any(char::is_lowercase)) {
            if !of.iter().any(|package| package.has_target(directory, key, target)) {
                faults.push(format!("{target}: no {key} of {}", named.join(", ")));
            }
        }
    }
    for feature in values("--features").flat_map(|it| it.split(',')) {
        if !of.iter().any(|it| it.has_feature(feature)) {
            faults.push(format!("{feature}: no feature of {}", named.join(", ")));
        }
    }
    faults
}

/// The commands of a page run one after the other in a directory, beside a server, of which `apus stat` shows the counters.
#[test]
fn quick_commands_run() {
    let _server = Server::start("");
    let (mut faults, mut parsed, mut ran) = (Vec::new(), Vec::new(), Vec::new());
    for (index, page) in pages().iter().enumerate() {
        let directory = Directory::new(&format!("documented-{index}"));
        fs::write(directory.file("sizes.csv"), "bytes,cdf\n100,0.9\n5000,1\n")
            .expect("the directory is ours");
        for line in page.blocks().iter().flatten() {
            for command in commands(&line.text) {
                let text = command.join(" ");
                if let Some(run) = RUNS.iter().find(|run| run.command == text) {
                    ran.push(run.command);
                    let fault = run_in(&directory, run, &command);
                    faults.extend(fault.map(|it| place(page, line, &it)));
                } else if apus_arguments(&command).is_some() {
                    parsed.push(place(page, line, &text));
                }
            }
        }
    }
    println!("{} commands are only parsed:\n{}", parsed.len(), parsed.join("\n"));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let gone: Vec<&str> =
        RUNS.map(|it| it.command).into_iter().filter(|it| !ran.contains(it)).collect();
    assert!(gone.is_empty(), "no document has these commands any more: {gone:#?}");
}

/// Runs a command in a directory with the files of the repository that it reads. Returns its fault, if it fails.
fn run_in(directory: &Directory, run: &Run, words: &[String]) -> Option<String> {
    for word in words.iter().filter(|word| word.starts_with("docs/")) {
        let to = directory.file(word);
        fs::create_dir_all(to.parent().expect("a file has a directory"))
            .expect("the directory is ours");
        let from = root().join(word);
        if from.is_file() {
            fs::copy(from, to).expect("the directory is ours");
        } else {
            fs::create_dir_all(to).expect("the directory is ours");
        }
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_apus"));
    let output = command.args(run.arguments(words)).current_dir(directory.file("")).output();
    let output = output.expect("the program starts");
    let succeeds = output.status.code().is_some_and(|code| run.codes.contains(&code));
    (!succeeds).then(|| format!("{}: {}: {}", run.command, output.status, stderr(&output)))
}

#[test]
fn wrong_commands_are_found() {
    let words = |line| commands(line).remove(0);
    let packages = Package::all();
    let cargo = |line| faults_of_cargo(&packages, &words(line)).len();
    assert_eq!(cargo("cargo run --release -p apus --example echo_server -- --example none"), 0);
    assert_eq!(cargo("cargo run -p apus --example none"), 1);
    assert_eq!(cargo("cargo test -p apus-none"), 1);
    assert_eq!(cargo("cargo test -p apus --test none --features none,tokio"), 2);
    assert_eq!(missing_files(&words("sudo plans/none.sh --to=docs/figures.md ./none")).len(), 2);
    assert!(!is_known(program(&words("sudo nice -n -5 A=1 aqus stat")).unwrap()));
}
