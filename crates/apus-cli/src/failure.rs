//! How the program fails: one line that says what, and an exit code that says whose fault it is.

use std::fmt;
use std::io::{IsTerminal, Write};

/// Exit code when something could not be done.
pub(crate) const FAILED: u8 = 1;

/// Exit code when the program was used wrongly.
pub(crate) const MISUSED: u8 = 2;

/// An argument that parses but cannot be meant; ends the program with [`MISUSED`].
#[derive(Debug)]
pub(crate) struct Misuse(pub(crate) String);

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Misuse {}

/// The exit code that fits an error.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<Misuse>() { MISUSED } else { FAILED }
}

/// Writes the error as one line to standard error.
pub(crate) fn print(error: &anyhow::Error) {
    print_line(&one_line(&message(error)));
}

/// The error and its causes, without those whose words an outer one has already.
fn message(error: &anyhow::Error) -> String {
    let mut message = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if message.is_empty() {
            message = cause;
        } else if !message.contains(&cause) {
            message.push_str(": ");
            message.push_str(&cause);
        }
    }
    message
}

/// What is wrong with the command line, as one line: clap's message without its hints.
pub(crate) fn print_usage(error: &clap::Error) {
    let text = error.render().to_string();
    let body = text.split("\nUsage:").next().unwrap_or_default();
    let body = body.split("\nFor more information").next().unwrap_or_default();
    print_line(&one_line(body.trim_start_matches("error: ")));
}

fn print_line(message: &str) {
    let mut stderr = std::io::stderr().lock();
    let name = if stderr.is_terminal() { "\x1b[1;31mapus:\x1b[0m" } else { "apus:" };
    // Nobody is left to tell when standard error is closed.
    let _ = writeln!(stderr, "{name} {message}");
}

fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn the_code_says_whose_fault_it_is() {
        assert_eq!(exit_code(&anyhow!("no")), FAILED);
        assert_eq!(exit_code(&Misuse("no".to_owned()).into()), MISUSED);
    }

    #[test]
    fn nothing_is_said_twice() {
        let cause = std::io::Error::other("no such host");
        let error =
            anyhow!(cause).context("cannot find 'x': no such host").context("'--servers x'");
        assert_eq!(message(&error), "'--servers x': cannot find 'x': no such host");
    }

    #[test]
    fn a_message_is_one_line() {
        assert_eq!(one_line("a\n  b\n\n c"), "a b c");
    }
}
