//! A thread that panics inside a node ends the node, and nothing else: every operation reports that. A link with endless errors
//! blocks nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use apus::net::{Capabilities, Descriptors, Link, LinkCounters, Path, UdpConfig, UdpLink};
use apus::{Address, CallError, CloseError, Config, Delivery, Flush, Node, OpenError, RecvError};
use apus_wire::{PacketReceiver, PacketSink, PathError, PathId, Transmit};

/// A link of the application's own whose `send` panics once `panics` is set.
struct Faulty {
    inner: UdpLink,
    panics: Arc<AtomicBool>,
    /// Whether every poll for an error returns one, about an address without a node.
    errs: bool,
}

impl PacketSink for Faulty {
    fn send(&mut self, packet: Transmit<'_>) {
        assert!(!self.panics.load(Ordering::Relaxed), "a fault of the link");
        self.inner.send(packet);
    }

    fn max_packet(&self, path: PathId) -> usize {
        self.inner.max_packet(path)
    }

    fn hold(&mut self, path: PathId) {
        self.inner.hold(path);
    }

    fn release(&mut self, path: PathId) {
        self.inner.release(path);
    }
}

impl Link for Faulty {
    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn recv(&mut self, receiver: &mut dyn PacketReceiver) -> usize {
        self.inner.recv(receiver)
    }

    fn resolve(&mut self, to: SocketAddr) -> Option<PathId> {
        self.inner.resolve(to)
    }

    fn find(&mut self, address: SocketAddr) -> Option<PathId> {
        self.inner.find(address)
    }

    fn address(&self, path: PathId) -> Option<SocketAddr> {
        self.inner.address(path)
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn poll_error(&mut self) -> Option<(SocketAddr, PathError)> {
        match self.errs {
            true => Some((([127, 0, 0, 1], 9).into(), PathError::PortUnreachable)),
            false => self.inner.poll_error(),
        }
    }

    fn descriptors(&self) -> Descriptors {
        self.inner.descriptors()
    }

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn receive_capacity(&self) -> usize {
        self.inner.receive_capacity()
    }

    fn path(&self, path: PathId) -> Path {
        self.inner.path(path)
    }

    fn counters(&self) -> LinkCounters {
        self.inner.counters()
    }
}

#[test]
fn after_a_panic_inside_the_node_every_operation_ends_with_an_error() {
    for delivery in Delivery::ALL {
        let panics = Arc::new(AtomicBool::new(false));
        let inner = UdpLink::bind("127.0.0.1:0".parse().unwrap(), &UdpConfig::default()).unwrap();
        let link = Box::new(Faulty { inner, panics: Arc::clone(&panics), errs: false });
        let node = Node::with_link(link, Config::new().delivery(delivery)).unwrap();
        let to = Address::new(node.local_addr(), 1000);
        let service = node.bind(1000).unwrap();
        let client = node.client().unwrap();
        let call = client.call(to, "to itself").start().unwrap();
        let request = service.recv().unwrap();
        let idle = node.bind(1001).unwrap();
        let (idle, to_itself) = ([idle.clone(), idle], client.clone());
        let mut threads: Vec<_> = idle
            .into_iter()
            .map(|idle| thread::spawn(move || idle.recv().unwrap_err() == RecvError::NodePanicked))
            .collect();
        threads.push(thread::spawn(move || call.wait() == Err(CallError::NodePanicked)));

        panics.store(true, Ordering::Relaxed);
        threads.push(thread::spawn(move || {
            to_itself.call(to, "once more").wait() == Err(CallError::NodePanicked)
        }));
        // The thread that sent panicked, unless that was the node's own thread. The other threads get an error.
        let got_error: Vec<_> = threads.into_iter().map(thread::JoinHandle::join).collect();
        assert!(
            got_error.iter().filter(|it| it.is_err()).count() <= 1,
            "{delivery}: {got_error:?}"
        );
        assert!(got_error.iter().flatten().all(|&it| it), "{delivery}: {got_error:?}");

        assert_eq!(client.call(to, "again").wait().unwrap_err(), CallError::NodePanicked);
        assert_eq!(client.send(to, "again", 1, Flush::Now), Err(CallError::NodePanicked));
        assert_eq!(service.try_recv().map(drop), Err(RecvError::NodePanicked));
        assert_eq!(node.client().map(drop), Err(OpenError::NodePanicked));
        assert_eq!(node.close(Duration::from_secs(1)), Err(CloseError::NodePanicked));
        drop(request);
    }
}

/// Errors come by ICMP, which any host may forge.
#[test]
fn a_flood_of_errors_holds_no_turn_up() {
    let inner = UdpLink::bind("127.0.0.1:0".parse().unwrap(), &UdpConfig::default()).unwrap();
    let link = Box::new(Faulty { inner, panics: Arc::default(), errs: true });
    let node = Node::with_link(link, &Config::new()).unwrap();
    let service = node.bind(1000).unwrap();
    let to = Address::new(node.local_addr(), 1000);
    let (answered, answer) = std::sync::mpsc::channel();
    let client = node.client().unwrap();
    thread::spawn(move || service.serve(|request| drop(request.reply("answer"))));
    thread::spawn(move || answered.send(client.call(to, "request").wait()));
    let answer = answer.recv_timeout(Duration::from_secs(60)).expect("the node goes on");
    assert_eq!(answer.unwrap(), "answer");
}
