//! The service `helloworld.Greeter` beside programs in other languages: `greeter serve` prints its address, and `greeter call ADDRESS NAME`
//! greets a server.

#[allow(warnings, reason = "generated")]
mod hello_world {
    include!("../proto/generated/helloworld.rs");
}

use std::env;
use std::error::Error;

use apus_rpc::{Address, Config, Node};
use hello_world::greeter_client::GreeterClient;
use hello_world::greeter_server::{Greeter, GreeterServer};
use hello_world::{HelloReply, HelloRequest};
use tonic::{Request, Response, Status};

#[derive(Default)]
struct MyGreeter;

#[tonic::async_trait]
impl Greeter for MyGreeter {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let tenant = request.metadata().get("x-tenant-id").cloned();
        let name = request.into_inner().name;
        if name.is_empty() {
            return Err(Status::invalid_argument("a name has one or more characters"));
        }
        let mut response = Response::new(HelloReply { message: format!("Hello {name}!") });
        if let Some(tenant) = tenant {
            response.metadata_mut().insert("x-tenant-id", tenant);
        }
        Ok(response)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve"] => {
            let mut config = Config::new();
            let node = Node::start(config.listen("127.0.0.1:0".parse()?).apply_environment()?)?;
            apus_rpc::tokio::drive(&node)?;
            println!("apus://{}", Address::new(node.local_addr(), 4000));
            let greeter = GreeterServer::new(MyGreeter);
            apus_tonic::Server::builder().node(&node).add_service(greeter).serve(4000).await?;
        }
        ["call", address, name] => {
            let channel = apus_tonic::Channel::connect(address).await?;
            let request = Request::new(HelloRequest { name: name.to_owned() });
            match GreeterClient::new(channel).say_hello(request).await {
                Ok(response) => println!("{}", response.into_inner().message),
                Err(status) => println!("{:?}: {}", status.code(), status.message()),
            }
        }
        _ => return Err("expected `serve` or `call ADDRESS NAME`".into()),
    }
    Ok(())
}
