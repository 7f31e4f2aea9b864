//! Sockets of one host: TCP on the loopback interface, or a unix socket.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdTcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{
    SocketAddr as UnixAddr, UnixListener as StdUnixListener, UnixStream as StdUnixStream,
};

use anyhow::{Context, Result};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// The kind of socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tcp,
    Unix,
}

/// A connection of either kind.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl Stream for TcpStream {}
impl Stream for UnixStream {}

/// A listening socket. Clients get the address of the TCP socket. A unix socket has that port in its abstract name, so that no file
/// is left.
pub(crate) struct Listener {
    pub(crate) tcp: StdTcpListener,
    /// Present if the unix socket is the one that listens.
    pub(crate) unix: Option<StdUnixListener>,
}

impl Listener {
    /// Listens on an address that the kernel picks.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn bind(kind: Kind) -> Result<Self> {
        let tcp = StdTcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("TCP listen")?;
        tcp.set_nonblocking(true).context("TCP non-blocking mode")?;
        let unix = match kind {
            Kind::Tcp => None,
            Kind::Unix => {
                let unix = StdUnixListener::bind_addr(&unix_address(tcp.local_addr()?)?);
                let unix = unix.context("unix socket")?;
                unix.set_nonblocking(true).context("unix socket, non-blocking mode")?;
                Some(unix)
            }
        };
        Ok(Self { tcp, unix })
    }

    /// The address for clients.
    ///
    /// # Errors
    /// If the kernel does not report it.
    pub(crate) fn address(&self) -> Result<SocketAddr> {
        self.tcp.local_addr().context("TCP local address")
    }

    /// Calls `serve` with every connection. Ends only with an error.
    ///
    /// # Errors
    /// If the kernel returns no more connections.
    pub(crate) async fn serve(self, serve: impl Fn(Box<dyn Stream>) + Send) -> Result<()> {
        match self.unix {
            Some(unix) => {
                let unix = UnixListener::from_std(unix)?;
                loop {
                    serve(Box::new(unix.accept().await?.0));
                }
            }
            None => {
                let tcp = TcpListener::from_std(self.tcp)?;
                loop {
                    let (stream, _) = tcp.accept().await?;
                    stream.set_nodelay(true)?;
                    serve(Box::new(stream));
                }
            }
        }
    }
}

/// Connects to the [`Listener`] with this address.
///
/// # Errors
/// If it does not exist.
pub(crate) async fn connect(kind: Kind, server: SocketAddr) -> io::Result<Box<dyn Stream>> {
    Ok(match kind {
        Kind::Tcp => {
            let stream = TcpStream::connect(server).await?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
        Kind::Unix => {
            let stream = StdUnixStream::connect_addr(&unix_address(server)?)?;
            stream.set_nonblocking(true)?;
            Box::new(UnixStream::from_std(stream)?)
        }
    })
}

/// The unix address that belongs to a TCP address.
fn unix_address(tcp: SocketAddr) -> io::Result<UnixAddr> {
    UnixAddr::from_abstract_name(format!("apus-rivals-{}", tcp.port()))
}
