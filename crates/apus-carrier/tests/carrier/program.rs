//! A carrier, a program that introduces a connection to it, and a wait.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use apus_carrier::{Carrier, Settings, StartError};
use apus_shm::{Channel, Segment};
use apus_sockets::introduction::{Hello, Introduction, Tuple, carrier_name};
use apus_sockets::layout;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::unistd::geteuid;

/// Upper bound on waiting, which only a fault exceeds.
const FAULT_AFTER: Duration = Duration::from_secs(60);

/// Yields until a condition holds.
pub(crate) fn wait_until(condition: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < FAULT_AFTER, "{condition}: not within {FAULT_AFTER:?}");
        thread::yield_now();
    }
}

/// A running carrier at a free UDP port. It runs until the test process ends.
pub(crate) fn carrier(change: impl Fn(&mut Settings)) -> (Arc<Carrier>, u16) {
    for _ in 0..100 {
        let free = UdpSocket::bind("[::]:0").expect("there is a free port");
        // Ports of listeners end at 32767, so the system's choice is halved.
        let port = free.local_addr().expect("it is bound").port() / 2;
        drop(free);
        let mut settings = Settings { port, idle: None, ..Settings::new() };
        change(&mut settings);
        match Carrier::start(&settings) {
            Ok(carrier) => {
                let carrier = Arc::new(carrier);
                let runs = Arc::clone(&carrier);
                thread::spawn(move || runs.run());
                return (carrier, port);
            }
            Err(StartError::Node { .. } | StartError::Runs(_)) => {} // Another test has the port.
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no free port");
}

/// The unix socket of a program that has connected to the carrier at `port`.
pub(crate) fn came(port: u16) -> OwnedFd {
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None);
    let socket = socket.expect("the test has a descriptor left");
    let name = carrier_name(geteuid().as_raw(), port);
    let name = UnixAddr::new_abstract(name.as_bytes()).expect("the name is short");
    connect(socket.as_raw_fd(), &name).expect("the carrier listens");
    socket
}

/// A TCP connection with one introduced end.
pub(crate) struct Program {
    _bell: Channel,
    _channel: Channel,
    pub(crate) tuple: Tuple,
    _ends: (TcpStream, TcpStream),
}

/// The two ends of a TCP connection over loopback: the connecting one and the accepting one.
fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
    let client = TcpStream::connect(listener.local_addr().expect("it is bound"));
    (client.expect("it listens"), listener.accept().expect("it has come").0)
}

impl Program {
    /// Introduces the accepting end of a connection.
    pub(crate) fn server(port: u16) -> Self {
        let (client, server) = tcp();
        let of = |address: std::io::Result<SocketAddr>| address.expect("it is connected");
        let introduction = Introduction {
            number: 7,
            cookie: socket2::SockRef::from(&server).cookie().expect("Linux has cookies"),
            accepted: true,
            local: of(server.local_addr()),
            peer: of(server.peer_addr()),
        };
        let channel = Channel::new(came(port));
        let segment = Segment::create(layout::FAR_SIZE).expect("there is memory");
        segment.memory().word(layout::START).store(layout::MAGIC, Ordering::Release);
        let descriptors = [segment.descriptor()];
        channel.send(&introduction.to_bytes(), &descriptors).expect("the carrier is there");
        let bell = Channel::new(came(port));
        bell.send(&Hello::Bell(introduction.number).to_bytes(), &[]).expect("as above");
        Self {
            _bell: bell,
            _channel: channel,
            tuple: introduction.tuple(),
            _ends: (client, server),
        }
    }
}
