//! How long a packet can be when it arrives: no longer than the interface takes, unless it is several segments.

use std::net::IpAddr;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use crate::paths::FALLBACK_MTU;
use crate::sys;

/// The table is read again when it is asked after this time.
const KEPT: Duration = Duration::from_secs(1);

/// The MTU at each address of this machine, loopback left out: no module sends on it where a raw link is open.
#[derive(Debug, Default)]
pub(super) struct Interfaces {
    mtus: Vec<(IpAddr, usize)>,
    read: Option<Instant>,
}

impl Interfaces {
    /// Bytes of the longest Homa packet of one segment that can come to `local` from another machine. An address that no interface
    /// has, a group's for instance, stands for all.
    pub(super) fn longest(&mut self, local: Option<IpAddr>, socket: RawFd) -> usize {
        if self.read.is_none_or(|read| read.elapsed() > KEPT) {
            self.mtus = sys::interface_mtus(socket);
            self.read = Some(Instant::now());
        }
        let own = self.mtus.iter().filter(|&&(ip, _)| Some(ip) == local).map(|&(_, mtu)| mtu);
        let any = || self.mtus.iter().map(|&(_, mtu)| mtu).max();
        let mtu = own.max().or_else(any).unwrap_or(FALLBACK_MTU);
        let header = if local.is_some_and(|ip| ip.is_ipv6()) { 40 } else { 20 };
        mtu.saturating_sub(header)
    }
}
