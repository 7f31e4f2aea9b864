//! Servers and channels in runtimes of tokio.

#![cfg(feature = "tokio")]

use std::future;

use apus_rpc::{Bytes, Channel, Context, Response, Server, Status};
use tokio::runtime::{Builder, Handle};

use crate::pair::{PORT, address, node, served};

async fn add(cx: Context, body: Bytes) -> Result<Bytes, Status> {
    tokio::task::yield_now().await;
    // Tokio's parts work in each poll.
    assert!(Handle::try_current().is_ok());
    let (sender, receiver) = tokio::sync::oneshot::channel();
    cx.spawn(async move {
        assert!(Handle::try_current().is_ok() && Context::current().is_some());
        sender.send(body).expect("the handler waits");
    });
    Ok(receiver.await.expect("the task runs"))
}

#[test]
fn a_runtime_turns_both_nodes() {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (server_node, node) = (node(), node());
        apus_rpc::tokio::drive(&server_node).expect("an event loop");
        apus_rpc::tokio::drive(&node).expect("an event loop");
        let server = Server::builder(&server_node).route("/a.B/Add", add);
        let server = server.spawner(apus_rpc::tokio::current());
        tokio::spawn(server.serve(PORT, future::pending()));
        let channel = Channel::builder(&address(&server_node)).node(&node);
        let channel = channel.connect().await.expect("a server");
        let calls = (0..100).map(|number| {
            let channel = channel.clone();
            tokio::spawn(async move {
                let response = channel.unary("/a.B/Add", number.to_string()).await;
                response.map(Response::into_body)
            })
        });
        let calls: Vec<_> = calls.collect();
        for (number, call) in calls.into_iter().enumerate() {
            let body = call.await.expect("no panic").expect("a response");
            assert_eq!(body, number.to_string());
        }
    });
}

#[test]
fn runtimes_drive_the_shared_node_one_after_the_other() {
    let served =
        served(|server| server.route("/a.B/Add", |_, body| async { Ok::<Bytes, Status>(body) }));
    for _ in 0..2 {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            for _ in 0..2 {
                apus_rpc::tokio::drive_shared().expect("the node");
                let channel = Channel::connect(&address(&served.node)).await.expect("a server");
                let response = channel.unary("/a.B/Add", "1").await.expect("a response");
                assert_eq!(response.body(), "1");
            }
        });
    }
}
