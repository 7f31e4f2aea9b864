//! A process that may make no files, or only short ones, can still have nodes.

mod pair;
mod program;

use std::process::Command;

use apus::{Address, Node};
use pair::{PORT, wait_until};
use program::{Program, patient, play_role};

#[test]
#[ignore = "it is a process of other tests"]
fn role() {
    play_role();
}

/// Calls a server, with and without a long message. Returns whether memory is shared with it.
fn shares_memory(server: &Program) -> bool {
    let address = server.try_line().expect("it starts in spite of the limit");
    let address = Address::new(address.parse().unwrap(), PORT);
    let node = Node::start(&patient("127.0.0.1:0".parse().unwrap())).unwrap();
    let client = node.client().unwrap();
    client.connect(address).wait().unwrap();
    for length in [1, 3_000_000, 5_000] {
        let body = pair::pattern(7, length);
        assert_eq!(client.call(address, body.clone()).wait().unwrap(), body, "{length} bytes");
    }
    if node.stats().memory.pairs_met == 0 {
        return false;
    }
    wait_until("memory is used", || {
        assert_eq!(client.call(address, "short").wait().unwrap(), "short");
        node.stats().memory.messages_received > 0
    });
    assert_eq!(node.stats().memory.pairs_ended, 0);
    true
}

/// `RLIMIT_FSIZE` also limits anonymous memory files, and its signal ends a process.
#[test]
fn a_node_has_room_for_its_files_or_does_without_them() {
    // Limits in units of 512 bytes: nothing, a few pages, less than a long message, and less than a trace.
    for (blocks, shares) in [(0, false), (8, false), (1_024, false), (2_048, true), (100_000, true)]
    {
        let server = Program::start_after(&format!("ulimit -f {blocks}"), "server 127.0.0.1:0");
        assert_eq!(shares_memory(&server.unwrap()), shares, "{blocks} blocks");
    }
}

/// `vm.memfd_noexec = 2` refuses anonymous memory files that could be executed.
#[test]
fn memory_that_is_never_executed_is_enough() {
    let apart = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    let set = "echo 2 > /proc/sys/vm/memfd_noexec";
    let probe = Command::new("unshare").args(apart).args(["sh", "-c", set]).status();
    if !probe.is_ok_and(|status| status.success()) {
        return eprintln!("skipped: no pid namespace whose vm.memfd_noexec can be set");
    }
    let mut command = Command::new("unshare");
    let script = format!("{set} && exec \"$@\"");
    command.args(apart).args(["sh", "-c", &script, "sh"]).arg(std::env::current_exe().unwrap());
    let mut server = Program::start_with(command, "server 127.0.0.1:0").unwrap();
    assert!(shares_memory(&server));
    assert_eq!(server.ask("missing"), "0");
}
