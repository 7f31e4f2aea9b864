//! One engine for several processes of a host, which schedules their messages together. `apus daemon` is such an engine as a
//! program, and with `APUS_ENGINE=unix:PATH` unchanged programs use it. Here, all of it is one process.

use std::sync::Arc;
use std::{env, fs, process, thread};

use apus::{Address, Config, EngineAccess, EngineAt, Node, SharedEngine};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = env::temp_dir().join(format!("apus-example-{}", process::id()));
    fs::create_dir(&directory)?;
    let socket = directory.join("engine.sock");
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse()?);
    let mut access = EngineAccess::new(&socket);
    access.mode(0o600); // For this user only.
    let engine = Arc::new(SharedEngine::start(&config, &access)?);
    let runner = Arc::clone(&engine);
    let running = thread::spawn(move || runner.run());

    // Nodes of two processes. Their address is the engine's.
    let mut attached = Config::new();
    attached.engine(EngineAt::Socket(socket));
    let (server, node) = (Node::start(&attached)?, Node::start(&attached)?);
    let port = server.bind(4000)?;
    thread::spawn(move || {
        port.serve(|mut request| {
            let body = request.take_body();
            let _ = request.reply(body); // The client may have given up.
        });
    });
    let address = Address::new(engine.local_addr(), 4000);
    println!("the route: {:?}", node.route(address));
    let response = node.client()?.call(address, "hello").wait()?;
    println!("{}", String::from_utf8_lossy(&response));
    println!("processes attached: {}", engine.processes().len());

    drop((server, node));
    engine.stop();
    running.join().map_err(|_| "the engine panicked")?;
    fs::remove_dir_all(&directory)?;
    Ok(())
}
