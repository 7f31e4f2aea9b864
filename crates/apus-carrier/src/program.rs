//! The unix socket of a program, and what comes over it.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use apus_shm::{Channel, Memory, PeerSegment, Segment};
use apus_sockets::introduction::Introduction;
use apus_sockets::layout;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{MsgFlags, Shutdown, recv, shutdown};

use crate::closing::close_elsewhere;

/// The unix socket of a program. Messages that wait there may have descriptors whose `close` blocks, so the socket is closed elsewhere
/// as well; the program is told at once.
pub(crate) struct ProgramChannel(Option<Channel>);

impl Drop for ProgramChannel {
    fn drop(&mut self) {
        if let Some(channel) = self.0.take() {
            let socket = channel.into_socket();
            let _ = shutdown(socket.as_raw_fd(), Shutdown::Both); // The program may have gone before.
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

/// What a program hands over when it introduces a connection.
pub(crate) struct Introduced {
    pub(crate) introduction: Introduction,
    pub(crate) segment: PeerSegment,
    /// By which it is woken, for bytes and for room.
    pub(crate) bells: [OwnedFd; 2],
}

impl ProgramChannel {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self(Some(Channel::new(socket)))
    }

    /// Whether the program has sent a message, which stays where it is.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if it has not done so, and others if it never will.
    pub(crate) fn has_message(&self) -> io::Result<()> {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        match recv(self.as_fd().as_raw_fd(), &mut [0], flags)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// The connection that the program introduces by its message.
    ///
    /// # Errors
    ///
    /// If the message is none of those.
    pub(crate) fn introduced(&self) -> io::Result<Introduced> {
        let mut bytes = [0; Introduction::BYTES];
        let parcel = self.receive(&mut bytes)?;
        let refused = || io::Error::from(io::ErrorKind::InvalidData);
        let introduction = Introduction::parse(&bytes[..parcel.length]);
        let [segment, bells @ ..] = match <[OwnedFd; 3]>::try_from(parcel.descriptors) {
            Ok(descriptors) => descriptors,
            Err(descriptors) => {
                descriptors.into_iter().for_each(close_elsewhere);
                return Err(refused());
            }
        };
        // What was mapped, or is an event, is what it should be, and to close it never blocks.
        let opened = PeerSegment::open(segment.as_fd(), layout::SIZE);
        close_elsewhere(segment);
        if !bells.iter().all(is_event) {
            bells.into_iter().for_each(close_elsewhere);
            return Err(refused());
        }
        let segment = opened.map_err(io::Error::other)?;
        if segment.load(layout::START, Ordering::Acquire) != layout::MAGIC {
            return Err(refused());
        }
        Ok(Introduced { introduction: introduction.ok_or_else(refused)?, segment, bells })
    }

    /// A message by which the program asks its peer to follow.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if there is none, and others if the program has ended.
    pub(crate) fn hear(&self) -> io::Result<()> {
        self.receive(&mut [0])?.descriptors.into_iter().for_each(close_elsewhere);
        Ok(())
    }

    /// Shows the program a segment as that of its peer. Returns the segment's memory, and the event that the program rings.
    pub(crate) fn show(&self) -> io::Result<(Memory, EventFd)> {
        let segment = Segment::create(layout::SIZE)?;
        segment.memory().word(layout::START).store(layout::MAGIC, Ordering::Release);
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = EventFd::from_value_and_flags(0, flags)?;
        let hello = [layout::MAGIC.to_ne_bytes(), [0; 8]].concat();
        self.send(&hello, &[segment.descriptor(), bell.as_fd(), bell.as_fd()])?;
        Ok((segment.into_memory(), bell))
    }
}

/// Whether a descriptor is an event of the kernel (eventfd).
fn is_event(fd: &OwnedFd) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|link| link.as_os_str() == "anon_inode:[eventfd]")
}
