//! `--capture`: the packets of real calls in a file, as Wireshark with our dissector shows them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, process};

use crate::emulated::obstacle;
use crate::program::{Server, fails, json, json_perhaps_refused};
use crate::skipped::skipped;

/// A file for the packets of a test, removed at the end.
struct Captured(PathBuf);

impl Captured {
    fn new(name: &str) -> Self {
        Self(env::temp_dir().join(format!("apus-captured-{name}-{}.pcapng", process::id())))
    }

    /// The option `--capture` with the file.
    fn option(&self) -> String {
        format!("--capture {}", self.0.display())
    }

    /// The fields of the matching packets, one line each; `None`, with a message, if tshark is missing.
    fn fields(&self, filter: &str, fields: &[&str]) -> Option<Vec<String>> {
        let bytes = fs::read(&self.0).expect("the capture is written");
        assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a], "the first block of a pcapng file");
        let dissector = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../wireshark/homa.lua");
        let mut tshark = Command::new("tshark");
        // The ports are arbitrary, and may be those of another protocol.
        tshark.args(["-n", "-2", "-o", "udp.try_heuristic_first:TRUE", "-r"]).arg(&self.0);
        tshark.args(["-X", &format!("lua_script:{}", dissector.display()), "-Y", filter]);
        tshark.args(["-T", "fields", "-E", "separator=|"]);
        tshark.args(fields.iter().flat_map(|field| ["-e", field]));
        let Ok(output) = tshark.output() else {
            skipped("tshark is not installed");
            return None;
        };
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !errors.contains("Lua"), "{errors}");
        let text = String::from_utf8(output.stdout).expect("tshark writes text");
        Some(text.lines().map(str::to_owned).collect())
    }

    fn assert_all_known(&self) -> Option<()> {
        let unknown = "!homa || homa.unknown || apus.unknown || _ws.malformed || _ws.lua.text";
        assert_eq!(self.fields(unknown, &["frame.number", "_ws.col.Info"])?, Vec::<String>::new());
        Some(())
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0); // The file is missing if a test failed early.
    }
}

#[test]
fn packets_of_calls_are_recognised_and_listed_by_call() {
    let captured = Captured::new("calls");
    let server = Server::start("");
    let load = "--workload mix --unloaded 3 --fault loss=0.03,reorder=0.02,seed=3";
    let option = captured.option();
    let result =
        json(&format!("node client --servers {} {load} {option} --json -", server.address));
    let Some(()) = captured.assert_all_known() else { return };

    // Three calls of each length, and possibly earlier ones that are not counted. All are complete, both ways.
    let calls = |message: &str| {
        let filter = format!("homa.reassembled.length && homa.message == \"{message}\"");
        captured.fields(&filter, &["homa.rpc"]).expect("tshark is there")
    };
    let (requests, responses) = (calls("request"), calls("response"));
    let counted = result["rows"].as_array().expect("rows are a list").iter();
    let counted: u64 = counted.filter_map(|row| row["calls"].as_u64()).sum();
    assert!(counted >= 9 && requests.len() as u64 >= counted, "{counted} calls, {requests:?}");
    assert_eq!(requests, responses);

    // The filter of a call finds only the packets with its id.
    let call = requests.last().expect("there was a call");
    let of_call = captured.fields(&format!("homa.rpc == {call}"), &["frame.number", "homa.rpc.id"]);
    let of_call = of_call.expect("tshark is there");
    let id = of_call[0].split('|').nth(1).expect("two fields").to_owned();
    let with_id =
        captured.fields(&format!("homa.rpc.id == {id}"), &["frame.number", "homa.rpc.id"]);
    assert!(of_call.len() > 2, "{of_call:?}");
    assert_eq!(Some(&of_call), with_id.as_ref());
    let commented = captured
        .fields(&format!("frame.comment contains \"rpc={id} \""), &["frame.number", "homa.rpc.id"]);
    assert_eq!(Some(of_call), commented);
    let bare = captured.fields("!frame.comment", &["frame.number"]);
    assert_eq!(bare, Some(Vec::new()));
}

#[test]
fn a_capture_can_be_read_while_it_is_written() {
    let captured = Captured::new("written");
    let server = Server::start(&captured.option());
    let called = json(&format!("node client --servers {} --unloaded 1 --json -", server.address));
    assert_eq!(called["rows"][0]["calls"], 1);
    // The server sleeps, and wakes once to write its packets.
    crate::program::wait_until("the response is in the file", || {
        let responses =
            captured.fields("homa.reassembled.length && homa.response_in", &["homa.rpc"]);
        responses.is_none_or(|responses| !responses.is_empty())
    });
}

#[test]
fn other_commands_capture_as_well() {
    let captured = Captured::new("probe");
    let server = Server::start("--link udp");
    json(&format!("node probe apus://{} {} --json -", server.address, captured.option()));
    let Some(()) = captured.assert_all_known() else { return };
    let types = captured.fields("homa", &["homa.type"]).expect("tshark is there");
    assert_eq!(types[0], "0x19", "{types:?}");

    let captured = Captured::new("bench");
    let bench = "bench rtt --transports apus-udp,apus-shm --runs 2 --seconds 0.1";
    json(&format!("{bench} {} --json -", captured.option()));
    captured.assert_all_known().expect("tshark is there");
    // Each run has a node, and a section of the file. On a busy machine, an OPEN is sent more than once.
    let opens = captured.fields("homa.type == 0x19", &["frame.section_number"]);
    let sections: BTreeSet<_> = opens.expect("tshark is there").into_iter().collect();
    assert_eq!(sections.len(), 2);
}

#[test]
fn what_cannot_be_captured_is_refused() {
    let words = ["cannot write capture file '/nonexistent/x.pcapng'", "No such file"];
    fails(1, "node server --listen 127.0.0.1:0 --capture /nonexistent/x.pcapng", &words);
    fails(1, "daemon --listen 127.0.0.1:0 --socket /tmp/x --capture /nonexistent/x.pcapng", &words);
    let words = ["'--capture x.pcapng'", "no transport of this run sends packets of Apus"];
    fails(2, "bench rtt --transports apus-shm,tcp-block --capture x.pcapng", &words);
}

#[test]
fn a_lab_writes_the_packets_of_all_hosts_to_one_file() {
    if let Some(reason) = obstacle() {
        return skipped(reason);
    }
    let captured = Captured::new("lab");
    let load =
        "--hosts 2 --link-mbps 50 --workload 5000 --load 0.1 --seconds 0.5 --transports apus";
    json_perhaps_refused(&format!("lab run {load} {} --json -", captured.option()));
    let Some(()) = captured.assert_all_known() else { return };
    let sources = captured.fields("homa", &["ip.src"]).expect("tshark is there");
    let sources: BTreeSet<_> = sources.into_iter().collect();
    assert_eq!(sources.len(), 2, "{sources:?}");
}
