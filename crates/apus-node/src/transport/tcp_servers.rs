//! Kernel TCP to several servers; broken connections are opened again.

use std::net::SocketAddr;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Error, Result, bail};

use super::interface::{Client, Ended, Failed, Request};
use super::tcp_epoll::EpollClient;

/// Time between a broken or refused connection and the next attempt.
const RETRY: Duration = Duration::from_millis(100);

/// Connections to each server.
pub struct TcpClient {
    ends: Vec<SocketAddr>,
    connections: usize,
    /// The longest request of each connection but the last, if requests have a connection by their lengths.
    classes: Vec<u32>,
    /// The name of a congestion control other than the kernel's default.
    congestion: Option<String>,
    client: Result<EpollClient, Broken>,
}

/// The reason for the missing connections, and the time of the next attempt.
struct Broken {
    why: String,
    retry: Instant,
}

impl Broken {
    fn now(why: &Error) -> Self {
        Self { why: format!("{why:#}"), retry: Instant::now() + RETRY }
    }
}

impl TcpClient {
    /// Opens `connections` connections to each of the servers.
    ///
    /// # Errors
    /// If a server cannot be reached.
    pub fn connect(servers: &[SocketAddr], connections: usize) -> Result<Self> {
        Self::open(servers, connections, Vec::new())
    }

    /// Opens a connection to each of the servers for requests up to each of these lengths, which rise, and one for longer requests.
    /// Short requests then never wait behind longer ones in a connection.
    ///
    /// # Errors
    /// If a server cannot be reached.
    pub fn connect_by_length(servers: &[SocketAddr], classes: &[u32]) -> Result<Self> {
        Self::open(servers, classes.len() + 1, classes.to_vec())
    }

    fn open(servers: &[SocketAddr], connections: usize, classes: Vec<u32>) -> Result<Self> {
        let each = |server| std::iter::repeat_n(server, connections);
        let ends: Vec<SocketAddr> = servers.iter().copied().flat_map(each).collect();
        let client = Ok(EpollClient::connect(&ends)?);
        Ok(Self { ends, connections, classes, congestion: None, client })
    }

    /// The connections that a request to a server may use.
    fn places(&self, server: usize, length: u32) -> Range<usize> {
        let first = server * self.connections;
        if self.classes.is_empty() {
            return first..first + self.connections;
        }
        let place = first + self.classes.partition_point(|longest| *longest < length);
        place..place + 1
    }

    /// Opens all connections again.
    fn reopen(&self) -> Result<EpollClient> {
        let client = EpollClient::connect(&self.ends)?;
        if let Some(name) = &self.congestion {
            client.use_congestion_control(name)?;
        }
        Ok(client)
    }

    /// Sets the congestion control of all connections, also of those that replace broken ones: `cubic`, `reno`, `bbr`, …
    ///
    /// # Errors
    /// If the kernel has no algorithm of that name.
    pub fn use_congestion_control(&mut self, name: &str) -> Result<()> {
        match &self.client {
            Ok(client) => client.use_congestion_control(name)?,
            Err(broken) => bail!("{}", broken.why),
        }
        self.congestion = Some(name.to_owned());
        Ok(())
    }
}

impl Client for TcpClient {
    fn send(&mut self, server: usize, request: Request) -> Result<(), Failed> {
        let places = self.places(server, request.length);
        match &mut self.client {
            Ok(client) => {
                client.send_among(places, request);
                Ok(())
            }
            Err(broken) => Err(Failed::connection_lost(request.tag, &broken.why)),
        }
    }

    fn receive(&mut self, timeout: Duration, ended: &mut Vec<Ended>) -> Result<()> {
        let now = Instant::now();
        match &mut self.client {
            Ok(client) => {
                return client.receive_until(now + timeout, ended);
            }
            Err(broken) if now < broken.retry => thread::sleep(timeout.min(broken.retry - now)),
            Err(_) => {
                self.client = self.reopen().map_err(|why| Broken::now(&why));
            }
        }
        Ok(())
    }

    /// Drops all connections. They are opened again later.
    fn recover(&mut self, error: Error) -> Result<()> {
        self.client = Err(Broken::now(&error));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use anyhow::anyhow;

    use super::super::interface::Server;
    use super::super::tcp_epoll::EpollServer;
    use super::*;

    #[test]
    fn connections_that_replace_broken_ones_have_their_congestion_control() {
        let server = EpollServer::listen(([127, 0, 0, 1], 0).into(), Arc::default()).unwrap();
        let address = server.address().parse().unwrap();
        server.spawn().unwrap();
        let mut client = TcpClient::connect(&[address], 2).unwrap();
        client.use_congestion_control("reno").unwrap();
        client.recover(anyhow!("broken")).unwrap();
        while client.client.is_err() {
            client.receive(RETRY, &mut Vec::new()).unwrap();
        }
        let Ok(connected) = &client.client else { unreachable!("the loop has ended") };
        assert_eq!(connected.congestion_controls(), ["reno", "reno"]);
    }
}
