//! Busy-polled byte streams: one connection, and both sides spin on non-blocking reads. The lowest latency of TCP and unix sockets.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use socket2::Socket;

use super::stream_socket::SocketDomain;
use apus_node::transport::interface::{Client, Ended, Failed, Request};
use apus_node::transport::stream_frames::{READ_SIZE, WRITE_SIZE};
use apus_node::transport::tcp_epoll::{FramedStream, write_limit};

/// Reads between two readings of the clock.
const SPINS_PER_CLOCK: u32 = 16;

/// The client's side.
pub(crate) struct PollingClient {
    connection: FramedStream,
    scratch: Vec<u8>,
}

impl PollingClient {
    /// Connects to the server at `server`.
    ///
    /// # Errors
    /// If the kernel or the server refuses.
    pub(crate) fn connect(domain: SocketDomain, server: &str) -> Result<Self> {
        Ok(Self {
            connection: FramedStream::new(domain.connect(server)?)?,
            scratch: vec![0; READ_SIZE],
        })
    }
}

impl Client for PollingClient {
    fn send(&mut self, _: usize, request: Request) -> Result<(), Failed> {
        self.connection.writer.push(request.header());
        Ok(())
    }

    fn receive(&mut self, timeout: Duration, ended: &mut Vec<Ended>) -> Result<()> {
        let before = ended.len();
        let mut deadline = None;
        for spins in 1_u32.. {
            self.connection.write(write_limit(timeout))?;
            let open = self.connection.read(&mut self.scratch, |_, header| {
                ended.push(Ok(header.into()));
            })?;
            ensure!(open, "the server closed the connection");
            if timeout.is_zero() || ended.len() > before {
                break;
            }
            if spins.is_multiple_of(SPINS_PER_CLOCK) {
                let now = Instant::now();
                if now >= *deadline.get_or_insert(now + timeout) {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// Answers one connection until the client closes it.
///
/// # Errors
/// If the connection breaks.
pub(super) fn serve(stream: Socket) -> Result<()> {
    let mut connection = FramedStream::new(stream)?;
    let mut scratch = vec![0; READ_SIZE];
    while answer(&mut connection, &mut scratch)? {}
    Ok(())
}

/// Reads the connection once and answers the requests. Returns `false` if the connection is closed.
fn answer(connection: &mut FramedStream, scratch: &mut [u8]) -> Result<bool> {
    let open =
        connection.read(scratch, |writer, header| writer.push(header.answer(header.length)))?;
    connection.write(WRITE_SIZE)?;
    Ok(open)
}
