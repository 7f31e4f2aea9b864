//! A client of the service `helloworld.Greeter`.

#[allow(warnings, reason = "generated")]
mod hello_world {
    include!("../proto/generated/helloworld.rs");
}

use hello_world::HelloRequest;
use hello_world::greeter_client::GreeterClient;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let channel = tonic::transport::Channel::from_static("http://[::1]:50051").connect().await?;
    let mut client = GreeterClient::new(channel);
    let request = tonic::Request::new(HelloRequest { name: "Tonic".into() });
    let response = client.say_hello(request).await?;
    println!("RESPONSE={response:?}");
    Ok(())
}
