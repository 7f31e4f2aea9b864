//! The programs of iproute2, which every Linux host has and whose errors are well known. They change network namespaces, links and
//! queues in the kernel. A library needs the same privilege and only returns an errno.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Error, Result, ensure};

/// Runs `ip` with these arguments. Returns its output.
///
/// # Errors
/// If it is not installed or fails.
pub(crate) fn ip(arguments: &[&str]) -> Result<String> {
    finish("ip", arguments, Command::new("ip").args(arguments).output())
}

/// Runs `tc` with these arguments. Returns its output.
///
/// # Errors
/// The errors of [`ip`].
pub(crate) fn tc(arguments: &[&str]) -> Result<String> {
    finish("tc", arguments, Command::new("tc").args(arguments).output())
}

/// Runs several commands of `ip` or `tc` in one network namespace, one per line.
///
/// # Errors
/// The errors of [`ip`], with the line that failed.
pub(crate) fn batch(program: &str, namespace: &str, commands: &[String]) -> Result<()> {
    let arguments = ["-n", namespace, "-batch", "-"];
    let start = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = start.map_err(|error| absent(program, error))?;
    let mut stdin = child.stdin.take().expect("the child's input is a pipe");
    let text = commands.join("\n") + "\n";
    // A child that stopped at an error does not read the rest; its exit status reports the error.
    let _ = stdin.write_all(text.as_bytes());
    drop(stdin);
    let line = |error: &str| -> Option<&String> {
        let number: usize = error.rsplit(':').next()?.trim().parse().ok()?;
        commands.get(number.checked_sub(1)?)
    };
    let output = child.wait_with_output().with_context(|| format!("`{program}`"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    let failed = error.lines().last().and_then(line).map_or("", String::as_str);
    ensure!(
        output.status.success(),
        "`{program} -n {namespace} {failed}`: {}{}",
        error.trim(),
        explanation(&error, failed)
    );
    Ok(())
}

fn finish(program: &str, arguments: &[&str], output: std::io::Result<Output>) -> Result<String> {
    let output = output.map_err(|error| absent(program, error))?;
    let error = String::from_utf8_lossy(&output.stderr);
    let command = arguments.join(" ");
    ensure!(
        output.status.success(),
        "`{program} {command}`: {}{}",
        error.trim(),
        explanation(&error, &command)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The meaning of an error of `ip` or `tc` for the lab; empty for unknown errors.
fn explanation(error: &str, command: &str) -> String {
    let disciplines = ["htb", "fq_codel", "bfifo"];
    let discipline = disciplines.into_iter().find(|name| command.contains(name));
    let says = |words: &[&str]| words.iter().any(|word| error.contains(word));
    if says(&["qdisc kind is unknown", "No such file or directory"]) && command.contains("dev") {
        let discipline = discipline.unwrap_or("queue");
        return format!(
            ": this kernel has no {discipline}, which the lab's links need (module sch_{discipline})"
        );
    }
    if says(&["Operation not permitted", "Permission denied"]) {
        return ": the lab needs CAP_NET_ADMIN and CAP_SYS_ADMIN, use sudo".to_owned();
    }
    if says(&["Unknown device type", "Operation not supported"]) {
        return ": this kernel does not support the lab's links (veth) or switch (bridge)"
            .to_owned();
    }
    String::new()
}

fn absent(program: &str, error: std::io::Error) -> Error {
    Error::new(error)
        .context(format!("cannot run `{program}`: the lab needs iproute2 (package `iproute2`)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_lacks_is_named() {
        let error = "Error: Specified qdisc kind is unknown.\nCommand failed -:1";
        let said = explanation(error, "qdisc add dev p0 root handle 1: htb default 1");
        assert!(said.contains("no htb") && said.contains("sch_htb"), "{said}");
        assert!(explanation("Operation not permitted", "netns add x").contains("use sudo"));
        assert_eq!(explanation("something else", "link add"), "");
    }
}
