//! Events for `tracing` (feature `tracing`).

mod pair;

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use apus::{Address, CallError, Delivery, Flush};
use pair::{pair, serve};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps each event as a line.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("apus")
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn nodes_failed_calls_and_panics_of_handlers_are_events_and_nothing_else() {
    if pair::skips("the engine's node writes events as well") {
        return;
    }
    let lines = Lines::default();
    tracing::subscriber::set_global_default(lines.clone()).unwrap();
    let pair = pair(Delivery::suspend());
    let serving = serve(&pair.service, |request| {
        assert!(request.body() != "panic", "as the request says");
        request.reply("answer").unwrap();
    });
    let client = pair.client_node.client().unwrap();
    client.call(pair.address, "succeeds").wait().unwrap();
    assert_eq!(client.call(pair.address, "panic").wait(), Err(CallError::HandlerPanicked));
    let wrong = Address::new(([0; 4], 1).into(), 1);
    assert_eq!(
        client.call(wrong, "x").start().map(drop),
        Err(CallError::UnspecifiedAddress(wrong))
    );
    client.send(pair.address, "panic", 1, Flush::Now).unwrap();
    assert_eq!(client.recv().unwrap().result, Err(CallError::HandlerPanicked));
    pair.service.shutdown();
    serving.join().unwrap();
    pair.client_node.close(Duration::from_secs(20)).unwrap();
    let lines = lines.0.lock().unwrap();
    for part in [
        "DEBUG message=node started local_addr=127.0.0.1:",
        "ERROR message=handler panicked port=4000",
        "DEBUG message=call failed error=the server's handler panicked may_have_executed=true",
        "DEBUG message=call failed error=cannot call 0.0.0.0:1@1: 0.0.0.0 is an address to listen on, not the address of a node may_have_executed=false",
        "DEBUG message=node closed local_addr=127.0.0.1:",
    ] {
        assert!(lines.iter().any(|line| line.starts_with(part)), "no {part}: {lines:#?}");
    }
    assert_eq!(lines.len(), 8, "{lines:#?}");
}
