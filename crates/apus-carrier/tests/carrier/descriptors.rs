//! Descriptors that a program hands over.

use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use apus_carrier::{Request, ask};
use apus_shm::Channel;
use nix::unistd::geteuid;
use socket2::SockRef;

use crate::program::{Program, came, carrier, wait_until};

/// A connection with unread bytes, for which `close` waits.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
    let mut end = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let other = listener.accept().expect("it has come").0;
    end.set_nonblocking(true).expect("sockets can be non-blocking");
    while end.write(&[0; 1 << 16]).is_ok() {}
    SockRef::from(&end).set_linger(Some(Duration::from_secs(3_600))).expect("as above");
    (end, other)
}

/// Sends a malformed introduction with descriptors whose `close` blocks, and a second message that is not read, unless the carrier
/// has refused the first one already.
fn bring(port: u16, descriptors: usize) -> (Channel, TcpStream) {
    let channel = Channel::new(came(port));
    let (blocks, other) = lingering();
    let rights = vec![blocks.as_fd(); descriptors];
    channel.send(b"no introduction", &rights).expect("the carrier is there");
    let _ = channel.send(b"a second one", &rights);
    // It may be the last one already, if the carrier was fast.
    thread::spawn(move || drop(blocks));
    (channel, other)
}

#[test]
fn a_descriptor_whose_close_blocks_does_not_stop_a_carrier() {
    let (carrier, port) = carrier(|_| {});
    let held: Vec<_> = (1..=4).map(|descriptors| bring(port, descriptors)).collect();
    wait_until("all are refused", || carrier.status().refused.not_introduced == 4);
    let status = || ask(geteuid().as_raw(), port, Request::Status);
    wait_until("the carrier answers", || status().is_ok());
    let _program = Program::server(port);
    // Its channel and its bell.
    wait_until("a program is served", || status().is_ok_and(|status| status.guests == 2));
    // The refused programs are informed, although the closing thread may still wait for the first one.
    for (channel, _) in &held {
        let has_ended = || {
            let received = channel.receive(&mut [0]);
            received.is_err_and(|error| error.kind() != ErrorKind::WouldBlock)
        };
        wait_until("a process is informed", has_ended);
    }
    drop(held);
}
