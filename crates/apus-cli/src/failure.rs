//! Failures of the program: one line with the cause, and an exit code that names the side at fault.

use std::error::Error;
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, IsTerminal, Write};

use apus_load::misuse::Misuse;

/// Exit code when something could not be done.
pub(crate) const FAILED: u8 = 1;

/// Exit code when the program was used wrongly.
pub(crate) const MISUSED: u8 = 2;

/// Exit code when all was measured, but part of it is refused as a measurement.
pub(crate) const REFUSED: u8 = 3;

/// Something was measured that does not count, and its results were shown; ends the program with [`REFUSED`].
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Refused {}

/// `apus run` could not start its program. The exit code is the one that a shell gives.
#[derive(Debug)]
pub(crate) struct NotStarted {
    pub(crate) code: u8,
    pub(crate) why: String,
}

impl NotStarted {
    /// The program is there, but cannot be executed.
    pub(crate) const CANNOT: u8 = 126;

    /// There is no such program.
    pub(crate) const NOT_FOUND: u8 = 127;

    /// Why the kernel did not execute a program.
    pub(crate) fn of(name: &OsStr, error: &io::Error) -> Self {
        let code = match error.kind() {
            io::ErrorKind::NotFound => Self::NOT_FOUND,
            _ => Self::CANNOT,
        };
        Self { code, why: format!("cannot start `{}`: {error}", name.display()) }
    }
}

impl fmt::Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl Error for NotStarted {}

/// The exit code that fits an error.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    match error {
        error if error.is::<Misuse>() => MISUSED,
        error if error.is::<Refused>() => REFUSED,
        error => error.downcast_ref::<NotStarted>().map_or(FAILED, |error| error.code),
    }
}

/// Writes a line about something that is no error to standard error.
pub(crate) fn note(message: &str) {
    print_line(message);
}

/// Warns of variables of the environment that are probably misspelt.
pub(crate) fn warn_of_variables() {
    for variable in apus::Config::misspelt_variables() {
        note(&format!("warning: {variable}"));
    }
}

/// Writes the error as one line to standard error.
pub(crate) fn print(error: &anyhow::Error) {
    print_line(&one_line(&message(error)));
}

/// The error and its causes, without those whose words an outer one has already.
pub(crate) fn message(error: &anyhow::Error) -> String {
    let mut message = String::new();
    for cause in error.chain().map(in_words) {
        if message.is_empty() {
            message = cause;
        } else if !message.contains(&cause) {
            message.push_str(": ");
            message.push_str(&cause);
        }
    }
    message
}

/// An error without its causes. A drawing of the place in a TOML text needs lines of its own, so the place is named.
fn in_words(error: &(dyn Error + 'static)) -> String {
    match error.downcast_ref::<toml::de::Error>() {
        Some(error) => {
            let text = error.to_string();
            let place =
                text.lines().next().and_then(|line| line.strip_prefix("TOML parse error at "));
            place.map_or_else(
                || error.message().to_owned(),
                |place| format!("{place}: {}", error.message()),
            )
        }
        None => error.to_string(),
    }
}

/// Prints the error of a command line as one line: clap's message without its hints.
pub(crate) fn print_usage(error: &clap::Error) {
    let text = error.render().to_string();
    let body = text.split("\nUsage:").next().unwrap_or_default();
    let body = body.split("\nFor more information").next().unwrap_or_default();
    // The standard library does not name the expected values.
    let body = body.replace(
        "invalid socket address syntax",
        "expected IP:PORT, as in 127.0.0.1:20146, without a host name",
    );
    print_line(&one_line(body.trim_start_matches("error: ")));
}

fn print_line(message: &str) {
    let mut stderr = io::stderr().lock();
    let name = if stderr.is_terminal() { "\x1b[1;31mapus:\x1b[0m" } else { "apus:" };
    // An error of standard error itself cannot be reported.
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
        assert_eq!(exit_code(&Refused("no".to_owned()).into()), REFUSED);
        let not_found = NotStarted { code: NotStarted::NOT_FOUND, why: "no".to_owned() };
        assert_eq!(exit_code(&not_found.into()), 127);
    }

    #[test]
    fn nothing_is_said_twice() {
        let cause = io::Error::other("no such host");
        let error =
            anyhow!(cause).context("cannot find 'x': no such host").context("'--servers x'");
        assert_eq!(message(&error), "'--servers x': cannot find 'x': no such host");
    }

    #[test]
    fn the_place_of_an_error_in_toml_is_named() {
        let error = toml::from_str::<toml::Table>("a = 1\nb = [1,\n").unwrap_err();
        let said = message(&anyhow!(error).context("plan `x`"));
        assert!(said.starts_with("plan `x`: line 2, column "), "{said}");
        assert!(!said.contains('|') && !said.contains('\n') && !said.contains('^'), "{said}");
    }

    #[test]
    fn a_message_is_one_line() {
        assert_eq!(one_line("a\n  b\n\n c"), "a b c");
    }
}
