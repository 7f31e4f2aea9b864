//! The kernel's data about descriptors that no safe wrapper reads or sets: the parameters of an epoll set, the NAPI instance of a
//! socket's last packet, and the filter of a group of listeners. The rest of the `unsafe` code of the crate is in `perf`.

#![allow(
    unsafe_code,
    reason = "nix and rustix wrap neither these ioctls nor these options of sockets"
)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::ioctl::{Getter, Setter, ioctl, opcode};
use serde::{Deserialize, Serialize};

/// The parameters of an epoll set (Linux 6.9 and newer).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EpollParameters {
    /// Time that `epoll_wait` polls before it sleeps, in microseconds, up to 2³¹ − 1. With 0 and preferred busy polling it polls
    /// once.
    pub busy_poll_usecs: u32,
    /// Upper bound on the packets that one poll takes; 0 is 8. More than 64 requires `CAP_NET_ADMIN`.
    pub busy_poll_budget: u16,
    /// Whether the application's polls are preferred to interrupts. There is no suspension without it.
    pub prefer_busy_poll: bool,
}

/// `struct epoll_params` of linux/eventpoll.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct Raw {
    busy_poll_usecs: u32,
    busy_poll_budget: u16,
    prefer_busy_poll: u8,
    pad: u8,
}

impl EpollParameters {
    /// The parameters of an epoll set, which may be of another process: a duplicate of its descriptor is the same set.
    ///
    /// # Errors
    /// When the descriptor is not of an epoll set (`ENOTTY`), or the kernel is older than Linux 6.9.
    pub fn of(epoll: impl AsFd) -> io::Result<Self> {
        // SAFETY: the kernel writes a `struct epoll_params`, which `Raw` is, for this operation; every bit pattern is valid.
        let raw = unsafe { ioctl(epoll, Getter::<EPIOCGPARAMS, Raw>::new()) }?;
        Ok(Self {
            busy_poll_usecs: raw.busy_poll_usecs,
            busy_poll_budget: raw.busy_poll_budget,
            prefer_busy_poll: raw.prefer_busy_poll != 0,
        })
    }

    /// Sets the parameters of an epoll set.
    ///
    /// # Errors
    /// As [`of`](Self::of); `EINVAL` for a time that is too long, `EPERM` for a budget above 64 without privilege.
    pub fn set(&self, epoll: impl AsFd) -> io::Result<()> {
        let raw = Raw {
            busy_poll_usecs: self.busy_poll_usecs,
            busy_poll_budget: self.busy_poll_budget,
            prefer_busy_poll: self.prefer_busy_poll.into(),
            pad: 0,
        };
        // SAFETY: the kernel reads a `struct epoll_params`, which `Raw` is, for this operation.
        unsafe { ioctl(epoll, Setter::<EPIOCSPARAMS, Raw>::new(raw)) }?;
        Ok(())
    }
}

/// The NAPI instance of the last packet of a socket; `None` if no packet came by one.
///
/// # Errors
/// When it is no socket (`ENOTSOCK`).
pub fn incoming_napi(socket: impl AsFd) -> io::Result<Option<u32>> {
    let id = socket_option(socket.as_fd(), libc::SO_INCOMING_NAPI_ID)?;
    Ok((id != 0).then_some(id))
}

/// Time that a blocking receive of a socket polls, in microseconds (`SO_BUSY_POLL`). It has no effect on `epoll_wait`.
///
/// # Errors
/// When it is no socket (`ENOTSOCK`).
pub(crate) fn busy_poll_usecs(socket: impl AsFd) -> io::Result<u32> {
    socket_option(socket.as_fd(), libc::SO_BUSY_POLL)
}

/// An option of `SOL_SOCKET` that is a number of 32 bits.
fn socket_option(socket: BorrowedFd<'_>, option: libc::c_int) -> io::Result<u32> {
    let mut value: u32 = 0;
    let mut length = size_of::<u32>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, the size of `value`, and both live until it returns.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Attaches a filter to the group of listeners that this socket is in (`SO_REUSEPORT`). The filter returns the place of the
/// listener that gets a connection, and replaces the filter before.
///
/// # Errors
/// When the socket is in no such group (`EINVAL`), or the filter is not valid.
pub(crate) fn attach_group_filter(
    socket: impl AsFd,
    filter: &mut [libc::sock_filter],
) -> io::Result<()> {
    let len = u16::try_from(filter.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len, filter: filter.as_mut_ptr() };
    set_option(socket, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

/// Detaches the filter; `ENOENT` if there is none.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn detach_group_filter(socket: impl AsFd) -> io::Result<()> {
    set_option(socket, libc::SO_DETACH_REUSEPORT_BPF, &0_i32)
}

fn set_option<T>(socket: impl AsFd, name: i32, value: &T) -> io::Result<()> {
    // SAFETY: the kernel reads at most the size of the value and the memory that the value points to. Both outlive the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            (&raw const *value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

const EPIOCSPARAMS: rustix::ioctl::Opcode = opcode::write::<Raw>(0x8A, 1);
const EPIOCGPARAMS: rustix::ioctl::Opcode = opcode::read::<Raw>(0x8A, 2);

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use nix::sys::epoll::{Epoll, EpollCreateFlags};

    use super::*;

    #[test]
    fn parameters_are_set_and_read_back() {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap().0;
        let Ok(before) = EpollParameters::of(&epoll) else { return }; // before Linux 6.9
        assert_eq!(before, EpollParameters::default());
        let wanted =
            EpollParameters { busy_poll_usecs: 64, busy_poll_budget: 32, prefer_busy_poll: true };
        wanted.set(&epoll).unwrap();
        assert_eq!(EpollParameters::of(&epoll).unwrap(), wanted);
        let wrong = EpollParameters { busy_poll_usecs: u32::MAX, ..wanted };
        assert_eq!(wrong.set(&epoll).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn other_descriptors_are_refused() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(EpollParameters::of(&socket).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
        assert_eq!(incoming_napi(&socket).unwrap(), None);
        assert!(busy_poll_usecs(&socket).is_ok());
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(incoming_napi(&file).unwrap_err().raw_os_error(), Some(libc::ENOTSOCK));
    }
}
