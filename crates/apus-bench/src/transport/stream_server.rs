//! A server of byte streams with a thread for each connection.

use std::convert::Infallible;
use std::thread;

use anyhow::Result;
use socket2::Socket;

use super::stream_socket::SocketDomain;
use apus_node::transport::interface::Server;

/// The server's side of the rivals with one connection.
pub(super) struct StreamServer {
    domain: SocketDomain,
    listener: Socket,
    address: String,
    serve: fn(Socket) -> Result<()>,
}

impl StreamServer {
    /// Listens on this host. `serve` answers a connection until it is closed.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn bind(domain: SocketDomain, serve: fn(Socket) -> Result<()>) -> Result<Self> {
        let (listener, address) = domain.listen()?;
        Ok(Self { domain, listener, address, serve })
    }
}

impl Server for StreamServer {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn run(self: Box<Self>) -> Result<Infallible> {
        loop {
            let stream = self.domain.accept(&self.listener)?;
            let serve = self.serve;
            // A broken connection ends its own thread; the client reports it.
            thread::spawn(move || serve(stream));
        }
    }
}
