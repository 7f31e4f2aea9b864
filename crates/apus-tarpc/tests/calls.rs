//! A generated service, by shared memory and over UDP.

mod pair;

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use apus::CallError;
use futures_util::future::join_all;
use tarpc::client::RpcError;

use pair::{LINKS, MESSAGE_MAX, Seen, Served, patient, serve, serve_on};

#[tokio::test]
async fn a_generated_client_calls_a_generated_service() {
    for link in LINKS {
        let served = serve(link);
        let client = served.client().await;
        assert_eq!(client.sum(patient(), vec![1, 2, -10]).await.unwrap(), -7, "{link}");
        // Short ones and long ones, several at a time.
        let bodies = (0..100).map(|number| "x".repeat(number * number * 50));
        let calls = bodies.map(|body| {
            let client = client.clone();
            async move { assert_eq!(client.echo(patient(), body.clone()).await.unwrap(), body) }
        });
        join_all(calls).await;
    }
}

#[tokio::test]
async fn clients_with_equal_ids_get_their_own_responses() {
    for link in LINKS {
        let mut served = serve(link);
        let (one, other) = (served.client().await, served.client().await);
        let waiting = tokio::spawn({
            let one = one.clone();
            async move { one.wait(patient(), "one".to_owned()).await }
        });
        assert_eq!(served.seen.recv().await, Some(Seen::Begun("one".to_owned())));
        // The first call of this client, too.
        assert_eq!(other.sum(patient(), vec![3, 4]).await.unwrap(), 7, "{link}");
        let calls = (0..100).map(|number| {
            let (one, other) = (one.clone(), other.clone());
            async move {
                let from_one = one.sum(patient(), vec![number]);
                let from_other = other.sum(patient(), vec![-number]);
                let sums = futures_util::try_join!(from_one, from_other).unwrap();
                assert_eq!(sums, (number, -number));
            }
        });
        join_all(calls).await;
        waiting.abort();
    }
}

#[tokio::test]
async fn a_dropped_call_drops_its_handler_and_no_other() {
    for link in LINKS {
        let mut served = serve(link);
        let client = served.client().await;
        let calls = ["kept", "dropped"].map(|name| {
            let client = client.clone();
            tokio::spawn(async move { client.wait(patient(), name.to_owned()).await })
        });
        let mut begun = [served.seen.recv().await.unwrap(), served.seen.recv().await.unwrap()];
        begun.sort_by_key(|seen| format!("{seen:?}"));
        assert_eq!(begun, ["dropped", "kept"].map(|name| Seen::Begun(name.to_owned())), "{link}");
        calls[1].abort();
        assert_eq!(served.seen.recv().await, Some(Seen::Dropped("dropped".to_owned())), "{link}");
        assert_eq!(client.sum(patient(), vec![1]).await.unwrap(), 1, "{link}");
        assert!(served.seen.is_empty());
        calls[0].abort();
        assert_eq!(served.seen.recv().await, Some(Seen::Dropped("kept".to_owned())), "{link}");
    }
}

#[tokio::test]
async fn the_end_of_a_client_drops_its_handlers() {
    for link in LINKS {
        let mut served = serve(link);
        let node = pair::node(link);
        let transport = apus_tarpc::dial(&node, served.address()).unwrap();
        let config = tarpc::client::Config::default();
        let tarpc::client::NewClient { client, dispatch } =
            pair::SumsClient::new(config, transport);
        let dispatch = tokio::spawn(dispatch);
        let call = tokio::spawn(async move { client.wait(patient(), "a".to_owned()).await });
        assert_eq!(served.seen.recv().await, Some(Seen::Begun("a".to_owned())));
        dispatch.abort();
        assert_eq!(served.seen.recv().await, Some(Seen::Dropped("a".to_owned())), "{link}");
        assert!(matches!(call.await.unwrap(), Err(RpcError::Shutdown)), "{link}");
    }
}

#[tokio::test]
async fn a_deadline_ends_the_call_and_its_handler() {
    for link in LINKS {
        let mut served = serve(link);
        let client = served.client().await;
        // Longer and longer, until the handler has begun in time.
        let mut time = Duration::from_millis(20);
        while served.seen.is_empty() {
            time *= 2;
            let mut context = patient();
            context.deadline = Instant::now() + time;
            let ended = client.wait(context, "late".to_owned()).await;
            assert!(matches!(ended, Err(RpcError::DeadlineExceeded)), "{link}: {ended:?}");
        }
        assert_eq!(served.seen.recv().await, Some(Seen::Begun("late".to_owned())));
        assert_eq!(served.seen.recv().await, Some(Seen::Dropped("late".to_owned())), "{link}");
        assert_eq!(client.sum(patient(), vec![1]).await.unwrap(), 1, "{link}");
    }
}

#[tokio::test]
async fn the_handler_gets_the_deadline_and_the_trace() {
    for link in LINKS {
        let served = serve(link);
        let client = served.client().await;
        let mut context = patient();
        context.trace_context.trace_id = 0x0123_4567.into();
        let (left, trace_id, span_id) = client.context(context).await.unwrap();
        assert!((1..=1_010_000).contains(&left), "{link}: {left}");
        // tarpc gives each call a span of its own.
        assert_eq!(trace_id, 0x0123_4567, "{link}");
        assert_ne!(span_id, 0, "{link}");
        assert_eq!(client.context(patient()).await.unwrap().1, 0, "{link}");
    }
}

#[tokio::test]
async fn a_server_that_has_gone_fails_the_call_and_not_the_client() {
    for link in LINKS {
        let mut served = serve(link);
        let client = served.client().await;
        let call = tokio::spawn({
            let client = client.clone();
            async move { client.wait(patient(), "a".to_owned()).await }
        });
        assert_eq!(served.seen.recv().await, Some(Seen::Begun("a".to_owned())));
        served.port.shutdown();
        served.serving.await.unwrap();
        assert_eq!(served.seen.recv().await, Some(Seen::Dropped("a".to_owned())), "{link}");
        let Err(RpcError::Server(error)) = call.await.unwrap() else { panic!("{link}") };
        assert_ne!(error.kind, ErrorKind::Other, "{link}: {error}");
        let Err(RpcError::Server(error)) = client.sum(patient(), vec![1]).await else {
            panic!("{link}")
        };
        assert_eq!(error.kind, ErrorKind::ConnectionRefused, "{link}: {error}");
        // Another one at the same place.
        let Served { node, port, .. } = served;
        drop(port);
        let _again = serve_on(node, link);
        assert_eq!(client.sum(patient(), vec![1]).await.unwrap(), 1, "{link}");
    }
}

#[tokio::test]
async fn a_request_that_the_node_refuses_has_its_error_inside() {
    let served = serve("auto");
    let client = served.client().await;
    let long = "x".repeat(MESSAGE_MAX as usize);
    let Err(RpcError::Send(error)) = client.echo(patient(), long).await else { panic!() };
    let error = error.downcast_ref::<std::io::Error>().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    assert!(matches!(inner, Some(CallError::MessageTooLarge { .. })), "{inner:?}");
    assert_eq!(client.sum(patient(), vec![1]).await.unwrap(), 1);
}
