//! The spans of a call and of its request, of two processes, are of one trace when they arrive at a collector.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;

/// Receives the spans of exporters, as a collector does.
struct Collector {
    endpoint: String,
    received: Receiver<ExportTraceServiceRequest>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (sender, received) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let sender = sender.clone();
                thread::spawn(move || take_requests(stream.unwrap(), &sender));
            }
        });
        Self { endpoint, received }
    }

    /// The received spans, each with the name of its service.
    fn spans(&self) -> Vec<(String, Span)> {
        let mut spans = Vec::new();
        for resource in self.received.try_iter().flat_map(|request| request.resource_spans) {
            let attributes = resource.resource.unwrap().attributes;
            let name = attributes.iter().find(|it| it.key == "service.name").unwrap();
            let name = format!("{:?}", name.value);
            let of_scopes = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            spans.extend(of_scopes.map(|span| (name.clone(), span)));
        }
        spans
    }
}

/// Reads requests of HTTP/1.1 until the connection ends.
fn take_requests(stream: TcpStream, received: &Sender<ExportTraceServiceRequest>) {
    let mut reader = BufReader::new(&stream);
    loop {
        let mut length = 0;
        let mut line = String::new();
        while reader.read_line(&mut line).unwrap_or(0) > 0 && line != "\r\n" {
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            line.clear();
        }
        if line.is_empty() {
            return;
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let _ = received.send(ExportTraceServiceRequest::decode(&body[..]).unwrap());
        (&stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
    }
}

fn program(collector: &Collector, role: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_apus-opentelemetry-example"));
    command.arg(role).env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Starts a server. Returns it and its address.
fn start_server(collector: &Collector) -> (Child, String) {
    let mut server = program(collector, "server").spawn().unwrap();
    let mut address = String::new();
    BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut address).unwrap();
    (server, address.trim().to_owned())
}

#[test]
fn the_spans_of_a_call_are_of_one_trace_on_both_sides() {
    for link in ["auto", "udp"] {
        let collector = Collector::start();
        let (mut server, address) = start_server(&collector);
        let mut client = program(&collector, "client");
        let client = client.args([&address, "one", "two"]).env("APUS_LINK", link).output().unwrap();
        assert_eq!(String::from_utf8(client.stdout).unwrap(), "ONE\nTWO\n");
        drop(server.stdin.take());
        assert!(client.status.success() && server.wait().unwrap().success());

        let spans = collector.spans();
        let named = |name: &str| -> Vec<&Span> {
            spans.iter().map(|(_, span)| span).filter(|span| span.name == name).collect()
        };
        let [root] = named("all calls")[..] else { panic!("{spans:#?}") };
        assert!(spans.iter().all(|(_, span)| span.trace_id == root.trace_id), "{spans:#?}");
        let (calls, requests, shouts) = (named("call"), named("request"), named("shout"));
        assert_eq!((calls.len(), requests.len(), shouts.len()), (2, 2, 2), "{spans:#?}");
        for call in calls {
            assert_eq!((call.kind(), &call.parent_span_id), (SpanKind::Client, &root.span_id));
            let request = requests.iter().find(|it| it.parent_span_id == call.span_id).unwrap();
            assert_eq!(request.kind(), SpanKind::Server);
            let shout = shouts.iter().find(|it| it.parent_span_id == request.span_id);
            assert!(shout.is_some());
            println!(
                "call {:?} of trace {:?}, request {:?}",
                call.span_id, call.trace_id, request.span_id
            );
        }
        let services = ["call", "request"].map(|name| {
            spans.iter().find(|(_, span)| span.name == name).map(|(service, _)| service.clone())
        });
        assert_ne!(services[0], services[1]);
    }
}
