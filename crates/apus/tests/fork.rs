//! A node belongs to the process that started it. A forked child has a copy of all of it, including the descriptor of its link, but
//! not the threads.

mod pair;

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use apus::net::conformance::in_child;
use apus::{
    Address, CallError, CloseError, Config, Delivery, Flush, Node, OpenError, RecvError, ReplyError,
};
use pair::{Pair, pair, serve};

/// The result of a future that is ready at its first poll.
fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// The index of each operation that did not end with the error.
fn not_refused(outcomes: &[bool]) -> Vec<usize> {
    (0..outcomes.len()).filter(|&place| !outcomes[place]).collect()
}

#[test]
fn a_child_gets_an_error_from_every_operation() {
    for delivery in Delivery::ALL {
        let Pair { client_node, server_node, service, address } = pair(delivery);
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&bodies);
        let serving = serve(&service, move |mut request| {
            let body = request.take_body();
            seen.lock().unwrap().push(body.clone());
            let _ = request.reply(body);
        });
        let client = client_node.client().unwrap();
        // In `fullbusy` no thread turns the client while its thread waits for another node, so the first contact must be over
        // before.
        client.call(address, "parent").wait().unwrap();
        let held = server_node.bind(5000).unwrap();
        let to_held = Address::new(server_node.local_addr(), 5000);
        let outer = client.call(to_held, "held").start().unwrap();
        let unanswered = held.recv().unwrap();
        let call = || client.call(address, "parent").start().unwrap();
        let (waited, taken, awaited, dropped) = (call(), call(), call(), call());
        let waited_briefly = call();
        let canceller = waited.canceller();
        let child = in_child(move || {
            canceller.cancel();
            drop(dropped);
            client.shutdown();
            service.serve(|_| panic!("a request of the parent's"));
            let outcomes = [
                client.call(address, "child").wait() == Err(CallError::Forked),
                client.connect(address).wait() == Err(CallError::Forked),
                client.call(address, "child").start().map(drop) == Err(CallError::Forked),
                client.send(address, "child", 1, Flush::Later) == Err(CallError::Forked),
                waited.wait() == Err(CallError::Forked),
                matches!(taken.try_take(), Ok(Err(CallError::Forked))),
                matches!(waited_briefly.wait_timeout(Duration::ZERO), Ok(Err(CallError::Forked))),
                ready(awaited) == Some(Err(CallError::Forked)),
                client.recv().map(drop) == Err(RecvError::Forked),
                held.recv_timeout(Duration::MAX).map(drop) == Err(RecvError::Forked),
                client.try_recv().map(drop) == Err(RecvError::Forked),
                held.recv_many(&mut Vec::new(), 9, None) == Err(RecvError::Forked),
                ready(client.recv_async()).map(|result| result.map(drop))
                    == Some(Err(RecvError::Forked)),
                unanswered.reply("child").unwrap_err().error() == ReplyError::Forked,
                client_node.client().map(drop) == Err(OpenError::Forked),
                server_node.bind(6000).map(drop) == Err(OpenError::Forked),
                client_node.stats().iter().all(|(_, count)| count == 0),
                client.stats().messages == 0,
                client_node.close(Duration::MAX) == Err(CloseError::Forked),
            ];
            drop((client, service, held, outer, server_node));
            not_refused(&outcomes).is_empty()
        });
        assert!(child, "{delivery}");
        assert!(bodies.lock().unwrap().iter().all(|body| body == "parent"), "{delivery}");
        drop(serving);
    }
}

#[test]
fn what_a_child_does_is_not_felt_by_its_parent() {
    if pair::needs_plain("a node without a certificate takes part") {
        return;
    }
    for delivery in Delivery::ALL {
        let Pair { client_node, server_node, service, address } = pair(delivery);
        let serving = pair::serve_echo(&service);
        let client = client_node.client().unwrap();
        let begun = client.call(address, "begun before").start().unwrap();
        let child = in_child(|| {
            // The child may have a node of its own.
            let node = Node::start(Config::new().listen("127.0.0.1:0".parse().unwrap())).unwrap();
            let answer = node.client().unwrap().call(address, "from the child's node").wait();
            let own = answer.as_deref() == Ok(b"from the child's node");
            let closed = node.close(Duration::from_secs(20)).is_ok();
            own && closed && client.call(address, "child").wait() == Err(CallError::Forked)
        });
        assert!(child, "{delivery}");
        assert_eq!(begun.wait().unwrap(), "begun before");
        for round in 0..20u8 {
            assert_eq!(client.call(address, vec![round; 900]).wait().unwrap(), vec![round; 900]);
        }
        client_node.close(Duration::from_secs(20)).unwrap();
        server_node.close(Duration::from_secs(20)).unwrap();
        serving.join().unwrap();
    }
}
