//! Processes at a node's unix socket that are not its neighbours.

mod pair;
mod program;

use std::fs;
use std::future::IntoFuture as _;
use std::io::{ErrorKind, IoSlice, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use apus::{Address, Client, Delivery, EngineAccess, Node};
use apus_shm::{Listener, Place};
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind,
    connect, listen, recv, send, sendmsg, setsockopt, socket, sockopt,
};
use pair::engine::{Directory, Engine, attached};
use pair::liar::Liar;
use pair::{PORT, wait_until};
use program::{PLACE, Program, forbid_starts, is_in_place, patient, play_role};

#[test]
#[ignore = "it is a process of other tests"]
fn role() {
    play_role();
}

fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// The name of the unix socket of a node.
fn name(node: SocketAddr) -> UnixAddr {
    UnixAddr::new_abstract(format!("apus/1/{node}").as_bytes()).unwrap()
}

fn new_socket() -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap()
}

/// Connects to a node's unix socket as soon as it has room.
fn connect_to(node: SocketAddr) -> OwnedFd {
    let socket = new_socket();
    wait_until("the node accepts", || match connect(socket.as_raw_fd(), &name(node)) {
        Ok(()) => true,
        Err(Errno::EAGAIN) => false,
        Err(error) => panic!("{error}"),
    });
    socket
}

/// An unused address.
fn free() -> SocketAddr {
    UdpSocket::bind(anywhere()).unwrap().local_addr().unwrap()
}

#[test]
fn a_stranger_that_has_the_name_of_a_node_learns_a_nonce() {
    for delivery in [Delivery::default(), "base".parse().unwrap()] {
        let address = free();
        let squatter = Listener::bind(&Place::Namespace(address)).unwrap();
        let server = Node::start(&patient(address)).unwrap();
        let service = server.bind(PORT).unwrap();
        let serving = pair::serve_echo(&service);
        let node = Node::start(patient(anywhere()).delivery(delivery)).unwrap();
        let client = node.client().unwrap();
        let address = Address::new(address, PORT);
        assert_eq!(client.call(address, "secret").wait().unwrap(), "secret");
        let mut met = squatter.accept([1, 2]).unwrap();
        wait_until("the nonce comes", || met.theirs().unwrap().is_some());
        assert_eq!(client.call(address, "secret").wait().unwrap(), "secret");
        wait_until("the stranger is given up", || node.stats().memory.meetings_failed == 1);
        let rest = recv(met.into_socket().as_raw_fd(), &mut [0; 64], MsgFlags::empty());
        assert_eq!(rest, Ok(0), "the end follows the nonce");
        assert_eq!(node.stats().memory.pairs_met + server.stats().memory.pairs_met, 0);
        service.shutdown();
        serving.join().unwrap();
    }
}

#[test]
fn a_connect_waits_for_memory_until_its_deadline() {
    let address = free();
    let squatter = Listener::bind(&Place::Namespace(address)).unwrap();
    let server = Node::start(&patient(address)).unwrap();
    let service = server.bind(PORT).unwrap();
    let serving = pair::serve_echo(&service);
    let address = Address::new(address, PORT);
    let tasks = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for awaits in [false, true] {
        let node = Node::start(&patient(anywhere())).unwrap();
        let client = node.client().unwrap();
        // The node is known afterwards, and the stranger is being met.
        assert_eq!(client.call(address, "hello").wait().unwrap(), "hello");
        let connect = client.connect(address).deadline(Duration::from_millis(2));
        let connected = if awaits { tasks.block_on(connect.into_future()) } else { connect.wait() };
        assert_eq!(connected, Ok(()));
        assert_eq!(node.stats().memory.pairs_met, 0);
    }
    drop(squatter);
    service.shutdown();
    serving.join().unwrap();
}

/// Passes messages on between two sockets until one of them is closed.
fn forward(ends: [RawFd; 2]) {
    let mut message = [0; 64];
    loop {
        for (from, to) in [(ends[0], ends[1]), (ends[1], ends[0])] {
            match recv(from, &mut message, MsgFlags::MSG_DONTWAIT) {
                Ok(0) | Err(Errno::ECONNRESET) => return,
                Ok(length) => _ = send(to, &message[..length], MsgFlags::MSG_NOSIGNAL),
                Err(_) => thread::yield_now(),
            }
        }
    }
}

