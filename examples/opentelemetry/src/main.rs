//! Calls that are spans in OpenTelemetry, on both hosts one trace.
//!
//! ```text
//! cargo run --manifest-path examples/opentelemetry/Cargo.toml -- server
//! cargo run --manifest-path examples/opentelemetry/Cargo.toml -- client ADDRESS TEXT...
//! ```
//!
//! The server prints its address, and serves until its standard input ends. Both send their spans to the collector that the variable
//! `OTEL_EXPORTER_OTLP_ENDPOINT` names (`http://localhost:4318` unless it is set), as OTLP over HTTP.

mod propagator;

use std::error::Error;
use std::io::{self, Read};
use std::thread;

use apus::{Config, Node, Request};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::propagator::OpenTelemetry;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let role = arguments.next().unwrap_or_default();
    let provider = trace_to_collector(&role)?;
    match role.as_str() {
        "server" => serve()?,
        "client" => {
            call(&arguments.next().ok_or("the address of a server is missing")?, arguments)?
        }
        other => {
            return Err(format!("the first argument is server or client, not {other:?}").into());
        }
    }
    provider.shutdown()?; // Sends what was not sent.
    Ok(())
}

/// Has spans sent to the collector, those of Apus and the program's own.
fn trace_to_collector(role: &str) -> Result<SdkTracerProvider, Box<dyn Error>> {
    let exporter = SpanExporter::builder().with_http().build()?;
    let resource = Resource::builder().with_service_name(format!("apus-example-{role}")).build();
    let provider =
        SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("apus-example"));
    // Not the exporter's own calls, which would be spans in turn.
    let own = env!("CARGO_CRATE_NAME");
    let targets =
        Targets::new().with_target("apus", LevelFilter::INFO).with_target(own, LevelFilter::INFO);
    tracing_subscriber::registry().with(layer.with_filter(targets)).init();
    apus::tracing::set_propagator(OpenTelemetry)?;
    Ok(provider)
}

fn serve() -> Result<(), Box<dyn Error>> {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse()?).apply_environment()?;
    let node = Node::start(&config)?;
    let port = node.bind(4000)?;
    println!("{}", apus::Address::new(node.local_addr(), port.number()));
    let serving = port.clone();
    let thread = thread::spawn(move || serving.serve(shout));
    io::stdin().read_to_end(&mut Vec::new())?;
    port.shutdown();
    thread.join().expect("the handler does not panic");
    Ok(())
}

/// Within the span of the request, which is a child of the client's.
fn shout(request: Request) {
    let text = tracing::info_span!("shout").in_scope(|| request.body().to_ascii_uppercase());
    let _ = request.reply(text); // The client may have gone.
}

fn call(server: &str, texts: impl Iterator<Item = String>) -> Result<(), Box<dyn Error>> {
    let server = apus::resolve(server)?;
    let node = Node::start(Config::new().apply_environment()?)?;
    let client = node.client()?;
    let _all = tracing::info_span!("all calls").entered();
    for text in texts {
        println!("{}", String::from_utf8_lossy(&client.call(server, text).wait()?));
    }
    Ok(())
}
