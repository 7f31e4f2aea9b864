//! `apus top`, on a terminal and as text.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Instant;
use std::{env, fs, process, thread};

use nix::pty::{Winsize, openpty};
use nix::sys::termios::{LocalFlags, tcgetattr};
use vt100::{Color, Parser};

use crate::program::{FAULT_AFTER, Server, apus, command, fails, stderr, wait_until};

/// A directory for the counters of a test, removed when it is dropped.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("apus-top-{name}-{}", process::id()));
        fs::create_dir(&path).expect("the directory is new");
        Self(path)
    }

    fn path(&self) -> String {
        self.0.display().to_string()
    }

    fn server(&self) -> Server {
        self.server_with("")
    }

    fn server_with(&self, arguments: &str) -> Server {
        Server::start_with(arguments, &[("APUS_METRICS", &self.path())])
    }

    /// Calls a server about a thousand times a second until it is dropped. A load that keeps all CPUs busy can keep the kernel from
    /// moving bytes through terminals for longer than a test waits.
    fn client(&self, server: &Server) -> Running {
        self.client_with(server, "")
    }

    fn client_with(&self, server: &Server, arguments: &str) -> Running {
        let arguments = format!(
            "node client --servers {} --workload 100 --gbps 0.001 --delivery base --seconds 600 {arguments}",
            server.address
        );
        let mut client = command(&arguments);
        client.env("APUS_METRICS", self.path()).stdout(Stdio::null()).stderr(Stdio::null());
        Running(client.spawn().expect("the program starts"))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process that is killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill(); // Fails if the process has ended.
        let _ = self.0.wait();
    }
}

/// `apus top` on a terminal of its own.
struct Top {
    child: Running,
    /// The test's side of the terminal, with the keyboard and the size.
    master: File,
    /// The program's side of the terminal.
    slave: OwnedFd,
    /// The program's output.
    output: Receiver<Vec<u8>>,
    /// The content of the terminal after the output that was read.
    terminal: Parser,
}

impl Top {
    fn start(arguments: &str, variables: &[(&str, &str)]) -> Self {
        let (rows, columns) = (24, 80);
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let terminal = openpty(&size, None).expect("the system has terminals");
        let side = || Stdio::from(terminal.slave.try_clone().expect("descriptors are left"));
        // The child leads a session with this terminal, so that it gets the signal of a new size.
        let child = Command::new("setsid")
            .args(["--ctty", env!("CARGO_BIN_EXE_apus"), "top"])
            .args(arguments.split_whitespace())
            .env_remove("NO_COLOR")
            .env("TERM", "xterm-256color")
            .envs(variables.iter().copied())
            .stdin(side())
            .stdout(side())
            .stderr(side())
            .spawn()
            .expect("the system has a setsid command");
        let master = File::from(terminal.master);
        let mut written = master.try_clone().expect("descriptors are left");
        let (sender, output) = mpsc::channel();
        // The thread ends when both sides of the terminal are closed, or with the test.
        thread::spawn(move || {
            let mut bytes = [0; 4_096];
            while let Ok(count) = written.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        let parser = Parser::new(cells(rows), cells(columns), 0);
        Self { child: Running(child), master, slave: terminal.slave, output, terminal: parser }
    }

    fn text(&self) -> String {
        self.terminal.screen().contents()
    }

    fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    fn resize(&mut self, rows: u16, columns: u16) {
        self.terminal.screen_mut().set_size(cells(rows), cells(columns));
        let size =
            rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&self.master, size).expect("a terminal has a size");
    }

    fn wait_for(&mut self, what: &str, holds: impl Fn(&str) -> bool) {
        self.wait_until(what, |top| holds(&top.text()));
    }

    /// Reads the program's output until a condition holds.
    fn wait_until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let since = Instant::now();
        while !holds(self) {
            let left = FAULT_AFTER.saturating_sub(since.elapsed());
            let bytes = self.output.recv_timeout(left);
            self.terminal.process(&bytes.unwrap_or_else(|_| panic!("{what}: not soon enough")));
        }
    }