#[test]
fn a_stranger_between_two_nodes_is_found_out() {
    // The node's own name is the name of the unspecified address.
    let address = free();
    let squatter = new_socket();
    bind(squatter.as_raw_fd(), &name(address)).unwrap();
    listen(&squatter, Backlog::new(16).unwrap()).unwrap();
    let everywhere = SocketAddr::from(([0, 0, 0, 0], address.port()));
    let server = Node::start(&patient(everywhere)).unwrap();
    let service = server.bind(PORT).unwrap();
    let serving = pair::serve_echo(&service);
    thread::scope(|scope| {
        let between = scope.spawn(|| {
            let mut client = Err(Errno::EAGAIN);
            wait_until("the client connects", || {
                client = accept(squatter.as_raw_fd());
                client.is_ok()
            });
            let server = connect_to(everywhere);
            forward([client.unwrap(), server.as_raw_fd()]);
        });
        let node = Node::start(&patient(anywhere())).unwrap();
        let client = node.client().unwrap();
        let address = Address::new(address, PORT);
        wait_until("the node finds the stranger out", || {
            assert_eq!(client.call(address, "secret").wait().unwrap(), "secret");
            server.stats().memory.meetings_failed > 0
        });
        wait_until("the client gives up", || node.stats().memory.meetings_failed > 0);
        assert_eq!(node.stats().memory.pairs_met + server.stats().memory.pairs_met, 0);
        between.join().unwrap();
    });
    service.shutdown();
    serving.join().unwrap();
}

/// A node in this process that shares memory with a server process.
fn meet(server: &Program) -> (Node, Address) {
    let address = Address::new(server.line().parse().unwrap(), PORT);
    let node = Node::start(&patient(anywhere())).unwrap();
    node.client().unwrap().connect(address).wait().unwrap();
    wait_until("memory is shared", || node.stats().memory.pairs_met == 1);
    (node, address)
}

#[test]
fn strangers_that_connect_leave_nothing_behind() {
    let mut server = Program::start("server 127.0.0.1:0");
    let (node, address) = meet(&server);
    let client = node.client().unwrap();
    wait_until("the server knows it", || server.report().pairs_met == 1);
    let before = server.report();
    let nonce = [b'N'; 17];
    let flags = MsgFlags::MSG_NOSIGNAL;
    let mut strangers = Vec::new();
    for round in 0..1_000 {
        let stranger = connect_to(address.host);
        match round % 5 {
            0 => {}
            1 => _ = send(stranger.as_raw_fd(), b"garbage", flags),
            2 => (0..100).for_each(|_| _ = send(stranger.as_raw_fd(), &nonce, flags)),
            3 => {
                let rights = [stranger.as_raw_fd(); 200];
                let control = [ControlMessage::ScmRights(&rights)];
                let bytes = [IoSlice::new(&nonce)];
                let _ = sendmsg::<UnixAddr>(stranger.as_raw_fd(), &bytes, &control, flags, None);
            }
            _ => {
                send(stranger.as_raw_fd(), &nonce, flags).unwrap();
                let _ = send(stranger.as_raw_fd(), &[b'x'; 10_000], flags);
            }
        }
        if round % 100 == 0 {
            assert_eq!(client.call(address, "goes on").wait().unwrap(), "goes on");
        }
        if round % 2 == 0 {
            strangers.push(stranger); // It is kept until the node gives it up.
        }
    }
    wait_until("all are given up", || server.report().descriptors == before.descriptors);
    let after = server.report();
    assert_eq!((after.mappings, after.pairs_met), (before.mappings, 1));
    assert!(after.meetings_failed <= 1_000, "{after:?}: each is counted once");
    assert_eq!(client.call(address, "goes on").wait().unwrap(), "goes on");
    assert_eq!(node.stats().memory.pairs_ended, 0);
}

#[test]
fn strangers_that_stay_take_few_descriptors() {
    let mut server = Program::start("server 127.0.0.1:0");
    let (node, address) = meet(&server);
    assert_eq!(
        node.client().unwrap().call(address, "all threads run").wait().unwrap(),
        "all threads run"
    );
    let before = server.report();
    let strangers: Vec<_> = (0..500)
        .map(|_| {
            let stranger = connect_to(address.host);
            send(stranger.as_raw_fd(), &[b'N'; 17], MsgFlags::MSG_NOSIGNAL).unwrap();
            stranger
        })
        .collect();
    let report = server.report();
    assert!(report.descriptors < before.descriptors + 40, "{before:?} {report:?}");
    wait_until("all are given up", || server.report().descriptors == before.descriptors);
    let failed = server.report().meetings_failed;
    assert_eq!(failed, strangers.len() as u64, "each is counted once");
}

#[test]
fn bodies_of_another_user_are_copied() {
    let long = format!("{PLACE}{}", "x".repeat(300_000));
    for (user, expected) in [(None, "in place"), (Some(1_000), "copied"), (Some(65_534), "copied")]
    {
        let started = match user {
            None => Some(Program::start("server 127.0.0.1:0")),
            Some(user) => Program::start_as(user, "server 127.0.0.1:0"),
        };
        let Some(server) = started else { return };
        let (node, address) = meet(&server);
        let client = node.client().unwrap();
        let before = node.stats().link.packets_sent;
        assert_eq!(client.call(address, long.clone()).wait().unwrap(), expected, "{user:?}");
        let answer = client.call(address, long[PLACE.len()..].to_owned()).wait().unwrap();
        assert_eq!(is_in_place(&answer), user.is_none(), "{user:?}");
        assert_eq!(node.stats().link.packets_sent, before, "all goes through memory");
    }
}

