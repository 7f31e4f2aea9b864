//! The end of a server, and its limits on requests in service.

use std::future;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use apus_rpc::{Bytes, Channel, Code, Context, Drained, Server, Status};
use futures_lite::future::block_on;
use tokio::sync::{Semaphore, oneshot};

use crate::pair::{PORT, address, node, served};

/// A server with a method that waits for a permit if its request is not empty.
struct Waiting {
    gate: Arc<Semaphore>,
    /// A permit for each handler that has begun.
    begun: Arc<Semaphore>,
    channel: Channel,
    end: oneshot::Sender<()>,
    server: thread::JoinHandle<Drained>,
}

/// `blocking` serves by [`apus_rpc::Serving::wait`], and awaits the server otherwise.
fn waiting(drain: Duration, blocking: bool) -> Waiting {
    let (gate, begun) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (end, ended) = oneshot::channel();
    let server_node = node();
    let handler = {
        let (gate, begun) = (Arc::clone(&gate), Arc::clone(&begun));
        move |_: Context, body: Bytes| {
            let (gate, begun) = (Arc::clone(&gate), Arc::clone(&begun));
            async move {
                if !body.is_empty() {
                    begun.add_permits(1);
                    gate.acquire().await.expect("the gate stays").forget();
                }
                Ok(body)
            }
        }
    };
    let shutdown = async {
        let _ = ended.await;
    };
    let serving = Server::builder(&server_node).route("/a.B/Wait", handler);
    let serving = serving.serve(PORT, shutdown).drain(drain);
    let to = address(&server_node);
    let server = thread::spawn(move || {
        let result = if blocking { serving.wait() } else { block_on(serving) };
        let drained = result.expect("the port was opened");
        // The last responses are under way.
        server_node.close(Duration::from_secs(10)).expect("a node that ends in order");
        drained
    });
    let channel = Channel::builder(&to).node(&node()).build().expect("a channel");
    Waiting { gate, begun, channel, end, server }
}

fn call(channel: &Channel) -> thread::JoinHandle<Result<Bytes, Status>> {
    let channel = channel.clone();
    thread::spawn(move || channel.unary("/a.B/Wait", "x").wait().map(apus_rpc::Response::into_body))
}

fn wait_for(begun: &Semaphore) {
    block_on(begun.acquire()).expect("the semaphore stays").forget();
}

fn handlers_finish(blocking: bool) {
    //= docs/rpc-wire.md#E14
    let waiting = waiting(Duration::from_secs(60), blocking);
    let first = call(&waiting.channel);
    wait_for(&waiting.begun);
    waiting.end.send(()).expect("the server serves");
    // A call that the server still takes does not wait.
    let call = || waiting.channel.unary("/a.B/Wait", "").wait();
    let status = std::iter::repeat_with(call).find_map(Result::err).expect("the server refuses");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(!status.may_have_executed(), "{status}");
    waiting.gate.add_permits(1);
    assert_eq!(first.join().expect("no panic").expect("a response"), "x");
    let drained = waiting.server.join().expect("no panic");
    // Calls that do not wait may have been in service at that moment.
    assert!(drained.finished >= 1 && drained.cancelled == 0, "{drained:?}");
}

#[test]
fn a_thread_waits_for_handlers_and_refuses_requests() {
    handlers_finish(true);
}

#[test]
fn a_task_waits_for_handlers_and_refuses_requests() {
    handlers_finish(false);
}

#[test]
fn a_server_that_was_awaited_goes_on_to_refuse_requests() {
    let server_node = node();
    let server =
        Server::builder(&server_node).route("/a.B/Wait", |_, body: Bytes| async { Ok(body) });
    let drained = block_on(server.serve(PORT, future::ready(()))).expect("the port was opened");
    let refusing = thread::spawn({
        let refuse = drained.refuse();
        move || block_on(refuse)
    });
    let channel =
        Channel::builder(&address(&server_node)).node(&node()).build().expect("a channel");
    let status = call(&channel).join().expect("no panic").expect_err("the server has ended");
    assert_eq!((status.code(), status.may_have_executed()), (Code::Unavailable, false));
    drop(drained);
    refusing.join().expect("it ends with the port");
}

#[test]
fn a_server_that_cannot_serve_is_known_before_it_is_awaited() {
    let node = node();
    let build = || Server::builder(&node).route("/a.B/Echo", |_, body: Bytes| async { Ok(body) });
    let first = build().serve(PORT, future::ready(()));
    assert_eq!(first.check(), Ok(()));
    let second = build().serve(PORT, future::ready(()));
    let error = second.check().expect_err("the port is taken");
    assert_eq!(block_on(second).err(), Some(error));
}

#[test]
fn handlers_are_dropped_after_the_time() {
    for blocking in [true, false] {
        let waiting = waiting(Duration::ZERO, blocking);
        let first = call(&waiting.channel);
        wait_for(&waiting.begun);
        waiting.end.send(()).expect("the server serves");
        let status = first.join().expect("no panic").expect_err("no response");
        assert_eq!(status.code(), Code::Cancelled, "{status}");
        assert!(status.may_have_executed());
        let drained = waiting.server.join().expect("no panic");
        assert_eq!((drained.finished, drained.cancelled), (0, 1));
    }
}

#[test]
fn a_server_has_a_limit_on_requests_in_service() {
    let gate = Arc::new(Semaphore::new(0));
    let begun = Arc::new(Semaphore::new(0));
    let served = served(|server| {
        let (gate, begun) = (Arc::clone(&gate), Arc::clone(&begun));
        let server = server.route("/a.B/Wait", move |_, body: Bytes| {
            let (gate, begun) = (Arc::clone(&gate), Arc::clone(&begun));
            async move {
                begun.add_permits(1);
                gate.acquire().await.expect("the gate stays").forget();
                Ok(body)
            }
        });
        server.concurrency(1)
    });
    let first = call(&served.channel);
    wait_for(&begun);
    let status = served.channel.unary("/a.B/Wait", "x").wait().expect_err("a limit");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(!status.may_have_executed() && status.message().contains("concurrency"), "{status}");
    assert_eq!(served.counters.over_limits(), 1);
    gate.add_permits(1);
    first.join().expect("no panic").expect("a response");
}

#[test]
fn a_wrong_path_is_named_when_the_server_begins() {
    async fn nothing(_: Context, _: Bytes) -> Result<Bytes, Status> {
        Ok(Bytes::new())
    }
    let node = node();
    let server = Server::builder(&node).route("Add", nothing);
    let error = server.serve(PORT, future::pending()).wait().expect_err("no path");
    assert!(error.to_string().contains("'Add'"), "{error}");
    let server = Server::builder(&node).route("/a.B/C", nothing).route("/a.B/C", nothing);
    let error = block_on(server.serve(PORT, future::pending())).expect_err("two methods");
    assert!(error.to_string().contains("twice"), "{error}");
    let _first = node.bind(PORT).expect("a port");
    let server = Server::builder(&node).route("/a.B/C", nothing);
    let error = server.serve(PORT, future::pending()).wait().expect_err("the port is in use");
    assert!(error.to_string().contains("4000"), "{error}");
}
