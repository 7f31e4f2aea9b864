//! The program under test, as a process.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The program with arguments as on a command line, without quotes.
pub(crate) fn command(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_apus"));
    command.args(arguments.split_whitespace());
    command
}

/// Runs `apus` with some arguments to its end.
pub(crate) fn apus(arguments: &str) -> Output {
    command(arguments).output().expect("the program starts")
}

/// Runs `apus`, which must succeed. Returns its output as JSON.
pub(crate) fn json(arguments: &str) -> Value {
    let output = apus(arguments);
    assert!(output.status.success(), "`{arguments}`: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("standard output is one JSON value")
}

/// Like [`json`], but measurements may be refused on a busy machine: only then, the exit code is 3.
pub(crate) fn json_perhaps_refused(arguments: &str) -> Value {
    checked_json(arguments, &apus(arguments))
}

/// The result that `apus` wrote to standard output, whose verdicts agree with the exit code.
pub(crate) fn checked_json(arguments: &str, output: &Output) -> Value {
    let result: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(output)));
    let refused =
        |row: &Value| row["verdict"].as_str().is_some_and(|verdict| verdict.contains(", not the "));
    let refused = result["rows"].as_array().expect("rows are a list").iter().any(refused);
    // The table `checks` applies to a release build on a quiet machine.
    let failed = stderr(output).contains(" checks FAIL, see the table");
    let expected = if refused { 3 } else { i32::from(failed) };
    assert_eq!(output.status.code(), Some(expected), "`{arguments}`: {}", stderr(output));
    result
}

/// Yields until a condition holds. Fails after a time that only a fault takes.
pub(crate) fn wait_until(condition: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < FAULT_AFTER, "{condition}: not within {FAULT_AFTER:?}");
        thread::yield_now();
    }
}

/// Time limit of a wait that only a fault exceeds.
pub(crate) const FAULT_AFTER: Duration = Duration::from_secs(60);

/// The text that a process wrote to standard error.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Asserts that `apus` ends with `code` and one line on standard error that contains all of `words`.
pub(crate) fn fails(code: i32, arguments: &str, words: &[&str]) {
    let output = apus(arguments);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "`{arguments}`: {message}");
    assert_eq!(message.lines().count(), 1, "`{arguments}`: {message}");
    assert!(message.starts_with("apus: "), "`{arguments}`: {message}");
    for word in words {
        assert!(message.contains(word), "`{arguments}`: no '{word}' in: {message}");
    }
}

/// A running `apus node server`, killed when it is dropped.
pub(crate) struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// Its address in the form that clients write.
    pub(crate) address: String,
}

impl Server {
    /// Starts a server on a port the system chooses, with further arguments, and waits until it serves.
    pub(crate) fn start(arguments: &str) -> Self {
        Self::start_with(arguments, &[])
    }

    /// The same with variables in its environment.
    pub(crate) fn start_with(arguments: &str, variables: &[(&str, &str)]) -> Self {
        Self::serving(&format!("node server --listen 127.0.0.1:0 {arguments}"), variables)
    }

    /// Starts a command that reports its address.
    pub(crate) fn serving(arguments: &str, variables: &[(&str, &str)]) -> Self {
        let mut command = command(arguments);
        command.envs(variables.iter().copied());
        Self::started_by(&mut command)
    }

    /// Starts a prepared command that reports its address.
    pub(crate) fn started_by(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("the server says where it is");
        let words: Vec<&str> = line.split_whitespace().collect();
        let address = match words[..] {
            ["serving", host, "ports", ports] => {
                let (ip, udp) = host.rsplit_once(':').expect("an IP address and a port");
                let port = ports.split('-').next().expect("a range has a first port");
                format!("{ip}:{port}@{udp}")
            }
            ["serving", address] => address.to_owned(),
            _ => panic!("the server said: {line}"),
        };
        Self { child, stdout, address }
    }

    /// Kills the process at once.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it is still running");
        self.child.wait().expect("it is a child of this process");
    }

    /// Sends the process a signal.
    pub(crate) fn signal(&self, name: &str) {
        let kill = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(kill.expect("the system has a kill command").success());
    }

    /// The id of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the process ends by itself. Returns its output since then.
    pub(crate) fn finish(mut self) -> String {
        let mut text = String::new();
        self.stdout.read_to_string(&mut text).expect("it writes text");
        assert!(self.child.wait().expect("it is a child of this process").success());
        text
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
