//! A generated service on a node of its own, and its clients.

#![allow(dead_code, reason = "not every test needs all parts")]

use std::future;
use std::sync::Arc;
use std::time::Duration;

use apus::{Address, Config, Node};
use futures_util::StreamExt;
use tarpc::context::Context;
use tarpc::server::{BaseChannel, Channel};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

/// Homa port of all servers; each node has its own.
pub(crate) const PORT: u16 = 4000;

/// The longest message, in bytes.
pub(crate) const MESSAGE_MAX: u32 = 1 << 20;

/// By shared memory, and over UDP.
pub(crate) const LINKS: [&str; 2] = ["auto", "udp"];

#[tarpc::service]
pub(crate) trait Sums {
    async fn sum(numbers: Vec<i64>) -> i64;
    async fn echo(body: String) -> String;
    /// Never answers.
    async fn wait(name: String);
    /// The time left in milliseconds, and the trace.
    async fn context() -> (u64, u128, u64);
    async fn panic();
}

/// What handlers of `wait` do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    Begun(String),
    Dropped(String),
}

#[derive(Clone)]
struct Summing(Arc<UnboundedSender<Seen>>);

struct Waiting(UnboundedSender<Seen>, String);

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.send(Seen::Dropped(self.1.clone()));
    }
}

impl Sums for Summing {
    async fn sum(self, _: Context, numbers: Vec<i64>) -> i64 {
        numbers.iter().sum()
    }

    async fn echo(self, _: Context, body: String) -> String {
        body
    }

    async fn wait(self, _: Context, name: String) {
        let _ = self.0.send(Seen::Begun(name.clone()));
        let _waiting = Waiting((*self.0).clone(), name);
        future::pending().await
    }

    async fn context(self, context: Context) -> (u64, u128, u64) {
        let left = context.deadline.saturating_duration_since(std::time::Instant::now());
        let trace = context.trace_context;
        (millis(left), trace.trace_id.into(), trace.span_id.into())
    }

    async fn panic(self, _: Context) {
        panic!("as the test wants");
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("a time of a test")
}

pub(crate) struct Served {
    pub(crate) node: Node,
    pub(crate) port: apus::Port,
    link: &'static str,
    pub(crate) seen: UnboundedReceiver<Seen>,
    pub(crate) serving: JoinHandle<()>,
}

pub(crate) fn node(link: &str) -> Node {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse().expect("an address"));
    config.link(link.parse().expect("a link")).message_max(MESSAGE_MAX);
    Node::start(&config).expect("a node")
}

pub(crate) fn serve(link: &'static str) -> Served {
    serve_on(node(link), link)
}

pub(crate) fn serve_on(node: Node, link: &'static str) -> Served {
    let port = node.bind(PORT).expect("a port");
    let (sender, seen) = unbounded_channel();
    let channel = BaseChannel::with_defaults(apus_tarpc::accept(port.clone()));
    let handlers = channel.execute(Summing(Arc::new(sender)).serve());
    let serving = tokio::spawn(handlers.for_each(async |handler| drop(tokio::spawn(handler))));
    Served { node, port, link, seen, serving }
}

impl Served {
    pub(crate) fn address(&self) -> Address {
        Address::new(self.node.local_addr(), PORT)
    }

    /// A client on a node of its own. With shared memory, it is there before the first call.
    pub(crate) async fn client(&self) -> SumsClient {
        let node = node(self.link);
        let transport = apus_tarpc::dial(&node, self.address()).expect("a client");
        transport.client().connect(self.address()).await.expect("a server");
        SumsClient::new(tarpc::client::Config::default(), transport).spawn()
    }
}

/// A context with a deadline that no test waits for.
pub(crate) fn patient() -> Context {
    let mut context = tarpc::context::current();
    context.deadline += Duration::from_secs(1_000);
    context
}
