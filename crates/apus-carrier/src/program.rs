//! The unix socket of a program, and what comes over it.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use apus_shm::{Channel, Memory, PeerSegment, Segment};
use apus_sockets::introduction::Introduction;
use apus_sockets::layout;
use nix::sys::eventfd::{EfdFlags, EventFd};

/// The unix socket of a program.
pub(crate) struct ProgramChannel(Channel);

impl AsFd for ProgramChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }
}

impl Deref for ProgramChannel {
    type Target = Channel;

    fn deref(&self) -> &Channel {
        &self.0
    }
}

/// What a program hands over when it introduces a connection.
pub(crate) struct Introduced {
    pub(crate) introduction: Introduction,
    pub(crate) segment: PeerSegment,
    /// By which it is woken, for bytes and for room.
    pub(crate) bells: [OwnedFd; 2],
}

impl ProgramChannel {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self(Channel::new(socket))
    }

    /// A connection that the program introduces.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if it has not done so, and others if it never will.
    pub(crate) fn introduced(&self) -> io::Result<Introduced> {
        let mut bytes = [0; Introduction::BYTES];
        let parcel = self.0.receive(&mut bytes)?;
        let refused = || io::Error::from(io::ErrorKind::InvalidData);
        let introduction = Introduction::parse(&bytes[..parcel.length]).ok_or_else(refused)?;
        let [segment, bytes, room] =
            <[OwnedFd; 3]>::try_from(parcel.descriptors).map_err(|_| refused())?;
        let segment = PeerSegment::open(segment.as_fd(), layout::SIZE).map_err(io::Error::other)?;
        if segment.load(layout::START, Ordering::Acquire) != layout::MAGIC {
            return Err(refused());
        }
        Ok(Introduced { introduction, segment, bells: [bytes, room] })
    }

    /// A message by which the program asks its peer to follow.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if there is none, and others if the program has ended.
    pub(crate) fn hear(&self) -> io::Result<()> {
        self.0.receive(&mut [0]).map(drop)
    }

    /// Shows the program a segment as that of its peer. Returns the segment's memory, and the event that the program rings.
    pub(crate) fn show(&self) -> io::Result<(Memory, EventFd)> {
        let segment = Segment::create(layout::SIZE)?;
        segment.memory().word(layout::START).store(layout::MAGIC, Ordering::Release);
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = EventFd::from_value_and_flags(0, flags)?;
        let hello = [layout::MAGIC.to_ne_bytes(), [0; 8]].concat();
        self.0.send(&hello, &[segment.descriptor(), bell.as_fd(), bell.as_fd()])?;
        Ok((segment.into_memory(), bell))
    }
}
