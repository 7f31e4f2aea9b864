//! The commands that documents and help texts show are understood by the command line.

use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap::error::ErrorKind;

use crate::cli::Cli;

/// The documents, with their names.
fn documents() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = |directory: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(root.join(directory)).expect("the tests run in a checkout");
        entries.map(|entry| entry.expect("it can be read").path()).collect()
    };
    let paths = files("").into_iter().chain(files("docs")).chain(files("docs/measurements"));
    paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .map(|path| (path.display().to_string(), fs::read_to_string(&path).expect("it is text")))
        .collect()
}

/// The lines of the blocks of shell code in a document, with continued lines joined.
fn shell(document: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let (mut is_shell, mut continues) = (false, false);
    for line in document.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            is_shell = language == "sh";
        } else if is_shell {
            let (text, more) = line.strip_suffix('\\').map_or((line, false), |text| (text, true));
            match lines.last_mut().filter(|_| continues) {
                Some(last) => last.push_str(text),
                None => lines.push(text.to_owned()),
            }
            continues = more;
        }
    }
    lines
}

/// The examples of a command's help text and of those below it.
fn examples(command: &clap::Command) -> Vec<String> {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let of_this = help.lines().map(|line| line.trim().to_owned());
    let of_others = command.get_subcommands().flat_map(examples);
    of_this.filter(|line| line.starts_with("apus ")).chain(of_others).collect()
}

/// The arguments of each command in a line of shell code that starts `apus`.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let words = shlex::split(line).unwrap_or_default();
    let mut command: Option<Vec<String>> = None;
    for (index, word) in words.iter().enumerate() {
        let ends = ["|", "&&", "||", ";", "&"].contains(&&**word);
        let redirects = [">", "2>", "<"].iter().any(|it| word.starts_with(it));
        let before = &words[..index];
        let by_cargo = word == "--" && before.ends_with(&CARGO.map(str::to_owned));
        let is_crate = before.last().is_some_and(|it| ["-p", "add"].contains(&&**it));
        match &mut command {
            None if word == "apus" && !is_crate || by_cargo => {
                command = Some(vec!["apus".to_owned()])
            }
            None => {}
            Some(_) if ends || redirects => found.extend(command.take()),
            Some(arguments) => match word.strip_suffix(';') {
                Some(last) => {
                    arguments.push(last.to_owned());
                    found.extend(command.take());
                }
                None => arguments.push(word.clone()),
            },
        }
    }
    found.extend(command);
    found
}

/// A way of starting `apus` in a checkout, before `--`.
const CARGO: [&str; 3] = ["cargo", "run", "--release"];

/// Why the command line does not understand a command, if so.
fn refusal(arguments: &[String]) -> Option<String> {
    // A variable of the shell may stand for anything.
    if arguments.iter().any(|argument| argument.contains('$')) {
        return None;
    }
    let error = Cli::command().try_get_matches_from(arguments).err()?;
    let is_answer = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    // The reader has the file, or the preset that `apus irq tune` saves.
    let text = error.to_string();
    let is_of_reader = ["No such file or directory", "no preset `"];
    let is_of_reader = is_of_reader.iter().any(|it| text.contains(it));
    (!is_answer && !is_of_reader).then(|| format!("{}: {text}", arguments.join(" ")))
}

#[test]
fn commands_of_documents_are_understood() {
    let (mut refused, mut count) = (Vec::new(), 0);
    for (name, document) in documents() {
        for command in shell(&document).iter().flat_map(|line| commands(line)) {
            count += 1;
            refused.extend(refusal(&command).map(|refusal| format!("{name}: {refusal}")));
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(count > 50, "only {count} commands were found");
}

#[test]
fn examples_of_help_texts_are_understood() {
    let examples = examples(&Cli::command());
    let commands: Vec<Vec<String>> = examples.iter().flat_map(|line| commands(line)).collect();
    let refused: Vec<String> = commands.iter().filter_map(|command| refusal(command)).collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(commands.len() > 100, "only {} commands were found", commands.len());
}

#[test]
fn a_line_may_have_several_commands_and_other_words_around_them() {
    let found = commands("sudo A=1 apus stat --json a; sleep 60; apus top | jq . # apus");
    let wanted = [&["apus", "stat", "--json", "a"][..], &["apus", "top"]];
    assert_eq!(found, wanted);
    assert_eq!(commands("cargo run --release -- demo &"), [["apus", "demo"]]);
    assert!(commands("cd apus-results").is_empty());
}
