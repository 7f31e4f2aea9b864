//! A child process that is controlled over its standard input and output, line by line.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{self, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use apus_net::cpu;

/// A child process. Dropping it kills it, so that a failed run leaves no process.
pub struct Child {
    process: process::Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Child {
    /// Starts a process, limited to one CPU if `cpu` is given. Ctrl-C does not reach the process; its leader ends it.
    ///
    /// # Errors
    /// If it cannot start, with the name of the program.
    pub fn start(mut command: Command, cpu: Option<usize>) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0);
        let program = command.get_program().to_string_lossy().into_owned();
        let mut process = spawn(command, cpu).with_context(|| format!("cannot run `{program}`"))?;
        let input = process.stdin.take();
        let output = process.stdout.take().expect("the child's output is a pipe");
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // The receiver is gone once the leader has dropped this process.
                let _ = sender.send(line);
            }
        });
        Ok(Self { process, input, lines })
    }

    /// Its PID.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Whether it has exited by itself.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(Some(_)))
    }

    /// Writes a line to its standard input.
    ///
    /// # Errors
    /// If it has closed its standard input.
    pub fn say(&mut self, line: &str) -> io::Result<()> {
        let input = self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(input, "{line}").and_then(|()| input.flush())
    }

    /// Closes its standard input.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// The next line of its standard output.
    ///
    /// # Errors
    /// If no line arrives within `timeout`, or the output has ended.
    pub fn line(&self, timeout: Duration) -> Result<String, RecvTimeoutError> {
        self.lines.recv_timeout(timeout)
    }

    /// Reads its standard error until it exits.
    ///
    /// # Errors
    /// If standard error cannot be read.
    pub fn words(&mut self) -> io::Result<String> {
        let mut words = String::new();
        if let Some(mut stderr) = self.process.stderr.take() {
            stderr.read_to_string(&mut words)?;
        }
        Ok(words)
    }

    /// Kills it. Returns its error text, which may be empty.
    pub fn last_words(&mut self) -> String {
        // Fails only if it has exited already.
        let _ = self.process.kill();
        self.words().unwrap_or_default().trim().trim_start_matches("apus: ").to_owned()
    }
}

/// Starts a process on a thread that is pinned to `cpu`, because a process inherits the CPUs of the thread that starts it.
fn spawn(mut command: Command, cpu: Option<usize>) -> io::Result<process::Child> {
    let Some(cpu) = cpu else { return command.spawn() };
    let start = thread::spawn(move || cpu::pin_current_thread(cpu).and_then(|()| command.spawn()));
    start.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail only if it has exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
