//! A TCP server with a thread for each connection.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

use anyhow::{Context, Result};

use super::interface::Server;

/// The server's side of the rivals that have one connection.
pub(super) struct TcpServer {
    listener: TcpListener,
    address: SocketAddr,
    serve: fn(TcpStream) -> Result<()>,
}

impl TcpServer {
    /// Listens on the loopback interface; `serve` answers a connection until it is closed.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn bind(serve: fn(TcpStream) -> Result<()>) -> Result<Self> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("TCP listen on 127.0.0.1")?;
        let address = listener.local_addr().context("TCP local address")?;
        Ok(Self { listener, address, serve })
    }
}

impl Server for TcpServer {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn run(self: Box<Self>) -> Result<Infallible> {
        loop {
            let (stream, _) = self.listener.accept().context("TCP accept")?;
            stream.set_nodelay(true).context("TCP_NODELAY")?;
            let serve = self.serve;
            // A connection that breaks ends its own thread; the client is who reports it.
            thread::spawn(move || serve(stream));
        }
    }
}
