//! Calls through the layers of tower (feature `tower`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::pair::{acquaint, echo, pair, pattern, serve, serve_echo};
use apus::{Address, Bytes, CallError, CallOptions, Delivery};
use futures_util::future::join_all;
use tower::{Service, ServiceBuilder, ServiceExt};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_a_service_for_calls() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        serve_echo(&pair.service);
        let mut client = pair.client_node.client().unwrap();
        for seed in 0..20 {
            let body = pattern(seed, 300);
            let request = (pair.address, body.clone().into(), CallOptions::new());
            let ready = client.ready().await.unwrap();
            assert_eq!(ready.call(request).await.unwrap(), body, "{delivery}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layer_limits_the_calls_outstanding() {
    const LIMIT: usize = 3;
    let pair = pair(Delivery::suspend());
    acquaint(&pair);
    let (outstanding, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (taken, highest) = (Arc::clone(&outstanding), Arc::clone(&most));
    let client = pair.client_node.client().unwrap();
    let counted = tower::service_fn(move |request: (Address, Bytes, CallOptions)| {
        highest.fetch_max(taken.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        let (call, taken) = (client.clone().oneshot(request), Arc::clone(&taken));
        async move {
            let response = call.await;
            taken.fetch_sub(1, Ordering::Relaxed);
            response
        }
    });
    serve(&pair.service, echo);
    let limited = ServiceBuilder::new().concurrency_limit(LIMIT).service(counted);
    let request = (pair.address, "limited".into(), CallOptions::new());
    let responses = join_all((0..40).map(|_| limited.clone().oneshot(request.clone()))).await;
    assert!(responses.iter().all(|response| response.as_deref() == Ok(b"limited")));
    assert!((1..=LIMIT).contains(&most.load(Ordering::Relaxed)));
}

#[tokio::test]
async fn a_call_that_cannot_start_is_an_error_of_its_future() {
    let pair = pair(Delivery::suspend());
    let client = pair.client_node.client().unwrap();
    let nobody = Address::new(([0; 4], 1).into(), 1);
    let refused = client.oneshot((nobody, "x".into(), CallOptions::new())).await;
    assert_eq!(refused, Err(CallError::UnspecifiedAddress(nobody)));
}
