//! Calls and servers that end early: cancellation, errors of the transport, the orderly end of a server.

mod transports;

use std::sync::Arc;

use tokio::sync::{Notify, oneshot};
use tonic::{Code, Request, Response, Status};

use apus_tonic::{AddTower, Channel, Server, may_have_executed};
use hello_world::greeter_client::GreeterClient;
use hello_world::greeter_server::{Greeter, GreeterServer};
use hello_world::{HelloReply, HelloRequest};
use transports::{PORT, Transport, channel_to, node, nodes};

#[allow(warnings, reason = "generated")]
mod hello_world {
    include!("../proto/generated/helloworld.rs");
}

/// A name with which the handler does not wait.
const QUICK: &str = "quick";

/// Says when a handler begins and when it is dropped, and waits in between.
#[derive(Clone, Default)]
struct Waiting {
    begun: Arc<Notify>,
    dropped: Arc<Notify>,
    go_on: Arc<Notify>,
}

struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[tonic::async_trait]
impl Greeter for Waiting {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let _dropped = NotifyOnDrop(Arc::clone(&self.dropped));
        let message = request.into_inner().name;
        if message != QUICK {
            self.begun.notify_one();
            self.go_on.notified().await;
        }
        Ok(Response::new(HelloReply { message }))
    }
}

fn request() -> HelloRequest {
    HelloRequest { name: "ada".to_owned() }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

/// The case cancel_after_begin.
#[test]
fn a_call_that_is_dropped_drops_its_handler() {
    for transport in Transport::APUS {
        block_on(async {
            let nodes = nodes(transport);
            let waiting = Waiting::default();
            let service = GreeterServer::new(waiting.clone());
            tokio::spawn(Server::builder().node(&nodes.server).add_service(service).serve(PORT));
            let mut client = GreeterClient::new(channel_to(&nodes.server, &nodes.client).await);
            let call = tokio::spawn(async move { client.say_hello(request()).await });
            waiting.begun.notified().await;
            call.abort();
            waiting.dropped.notified().await;
        });
    }
}

#[test]
fn an_error_of_the_transport_is_the_source() {
    block_on(async {
        let (server, node) = (node(Transport::Memory, 1), node(Transport::Memory, 2));
        let address = apus_rpc::Address::new(server.local_addr(), PORT).to_string();
        let channel = apus_rpc::Channel::builder(&address).node(&node).build().expect("a channel");
        let mut client = GreeterClient::new(Channel::from(channel));
        let status = client.say_hello(request()).await.expect_err("nothing is served");
        assert_eq!(status.code(), Code::Unavailable);
        assert!(!may_have_executed(&status), "{status:?}");
        let source = std::error::Error::source(&status).expect("a source");
        assert!(source.downcast_ref::<apus_rpc::CallError>().is_some());
    });
}

#[test]
fn misuse_is_found_before_anything_is_sent() {
    block_on(async {
        let (server, node) = (node(Transport::Memory, 1), node(Transport::Memory, 2));
        let serving =
            Server::builder().node(&server).add_service(GreeterServer::new(Waiting::default()));
        let serving = serving.serve(PORT);
        let counters = serving.counters();
        tokio::spawn(serving);
        let mut client = GreeterClient::new(channel_to(&server, &node).await);
        for (name, value) in [("grpc-timeout", "soon"), ("x!y", "1")] {
            let mut wrong = Request::new(request());
            let name: tonic::metadata::AsciiMetadataKey = name.parse().expect("a name");
            wrong.metadata_mut().insert(name, value.parse().expect("a value"));
            let status = client.say_hello(wrong).await.expect_err("misuse");
            assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        }
        assert_eq!(counters.begun(), 0);
    });
}

#[test]
fn a_server_ends_in_order() {
    block_on(async {
        let (server, node) = (node(Transport::Memory, 1), node(Transport::Memory, 2));
        let waiting = Waiting::default();
        let (end, ended) = oneshot::channel::<()>();
        let service = GreeterServer::new(waiting.clone());
        let builder = Server::builder().node(&server).also_tcp("127.0.0.1:0").add_service(service);
        let serving = builder.serve_with_shutdown(PORT, async { drop(ended.await) });
        let serving = tokio::spawn(serving);
        let mut client = GreeterClient::new(channel_to(&server, &node).await);
        let mut late = client.clone();
        let call = tokio::spawn(async move { client.say_hello(request()).await });
        waiting.begun.notified().await;
        drop(end);
        // The server takes no request once the task that is awaited has seen the sign.
        let status = loop {
            let quick = HelloRequest { name: QUICK.to_owned() };
            match late.say_hello(quick).await {
                Ok(_) => tokio::task::yield_now().await,
                Err(status) => break status,
            }
        };
        assert_eq!((status.code(), may_have_executed(&status)), (Code::Unavailable, false));
        waiting.go_on.notify_one();
        let response = call.await.expect("no panic").expect("the server waits");
        assert_eq!(response.into_inner().message, "ada");
        let ended = serving.await.expect("no panic").expect("the server has served");
        assert_eq!(ended.cancelled, 0);
    });
}

#[test]
fn errors_of_a_server_are_named() {
    let server = node(Transport::Memory, 1);
    let service = || GreeterServer::new(Waiting::default());
    let serve = || Server::builder().node(&server).add_service(service());
    let error = block_on(serve().add_service(service()).serve(PORT)).expect_err("one name");
    assert_eq!(error.to_string(), "two services have the name helloworld.Greeter");
    let error = block_on(serve().serve(0)).expect_err("no port");
    assert!(error.to_string().contains('0'), "{error}");
    let error = block_on(serve().also_tcp("nowhere").serve(PORT)).expect_err("no address");
    assert!(error.to_string().starts_with("TCP nowhere"), "{error}");
    let serving = serve().serve(PORT);
    let error =
        futures_util::FutureExt::now_or_never(serving).expect("an error").expect_err("an error");
    assert!(error.to_string().contains("runtime"), "{error}");
}

#[test]
fn services_stand_beside_methods_of_another_kind() {
    block_on(async {
        let (server, node) = (node(Transport::Memory, 1), node(Transport::Memory, 2));
        let waiting = Waiting::default();
        waiting.go_on.notify_one();
        let serving = apus_rpc::Server::builder(&server)
            .route("/shop.Clock/Now", |_, _| async { Ok("12:00") })
            .add_tower(GreeterServer::new(waiting))
            .spawner(apus_rpc::tokio::current())
            .serve(PORT, std::future::pending());
        tokio::spawn(serving);
        let channel = channel_to(&server, &node).await;
        let now = channel.rpc().unary("/shop.Clock/Now", "").await.expect("a response");
        assert_eq!(now.body(), "12:00");
        let response = GreeterClient::new(channel).say_hello(request()).await.expect("a response");
        assert_eq!(response.into_inner().message, "ada");
    });
}
