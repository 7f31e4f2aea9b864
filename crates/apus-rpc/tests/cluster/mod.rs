//! Several servers of one service, each on a node of its own, and channels to them.
#![allow(dead_code, reason = "every test file uses a part of this")]

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use apus_rpc::{
    Address, Bytes, Channel, ChannelBuilder, Code, Context, Drained, Node, Server, Status,
};
use tokio::sync::{Semaphore, oneshot};

/// Homa port of all servers.
pub(crate) const PORT: u16 = 4000;

pub(crate) fn node() -> Node {
    let mut config = apus::Config::new();
    config.listen("127.0.0.1:0".parse().expect("an address"));
    Node::start(&config).expect("a node")
}

/// A server whose method `/a.B/Count` counts its calls, and answers with the number of the server. `/a.B/Find` counts them as
/// well, and answers NOT_FOUND. `/a.B/Wait` waits for a permit.
pub(crate) struct Member {
    pub(crate) number: usize,
    pub(crate) node: Node,
    calls: Arc<AtomicU64>,
    waits: Arc<AtomicU64>,
    pub(crate) gate: Arc<Semaphore>,
    running: Option<(oneshot::Sender<()>, JoinHandle<Drained>)>,
}

impl Member {
    pub(crate) fn address(&self) -> Address {
        Address::new(self.node.local_addr(), PORT)
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// Calls of `/a.B/Wait` that have begun.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Ordering::SeqCst)
    }

    /// Serves on a thread until [`end`](Self::end).
    pub(crate) fn begin(&mut self) {
        let (end, ended) = oneshot::channel();
        let shutdown = async {
            if ended.await.is_err() {
                pending().await
            }
        };
        let (number, calls, gate) = (self.number, Arc::clone(&self.calls), Arc::clone(&self.gate));
        let waits = Arc::clone(&self.waits);
        let server = Server::builder(&self.node);
        let found = Arc::clone(&calls);
        let server = server.route("/a.B/Find", move |_: Context, _: Bytes| {
            found.fetch_add(1, Ordering::SeqCst);
            async { Err::<Bytes, _>(Status::new(Code::NotFound, "")) }
        });
        let server = server.route("/a.B/Count", move |_: Context, _: Bytes| {
            calls.fetch_add(1, Ordering::SeqCst);
            async move { Ok::<_, Status>(number.to_string()) }
        });
        let server = server.route("/a.B/Wait", move |_: Context, _: Bytes| {
            waits.fetch_add(1, Ordering::SeqCst);
            wait(Arc::clone(&gate), number)
        });
        let serving = server.serve(PORT, shutdown);
        let thread = thread::spawn(move || serving.wait().expect("the port was opened"));
        self.running = Some((end, thread));
    }

    /// Begins the end of the server. The thread has ended when its handlers have. The last responses may be under way until
    /// clients have them, so the result is to be kept until then.
    pub(crate) fn drain(&mut self) -> JoinHandle<Drained> {
        let (end, thread) = self.running.take().expect("the server serves");
        end.send(()).expect("the server serves");
        thread
    }
}

async fn wait(gate: Arc<Semaphore>, number: usize) -> Result<String, Status> {
    gate.acquire().await.expect("the gate stays").forget();
    Ok(number.to_string())
}

/// This many servers.
pub(crate) fn cluster(count: usize) -> Vec<Member> {
    let member = |number| {
        let (calls, waits, gate) = (Arc::default(), Arc::default(), Arc::new(Semaphore::new(0)));
        let mut member = Member { number, node: node(), calls, waits, gate, running: None };
        member.begin();
        member
    };
    (0..count).map(member).collect()
}

/// The target of these servers.
pub(crate) fn target(members: &[Member]) -> String {
    let addresses: Vec<_> = members.iter().map(|member| member.address().to_string()).collect();
    format!("static:{}", addresses.join(","))
}

/// A channel to all of these servers, on a node of its own.
pub(crate) fn channel(
    members: &[Member],
    build: impl FnOnce(ChannelBuilder) -> ChannelBuilder,
) -> Channel {
    let builder = Channel::builder(&target(members)).node(&node()).seed(7);
    build(builder).build().expect("a channel")
}
