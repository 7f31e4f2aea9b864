//! The shell code of documents: blocks of `sh`, and the commands in them. The tests of commands read this file as well.

use std::fs;
use std::path::{Path, PathBuf};

/// A document.
pub(crate) struct Page {
    /// Its path from the root of the repository.
    pub(crate) name: String,
    pub(crate) text: String,
}

/// A line of shell code, with the lines that continue it.
pub(crate) struct ShellLine {
    /// Number of the first line in the document, from 1.
    pub(crate) number: usize,
    pub(crate) text: String,
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The documents of the repository, of the book and of the crates.
pub(crate) fn pages() -> Vec<Page> {
    let mut directories = ["", "docs", "docs/measurements", "python"].map(PathBuf::from).to_vec();
    let crates = names(Path::new("crates"));
    directories.extend(crates.iter().map(|name| Path::new("crates").join(name)));
    let mut pages = Vec::new();
    for directory in directories {
        for name in names(&directory).iter().filter(|name| name.ends_with(".md")) {
            let name = directory.join(name);
            let text = fs::read_to_string(root().join(&name)).expect("a document is text");
            pages.push(Page { name: name.display().to_string(), text });
        }
    }
    pages
}

/// The names of the files in a directory of the repository, in order.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(root().join(directory)).expect("the tests run in a checkout");
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names: Vec<String> = entries.map(|it| name(it.expect("it can be read"))).collect();
    names.sort_unstable();
    names
}

impl Page {
    /// The blocks of shell code, each as its lines.
    pub(crate) fn blocks(&self) -> Vec<Vec<ShellLine>> {
        let mut blocks: Vec<Vec<ShellLine>> = Vec::new();
        let (mut is_in_fence, mut is_shell, mut continues) = (false, false, false);
        for (index, line) in self.text.lines().enumerate() {
            if let Some(language) = line.trim_start().strip_prefix("```") {
                is_in_fence = !is_in_fence;
                is_shell = is_in_fence && language.trim_end() == "sh";
                if is_shell {
                    blocks.push(Vec::new());
                }
                continues = false;
            } else if let Some(block) = blocks.last_mut().filter(|_| is_shell) {
                let (text, more) =
                    line.strip_suffix('\\').map_or((line, false), |text| (text, true));
                match block.last_mut().filter(|_| continues) {
                    Some(last) => last.text.push_str(text),
                    None => block.push(ShellLine { number: index + 1, text: text.to_owned() }),
                }
                continues = more;
            }
        }
        blocks
    }
}

/// The commands of a line of shell code, each as its words. Redirections and comments are left out, and a number stands for the output of a
/// command in `$(…)`.
pub(crate) fn commands(line: &str) -> Vec<Vec<String>> {
    let mut commands: Vec<Vec<String>> = vec![Vec::new()];
    let mut words = shlex::split(&substituted(line)).unwrap_or_default().into_iter();
    while let Some(word) = words.next() {
        let last = commands.last_mut().expect("one was there from the start");
        if let Some(redirection) = [">>", "2>", ">", "<"].iter().find(|it| word.starts_with(**it)) {
            if word == **redirection {
                words.next();
            }
        } else if ["|", "&&", "||", ";", "&"].contains(&&*word) {
            commands.push(Vec::new());
        } else if let Some(word) = word.strip_suffix(';') {
            last.push(word.to_owned());
            commands.push(Vec::new());
        } else {
            last.push(word);
        }
    }
    commands.retain(|command| !command.is_empty());
    commands
}

/// The line with a number in place of each `$(…)`.
fn substituted(line: &str) -> String {
    let mut text = line.to_owned();
    while let Some(from) = text.find("$(")
        && let Some(length) = text[from..].find(')')
    {
        text.replace_range(from..=from + length, "4711");
    }
    text
}

/// A way of starting `apus` in a checkout, before `--`.
const CARGO: [&str; 3] = ["cargo", "run", "--release"];

/// The part of a command that starts `apus`, or the copy of it that docs/irq.md makes: `apus` and its arguments.
pub(crate) fn apus_arguments(command: &[String]) -> Option<Vec<String>> {
    let at = (0..command.len()).find(|&at| {
        let (before, word) = (&command[..at], &*command[at]);
        let is_crate = before.last().is_some_and(|it| ["-p", "add"].contains(&&**it));
        let by_cargo = word == "--" && before.ends_with(&CARGO.map(str::to_owned));
        ["apus", "apus-irq"].contains(&word) && !is_crate || by_cargo
    })?;
    let arguments = command[at + 1..].iter().cloned();
    Some([String::from("apus")].into_iter().chain(arguments).collect())
}
