//! Addresses of servers.

use std::fmt;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::Socket;

use apus_load::misuse::Misuse;

/// Time within which a server must accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Prefix of the path of a unix socket.
pub(super) const UNIX: &str = "unix:";

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl ServerAddress {
    /// Parses the address of an argument, and resolves the host.
    ///
    /// # Errors
    /// [`Misuse`] if it is malformed; otherwise if the host is unknown.
    pub(super) fn find(text: &str) -> Result<Self> {
        if let Some(path) = text.strip_prefix(UNIX).filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        if text
            .rsplit_once(':')
            .is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err())
        {
            return Err(Misuse(format!("'{text}': expected HOST:PORT or {UNIX}PATH")).into());
        }
        let mut found = text.to_socket_addrs().with_context(|| format!("'{text}'"))?;
        found.next().map(Self::Tcp).with_context(|| format!("'{text}': no such host"))
    }

    /// Opens a non-blocking connection. TCP sends every write at once (`TCP_NODELAY`).
    ///
    /// # Errors
    /// If the kernel or the server refuses, or the server does not answer.
    pub(super) fn connect(&self) -> Result<Socket> {
        let connect = || {
            let socket: Socket = match self {
                Self::Tcp(address) => {
                    let stream = TcpStream::connect_timeout(address, CONNECT_TIMEOUT)?;
                    stream.set_nodelay(true)?;
                    stream.into()
                }
                Self::Unix(path) => UnixStream::connect(path)?.into(),
            };
            socket.set_nonblocking(true)?;
            Ok::<_, std::io::Error>(socket)
        };
        connect().with_context(|| format!("cannot connect to {self}"))
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_with_a_port_or_a_path() {
        let tcp = ServerAddress::Tcp(([127, 0, 0, 1], 11211).into());
        assert_eq!(ServerAddress::find("127.0.0.1:11211").unwrap(), tcp);
        assert_eq!(tcp.to_string(), "127.0.0.1:11211");
        let unix = ServerAddress::find("unix:/tmp/x").unwrap();
        assert_eq!(
            (unix.to_string().as_str(), unix),
            ("unix:/tmp/x", ServerAddress::Unix("/tmp/x".into()))
        );
        for wrong in ["localhost", ":11211", "localhost:x", "unix:", "localhost:99999"] {
            assert!(ServerAddress::find(wrong).unwrap_err().is::<Misuse>(), "{wrong}");
        }
    }
}
