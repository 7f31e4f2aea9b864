//! The unix socket of a pair. It carries descriptors, and its end is the peer's end.
//!
//! `close` of a descriptor from a peer may sleep, and so may `close` of the socket that holds such a descriptor unread.
//! [`crate::closer`] closes both on other threads.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{self, ManuallyDrop};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::process;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, UnixAddr, recv, recvmsg, sendmsg,
    shutdown,
};

use crate::closer::close_elsewhere;

/// Upper bound on the descriptors in one message (`SCM_MAX_FD`). There is room for all of them: the kernel closes descriptors that
/// it cannot pass, but then the passed ones could not be found.
const DESCRIPTORS_MAX: usize = 253;

/// `SO_PASSRIGHTS` of Linux 6.16: whether peers may pass descriptors to a socket.
const SO_PASSRIGHTS: libc::c_int = 83;

/// A connected socket of type `SOCK_SEQPACKET`.
#[derive(Debug)]
pub struct Channel {
    socket: ManuallyDrop<OwnedFd>,
    /// The process that created the channel. A child has only a copy of the descriptor.
    process: u32,
}

/// A descriptor from a peer. [`crate::closer`] closes it.
#[derive(Debug)]
pub struct ReceivedDescriptor(ManuallyDrop<OwnedFd>);

impl ReceivedDescriptor {
    /// Returns the descriptor. Its `close` may sleep.
    #[must_use]
    pub fn into_owned(self) -> OwnedFd {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped, so its descriptor is taken out once.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }
}

impl AsFd for ReceivedDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for ReceivedDescriptor {
    fn drop(&mut self) {
        // SAFETY: no code uses the value after its drop.
        close_elsewhere(unsafe { ManuallyDrop::take(&mut self.0) });
    }
}

/// Result of [`Channel::take`].
#[derive(Debug, Default)]
pub struct Taken {
    /// Length of the message in bytes.
    pub length: usize,
    /// Descriptors in the message.
    pub descriptors: Vec<ReceivedDescriptor>,
}

/// Result of [`Channel::receive`].
#[derive(Debug, Default)]
pub struct Parcel {
    /// Length of the message in bytes.
    pub length: usize,
    /// Descriptors in the message.
    pub descriptors: Vec<OwnedFd>,
}