    /// Waits until the process has ended. The terminal must be as it was before.
    fn finish(mut self) -> ExitStatus {
        let status = self.child.0.wait().expect("it is a child of this process");
        self.wait_until("the terminal has its normal screen again", |top| {
            let screen = top.terminal.screen();
            !screen.alternate_screen() && !screen.hide_cursor()
        });
        let flags = tcgetattr(&self.slave).expect("it is a terminal").local_flags;
        assert!(flags.contains(LocalFlags::ICANON | LocalFlags::ECHO), "{flags:?}");
        status
    }

    fn has_colours(&self) -> bool {
        let screen = self.terminal.screen();
        let (rows, columns) = screen.size();
        let (rows, columns) = (rows.get(), columns.get());
        let mut cells = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        cells.any(|(row, column)| {
            let cell = screen.cell(row, column);
            cell.is_some_and(|cell| cell.fgcolor() != Color::Default)
        })
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the screen was:\n{}", self.text());
        }
    }
}

fn cells(count: u16) -> NonZero<u16> {
    NonZero::new(count).expect("a terminal has a size")
}

/// The figure in a line of the table, by the pid in front and by the heading above; `None` if there is no such line or figure.
fn figure(screen: &str, pid: u32, heading: &str) -> Option<f64> {
    // Only the headings before the requested one may have two words.
    let headings = screen.lines().find(|line| line.contains("pid program"))?;
    let headings = headings.replace("Mbit/s in", "in").replace("CPU %", "CPU");
    let place = headings.split_whitespace().position(|it| it == heading)?;
    let pid = pid.to_string();
    let line = screen.lines().find(|line| line.split_whitespace().next() == Some(&pid))?;
    line.split_whitespace().nth(place)?.parse().ok()
}

/// A figure of the second line.
fn of_host(screen: &str, name: &str) -> Option<f64> {
    let mut words = screen.lines().nth(1)?.split_whitespace().skip_while(|word| *word != name);
    words.nth(1)?.parse().ok()
}

#[test]
fn a_server_that_is_called_is_on_the_screen() {
    let directory = Directory::new("screen");
    let server = directory.server();
    let mut top = Top::start(&format!("--interval 0.1 --dir {}", directory.path()), &[]);
    top.wait_for("the server is there", |screen| screen.contains(&server.id().to_string()));
    assert!(top.terminal.screen().alternate_screen());
    let client = directory.client(&server);
    let pid = client.0.id();
    top.wait_for("calls are counted", |screen| {
        let server = figure(screen, server.id(), "requests/s");
        let figures = [figure(screen, pid, "calls/s"), server, of_host(screen, "calls/s")];
        figures.iter().all(|it| *it > Some(0.0)) && screen.contains("2 processes")
    });
    let first = |screen: &str, pid: u32| {
        let line = screen.lines().skip_while(|line| !line.contains("pid program")).nth(1);
        line.is_some_and(|line| line.contains(&pid.to_string()))
    };
    top.wait_for("the client has most calls", |screen| first(screen, pid));

    top.press("?");
    top.wait_for("the help is open", |screen| screen.contains("this help"));
    top.press("\x1b");
    top.wait_for("the help is closed", |screen| !screen.contains("this help"));
    top.resize(40, 120);
    top.wait_for("the wide screen has more columns", |screen| {
        figure(screen, server.id(), "packets/s").is_some() && screen.lines().count() == 40
    });
    top.press("\r");
    top.wait_for("the panel is that of the client", |screen| {
        screen.contains(&format!("(pid {pid})")) && screen.contains("protocol.calls")
    });
    top.wait_until("bars have a colour", Top::has_colours);
    top.press("\x1b[B");
    top.wait_for("the panel is that of the server", |screen| {
        screen.contains(&format!("(pid {})", server.id()))
    });
    top.press("s");
    top.wait_for("the server has most requests", |screen| {
        screen.contains("sort: requests/s") && first(screen, server.id())
    });
    drop(client);
    top.wait_for("the client has ended", |screen| {
        let mut lines = screen.lines();
        lines.any(|line| line.contains(&pid.to_string()) && line.contains("ended"))
    });
    top.press("q");
    assert_eq!(top.finish().code(), Some(0));
}

