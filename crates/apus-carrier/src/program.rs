//! The unix socket of a program, and its messages.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use apus_shm::closer::close_elsewhere;
use apus_shm::{Channel, Memory, PeerSegment, Segment};
use apus_sockets::introduction::{Hello, Introduction};
use apus_sockets::layout;
use nix::sys::socket::{MsgFlags, Shutdown, recv, shutdown};

/// The unix socket of a program. Messages that wait there may have descriptors whose `close` blocks, so the socket is closed on
/// another thread as well. The program is informed at once.
pub(crate) struct ProgramChannel(Option<Channel>);

impl Drop for ProgramChannel {
    fn drop(&mut self) {
        if let Some(socket) = self.disconnect() {
            close_elsewhere(socket);
        }
    }
}

impl AsFd for ProgramChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor()
    }
}

impl Deref for ProgramChannel {
    type Target = Channel;

    fn deref(&self) -> &Channel {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

/// A program's introduction of a connection.
pub(crate) struct Introduced {
    pub(crate) introduction: Introduction,
    pub(crate) segment: PeerSegment,
}

/// The purpose of a program's socket.
pub(crate) enum Purpose {
    Introduces(Introduced),
    /// The bell of the connection whose introduction has this number.
    Bell(u128),
}

impl ProgramChannel {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self(Some(Channel::new(socket)))
    }

    /// Informs the program that it is not served. The `close` of the returned socket may block.
    pub(crate) fn into_socket(mut self) -> OwnedFd {
        self.disconnect().expect("it is there until it is dropped")
    }

    fn disconnect(&mut self) -> Option<OwnedFd> {
        let socket = self.0.take()?.into_socket();
        let _ = shutdown(socket.as_raw_fd(), Shutdown::Both); // The program may be gone already.
        Some(socket)
    }

    /// Whether the program has sent a message, without receiving it.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if it has not yet sent one, and others if it never will.
    pub(crate) fn has_message(&self) -> io::Result<()> {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        match recv(self.as_fd().as_raw_fd(), &mut [0], flags)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Receives the program's message. Later messages have no descriptors, if the kernel can refuse them.
    ///
    /// # Errors
    ///
    /// If the message is malformed.
    pub(crate) fn purpose(&self) -> io::Result<Purpose> {
        let mut bytes = [0; Introduction::BYTES];
        let parcel = self.receive(&mut bytes)?;
        self.allow_descriptors(false);
        let refused = || io::Error::from(io::ErrorKind::InvalidData);
        let (mut descriptors, bytes) = (parcel.descriptors.into_iter(), &bytes[..parcel.length]);
        let segment = descriptors.next();
        descriptors.for_each(close_elsewhere);
        if let Some(Hello::Bell(number)) = Hello::parse(bytes) {
            segment.into_iter().for_each(close_elsewhere);
            return Ok(Purpose::Bell(number));
        }
        let segment = segment.ok_or_else(refused)?;
        let opened = PeerSegment::open(segment.as_fd(), layout::FAR_SIZE);
        close_elsewhere(segment);
        let segment = opened.map_err(io::Error::other)?;
        if segment.load(layout::START, Ordering::Acquire) != layout::MAGIC {
            return Err(refused());
        }
        let introduction = Introduction::parse(bytes).ok_or_else(refused)?;
        Ok(Purpose::Introduces(Introduced { introduction, segment }))
    }

    /// Receives a message by which the program asks its peer to follow, or rings.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if there is no message, and others if the program has exited.
    pub(crate) fn check(&self) -> io::Result<()> {
        self.receive(&mut [0])?.descriptors.into_iter().for_each(close_elsewhere);
        Ok(())
    }

    /// Gives the program a segment as its peer's. Returns the segment's memory.
    pub(crate) fn show(&self) -> io::Result<Memory> {
        let segment = Segment::create(layout::FAR_SIZE)?;
        segment.memory().word(layout::START).store(layout::MAGIC, Ordering::Release);
        self.send(&Hello::Channel(0).to_bytes(), &[segment.descriptor()])?;
        Ok(segment.into_memory())
    }

    /// Sends a message of one byte. Returns `false` if the socket is full or closed. The reader of a closed socket notices that.
    pub(crate) fn notify(&self, message: u8) -> bool {
        self.send(&[message], &[]).is_ok()
    }
}

/// The message by which a side rings, or asks its peer's thread to follow.
pub(crate) const ANSWER: u8 = b'A';
