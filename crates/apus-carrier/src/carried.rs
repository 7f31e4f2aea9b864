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
            if ready!(self.send(context))? {
                return Poll::Ready(Ok(End::There));
            }
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

    /// Ready with `false` when all frames are sent, and with `true` if the program at the other end has exited.
    fn send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        while self.sent < self.outgoing.len() {
            match ready!(self.stream.poll_write(context, &self.outgoing[self.sent..])) {
                Ok(count) => self.sent += count,
                // The other carrier drops the stream after its last frame, which may have arrived since the last read.
                Err(error) => {
                    return Poll::Ready(if self.receive(context)? { Ok(true) } else { Err(error) });
                }
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Poll::Ready(Ok(false))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::task::Waker;

    use apus::{Config, Node, StreamListener};
    use apus_shm::{PeerSegment, Segment};
    use apus_sockets::layout;

    use super::*;
    use crate::reactor::Source;

    fn channel() -> Source<ProgramChannel> {
        let (program, _) = UnixStream::pair().expect("there are descriptors");
        Source::new(ProgramChannel::new(OwnedFd::from(program))).expect("as above")
    }

    fn mirror() -> Mirror {
        let segment = || Segment::create(layout::FAR_SIZE).expect("there is memory");
        let program = segment();
        let opened = PeerSegment::open(program.descriptor(), layout::FAR_SIZE).expect("it is one");
        Mirror::new(opened, segment().into_memory(), channel(), channel())
    }

    /// Two nodes with a stream: the connecting and the accepting end.
    fn stream() -> (Stream, Stream) {
        let mut config = Config::new();
        config.listen(([127, 0, 0, 1], 0).into());
        let [one, other] = [(); 2].map(|()| Node::start(&config).expect("loopback is there"));
        let listener = StreamListener::bind(&other, 4000).expect("the port is free");
        let near = Stream::connect(&one, listener.local_addr()).expect("it listens");
        (near, listener.accept().expect("it has come").0)
    }

    #[test]
    fn a_last_frame_that_arrives_between_a_read_and_a_write_ends_the_connection() {
        let (near, mut far) = stream();
        let mut last = Vec::new();
        Frame { died: true, ..Frame::default() }.encode(&mut last);
        (&near).write_all(&[0]).expect("the peer is there");
        far.read_exact(&mut [0]).expect("as above");
        far.write_all(&last).expect("as above");
        drop(far);
        while (&near).write(&[0]).is_ok() {} // The far end never reads these bytes, so it resets the stream.
        let mut carried = Carried::new(mirror(), near);
        carried.outgoing = vec![0; 8];
        let sent = carried.send(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(sent, Poll::Ready(Ok(true))), "{sent:?}");
    }
}
