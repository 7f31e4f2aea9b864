//! Byte streams of the kernel between two processes of one host: TCP over the loopback interface, and unix sockets.

use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};

use anyhow::{Context, Result};
use apus_node::transport::tcp_epoll::connect_tcp;
use socket2::{Domain, SockAddr, Socket, Type};

/// Upper bound on connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// The domain of a stream socket.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SocketDomain {
    Tcp,
    /// A unix socket with an abstract name, which leaves no file.
    Unix,
}

impl SocketDomain {
    /// Listens on a free address. Returns the address.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn listen(self) -> Result<(Socket, String)> {
        match self {
            Self::Tcp => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("TCP listen")?;
                let address = listener.local_addr().context("TCP local address")?;
                Ok((listener.into(), address.to_string()))
            }
            Self::Unix => listen_unix().context("unix listen"),
        }
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn accept(self, listener: &Socket) -> Result<Socket> {
        let (stream, _) = listener.accept().context("accept")?;
        if let Self::Tcp = self {
            stream.set_tcp_nodelay(true).context("TCP_NODELAY")?;
        }
        Ok(stream)
    }

    /// Connects to the server that [listens](Self::listen) at `address`.
    ///
    /// # Errors
    /// If the kernel or the server refuses, or no process listens.
    pub(super) fn connect(self, address: &str) -> Result<Socket> {
        match self {
            Self::Tcp => connect_tcp(address.parse().context(address.to_owned())?),
            Self::Unix => {
                let connect = || {
                    let name = address.strip_prefix(ABSTRACT).unwrap_or_default();
                    UnixStream::connect_addr(&UnixAddr::from_abstract_name(name)?)
                };
                Ok(connect().with_context(|| format!("unix connect to {address}"))?.into())
            }
        }
    }
}

/// The character that stands for the zero byte in front of an abstract name, as in `ss` and `/proc/net/unix`.
const ABSTRACT: char = '@';

/// Listens on a name that the kernel picks, because the socket is bound to an empty one.
fn listen_unix() -> Result<(Socket, String)> {
    let listener = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    listener.bind(&SockAddr::unix("")?)?;
    listener.listen(BACKLOG)?;
    let address = listener.local_addr()?;
    let name = address.as_abstract_namespace().context("the kernel assigned no name")?;
    Ok((listener, format!("{ABSTRACT}{}", str::from_utf8(name)?)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_client_finds_the_server() {
        for domain in [SocketDomain::Tcp, SocketDomain::Unix] {
            let (listener, address) = domain.listen().unwrap();
            let mut client = domain.connect(&address).unwrap();
            let mut server = domain.accept(&listener).unwrap();
            client.write_all(b"x").unwrap();
            let mut byte = [0];
            server.read_exact(&mut byte).unwrap();
            assert_eq!(byte, *b"x", "{address}");
        }
    }
}
