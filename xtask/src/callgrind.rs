//! Instructions and allocations of a program under valgrind.

use std::process::Command;

use anyhow::{Context, Result};

use crate::program::both_outputs;

/// Returns the instructions in user space of a program.
///
/// # Errors
/// If valgrind cannot be started, or reports no number.
pub(crate) fn instructions(program: &Invocation<'_>) -> Result<u64> {
    let text = program.run(&["--tool=callgrind", "--callgrind-out-file=/dev/null"])?;
    collected(&text).with_context(|| format!("callgrind counts no instructions:\n{text}"))
}

/// Returns the instructions of a program in some functions: the count begins and ends, and ends and begins, at the entry and the
/// exit of each. A name may end with an asterisk.
///
/// # Errors
/// As [`instructions`].
pub(crate) fn instructions_of(program: &Invocation<'_>, functions: &[&str]) -> Result<u64> {
    let toggles: Vec<String> =
        functions.iter().map(|function| format!("--toggle-collect={function}")).collect();
    let mut options = vec!["--tool=callgrind", "--callgrind-out-file=/dev/null"];
    options.extend(toggles.iter().map(String::as_str));
    let text = program.run(&options)?;
    collected(&text).with_context(|| format!("callgrind counts no instructions:\n{text}"))
}

/// Returns the allocations of a program.
///
/// # Errors
/// If valgrind cannot be started, or reports no number.
pub(crate) fn allocations(program: &Invocation<'_>) -> Result<u64> {
    let text = program.run(&["--leak-check=no"])?;
    allocated(&text).with_context(|| format!("valgrind counts no allocations:\n{text}"))
}

/// A program with arguments and variables.
pub(crate) struct Invocation<'a> {
    pub(crate) program: &'a str,
    pub(crate) arguments: &'a [&'a str],
    pub(crate) variables: &'a [(&'a str, &'a str)],
}

impl Invocation<'_> {
    fn run(&self, options: &[&str]) -> Result<String> {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(options).arg(self.program).args(self.arguments);
        both_outputs(valgrind.envs(self.variables.iter().copied()))
    }
}

/// Returns the number of `==PID== Collected : NUMBER`.
fn collected(output: &str) -> Option<u64> {
    output.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok())
}

/// Returns the number of `==PID==   total heap usage: NUMBER allocs, …`, in which commas separate thousands.
fn allocated(output: &str) -> Option<u64> {
    let number = |line: &str| {
        let (number, _) = line.split_once("usage: ")?.1.split_once(" allocs")?;
        number.replace(',', "").parse().ok()
    };
    output.lines().find_map(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_from_the_reports() {
        let report = "==7== Callgrind, a tool\n1 call\n==7== Events    : Ir\n\
            ==7== Collected : 12345678\n==7== I   refs:      12,345,678\n";
        assert_eq!(collected(report), Some(12_345_678));
        assert_eq!(allocated(report), None);
        let report = "==7== HEAP SUMMARY:\n\
            ==7==   total heap usage: 1,234,567 allocs, 1,234,560 frees, 9 bytes allocated\n";
        assert_eq!(allocated(report), Some(1_234_567));
        assert_eq!(collected(report), None);
    }
}
