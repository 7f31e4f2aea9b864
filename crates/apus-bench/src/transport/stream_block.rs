//! Byte streams as most programs use them: blocking calls on one connection, with a server thread for each.

use std::io::{ErrorKind, Read};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use socket2::Socket;

use super::stream_socket::SocketDomain;
use apus_node::transport::interface::{Client, Ended, Failed, Request};
use apus_node::transport::stream_frames::{FrameReader, FrameWriter, READ_SIZE};

/// The client's side.
///
/// Requests must fit the socket buffers while replies wait to be read. With echoes of several long messages both sides could block
/// in `write`, so the benchmarks use this with short replies or one call at a time.
pub(crate) struct BlockingClient {
    stream: Socket,
    reader: FrameReader,
    writer: FrameWriter,
    incoming: Vec<u8>,
    read_timeout: Duration,
}

impl BlockingClient {
    /// Connects to the server at `server`.
    ///
    /// # Errors
    /// If the kernel or the server refuses.
    pub(crate) fn connect(domain: SocketDomain, server: &str) -> Result<Self> {
        Ok(Self {
            stream: domain.connect(server)?,
            reader: FrameReader::default(),
            writer: FrameWriter::default(),
            incoming: vec![0; READ_SIZE],
            read_timeout: Duration::ZERO,
        })
    }
}

impl Client for BlockingClient {
    fn send(&mut self, _: usize, request: Request) -> Result<(), Failed> {
        self.writer.push(request.header());
        Ok(())
    }

    fn receive(&mut self, timeout: Duration, ended: &mut Vec<Ended>) -> Result<()> {
        self.writer.write_all(&self.stream).context("socket write")?;
        if timeout != self.read_timeout {
            self.stream.set_read_timeout(Some(timeout)).context("receive timeout")?;
            self.read_timeout = timeout;
        }
        let before = ended.len();
        while ended.len() == before {
            let bytes = match self.stream.read(&mut self.incoming) {
                Ok(bytes) => bytes,
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(());
                }
                Err(e) => return Err(e).context("socket read"),
            };
            ensure!(bytes > 0, "the server closed the connection");
            self.reader.take(&self.incoming[..bytes], |header| {
                ended.push(Ok(header.into()));
            })?;
        }
        Ok(())
    }
}

/// Answers one connection until the client closes it.
///
/// # Errors
/// If the connection breaks.
pub(super) fn serve(mut stream: Socket) -> Result<()> {
    let mut reader = FrameReader::default();
    let mut writer = FrameWriter::default();
    let mut incoming = vec![0; READ_SIZE];
    loop {
        let bytes = stream.read(&mut incoming).context("socket read")?;
        if bytes == 0 {
            return Ok(());
        }
        reader.take(&incoming[..bytes], |header| writer.push(header.answer(header.length)))?;
        writer.write_all(&stream).context("socket write")?;
    }
}
