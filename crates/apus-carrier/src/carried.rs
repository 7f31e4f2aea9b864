//! A carried connection: a program of this host, and the stream to the carrier of the other host.

use std::io;
use std::task::{Context, Poll, ready};

use apus::Stream;
use apus_sockets::introduction::LEAVE;

use crate::frame::Frame;
use crate::mirror::Mirror;
use crate::program::ProgramChannel;

/// Bytes of frame buffer that an idle connection keeps in each direction.
const KEPT: usize = 16 << 10;

/// The end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// The program of this host has exited, and the other carrier is informed.
    Here,
    /// The program of the other host has exited.
    There,
}

/// A connection between a program and a stream.
pub(crate) struct Carried {
    mirror: Mirror,
    stream: Stream,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    sent: usize,
    /// Whether the program has asked its peer to follow.
    asks: bool,
    /// Whether the program has exited, or has returned to TCP for good.
    died: bool,
    /// Whether the frame that reports the exit was put into `outgoing`. No other frame follows it.
    exit_reported: bool,
}

impl Carried {
    pub(crate) fn new(mirror: Mirror, stream: Stream) -> Self {
        let (incoming, outgoing) = (Vec::new(), Vec::new());
        Self {
            mirror,
            stream,
            incoming,
            outgoing,
            sent: 0,
            asks: false,
            died: false,
            exit_reported: false,
        }
    }

    /// Asks the program to return the connection to TCP for good. Returns `false` if its socket accepts no message now.
    pub(crate) fn ask_to_leave(&self) -> bool {
        self.mirror.channel.get().send(&[LEAVE], &[]).is_ok()
    }

    /// Moves data in both directions. Ready when the connection has ended. Fails if the other carrier is lost, or if an end
    /// violated the protocol.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<End>> {
        self.mirror.withdraw();
        loop {
            if !self.exit_reported {
                if self.receive(context)? {
                    return Poll::Ready(Ok(End::There));
                }
                self.check(context)?;
                self.died |= self.mirror.has_left(); // It needs nothing more, as after its exit.
                self.look()?;
            }
            ready!(self.send(context))?;
            if self.exit_reported {
                // The other program may have exited as well, and its carrier may no longer read.
                let _ = ready!(self.stream.poll_close(context));
                return Poll::Ready(Ok(End::Here));
            }
            self.mirror.ask_to_ring();
            self.look()?;
            if self.outgoing.is_empty() {
                self.outgoing.shrink_to(KEPT);
                self.incoming.shrink_to(KEPT);
                return Poll::Pending;
            }
            self.mirror.withdraw();
        }
    }

    /// Shows arrived data to the program. Returns `true` if the program at the other end has exited.
    fn receive(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        let mut buffer = [0; 16 << 10];
        while let Poll::Ready(count) = self.stream.poll_read(context, &mut buffer)? {
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.incoming.extend_from_slice(&buffer[..count]);
            let mut done = 0;
            while let Some((frame, start)) =
                Frame::decode(&self.incoming[done..]).map_err(io::Error::other)?
            {
                let end = done + start + frame.length;
                self.mirror.show(&frame, &self.incoming[done + start..end]);
                done = end;
                if frame.died {
                    return Ok(true);
                }
            }
            self.incoming.drain(..done);
        }
        Ok(false)
    }

    /// Handles bells and messages of the program.
    fn check(&mut self, context: &Context<'_>) -> io::Result<()> {
        while let Poll::Ready(Ok(())) = self.mirror.bell.poll(context, ProgramChannel::check) {}
        loop {
            let received = self.mirror.channel.poll(context, ProgramChannel::check);
            match received {
                Poll::Ready(Ok(())) => self.asks = true,
                Poll::Ready(Err(_)) => {
                    self.died = true;
                    return Ok(());
                }
                Poll::Pending => return Ok(()),
            }
        }
    }

    /// Reads the program's changes, if all earlier changes are sent.
    fn look(&mut self) -> io::Result<()> {
        if !self.outgoing.is_empty() || self.exit_reported {
            return Ok(());
        }
        let looked = self.mirror.look(self.asks, self.died, &mut self.outgoing);
        (self.asks, self.exit_reported) = (false, self.died);
        looked.map_err(io::Error::other)
    }

    /// Ready when all frames are sent.
    fn send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.outgoing.len() {
            self.sent += ready!(self.stream.poll_write(context, &self.outgoing[self.sent..]))?;
        }
        self.outgoing.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }
}
