//! A client of Google's crate `grpc` with a service that tonic generates.
//!
//! Its generated clients take any `grpc::client::Invoke`, as a `Channel` is with the feature `grpc`. This one is written by hand, so
//! that the example needs no protoc.
//!
//! ```text
//! Hello Ada!
//! ```

#[allow(warnings, reason = "generated")]
mod hello_world {
    include!("../proto/generated/helloworld.rs");
}

use bytes::{Buf, Bytes};
use grpc::client::{CallOptions, Invoke, RecvStream, ResponseStreamItem, SendOptions, SendStream};
use grpc::core::{RecvMessage, RequestHeaders, SendMessage};
use hello_world::greeter_server::{Greeter, GreeterServer};
use hello_world::{HelloReply, HelloRequest};
use prost::Message;
use tonic::{Request, Response, Status};

struct MyGreeter;

#[tonic::async_trait]
impl Greeter for MyGreeter {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let message = format!("Hello {}!", request.into_inner().name);
        Ok(Response::new(HelloReply { message }))
    }
}

/// A message of prost, as `grpc` takes and gives it.
struct ProstMessage<M>(M);

impl<M: Message> SendMessage for ProstMessage<M> {
    fn encode(&self) -> Result<Box<dyn Buf + Send + Sync>, String> {
        Ok(Box::new(Bytes::from(self.0.encode_to_vec())))
    }
}

impl<M: Message + Default> RecvMessage for ProstMessage<M> {
    fn decode(&mut self, data: &mut dyn Buf) -> Result<(), String> {
        self.0 = M::decode(data).map_err(|error| error.to_string())?;
        Ok(())
    }
}

/// A call with one request and one response, over any channel.
async fn say_hello(channel: &impl Invoke, request: HelloRequest) -> grpc::StatusOr<HelloReply> {
    let headers = RequestHeaders::new().with_method_name("/helloworld.Greeter/SayHello");
    let (mut requests, mut responses) = channel.invoke(headers, CallOptions::new()).await;
    let last = SendOptions::new().with_final_msg(true);
    let _ = requests.send(&ProstMessage(request), last).await; // The trailers say why, if not.
    let mut reply = ProstMessage(HelloReply::default());
    loop {
        if let ResponseStreamItem::Trailers(trailers) = responses.recv(&mut reply).await {
            return trailers.status().clone().map(|()| reply.0);
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = apus::Config::new();
    config.listen("127.0.0.1:0".parse()?); // A real one has UDP port 20146, as without `.node(…)`.
    let node = apus::Node::start(&config)?;
    let server = apus_tonic::Server::builder().node(&node);
    tokio::spawn(server.add_service(GreeterServer::new(MyGreeter)).serve(4000));

    let address = apus::Address::new(node.local_addr(), 4000);
    let channel = apus_tonic::Channel::connect(&address.to_string()).await?;
    match say_hello(&channel, HelloRequest { name: "Ada".to_owned() }).await {
        Ok(reply) => println!("{}", reply.message),
        Err(status) => println!("{status:?}"),
    }
    Ok(())
}
