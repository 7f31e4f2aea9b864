//! The dissector (`wireshark/homa.lua`) shows the envelopes of captured calls.

#[path = "../../apus-net/tests/skipped/mod.rs"]
mod skipped;

use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::time::Duration;
use std::{env, fs, future, thread};

use apus_rpc::{
    Address, Bytes, Channel, Code, Config, Context, Node, Server, Status, StreamSender, Streaming,
};
use futures_lite::future::block_on;

use skipped::skipped;

/// A file that is removed when the test ends.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

async fn echo(
    cx: Context,
    mut requests: Streaming,
    mut responses: StreamSender,
) -> Result<(), Status> {
    responses.send_head();
    while let Some(request) = requests.next().await {
        responses.send(request?).await?;
    }
    cx.set_trailer("cost", "7").expect("a pair");
    Ok(())
}

/// Captures some calls.
fn capture(file: &Path) {
    let config = || {
        let mut config = Config::new();
        config.listen("127.0.0.1:0".parse().expect("an address"));
        config
    };
    let server_node = Node::start(&config()).expect("a node");
    let server = Server::builder(&server_node)
        .route("/shop.Calc/Add", |_: Context, body: Bytes| async move { Ok(body) })
        .route("/shop.Calc/Find", |_, _| async {
            let status = Status::new(Code::NotFound, "no such number").with_details("more");
            Err::<Bytes, _>(status)
        })
        .stream("/shop.Calc/Echo", echo)
        .serve(4000, future::pending());
    thread::spawn(move || server.wait());
    let mut client = config();
    client.capture(Some(file.to_path_buf()));
    let node = Node::start(&client).expect("a node");
    let address = Address::new(server_node.local_addr(), 4000).to_string();
    let channel = Channel::builder(&address).node(&node).build().expect("a channel");
    let call = channel.unary("/shop.Calc/Add", "hi").metadata("x-tenant-id", "7");
    call.metadata_bin("extra-bin", &b"\x01\xFF"[..]).wait().expect("a response");
    channel.unary("/shop.Calc/Find", "").wait().expect_err("planted");
    channel.unary("/shop.Other/Add", "").wait().expect_err("not served");
    block_on(async {
        let (mut requests, mut responses) =
            channel.stream("/shop.Calc/Echo").start().expect("a call");
        for _ in 0..3 {
            requests.send("hello").await.expect("room");
            responses.next().await.expect("a response").expect("a response");
        }
        requests.close();
        responses.trailers().await.expect("the end");
    });
    // Bytes that are no envelope.
    let client = node.client().expect("a client");
    let to = address.parse().expect("an address");
    client.call(to, "no envelope").wait().expect("a refusal");
    drop((channel, client));
    node.close(Duration::from_secs(10)).expect("a node that ends in order");
}

/// Runs tshark on the capture. `None` if it is not installed.
fn shown(file: &Path, arguments: &[&str]) -> Option<String> {
    let dissector = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../wireshark/homa.lua");
    if !dissector.exists() {
        skipped("wireshark/homa.lua is not part of this package");
        return None;
    }
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-2", "-X", &format!("lua_script:{}", dissector.display()), "-r"]);
    let Ok(output) = tshark.arg(file).args(arguments).output() else {
        skipped("tshark is not installed");
        return None;
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("Lua"), "{errors}");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(!text.contains("Lua Error"), "{text}");
    Some(text)
}

#[test]
fn envelopes_are_shown_with_path_status_metadata_and_streams() {
    let name = format!("apus-rpc-captured-{}.pcapng", process::id());
    let file = Scratch(env::temp_dir().join(name));
    capture(&file.0);
    let fields = ["path", "kind", "request_end", "holds", "seq", "code", "message", "metadata"];
    let mut arguments = vec!["-Y", "apus_rpc", "-T", "fields", "-E", "separator=|"];
    let fields: Vec<_> = fields
        .iter()
        .chain(&["trailer", "body.length"])
        .map(|it| format!("apus_rpc.{it}"))
        .collect();
    arguments.extend(fields.iter().flat_map(|field| ["-e", field]));
    let Some(text) = shown(&file.0, &arguments) else { return };
    let lines: Vec<&str> = text.lines().collect();
    let count = |line: &str| lines.iter().filter(|it| **it == line).count();
    // A request and its response.
    let add = "/shop.Calc/Add";
    let metadata = "x-tenant-id: 7,extra-bin: 01ff";
    assert_eq!(count(&format!("{add}|1|1|0||||{metadata}||2")), 1, "{text}");
    assert_eq!(count(&format!("{add}|||||0||||2")), 1, "{text}");
    assert_eq!(count("/shop.Calc/Find|||||5|no such number|||0"), 1, "{text}");
    assert_eq!(
        count("/shop.Other/Add|||||12|no method /shop.Other/Add is served|||0"),
        1,
        "{text}"
    );
    // A stream: its OPEN, the HOLD, PUSHes with the end, PULLs, and the end of the response with a trailer.
    let echo = "/shop.Calc/Echo";
    let some = |begin: &str| lines.iter().any(|line| line.starts_with(begin));
    for begin in ["|1|0|1|", "|4|", "|2|0||1|", "|3|||1|", "|3|||2|"] {
        assert!(some(&format!("{echo}{begin}")), "{begin}: {text}");
    }
    assert!(
        lines.iter().any(|line| line.starts_with(echo) && line.contains("|cost: 7|")),
        "{text}"
    );
    // Each PUSH has its number, and the last one the end.
    assert_eq!(lines.iter().filter(|line| line.starts_with(&format!("{echo}|2|1|"))).count(), 1);
    let info = shown(&file.0, &["-Y", "apus_rpc.code == 5"]).expect("tshark is there");
    assert!(info.contains("NOT_FOUND /shop.Calc/Find"), "{info}");
    let malformed = shown(&file.0, &["-Y", "apus_rpc.expert.malformed"]).expect("tshark is there");
    assert_eq!(malformed, "");
}
