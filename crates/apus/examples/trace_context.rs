//! A distributed trace: a call carries its W3C trace context to the server, and the server passes it on to its own calls.
//!
//! With the feature `tracing`, the library makes spans for calls and requests and passes them on (examples/opentelemetry).

use std::thread;

use apus::{Address, Config, Node, TraceContext};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::new();
    config.apply_environment()?.listen("127.0.0.1:0".parse()?);
    let (front, back) = (Node::start(&config)?, Node::start(&config)?);
    let (front_service, back_service) = (front.bind(4000)?, back.bind(4000)?);
    let at = |node: &Node| Address::new(node.local_addr(), 4000);
    let (front_address, back_address) = (at(&front), at(&back));

    let onward = front.client()?;
    thread::spawn(move || {
        front_service.serve(|request| {
            let mut call = onward.call(back_address, "front's question");
            if let Some(received) = request.trace_context() {
                // The same trace, with a span of this service.
                let own = TraceContext::new(received.trace_id(), [7; 8], received.flags());
                call = call.trace_context(own.expect("no id is zero"));
            }
            let answer = call.wait().unwrap_or_default();
            let _ = request.reply(answer); // The client may have given up.
        });
    });
    thread::spawn(move || {
        back_service.serve(|request| {
            let trace = request.trace_context().map(|it| it.to_string()).unwrap_or_default();
            let _ = request.reply(trace);
        });
    });

    let node = Node::start(&config)?;
    let context: TraceContext =
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse()?;
    let seen = node.client()?.call(front_address, "question").trace_context(context).wait()?;
    println!("given:   {context}");
    println!("arrived: {}", String::from_utf8_lossy(&seen));
    Ok(())
}
