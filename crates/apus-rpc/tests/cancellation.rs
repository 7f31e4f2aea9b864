//! Requests that are given up: their handlers are dropped, and the calls that these have made.

use std::future;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use apus_rpc::{Bytes, Code, Context, Status};
use futures_lite::future::{block_on, or};
use tokio::sync::Semaphore;

use crate::pair::{Served, served};

/// Reports its drop.
struct Guard(Sender<()>);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// A server whose handler never ends by itself, the drops of its handlers, and a permit for each that has begun.
fn endless() -> (Served, Receiver<()>, Arc<Semaphore>) {
    let (sender, dropped) = mpsc::channel();
    let (sender, begun) = (Mutex::new(sender), Arc::new(Semaphore::new(0)));
    let announce = Arc::clone(&begun);
    let served = served(|server| {
        server.route("/a.B/Endless", move |_: Context, _: Bytes| {
            let guard = Guard(sender.lock().expect("no panic").clone());
            let announce = Arc::clone(&announce);
            async move {
                let _guard = guard;
                announce.add_permits(1);
                future::pending::<()>().await;
                Ok("never")
            }
        })
    });
    (served, dropped, begun)
}

/// Calls with longer and longer deadlines until a handler has begun.
fn until_begun(begun: &Semaphore, mut call: impl FnMut(Duration)) {
    let mut deadline = Duration::from_millis(30);
    while begun.try_acquire().map(tokio::sync::SemaphorePermit::forget).is_err() {
        deadline *= 2;
        call(deadline);
    }
}

#[test]
fn a_dropped_call_drops_its_handler() {
    let (served, dropped, begun) = endless();
    let call = async { served.channel.unary("/a.B/Endless", "x").await.map(drop) };
    let give_up = async {
        begun.acquire().await.expect("the semaphore stays").forget();
        Err(Status::new(Code::Aborted, "given up"))
    };
    let status = block_on(or(call, give_up)).expect_err("no response");
    assert_eq!(status.code(), Code::Aborted);
    dropped.recv().expect("the handler is dropped");
}

#[test]
fn a_deadline_drops_the_handler() {
    //= docs/rpc-wire.md#E12
    let (served, dropped, begun) = endless();
    until_begun(&begun, |deadline| {
        let call = served.channel.unary("/a.B/Endless", "x").deadline(deadline);
        let status = call.wait().expect_err("no response");
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert!(status.call_error().is_some());
    });
    dropped.recv().expect("the handler is dropped");
}

#[test]
fn cancellation_reaches_the_third_hop() {
    let (last, dropped, begun) = endless();
    let forward = |to: &Served, path: &'static str| {
        let channel = to.channel.clone();
        served(|server| {
            server.route("/a.B/Forward", move |_: Context, body: Bytes| {
                let channel = channel.clone();
                async move { Ok(channel.unary(path, body).await?.into_body()) }
            })
        })
    };
    let second = forward(&last, "/a.B/Endless");
    let first = forward(&second, "/a.B/Forward");
    let call = async { first.channel.unary("/a.B/Forward", "x").await.map(drop) };
    let give_up = async {
        begun.acquire().await.expect("the semaphore stays").forget();
        Err(Status::new(Code::Aborted, "given up"))
    };
    block_on(or(call, give_up)).expect_err("no response");
    dropped.recv().expect("the last handler is dropped");
    // The same by a deadline, which travels.
    until_begun(&begun, |deadline| {
        let call = first.channel.unary("/a.B/Forward", "x").deadline(deadline);
        assert_eq!(call.wait().expect_err("no time").code(), Code::DeadlineExceeded);
    });
    dropped.recv().expect("the last handler is dropped");
}

#[test]
fn a_task_beside_the_handler_ends_with_the_request() {
    let (sender, dropped) = mpsc::channel();
    let (sender, begun) = (Mutex::new(sender), Arc::new(Semaphore::new(0)));
    let announce = Arc::clone(&begun);
    let served = served(|server| {
        server.route("/a.B/Spawn", move |cx: Context, _: Bytes| {
            announce.add_permits(1);
            let guard = Guard(sender.lock().expect("no panic").clone());
            cx.spawn(async move {
                let _guard = guard;
                future::pending::<()>().await;
            });
            async move {
                let context = cx.clone();
                future::pending::<()>().await;
                assert!(!context.is_cancelled());
                Ok("never")
            }
        })
    });
    until_begun(&begun, |deadline| {
        let call = served.channel.unary("/a.B/Spawn", "x").deadline(deadline);
        call.wait().expect_err("no response");
    });
    dropped.recv().expect("the task is dropped");
}
