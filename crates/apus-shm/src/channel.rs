//! The unix socket of a pair: descriptors go over it, and its end is the peer's end.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};

/// Descriptors that the kernel lets a message carry (`SCM_MAX_FD`). There is room for all: those that the kernel cannot hand over
/// are closed, but then those that it has handed over could not be found.
const DESCRIPTORS_MAX: usize = 253;

/// A connected socket of type `SOCK_SEQPACKET`.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

/// What arrived.
#[derive(Debug, Default)]
pub struct Parcel {
    /// Bytes of the message.
    pub length: usize,
    /// Descriptors that came with it.
    pub descriptors: Vec<OwnedFd>,
}

impl Channel {
    /// A channel over a connected socket.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// The socket.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The socket.
    #[must_use]
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Sends a message with descriptors. Never blocks.
    ///
    /// # Errors
    ///
    /// Those of the system call.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let control = if raw.is_empty() { &[][..] } else { &rights[..] };
        let bytes = [IoSlice::new(bytes)];
        sendmsg::<UnixAddr>(self.socket.as_raw_fd(), &bytes, control, flags, None)?;
        Ok(())
    }

    /// The next message, if there is one.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if there is none, [`io::ErrorKind::UnexpectedEof`] if the peer has closed its end.
    pub fn receive(&self, bytes: &mut [u8]) -> io::Result<Parcel> {
        let mut control = nix::cmsg_space!([RawFd; DESCRIPTORS_MAX]);
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
        let mut bytes = [IoSliceMut::new(bytes)];
        let socket = self.socket.as_raw_fd();
        let mut receive = || {
            let message = recvmsg::<UnixAddr>(socket, &mut bytes, Some(&mut control), flags)?;
            let descriptors = message.cmsgs()?.filter_map(|control| match control {
                ControlMessageOwned::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            });
            Ok((message.bytes, descriptors.flatten().collect::<Vec<RawFd>>()))
        };
        let (length, descriptors) = match receive() {
            // The peer has closed its end with messages that it has not read. What it has sent before is still there.
            Err(Errno::ECONNRESET) => receive()?,
            received => received?,
        };
        let descriptors = descriptors.into_iter().map(|descriptor| {
            // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
            unsafe { OwnedFd::from_raw_fd(descriptor) }
        });
        let parcel = Parcel { length, descriptors: descriptors.collect() };
        if parcel.length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(parcel)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;

    pub(crate) fn channels() -> (Channel, Channel) {
        let flags = SockFlag::SOCK_CLOEXEC;
        let ends = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        (Channel::new(ends.0), Channel::new(ends.1))
    }

    #[test]
    fn descriptors_arrive_with_their_message() {
        let (a, b) = channels();
        a.send(b"none", &[]).unwrap();
        a.send(b"two", &[a.socket.as_fd(), b.socket.as_fd()]).unwrap();
        let mut bytes = [0; 16];
        let parcel = b.receive(&mut bytes).unwrap();
        assert_eq!((&bytes[..parcel.length], parcel.descriptors.len()), (&b"none"[..], 0));
        let parcel = b.receive(&mut bytes).unwrap();
        assert_eq!((&bytes[..parcel.length], parcel.descriptors.len()), (&b"two"[..], 2));
        assert_eq!(b.receive(&mut bytes).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn the_end_of_the_peer_is_an_error() {
        let (a, b) = channels();
        drop(a);
        assert_eq!(b.receive(&mut [0; 16]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(b.send(b"x", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn what_was_sent_arrives_although_the_sender_has_not_read_everything() {
        let (a, b) = channels();
        a.send(b"not read", &[]).unwrap();
        b.send(b"sent before", &[b.socket.as_fd()]).unwrap();
        drop(b);
        assert_eq!(a.receive(&mut [0; 16]).unwrap().descriptors.len(), 1);
        assert_eq!(a.receive(&mut [0; 16]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn as_many_descriptors_as_the_kernel_sends_are_found() {
        let (a, b) = channels();
        a.send(b"x", &[a.socket.as_fd(); DESCRIPTORS_MAX]).unwrap();
        assert_eq!(b.receive(&mut [0; 16]).unwrap().descriptors.len(), DESCRIPTORS_MAX);
    }
}
