//! Calls that handlers make: deadlines, trace contexts and cancellation reach them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use apus_rpc::{Bytes, Code, Context, Response, Status, TraceContext};

use crate::pair::served;

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Text about the deadline and trace context that reach a handler.
async fn report(cx: Context, _: Bytes) -> Result<String, Status> {
    let has_time = cx.remaining().is_some_and(|left| left <= Duration::from_secs(60));
    Ok(format!("{has_time} {}", cx.trace().map(|trace| trace.to_string()).unwrap_or_default()))
}

#[test]
fn a_deadline_and_a_trace_context_reach_nested_calls() {
    //= docs/rpc-wire.md#E12
    let last = served(|server| server.route("/a.B/Report", report));
    let channel = last.channel.clone();
    let middle = served(|server| {
        let later = channel.clone();
        let server = server.route("/a.B/Inherit", move |_, _| {
            let channel = channel.clone();
            async move { channel.unary("/a.B/Report", "").await.map(Response::into_body) }
        });
        server.route("/a.B/Detached", move |_, _| {
            let channel = later.clone();
            async move { channel.unary("/a.B/Report", "").detached().await.map(Response::into_body) }
        })
    });
    let trace: TraceContext = TRACE.parse().expect("a context");
    let call = |path| {
        let call = middle.channel.unary(path, "").trace(trace).deadline(Duration::from_secs(60));
        call.wait().expect("a response").into_body()
    };
    assert_eq!(call("/a.B/Inherit"), format!("true {TRACE}"));
    assert_eq!(call("/a.B/Detached"), "false ");
}

#[test]
fn a_task_and_a_scope_inherit_as_well() {
    let last = served(|server| server.route("/a.B/Report", report));
    let channel = last.channel.clone();
    let (sender, receiver) = std::sync::mpsc::channel();
    let sender = Mutex::new(sender);
    let middle = served(|server| {
        server.route("/a.B/Spawn", move |cx: Context, _| {
            let (channel, sender) = (channel.clone(), sender.lock().expect("no panic").clone());
            cx.spawn(async move {
                let response = channel.unary("/a.B/Report", "").await;
                let scoped = Context::current().expect("a context");
                let _ = sender.send(response.map(Response::into_body));
                assert_eq!(scoped.path().method(), "Spawn");
            });
            async { Ok("begun") }
        })
    });
    let call = middle.channel.unary("/a.B/Spawn", "").deadline(Duration::from_secs(60));
    assert_eq!(call.wait().expect("a response").body(), "begun");
    let report = receiver.recv().expect("the task runs").expect("a response");
    assert_eq!(report, "true ");
}

#[test]
fn the_status_of_a_nested_call_says_nothing_about_the_request() {
    //= docs/rpc-wire.md#E14
    let last = served(|server| server);
    let channel = last.channel.clone();
    let executed = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&executed);
    let middle = served(|server| {
        server.route("/a.B/Count", move |_: Context, _: Bytes| {
            counted.fetch_add(1, Ordering::SeqCst);
            let channel = channel.clone();
            async move { channel.unary("/a.B/Nothing", "").await.map(Response::into_body) }
        })
    });
    let direct = last.channel.unary("/a.B/Nothing", "").wait().expect_err("no such method");
    assert!(!direct.may_have_executed());
    let status = middle.channel.unary("/a.B/Count", "").wait().expect_err("no such method");
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.may_have_executed(), "the handler has counted");
    assert_eq!(executed.load(Ordering::SeqCst), 1);
}

#[test]
fn a_detached_call_keeps_a_context_of_its_own_in_either_order() {
    let last = served(|server| server.route("/a.B/Report", report));
    let trace: TraceContext = TRACE.parse().expect("a context");
    let call = || last.channel.unary("/a.B/Report", "");
    for call in [call().trace(trace).detached(), call().detached().trace(trace)] {
        assert_eq!(call.wait().expect("a response").body(), format!("false {TRACE}").as_bytes());
    }
}

#[test]
fn a_call_without_time_left_is_not_sent() {
    let last = served(|server| server.route("/a.B/Report", report));
    let call = last.channel.unary("/a.B/Report", "").deadline(Duration::ZERO);
    let status = call.wait().expect_err("no time");
    assert_eq!((status.code(), status.may_have_executed()), (Code::DeadlineExceeded, false));
}