#[test]
fn a_process_of_another_user_uses_an_engine_as_far_as_it_may() {
    let long = format!("{PLACE}{}", "x".repeat(300_000));
    for (user, mode, forbidden, expected) in [
        (0, 0o600, false, Ok("in place")),
        (65_534, 0o666, false, Ok("copied")),
        (65_534, 0o666, true, Err("does not let this user open port 4000")),
        (65_534, 0o600, false, Err("Permission denied")),
    ] {
        let directory = Directory::new();
        let mut access = EngineAccess::new(&directory.socket());
        access.mode(mode);
        if forbidden {
            access.ports(PORT..=PORT, &[0]);
        }
        let engine = Engine::with(&access, &patient(anywhere()));
        let role = format!("server {}", directory.socket().display());
        let Some(server) = Program::start_as(user, &role) else { return };
        let said = server.line();
        let place = match expected {
            Ok(place) => place,
            Err(error) => {
                assert!(said.contains(error), "{said}");
                continue;
            }
        };
        assert_eq!(engine.shared.processes()[0].uid, user);
        let process = Node::start(&attached(&directory.socket())).unwrap();
        let client = process.client().unwrap();
        let address = Address::new(said.parse().unwrap(), PORT);
        assert_eq!(client.call(address, long.clone()).wait().unwrap(), place, "{user}");
        let body = long[PLACE.len()..].to_owned();
        assert_eq!(client.call(address, body.clone()).wait().unwrap(), body);
    }
}

