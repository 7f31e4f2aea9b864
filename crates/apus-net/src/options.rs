//! Socket options that every kind of link sets.

use std::os::fd::RawFd;

use libc::{IPPROTO_IP, IPPROTO_IPV6, SOL_SOCKET};

use crate::address::AddressFamily;
use crate::sys;

/// Sets one option at the IPv4 and IPv6 levels that the family needs. Returns `false` if the kernel refused one.
pub(crate) fn for_each_version(
    descriptor: RawFd,
    family: AddressFamily,
    names: [i32; 2],
    values: [i32; 2],
) -> bool {
    let v4 = family == AddressFamily::V6
        || sys::set_option(descriptor, IPPROTO_IP, names[0], values[0]).is_ok();
    let v6 = family == AddressFamily::V4
        || sys::set_option(descriptor, IPPROTO_IPV6, names[1], values[1]).is_ok();
    v4 && v6
}

/// Makes the kernel report errors of the network with their peer's address.
pub(crate) fn report_errors(descriptor: RawFd, family: AddressFamily) -> bool {
    for_each_version(descriptor, family, [libc::IP_RECVERR, libc::IPV6_RECVERR], [1, 1])
}

/// Disables fragmentation and leaves the length of packets to the link: the kernel only compares it with the interface. Routers'
/// reports arrive by the error queue.
pub(crate) fn never_fragment(descriptor: RawFd, family: AddressFamily) -> bool {
    for_each_version(
        descriptor,
        family,
        [libc::IP_MTU_DISCOVER, libc::IPV6_MTU_DISCOVER],
        [libc::IP_PMTUDISC_PROBE, libc::IPV6_PMTUDISC_PROBE],
    )
}

/// Requests a receive buffer. Returns the size that the kernel accounts with.
pub(crate) fn receive_buffer(descriptor: RawFd, bytes: usize) -> usize {
    grow(descriptor, bytes, [libc::SO_RCVBUFFORCE, libc::SO_RCVBUF])
}

/// Requests a send buffer. Returns the size that the kernel accounts with.
pub(crate) fn send_buffer(descriptor: RawFd, bytes: usize) -> usize {
    grow(descriptor, bytes, [libc::SO_SNDBUFFORCE, libc::SO_SNDBUF])
}

/// Requests a buffer size, first with the privileged option. Returns the size that the kernel accounts with. Without privilege, the
/// kernel reduces the request to its limit instead of refusing it.
fn grow(descriptor: RawFd, bytes: usize, [force, ask]: [i32; 2]) -> usize {
    let wanted = i32::try_from(bytes).expect("opening a link has checked the sizes");
    let forced = sys::set_option(descriptor, SOL_SOCKET, force, wanted);
    if forced.is_err() {
        // A refusal leaves the default, which the next line reports.
        let _ = sys::set_option(descriptor, SOL_SOCKET, ask, wanted);
    }
    sys::option(descriptor, SOL_SOCKET, ask)
        .map_or(0, |actual| usize::try_from(actual).unwrap_or(0))
}
