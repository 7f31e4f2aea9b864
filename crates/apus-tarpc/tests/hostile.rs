//! Bytes that no client or server of tarpc sends.

mod pair;

use std::io::ErrorKind;

use proptest::collection::vec;
use proptest::prelude::any;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tarpc::ServerError;
use tarpc::client::RpcError;

use pair::{LINKS, MESSAGE_MAX, PORT, SumsClient, SumsRequest, SumsResponse, patient, serve};

type SumsOutcome = Result<SumsResponse, ServerError>;

/// Bytes of any values, and changed ones of a request.
fn bodies() -> Vec<Vec<u8>> {
    let mut runner = TestRunner::deterministic();
    let any_bytes = vec(any::<u8>(), 0..40);
    let mut bodies: Vec<_> =
        (0..300).map(|_| any_bytes.new_tree(&mut runner).expect("bytes").current()).collect();
    let request = SumsRequest::Echo { body: "hello, hostile".to_owned() };
    let request = postcard::to_allocvec(&request).expect("a request");
    for place in 0..request.len() {
        bodies.push(request[..place].to_vec());
        let mut changed = request.clone();
        changed[place] ^= 0x80;
        bodies.push(changed);
    }
    // More elements than any memory holds, and bytes behind the message.
    bodies.push([&[0], &[0xff; 9][..], &[1]].concat());
    bodies.push([&request[..], b"x"].concat());
    bodies
}

fn is_request(body: &[u8]) -> bool {
    postcard::take_from_bytes::<SumsRequest>(body).is_ok_and(|(_, rest)| rest.is_empty())
}

#[tokio::test]
async fn a_server_refuses_bytes_that_are_no_request() {
    for link in LINKS {
        let served = serve(link);
        let client = served.client().await;
        let stranger = pair::node(link).client().unwrap();
        let mut refused = 0;
        for body in bodies().into_iter().filter(|body| !is_request(body)) {
            let response = stranger.call(served.address(), body.clone()).await.unwrap();
            let outcome: SumsOutcome = postcard::from_bytes(&response).unwrap();
            assert_eq!(outcome.unwrap_err().kind, ErrorKind::InvalidData, "{body:?}");
            refused += 1;
        }
        assert!(refused > 100, "{refused}");
        // More than the task refuses at a time.
        let calls =
            (0..500).map(|_| stranger.call(served.address(), vec![0xff; 3]).start().unwrap());
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap();
        }
        assert_eq!(client.sum(patient(), vec![1, 2]).await.unwrap(), 3, "{link}");
    }
}

#[tokio::test]
async fn a_request_without_a_deadline_is_served() {
    let served = serve("auto");
    let stranger = pair::node("auto").client().unwrap();
    let request = postcard::to_allocvec(&SumsRequest::Context {}).unwrap();
    let response = stranger.call(served.address(), request).await.unwrap();
    let outcome: SumsOutcome = postcard::from_bytes(&response).unwrap();
    let Ok(SumsResponse::Context((left, ..))) = outcome else { panic!("{outcome:?}") };
    assert!(left > 1_000_000, "{left}");
}

#[tokio::test]
async fn the_longest_deadline_is_served() {
    let served = serve("auto");
    let stranger = pair::node("auto").client().unwrap();
    let request = postcard::to_allocvec(&SumsRequest::Sum { numbers: vec![1, 2] }).unwrap();
    let call = stranger.call(served.address(), request).deadline(std::time::Duration::MAX);
    let outcome: SumsOutcome = postcard::from_bytes(&call.await.unwrap()).unwrap();
    assert!(matches!(outcome, Ok(SumsResponse::Sum(3))), "{outcome:?}");
}

#[tokio::test]
async fn a_client_refuses_bytes_that_are_no_response() {
    for link in LINKS {
        let node = pair::node(link);
        let port = node.bind(PORT).unwrap();
        let address = apus::Address::new(node.local_addr(), PORT);
        let transport = apus_tarpc::dial(&pair::node(link), address).unwrap();
        let client = SumsClient::new(tarpc::client::Config::default(), transport).spawn();
        let mut bodies = bodies();
        // Empty ones and those that are responses of another method are none either.
        bodies.retain(|body| postcard::from_bytes::<SumsOutcome>(body).is_err());
        let count = bodies.len();
        assert!(count > 100, "{count}");
        let answering = tokio::spawn(async move {
            for body in bodies {
                let request = port.recv_async().await.unwrap();
                request.reply(body).unwrap();
            }
        });
        for _ in 0..count {
            let Err(RpcError::Server(error)) = client.sum(patient(), vec![1]).await else {
                panic!("{link}")
            };
            assert_eq!(error.kind, ErrorKind::InvalidData, "{link}: {error}");
        }
        answering.await.unwrap();
    }
}

#[tokio::test]
async fn a_response_that_is_too_long_is_an_error_of_its_call() {
    let served = serve("auto");
    let client = served.client().await;
    // The request has the longest length. Its response is longer by a byte, which is the outcome.
    let request = SumsRequest::Echo { body: "x".repeat(MESSAGE_MAX as usize - 4) };
    assert_eq!(postcard::to_allocvec(&request).unwrap().len(), MESSAGE_MAX as usize);
    let SumsRequest::Echo { body: longest } = request else { unreachable!() };
    let Err(RpcError::Server(error)) = client.echo(patient(), longest).await else { panic!() };
    assert_eq!(error.kind, ErrorKind::InvalidData, "{error}");
    assert_eq!(client.sum(patient(), vec![1]).await.unwrap(), 1);
}

#[tokio::test]
async fn a_handler_that_panics_ends_its_own_call_only() {
    let served = serve("auto");
    let client = served.client().await;
    let mut context = patient();
    context.deadline = std::time::Instant::now() + std::time::Duration::from_millis(50);
    let ended = client.panic(context).await;
    assert!(matches!(ended, Err(RpcError::DeadlineExceeded)), "{ended:?}");
    assert_eq!(client.sum(patient(), vec![1]).await.unwrap(), 1);
}