#[test]
fn only_users_that_are_named_attach_to_an_engine() {
    const OTHER: u32 = 65_534;
    let directory = Directory::new();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let own = nix::unistd::geteuid().as_raw();
    let mut access = EngineAccess::new(&directory.socket());
    let engine = Engine::with(access.users(&[own]), &patient(anywhere()));
    let _node = Node::start(&attached(&directory.socket())).unwrap();
    let role = format!("server {}", directory.socket().display());
    let Some(refused) = Program::start_as(OTHER, &role) else { return };
    let said = refused.line();
    assert!(said.contains("shared engine at"), "{said}");
    assert_eq!(engine.shared.refused_processes(), [1, 0]);
    assert_eq!(engine.shared.processes().len(), 1);

    // The list of permitted users may grow.
    assert_eq!(engine.shared.set_access(access.users(&[own, OTHER])).unwrap(), 0);
    let Some(server) = Program::start_as(OTHER, &role) else { return };
    let said = server.line();
    assert!(said.parse::<SocketAddr>().is_ok(), "{said}");
    assert_eq!(engine.shared.processes().len(), 2);
    // A user that is removed from the list is detached.
    assert_eq!(engine.shared.set_access(access.users(&[own]).mode(0o600)).unwrap(), 1);
    wait_until("the other one is detached", || engine.shared.processes().len() == 1);
    assert_eq!(engine.shared.processes()[0].uid, own);
    let mode = fs::metadata(directory.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn nodes_of_other_network_namespaces_are_not_found_by_name() {
    let Some(mut server) = Program::start_apart("server 127.0.0.1:0") else { return };
    let address = server.line();
    let node = Node::start(&patient(anywhere())).unwrap();
    let address = Address::new(address.parse().unwrap(), PORT);
    let error = node.client().unwrap().call(address, "who is there").wait().unwrap_err();
    assert!(matches!(error, apus::CallError::PeerUnreachable { .. }), "{error}");
    let memory = node.stats().memory;
    assert_eq!((memory.pairs_met, memory.meetings_failed), (0, 0));
    let report = server.report();
    assert_eq!((report.pairs_met, report.meetings_failed), (0, 0));
}

/// A TCP socket whose `close` sleeps until the other one is closed.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind(anywhere()).unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 1 << 16]).map_err(|error| error.kind()) != Err(ErrorKind::WouldBlock) {}
    let hour = libc::linger { l_onoff: 1, l_linger: 3_600 };
    setsockopt(&socket, sockopt::Linger, &hour).unwrap();
    (socket.into(), other)
}

/// Sends a message with descriptors whose `close` sleeps, and of which no other copy exists. Returns their other ends, or nothing
/// if the kernel refuses them for the receiver.
fn pass(socket: RawFd, message: &[u8], count: usize) -> Vec<TcpStream> {
    let (passed, others): (Vec<_>, Vec<_>) = (0..count).map(|_| lingering()).unzip();
    let raw: Vec<_> = passed.iter().map(AsRawFd::as_raw_fd).collect();
    let control = [ControlMessage::ScmRights(&raw)];
    let bytes = [IoSlice::new(message)];
    let flags = MsgFlags::MSG_NOSIGNAL;
    match sendmsg::<UnixAddr>(socket, &bytes, &control, flags, None) {
        Ok(_) => {
            // The thread that closes the last copy sleeps; this thread must not.
            thread::spawn(|| drop(passed));
            others
        }
        Err(Errno::EPERM) => {
            drop(others); // Their close must not sleep here.
            Vec::new()
        }
        Err(error) => panic!("{error}"),
    }
}

/// Asserts that calls succeed in spite of a stranger.
fn goes_on(client: &Client, to: Address) {
    let (client, (done, answered)) = (client.clone(), mpsc::channel());
    thread::spawn(move || done.send(client.call(to, "goes on").wait()));
    let answer = answered.recv_timeout(pair::FAULT_AFTER).expect("a stranger stops the node");
    assert_eq!(answer.unwrap(), "goes on");
}

#[test]
fn a_descriptor_whose_close_sleeps_stops_no_node() {
    let _alone = forbid_starts(); // Such descriptors are also counted for the whole process.
    let server = Node::start(&patient(anywhere())).unwrap();
    let service = server.bind(PORT).unwrap();
    let serving = pair::serve_echo(&service);
    let node = Node::start(&patient(anywhere())).unwrap();
    let client = node.client().unwrap();
    let to = Address::new(server.local_addr(), PORT);
    goes_on(&client, to);
    let mut kept = Vec::new();
    // Descriptors at the listener of a node: with the nonce, and after it.
    for round in 0..20 {
        let stranger = connect_to(server.local_addr());
        if round % 2 == 0 {
            send(stranger.as_raw_fd(), &[b'N'; 17], MsgFlags::MSG_NOSIGNAL).unwrap();
        }
        kept.extend(pass(stranger.as_raw_fd(), &[b'N'; 17], 1 + round % 3));
        goes_on(&client, to);
    }
    // Descriptors at the other end of a connection that a node has made.
    for round in 0..4 {
        let address = free();
        let squatter = Listener::bind(&Place::Namespace(address)).unwrap();
        let failed = node.stats().memory.meetings_failed;
        let _call = client.call(Address::new(address, PORT), "nobody is there").start().unwrap();
        let mut met = None;
        wait_until("the node connects", || {
            met = squatter.accept([1, 2]).ok();
            met.is_some()
        });
        let met = met.unwrap().into_socket();
        kept.extend(pass(met.as_raw_fd(), b"O", 1 + round % 3));
        drop(met);
        goes_on(&client, to);
        wait_until("it is given up", || node.stats().memory.meetings_failed > failed);
        goes_on(&client, to);
    }
    drop(kept);
    service.shutdown();
    serving.join().unwrap();
}

#[test]
fn a_descriptor_whose_close_sleeps_stops_no_engine() {
    let _alone = forbid_starts(); // Such descriptors are also counted for the whole process.
    let directory = Directory::new();
    let engine = Engine::with(&EngineAccess::new(&directory.socket()), &patient(anywhere()));
    let [server, node] = [(); 2].map(|()| Node::start(&attached(&directory.socket())).unwrap());
    let service = server.bind(PORT).unwrap();
    let serving = pair::serve_echo(&service);
    let client = node.client().unwrap();
    let to = Address::new(server.local_addr(), PORT);
    goes_on(&client, to);
    let mut kept = Vec::new();
    // Processes that connect, with an offer of more than memory, or of something else.
    for round in 0..6 {
        let stranger = pair::liar::offer(&directory.socket());
        let socket = stranger.descriptor().as_raw_fd();
        kept.extend(pass(socket, b"O", 1 + round % 3));
        drop(stranger);
        goes_on(&client, to);
        let stranger = connect_to_engine(&directory);
        kept.extend(pass(stranger.as_raw_fd(), b"O", 1 + round % 3));
        goes_on(&client, to);
    }
    // Processes that use the engine.
    for round in 0..6 {
        let liar = Liar::attach(&directory.socket());
        kept.extend(pass(liar.pair.descriptor().as_raw_fd(), b"P", 1 + round % 3));
        wait_until("it is ended", || engine.shared.processes().len() == 2);
        goes_on(&client, to);
    }
    drop(kept);
    service.shutdown();
    serving.join().unwrap();
}

/// Connects to an engine as soon as it has room.
fn connect_to_engine(directory: &Directory) -> OwnedFd {
    let mut connected = None;
    wait_until("the engine lets it in", || {
        connected = apus_shm::connect_to(&Place::File(directory.socket())).ok();
        connected.is_some()
    });
    connected.unwrap()
}
