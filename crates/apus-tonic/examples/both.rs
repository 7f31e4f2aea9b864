//! One gRPC service for programs with Apus and, over TCP, for grpcurl and programs in other languages.
//!
//! ```text
//! over Apus: Hello Ada!
//! over TCP: Hello Ada!
//! ```

#[allow(warnings, reason = "generated")]
mod hello_world {
    include!("../proto/generated/helloworld.rs");
}

use hello_world::greeter_client::GreeterClient;
use hello_world::greeter_server::{Greeter, GreeterServer};
use hello_world::{HelloReply, HelloRequest};
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

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = apus::Config::new();
    config.listen("127.0.0.1:0".parse()?); // A real one has UDP port 20146, as without `.node(…)`.
    let node = apus::Node::start(&config)?;
    let server = apus_tonic::Server::builder().node(&node).also_tcp("127.0.0.1:0");
    let serving = server.add_service(GreeterServer::new(MyGreeter)).serve(4000);
    let tcp = serving.tcp_addrs()[0];
    tokio::spawn(serving);

    let request = || HelloRequest { name: "Ada".to_owned() };
    let address = apus::Address::new(node.local_addr(), 4000);
    let channel = apus_tonic::Channel::connect(&address.to_string()).await?;
    let reply = GreeterClient::new(channel).say_hello(request()).await?;
    println!("over Apus: {}", reply.into_inner().message);

    let channel = tonic::transport::Endpoint::new(format!("http://{tcp}"))?.connect().await?;
    let reply = GreeterClient::new(channel).say_hello(request()).await?;
    println!("over TCP: {}", reply.into_inner().message);
    Ok(())
}
