//! Gauges of certificates, and warnings of `tracing` about them.
#![cfg(feature = "secure")]

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use crate::pair::certificates::Authority;
use apus::{Address, Node};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

const PORT: u16 = 4000;

/// The 1st of January 2025, when all certificates begin, and the 31st of December of these years, when they end.
const BEGIN: u64 = 1_735_689_600;
const END_2090: u64 = 3_818_361_600;
const END_2095: u64 = 3_976_128_000;
const END_2100: u64 = 4_133_894_400;

fn node(authority: &Authority, file: &str, name: &str, last_year: i32) -> Node {
    authority.issue(file, &[name, "127.0.0.1"], last_year);
    Node::start(&authority.config(file)).unwrap()
}

/// The seconds that were left to this time when a gauge was computed: during the last test.
fn is_left(gauge: Option<u64>, end: u64) -> bool {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    gauge.is_some_and(|left| {
        let computed = Duration::from_secs(end - left);
        computed <= now + Duration::from_secs(1) && computed + Duration::from_secs(600) > now
    })
}

#[test]
fn gauges_show_when_the_certificates_of_a_node_and_its_peers_expire() {
    let authority = Authority::new();
    let server = node(&authority, "server", "spiffe://example.org/kv", 2100);
    let client_node = node(&authority, "client", "spiffe://example.org/front", 2090);
    let shown = client_node.stats().identity;
    assert!(is_left(shown.certificate_expires_s, END_2090), "{shown:?}");
    assert_eq!(shown.certificate_life_s, Some(END_2090 - BEGIN));
    assert_eq!(shown.peer_certificate_expires_s, None);
    let service = server.bind(PORT).unwrap();
    let serving = service.clone();
    thread::spawn(move || serving.serve(|request| _ = request.reply("")));
    let client = client_node.client().unwrap();
    client.call(Address::new(server.local_addr(), PORT), "").wait().unwrap();
    let (ours, theirs) = (client_node.stats().identity, server.stats().identity);
    assert!(is_left(ours.peer_certificate_expires_s, END_2100), "{ours:?}");
    assert!(is_left(theirs.peer_certificate_expires_s, END_2090), "{theirs:?}");
    authority.issue("client", &["spiffe://example.org/front", "127.0.0.1"], 2095);
    assert!(client_node.reload_identity().unwrap());
    let shown = client_node.stats().identity;
    assert!(is_left(shown.certificate_expires_s, END_2095), "{shown:?}");
    assert_eq!(client_node.stats().handshakes.refresh_failures, 0);
}

#[test]
fn a_node_without_a_certificate_has_no_gauges() {
    let node = Node::start(&apus::Config::new()).unwrap();
    assert_eq!(node.stats().identity, Default::default());
    assert!(node.stats().identity.iter().all(|(_, value)| value.is_none()));
}

/// Keeps each warning as a line.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("apus") && *metadata.level() == Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
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
fn a_certificate_for_tests_and_one_that_expires_soon_are_warned_of_at_the_start() {
    let warnings = Warnings::default();
    let authority = Authority::new();
    tracing::subscriber::with_default(warnings.clone(), || {
        node(&authority, "long", "spiffe://example.org/kv", 2100);
        node(&authority, "tests", "spiffe://dev.apus.invalid/kv", 2100);
        authority.issue_for("short", &["spiffe://example.org/kv", "127.0.0.1"], 3_600, 39_600);
        Node::start(&authority.config("short")).unwrap();
    });
    let warnings = warnings.0.lock().unwrap();
    let [tests, short] = &warnings[..] else { panic!("{warnings:?}") };
    let text = "message=the certificate of the node is one for tests, of apus dev-certs";
    assert_eq!(tests.trim(), format!("{text} name=spiffe://dev.apus.invalid/kv"));
    let text = "message=the certificate of the node expires name=spiffe://example.org/kv left_s=3";
    assert!(short.trim().starts_with(text), "{short}");
}
