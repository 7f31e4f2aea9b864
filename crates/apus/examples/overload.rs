//! A service with five times the calls that it can answer in time: one thread works 20 ms for each of 100 calls with a deadline of
//! 100 ms.
//!
//! ```sh
//! cargo run --example overload
//! APUS_SKIP_UNWANTED=false cargo run --example overload
//! ```

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use apus::{Address, Config, Node};

fn main() -> Result<(), Box<dyn Error>> {
    let mut config = Config::new();
    config.apply_environment()?.listen("127.0.0.1:0".parse()?);
    let (server, node) = (Node::start(&config)?, Node::start(&config)?);
    let port = server.bind(4000)?;
    let address = Address::new(server.local_addr(), 4000);
    let executed = Arc::new(AtomicU32::new(0));
    let (serving, counter) = (port.clone(), Arc::clone(&executed));
    let thread = thread::spawn(move || {
        serving.serve(|request| {
            counter.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(20));
            let _ = request.reply("done"); // The caller may have given up.
        });
    });
    let client = node.client()?;
    client.connect(address).wait()?;
    let calls: Vec<_> = (0..100)
        .map(|_| client.call(address, "work").deadline(Duration::from_millis(100)).start())
        .collect::<Result<_, _>>()?;
    let answered = calls.into_iter().filter_map(|call| call.wait().ok()).count();
    client.call(address, "last").wait()?; // All requests that the service executes have begun by now.
    let executed = executed.load(Ordering::Relaxed) - 1;
    let skipped = server.stats().protocol.requests_skipped;
    println!("100 calls: {answered} answered in time, {executed} executed, {skipped} skipped");
    port.shutdown();
    thread.join().map_err(|_| "the service panicked")?;
    Ok(())
}
