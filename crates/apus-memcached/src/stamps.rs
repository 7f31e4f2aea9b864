//! The kernel's stamps of packets (`SO_TIMESTAMPING`): the times at which a query left and its answer arrived.
//!
//! They are taken at the same point as the stamps of packet captures. Their difference is the time of the server and of the network,
//! without the system calls and the queue of this program.

use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, RecvMsg, TimestampingFlag, recvmsg, setsockopt, sockopt,
};
use socket2::Socket;

/// Room for the control messages of one packet.
const CONTROL_SIZE: usize = 512;

/// Reads packets with their stamps.
pub(super) struct Stamps {
    control: Vec<u8>,
    /// Arrival of the last packet of the last read.
    came: Option<Duration>,
}

impl Stamps {
    pub(super) fn new() -> Self {
        Self { control: vec![0; CONTROL_SIZE], came: None }
    }

    /// Makes the kernel stamp the packets of a TCP connection.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn turn_on(socket: &Socket) -> io::Result<()> {
        let flags = TimestampingFlag::SOF_TIMESTAMPING_SOFTWARE
            | TimestampingFlag::SOF_TIMESTAMPING_TX_SOFTWARE
            | TimestampingFlag::SOF_TIMESTAMPING_RX_SOFTWARE
            | TimestampingFlag::SOF_TIMESTAMPING_OPT_TSONLY;
        Ok(setsockopt(socket, sockopt::Timestamping, &flags)?)
    }

    /// Reads like [`Read::read`](io::Read::read).
    ///
    /// # Errors
    /// The errors of `read`.
    pub(super) fn read(&mut self, socket: &Socket, bytes: &mut [u8]) -> io::Result<usize> {
        let mut parts = [IoSliceMut::new(bytes)];
        let control = Some(&mut self.control[..]);
        let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, control, MsgFlags::empty())?;
        let (read, came) = (message.bytes, stamp(&message));
        self.came = came;
        Ok(read)
    }

    /// The time from the last written packet to the last read one, if the kernel has stamped both.
    pub(super) fn between(&mut self, socket: &Socket) -> Option<Duration> {
        let mut left = None;
        loop {
            let control = Some(&mut self.control[..]);
            match recvmsg::<()>(socket.as_raw_fd(), &mut [], control, MsgFlags::MSG_ERRQUEUE) {
                Ok(message) => left = stamp(&message).or(left),
                Err(Errno::EINTR) => {}
                Err(_) => break, // The queue is empty.
            }
        }
        self.came.take()?.checked_sub(left?)
    }
}

/// The stamp of a message, as time since 1970.
fn stamp(message: &RecvMsg<'_, '_, ()>) -> Option<Duration> {
    let mut messages = message.cmsgs().ok()?;
    let of_software = messages.find_map(|it| match it {
        ControlMessageOwned::ScmTimestampsns(stamps) => Some(stamps.system),
        _ => None,
    });
    of_software.map(Duration::from).filter(|stamp| !stamp.is_zero())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_time_between_two_packets_is_within_that_of_the_calls() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client: Socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap().into();
        let mut server = listener.accept().unwrap().0;
        Stamps::turn_on(&client).unwrap();
        let mut stamps = Stamps::new();
        let mut bytes = [0; 10];
        // The kernel begins to stamp shortly after the first socket has asked for it.
        for _ in 0..1_000_000 {
            let start = std::time::Instant::now();
            client.write_all(b"query").unwrap();
            server.read_exact(&mut bytes[..5]).unwrap();
            server.write_all(b"answer").unwrap();
            assert_eq!(stamps.read(&client, &mut bytes).unwrap(), 6);
            let between = stamps.between(&client);
            assert!(between.is_none_or(|between| between <= start.elapsed()));
            if between.is_some() {
                assert_eq!(stamps.between(&client), None, "each stamp is reported once");
                return;
            }
        }
        panic!("the kernel stamps nothing");
    }
}
