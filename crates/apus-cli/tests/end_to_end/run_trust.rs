//! `apus run`: a connection waits for its peer only where TCP would, whatever the peer does, and nobody but its two ends has part in it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::program::stderr;
use crate::run::{Directory, Server, found, output, run, stdout};
use crate::skipped::skipped;

/// `apus run --explain` of a program whose connections are carried before it goes on.
fn carried(program: &Path) -> Command {
    let mut command = run(["--explain"]);
    command.arg(program).env("MEETS", "1");
    command
}

/// Asserts that a program succeeds and writes the same plain and carried, and that so many ends of connections were carried to their end.
fn same_and_carried(program: &Path, arguments: &[&str], ends: usize) -> String {
    let plain = output(Command::new(program).args(arguments));
    assert!(plain.status.success(), "plain {arguments:?}: {}", stderr(&plain));
    let carried = output(carried(program).args(arguments));
    let said = stderr(&carried);
    assert!(carried.status.success(), "{arguments:?}: {}: {said}", carried.status);
    assert_eq!(stdout(&carried), stdout(&plain), "{said}");
    assert_eq!(count_carried(&said), ends, "{arguments:?}: {said}");
    stdout(&plain)
}

/// Ends of connections of which an explanation says that they were carried to their end.
fn count_carried(said: &str) -> usize {
    said.lines().filter(|line| line.ends_with(": carried")).count()
}

#[test]
fn ends_may_write_whole_messages_before_they_read() {
    let directory = Directory::new("exchange");
    let program = directory.program("exchange.c", &[]);
    let sizes = ["8192", "32768", "100000", "500000", "1000000", "2000000"];
    for (shape, ends) in [("pair", 2), ("ring", 6)] {
        for way in ["blocking", "poll", "epoll"] {
            let arguments: Vec<&str> = [shape, way].into_iter().chain(sizes).collect();
            let text = same_and_carried(&program, &arguments, ends);
            assert_eq!(text.lines().count(), sizes.len(), "{shape}, {way}: {text}");
        }
    }
}

#[test]
fn a_server_may_write_back_while_its_client_writes() {
    let directory = Directory::new("pipes");
    let program = directory.program("exchange.c", &[]);
    assert_eq!(same_and_carried(&program, &["pipes", "50"], 2), "200 bodies: right\n");

    let Some(node) = found("node") else {
        return skipped("node is not installed");
    };
    let script = "const s = require('http').createServer((q, r) => {\n\
        r.writeHead(200, {'Content-Length': q.headers['content-length']}); q.pipe(r)});\n\
        s.listen(0, '127.0.0.1', () => console.log(s.address().port))";
    let mut server = run([node.as_os_str()]);
    server.args(["-e", script]).env("UV_USE_IO_URING", "0").stdout(Stdio::piped());
    let mut server = Server(server.spawn().expect("it starts"));
    let mut port = String::new();
    let mut lines = BufReader::new(server.0.stdout.take().expect("it is piped"));
    lines.read_line(&mut port).expect("it says its port");
    let client = output(carried(&program).args(["post", port.trim(), "300"]));
    let said = stderr(&client);
    assert_eq!(stdout(&client), "300 bodies: right\n", "{said}");
    assert_eq!(count_carried(&said), 1, "{said}");
}
