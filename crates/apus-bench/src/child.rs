//! A process that is led over its standard input and output, line by line.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{self, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use apus_net::cpu;

/// A process that was started. Dropping it ends it: nothing of a failed run stays behind.
pub struct Child {
    process: process::Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Child {
    /// Starts a process, one that may only use one CPU if one is named. Ctrl-C is for its leader, which then ends it.
    ///
    /// # Errors
    /// When it cannot start, with the name of the program.
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
                // Nobody listens any more when the leader is done with this process.
                let _ = sender.send(line);
            }
        });
        Ok(Self { process, input, lines })
    }

    /// The number of the process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(Some(_)))
    }

    /// Says a line to it.
    ///
    /// # Errors
    /// When it does not listen any more.
    pub fn say(&mut self, line: &str) -> io::Result<()> {
        let input = self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(input, "{line}").and_then(|()| input.flush())
    }

    /// Says that there is nothing more to say.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// The next line that it prints.
    ///
    /// # Errors
    /// When there is none within `timeout`, or never will be.
    pub fn line(&self, timeout: Duration) -> Result<String, RecvTimeoutError> {
        self.lines.recv_timeout(timeout)
    }

    /// Everything that it writes to standard error until it ends.
    ///
    /// # Errors
    /// When that cannot be read.
    pub fn words(&mut self) -> io::Result<String> {
        let mut words = String::new();
        if let Some(mut stderr) = self.process.stderr.take() {
            stderr.read_to_string(&mut words)?;
        }
        Ok(words)
    }

    /// Ends it; returns what it wrote as its error, which may be nothing.
    pub fn last_words(&mut self) -> String {
        // Fails only when it has ended already.
        let _ = self.process.kill();
        self.words().unwrap_or_default().trim().trim_start_matches("apus: ").to_owned()
    }
}

/// A process may use the CPUs that the thread that starts it may.
fn spawn(mut command: Command, cpu: Option<usize>) -> io::Result<process::Child> {
    let Some(cpu) = cpu else { return command.spawn() };
    let start = thread::spawn(move || cpu::pin_current_thread(cpu).and_then(|()| command.spawn()));
    start.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
