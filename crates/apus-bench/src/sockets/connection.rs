//! A connection of the ordinary program: a socket of the standard library, without Apus.

use std::hint;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process;

use anyhow::{Context, Result};
use apus_net::tcp;
use serde::{Deserialize, Serialize};

/// The type of the sockets of the program, and its way of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SocketType {
    /// TCP, blocking calls.
    Tcp,
    /// TCP, with non-blocking calls in a loop.
    TcpSpinning,
    /// A unix stream socket with an abstract name, blocking calls.
    Unix,
}

/// A socket that accepts one connection.
pub(super) enum Listener {
    Tcp(TcpListener, SocketType),
    Unix(UnixListener),
}

impl Listener {
    /// Listens on a free address. Returns the address.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn new(kind: SocketType) -> Result<(Self, String)> {
        if kind == SocketType::Unix {
            // Names of processes differ, unless two PID namespaces are involved: then the second process cannot listen.
            let name = format!("apus-bench-sockets-{}", process::id());
            let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?);
            return Ok((Self::Unix(listener.context("unix listen")?), name));
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("TCP listen")?;
        let address = listener.local_addr().context("TCP local address")?;
        Ok((Self::Tcp(listener, kind), address.to_string()))
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn accept(&self) -> io::Result<ConnectionEnd> {
        match self {
            Self::Tcp(listener, kind) => ConnectionEnd::of_tcp(listener.accept()?.0, *kind),
            Self::Unix(listener) => Ok(ConnectionEnd::of_unix(listener.accept()?.0)),
        }
    }
}

/// One end of a connection.
pub(super) struct ConnectionEnd {
    socket: Socket,
    spins: bool,
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl ConnectionEnd {
    /// Connects to the [`Listener`] at `address`.
    ///
    /// # Errors
    /// If the kernel refuses or no process listens.
    pub(super) fn new(kind: SocketType, address: &str) -> io::Result<Self> {
        if kind == SocketType::Unix {
            let address = SocketAddr::from_abstract_name(address)?;
            return Ok(Self::of_unix(UnixStream::connect_addr(&address)?));
        }
        Self::of_tcp(TcpStream::connect(address)?, kind)
    }

    fn of_tcp(stream: TcpStream, kind: SocketType) -> io::Result<Self> {
        let spins = kind == SocketType::TcpSpinning;
        stream.set_nonblocking(spins)?;
        Ok(Self { socket: Socket::Tcp(stream), spins })
    }

    fn of_unix(stream: UnixStream) -> Self {
        Self { socket: Socket::Unix(stream), spins: false }
    }

    /// Disables Nagle's algorithm on TCP.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn send_at_once(&self) -> io::Result<()> {
        match &self.socket {
            Socket::Tcp(stream) => stream.set_nodelay(true),
            Socket::Unix(_) => Ok(()),
        }
    }

    /// Ends the outgoing direction.
    ///
    /// # Errors
    /// If the connection is broken.
    pub(super) fn end(&self) -> io::Result<()> {
        match &self.socket {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }

    /// Bytes that the kernel's TCP has carried for this connection so far; `None` for a unix socket.
    ///
    /// # Errors
    /// If the kernel does not report them.
    pub(super) fn bytes_in_kernel(&self) -> io::Result<Option<u64>> {
        match &self.socket {
            Socket::Tcp(stream) => tcp::bytes_carried(stream).map(Some),
            Socket::Unix(_) => Ok(None),
        }
    }

    /// Repeats a non-blocking call until it makes progress. A blocking call is made once.
    fn until_done(
        &mut self,
        mut call: impl FnMut(&mut Socket) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            match call(&mut self.socket) {
                Err(error) if self.spins && error.kind() == ErrorKind::WouldBlock => {
                    hint::spin_loop();
                }
                done => return done,
            }
        }
    }
}

impl Read for ConnectionEnd {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.until_done(|socket| match socket {
            Socket::Tcp(stream) => stream.read(bytes),
            Socket::Unix(stream) => stream.read(bytes),
        })
    }
}

impl Write for ConnectionEnd {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.until_done(|socket| match socket {
            Socket::Tcp(stream) => stream.write(bytes),
            Socket::Unix(stream) => stream.write(bytes),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
