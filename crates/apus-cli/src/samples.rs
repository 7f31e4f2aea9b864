//! The commands that documents and help texts show are understood by the command line.

mod shell;

use clap::CommandFactory;
use clap::error::ErrorKind;

use crate::cli::Cli;
use crate::samples::shell::{apus_arguments, commands, pages};

/// The examples of a command's help text and of those below it.
fn examples(command: &clap::Command) -> Vec<String> {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let of_this = help.lines().map(|line| line.trim().to_owned());
    let of_others = command.get_subcommands().flat_map(examples);
    of_this.filter(|line| line.starts_with("apus ")).chain(of_others).collect()
}

/// The commands of `apus` in a line of shell code.
fn commands_of_apus(line: &str) -> Vec<Vec<String>> {
    commands(line).iter().filter_map(|command| apus_arguments(command)).collect()
}

/// Why the command line does not understand a command, if so.
fn refusal(arguments: &[String]) -> Option<String> {
    // A variable of the shell may stand for anything.
    if arguments.iter().any(|argument| argument.starts_with('$')) {
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
    for page in pages() {
        for line in page.blocks().iter().flatten() {
            for command in commands_of_apus(&line.text) {
                count += 1;
                let refusal = refusal(&command);
                refused.extend(refusal.map(|it| format!("{}:{}: {it}", page.name, line.number)));
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(count > 50, "only {count} commands were found");
}

#[test]
fn examples_of_help_texts_are_understood() {
    let examples = examples(&Cli::command());
    let commands: Vec<Vec<String>> =
        examples.iter().flat_map(|line| commands_of_apus(line)).collect();
    let refused: Vec<String> = commands.iter().filter_map(|command| refusal(command)).collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(commands.len() > 100, "only {} commands were found", commands.len());
}

#[test]
fn a_line_may_have_several_commands_and_other_words_around_them() {
    let found = commands_of_apus("sudo A=1 apus stat --json a; sleep 60; apus top | jq . # apus");
    let wanted = [&["apus", "stat", "--json", "a"][..], &["apus", "top"]];
    assert_eq!(found, wanted);
    assert_eq!(commands_of_apus("cargo run --release -- demo &"), [["apus", "demo"]]);
    assert_eq!(commands_of_apus("apus stat $(pidof a b) > out 2>err"), [["apus", "stat", "4711"]]);
    assert!(commands_of_apus("cd apus-results; cargo add apus").is_empty());
}