impl Channel {
    /// Creates a channel over a connected socket.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket: ManuallyDrop::new(socket), process: process::id() }
    }

    /// Returns the socket.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Converts the channel to its socket.
    #[must_use]
    pub fn into_socket(self) -> OwnedFd {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped, so its descriptor is taken out once.
        unsafe { ManuallyDrop::take(&mut this.socket) }
    }

    /// Sends a message with descriptors. Never blocks.
    ///
    /// # Errors
    ///
    /// The errors of the system call.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let control = if raw.is_empty() { &[][..] } else { &rights[..] };
        let bytes = [IoSlice::new(bytes)];
        sendmsg::<UnixAddr>(self.socket.as_raw_fd(), &bytes, control, flags, None)?;
        Ok(())
    }

    /// Receives the next message, if there is one, with up to `most` descriptors, at most 4. Never closes a descriptor from the
    /// peer, whatever the peer does and even if this process has no descriptor left. For one reader at a time.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] without a message, [`io::ErrorKind::UnexpectedEof`] if the peer has closed its end,
    /// [`io::ErrorKind::InvalidData`] if the message has more descriptors than `most` or than this process has room for. Such a
    /// message stays in the socket.
    pub fn take(&self, bytes: &mut [u8], most: usize) -> io::Result<Taken> {
        // The kernel closes descriptors without room. The descriptors of a message that stays in the socket are closed with the
        // socket.
        let taken = match self.peek(bytes, most) {
            // The peer has closed its end without reading all messages. Its own earlier messages are still there.
            Err(error) if error.raw_os_error() == Some(libc::ECONNRESET) => self.peek(bytes, most),
            peeked => peeked,
        }?;
        if taken.length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        recv(self.socket.as_raw_fd(), &mut [0], MsgFlags::MSG_DONTWAIT)?;
        Ok(taken)
    }

    /// Returns copies of the next message and of its descriptors, which stay in the socket.
    fn peek(&self, bytes: &mut [u8], most: usize) -> io::Result<Taken> {
        let mut control = Control([0; CONTROL]);
        let mut place = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: zeroes are an empty header.
        let mut header: libc::msghdr = unsafe { mem::zeroed() };
        header.msg_iov = &raw mut place;
        header.msg_iovlen = 1;
        if most > 0 {
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL as _;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC | libc::MSG_PEEK;
        // SAFETY: the header points at `bytes` and `control` with their lengths, and both live during the call.
        let length = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut header, flags) };
        let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
        // SAFETY: the kernel has filled the header just now.
        let descriptors = unsafe { received(&header) };
        if header.msg_flags & libc::MSG_CTRUNC != 0 || descriptors.len() > most {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Taken { length, descriptors })
    }

    /// Sets whether the peer may pass descriptors, if the kernel can refuse them (Linux 6.16): `sendmsg` fails with `EPERM` then.
    pub fn allow_descriptors(&self, allowed: bool) {
        allow_descriptors(self.socket.as_fd(), allowed);
    }

    /// Receives the next message, if there is one. `close` of its descriptors may sleep: messages of untrusted processes need
    /// [`take`](Self::take).
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] without a message, [`io::ErrorKind::UnexpectedEof`] if the peer has closed its end.
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
            // The peer has closed its end without reading all messages. Its own earlier messages are still there.
            Err(Errno::ECONNRESET) => receive()?,
            received => received?,
        };
        let descriptors = descriptors.into_iter().map(|descriptor| {
            // SAFETY: the kernel has just made this descriptor for this call, and no other code knows it.
            unsafe { OwnedFd::from_raw_fd(descriptor) }
        });
        let parcel = Parcel { length, descriptors: descriptors.collect() };
        if parcel.length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(parcel)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: no code uses the value after its drop.
        let socket = unsafe { ManuallyDrop::take(&mut self.socket) };
        if self.process == process::id() {
            // The peer sees the end at once, even if all closing threads are asleep.
            let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
            close_elsewhere(socket);
        }
    }
}

/// Room for the control messages of a message, in bytes: the four descriptors that an honest peer sends at most.
const CONTROL: usize = 32;

/// Room for control messages with the alignment of their headers.
#[repr(align(8))]
struct Control([u8; CONTROL]);

/// Returns the descriptors of a message. `nix` returns none if they exceed the room, and would leak the descriptors that the kernel
/// has made.
///
/// # Safety
///
/// The kernel has filled the header, and no code has taken the descriptors.
#[allow(clippy::unnecessary_cast, reason = "the length has another type with other C libraries")]
unsafe fn received(header: &libc::msghdr) -> Vec<ReceivedDescriptor> {
    let mut found = Vec::new();
    // SAFETY: the header is the kernel's, so its control messages lie one after the other within its buffer.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while let Some(head) = control.as_ref() {
            if (head.cmsg_level, head.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let data = libc::CMSG_DATA(control).cast::<RawFd>();
                let bytes = head.cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let numbers =
                    (0..bytes / size_of::<RawFd>()).map(|at| data.add(at).read_unaligned());
                found.extend(
                    numbers
                        .map(|fd| ReceivedDescriptor(ManuallyDrop::new(OwnedFd::from_raw_fd(fd)))),
                );
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
    found
}

/// Sets whether peers may pass descriptors to a socket, and to the sockets later accepted at it.
pub(crate) fn allow_descriptors(socket: BorrowedFd<'_>, allowed: bool) {
    let allowed = libc::c_int::from(allowed);
    let length = size_of_val(&allowed) as libc::socklen_t;
    // SAFETY: the kernel reads the number during the call. Kernels before 6.16 do not know the option, and their sockets let
    // descriptors in.
    unsafe {
        let value = (&raw const allowed).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, value, length);
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