#[test]
fn no_color_is_respected() {
    let directory = Directory::new("no-color");
    let server = directory.server();
    let _client = directory.client(&server);
    let arguments = format!("{} --interval 0.1 --dir {}", server.id(), directory.path());
    let mut top = Top::start(&arguments, &[("NO_COLOR", "1")]);
    top.wait_for("the panel has bars", |screen| screen.contains('█'));
    assert!(!top.has_colours());
    top.press("\x03");
    assert_eq!(top.finish().code(), Some(0));
}

#[test]
fn a_signal_ends_it_and_the_terminal_is_restored() {
    let directory = Directory::new("signal");
    for (name, number) in [("TERM", 15), ("INT", 2), ("HUP", 1)] {
        let mut top = Top::start(&format!("--dir {}", directory.path()), &[]);
        top.wait_for("the screen is there", |screen| {
            screen.contains("No process publishes counters")
        });
        let pid = top.child.0.id().to_string();
        let kill = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(kill.expect("the system has a kill command").success());
        assert_eq!(top.finish().signal(), Some(number));
    }
}

#[test]
fn a_directory_that_is_made_later_is_read() {
    let directory = Directory::new("later");
    let later = directory.0.join("made");
    let mut top = Top::start(&format!("--interval 0.1 --dir {}", later.display()), &[]);
    top.wait_for("the fault is shown", |screen| screen.contains("cannot read the counters"));
    let server = Server::start_with("", &[("APUS_METRICS", &later.display().to_string())]);
    top.wait_for("the server is there", |screen| {
        screen.contains(&server.id().to_string()) && !screen.contains("cannot read")
    });
    top.press("q");
    assert_eq!(top.finish().code(), Some(0));
}

#[test]
fn one_screen_as_text() {
    let directory = Directory::new("once");
    let (one, other) = (directory.server(), directory.server());
    let _client = directory.client(&other);
    for arguments in ["--once --interval 0.1", "--interval 0.1"] {
        let mut text = String::new();
        wait_until("calls are counted", || {
            let output = apus(&format!("top {arguments} --dir {}", directory.path()));
            assert!(output.status.success(), "{}", stderr(&output));
            text = String::from_utf8(output.stdout).expect("it writes text");
            figure(&text, other.id(), "requests/s") > Some(0.0)
                && of_host(&text, "calls/s") > Some(0.0)
        });
        assert!(!text.contains('\x1b') && !text.contains("quit"), "{text}");
        assert!(text.contains(&one.id().to_string()) && text.contains("3 processes"), "{text}");
        let pids = text.lines().skip(4).map_while(|line| line.split_whitespace().next());
        let calls: Vec<_> =
            pids.filter_map(|pid| figure(&text, pid.parse().ok()?, "calls/s")).collect();
        assert!(calls.len() == 3 && calls.is_sorted_by(|one, other| one >= other), "{text}");
    }
    let text = apus(&format!("top {} --interval 0.1 --dir {}", other.id(), directory.path()));
    let text = String::from_utf8(text.stdout).expect("it writes text");
    assert!(text.contains(&format!("(pid {})", other.id())), "{text}");
}

#[test]
fn recorded_calls_have_percentiles() {
    let directory = Directory::new("recorded");
    let server = directory.server_with("--link udp");
    let client = directory.client_with(&server, "--link udp");
    let arguments = format!("top --once {} --interval 0.1 --dir", client.0.id());
    wait_until("calls are recorded", || {
        let output = apus(&format!("{arguments} {}", directory.path()));
        let text = String::from_utf8_lossy(&output.stdout);
        ["p50 ", " recorded call", "pair "].iter().all(|it| text.contains(it))
    });
}

#[test]
fn wrong_arguments_are_named() {
    let directory = Directory::new("wrong");
    for interval in ["0", "0.09", "61", "1h", "nan"] {
        let words = ["--interval", interval, "0.1 to 60"];
        fails(2, &format!("top --interval {interval} --dir {}", directory.path()), &words);
    }
    let mut server = directory.server();
    let pid = server.id();
    let path = directory.path();
    fails(1, &format!("top 1 --dir {path}"), &["process 1 ", &path]);
    server.kill();
    let words = [&*format!("process {pid} has ended"), "apus stat"];
    fails(1, &format!("top {pid} --dir {path}"), &words);
    fails(1, "top --once --dir /nowhere", &["/nowhere", "No such file"]);
}
