//! Events of the kernel about network devices: made, deleted, up, down.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// The multicast group of the kernel for links (`RTMGRP_LINK`).
const LINKS: u32 = 1;

/// A socket that becomes readable when a device of this network namespace has changed.
#[derive(Debug)]
pub struct LinkEvents(Socket);

impl LinkEvents {
    /// Listens from now on. Requires no privilege.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, LINKS))?;
        socket.set_non_blocking(true)?;
        Ok(Self(socket))
    }

    /// Reads the events that have arrived, without waiting. Returns whether there were any.
    pub fn take(&self) -> bool {
        let mut any = false;
        loop {
            match self.0.recv_from_full() {
                Ok(_) => any = true,
                // The kernel dropped some events, because there were too many.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => any = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return any,
            }
        }
    }
}

impl AsFd for LinkEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
