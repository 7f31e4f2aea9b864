//! Two nodes in runtimes of tokio with one thread each. The runtimes turn the nodes: a message wakes the task that waits for it, and no
//! other thread.

use std::error::Error;
use std::thread;

use apus::{Address, Config, Node, Port};
use tokio::runtime::{Builder, Runtime};

/// A runtime whose thread turns the node, and polls for messages when no task is ready.
fn runtime_of(node: &Node) -> Result<Runtime, Box<dyn Error>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.spawn(node.event_loop()?.drive());
    Ok(runtime)
}

async fn serve(port: Port) {
    while let Ok(mut request) = port.recv_async().await {
        let body = request.take_body();
        // The client may have given up; the server need not care.
        let _ = request.reply(body);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut config = Config::new();
    config.apply_environment()?.listen("127.0.0.1:0".parse()?);
    let server = Node::start(&config)?;
    let port = server.bind(4000)?;
    let address = Address::new(server.local_addr(), 4000);
    let runtime = runtime_of(&server)?;
    let serving = runtime.spawn(serve(port.clone()));
    let server_thread = thread::spawn(move || runtime.block_on(serving));

    let node = Node::start(&config)?;
    let client = node.client()?;
    let runtime = runtime_of(&node)?;
    // A task that is spawned is woken without a system call.
    let calling = runtime.spawn(async move {
        for word in ["one", "two", "three"] {
            let response = client.call(address, word).await?;
            println!("{}", String::from_utf8_lossy(&response));
        }
        Ok::<_, apus::CallError>(())
    });
    runtime.block_on(calling)??;
    port.shutdown();
    server_thread.join().expect("the server does not panic")?;
    Ok(())
}
