//! System calls on a datagram socket, each behind a small safe function.

use std::ffi::{CStr, CString};
use std::io;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

use apus_wire::{DATA_HEADER_LEN, ReceiveTarget};

use crate::address::RawAddress;

/// Length of a receive slot in bytes: more than the longest UDP payload.
pub(crate) const SLOT_LEN: usize = 65_536;

/// Length of the control messages of one datagram, in bytes: type of service, local address and segment size.
const CONTROL_LEN: usize = 128;
const SEND_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
const CONTROL_HEADER: usize = size_of::<libc::cmsghdr>();

/// Room for the control messages of one datagram, with the kernel's alignment.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_LEN]);

impl Control {
    const EMPTY: Self = Self([0; CONTROL_LEN]);

    /// Writes one control message at `at`. Returns the place of the next one.
    fn put(&mut self, at: usize, level: i32, kind: i32, value: &[u8]) -> usize {
        let len = CONTROL_HEADER + value.len();
        self.0[at..at + 8].copy_from_slice(&len.to_ne_bytes());
        self.0[at + 8..at + 12].copy_from_slice(&level.to_ne_bytes());
        self.0[at + 12..at + 16].copy_from_slice(&kind.to_ne_bytes());
        self.0[at + 16..at + len].copy_from_slice(value);
        at + len.next_multiple_of(8)
    }
}

/// Returns the control messages that the kernel wrote: level, type, value.
fn control_messages(bytes: &[u8]) -> impl Iterator<Item = (i32, i32, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let len = usize::from_ne_bytes(rest.get(..8)?.try_into().ok()?);
        let level = i32::from_ne_bytes(rest.get(8..12)?.try_into().ok()?);
        let kind = i32::from_ne_bytes(rest.get(12..16)?.try_into().ok()?);
        let value = rest.get(CONTROL_HEADER..len)?;
        rest = rest.get(len.next_multiple_of(8)..).unwrap_or_default();
        Some((level, kind, value))
    })
}

/// Properties of a datagram beside its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct SendOptions {
    /// TOS byte, and the IP version of the packet. `None`: the socket's default.
    pub(crate) tos: Option<(u8, IpVersion)>,
    /// The local address to send from. `None`: the one that the route prefers.
    pub(crate) source: Option<IpAddr>,
    /// Length of each of the several datagrams in the bytes; the last one may be shorter.
    pub(crate) segment: Option<u16>,
}

/// The option level that a control message belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IpVersion {
    V4,
    V6,
}

impl SendOptions {
    /// Writes the control messages. Returns their length.
    fn write(self, control: &mut Control) -> usize {
        let mut at = 0;
        if let Some((tos, version)) = self.tos {
            let (level, kind) = match version {
                IpVersion::V4 => (libc::IPPROTO_IP, libc::IP_TOS),
                IpVersion::V6 => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
            };
            at = control.put(at, level, kind, &i32::from(tos).to_ne_bytes());
        }
        match self.source {
            // struct in_pktinfo: interface, source address, destination address.
            Some(IpAddr::V4(source)) => {
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&source.octets());
                at = control.put(at, libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            // struct in6_pktinfo: address, interface.
            Some(IpAddr::V6(source)) => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&source.octets());
                at = control.put(at, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
            None => {}
        }
        if let Some(segment) = self.segment {
            at = control.put(at, libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
        }
        at
    }
}

/// Sends one datagram in one piece; without an address on a connected socket.
#[inline]
pub(crate) fn send_to(socket: RawFd, bytes: &[u8], to: Option<&RawAddress>) -> io::Result<usize> {
    let (address, address_len) = name(to);
    // SAFETY: the pointers come from live references, with the lengths of their targets; the address may be null.
    let sent = unsafe {
        libc::sendto(
            socket,
            bytes.as_ptr().cast(),
            bytes.len(),
            SEND_FLAGS,
            address.cast_const().cast(),
            address_len,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Sends one datagram in two pieces; without an address on a connected socket.
#[inline]
pub(crate) fn send_parts(
    socket: RawFd,
    head: &[u8],
    tail: &[u8],
    to: Option<&RawAddress>,
) -> io::Result<usize> {
    let mut parts = [iovec(head), iovec(tail)];
    let mut message = empty_message();
    (message.msg_name, message.msg_namelen) = name(to);
    point_at_parts(&mut message, &mut parts);
    // SAFETY: the message points at the address and the two parts, which are borrowed for the whole call; the kernel only reads
    // them.
    let sent = unsafe { libc::sendmsg(socket, &raw const message, SEND_FLAGS) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Returns an address in the form of a message.
#[inline]
fn name(to: Option<&RawAddress>) -> (*mut libc::c_void, u32) {
    to.map_or((std::ptr::null_mut(), 0), |to| (to.bytes.as_ptr().cast_mut().cast(), to.len))
}

fn iovec(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

fn empty_message() -> libc::msghdr {
    // SAFETY: msghdr is made of integers and pointers, for which all zeroes are valid.
    unsafe { std::mem::zeroed() }
}

// The kernel's lengths in a message are words. Those of musl are 32 bits long with padding behind, which stays zero: so they read as
// words on a little-endian machine, and only the declared types differ.

#[inline]
fn point_at_parts(message: &mut libc::msghdr, parts: &mut [libc::iovec]) {
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
}

#[inline]
fn point_at_control(message: &mut libc::msghdr, control: &mut [u8]) {
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = control.len() as _;
}

#[inline]
fn control_len(message: &libc::msghdr) -> usize {
    message.msg_controllen as _
}

/// Sends messages by one system call. Returns how many the kernel took, or −1.
///
/// # Safety
/// All that the messages point at is as long as they say.
#[cfg(not(target_env = "musl"))]
unsafe fn send_messages(socket: RawFd, messages: &mut [libc::mmsghdr]) -> i32 {
    // SAFETY: as the caller states.
    unsafe { libc::sendmmsg(socket, messages.as_mut_ptr(), messages.len() as u32, SEND_FLAGS) }
}

/// The same past musl, whose function makes a system call for each message.
#[cfg(target_env = "musl")]
unsafe fn send_messages(socket: RawFd, messages: &mut [libc::mmsghdr]) -> libc::c_long {
    let (at, count) = (messages.as_mut_ptr(), messages.len() as libc::c_uint);
    // SAFETY: as the caller states; the messages have the kernel's layout.
    unsafe { libc::syscall(libc::SYS_sendmmsg, socket, at, count, SEND_FLAGS) }
}

/// Memory for building a [`Batch`], kept between batches to avoid allocations.
#[derive(Default)]
pub(crate) struct BatchStorage {
    messages: Vec<libc::mmsghdr>,
    parts: Vec<libc::iovec>,
    controls: Vec<Control>,
    plans: Vec<Plan>,
}

/// The parts of one message of a batch, by index instead of pointer, because the vectors grow while the batch is built.
struct Plan {
    first_part: usize,
    control_len: usize,
}

// SAFETY: the pointers in it are only followed inside `Batch::send`, while the batch's lifetime keeps their targets borrowed.
// Between batches they are stale and never read, so any thread may own them.
unsafe impl Send for BatchStorage {}

/// Datagrams to send by one `sendmmsg`. Borrows everything that it points at.
pub(crate) struct Batch<'s, 'd> {
    storage: &'s mut BatchStorage,
    data: PhantomData<&'d [u8]>,
}

impl<'s, 'd> Batch<'s, 'd> {
    pub(crate) fn begin(storage: &'s mut BatchStorage) -> Self {
        storage.messages.clear();
        storage.parts.clear();
        storage.controls.clear();
        storage.plans.clear();
        Self { storage, data: PhantomData }
    }

    /// Begins a message without parts; without an address on a connected socket.
    pub(crate) fn message(&mut self, to: Option<&'d RawAddress>, options: SendOptions) {
        let mut control = Control::EMPTY;
        let control_len = options.write(&mut control);
        self.storage.controls.push(control);
        self.storage.plans.push(Plan { first_part: self.storage.parts.len(), control_len });
        let mut header = empty_message();
        (header.msg_name, header.msg_namelen) = name(to);
        self.storage.messages.push(libc::mmsghdr { msg_hdr: header, msg_len: 0 });
    }

    /// Appends bytes to the last message.
    pub(crate) fn part(&mut self, bytes: &'d [u8]) {
        self.storage.parts.push(iovec(bytes));
    }

    /// Returns the number of messages.
    pub(crate) fn len(&self) -> usize {
        self.storage.messages.len()
    }

    /// Sends the messages from number `first` on. Returns how many the kernel took. An error is about message `first`.
    pub(crate) fn send(&mut self, socket: RawFd, first: usize) -> io::Result<usize> {
        let BatchStorage { messages, parts, controls, plans } = &mut *self.storage;
        let mut end = parts.len();
        for (index, plan) in plans.iter().enumerate().skip(first).rev() {
            let header = &mut messages[index].msg_hdr;
            point_at_parts(header, &mut parts[plan.first_part..end]);
            end = plan.first_part;
            if plan.control_len > 0 {
                point_at_control(header, &mut controls[index].0[..plan.control_len]);
            }
        }
        let messages = &mut messages[first..];
        // SAFETY: each message points at its address, parts and control bytes. The latter two are in vectors that are borrowed
        // here and do not change; the addresses and the bytes of the parts are borrowed for 'd, which outlives self.
        let sent = unsafe { send_messages(socket, messages) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// A datagram in a receive slot.
pub(crate) struct Received<'a> {
    pub(crate) from: &'a RawAddress,
    pub(crate) bytes: &'a mut [u8],
    /// Whether the datagram was longer than the slot.
    pub(crate) truncated: bool,
    /// Length of each of the several datagrams in the bytes; the last one may be shorter.
    pub(crate) segment: Option<usize>,
    /// The control messages the kernel wrote.
    controls: &'a [u8],
}

impl Received<'_> {
    /// Returns the local destination address, if the socket makes the kernel report it.
    pub(crate) fn to(&self) -> Option<IpAddr> {
        control_messages(self.controls).find_map(|(level, kind, value)| match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // The second of its three words: the local address, also for a packet to several hosts.
                Some(IpAddr::from(<[u8; 4]>::try_from(value.get(4..8)?).ok()?))
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let ip = Ipv6Addr::from(<[u8; 16]>::try_from(value.get(..16)?).ok()?);
                Some(ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4))
            }
            _ => None,
        })
    }

    /// Returns the time at which the datagram reached the kernel, in nanoseconds since 1970, if the socket makes the kernel report
    /// it ([`stamp_arrivals`]).
    pub(crate) fn arrived(&self) -> Option<u64> {
        control_messages(self.controls).find_map(|(level, kind, value)| match (level, kind) {
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) => {
                // The first of three times is the network stack's, in seconds and nanoseconds.
                let [seconds, nanos] = [value.get(..8)?, value.get(8..16)?]
                    .map(|bytes| i64::from_ne_bytes(bytes.try_into().expect("eight bytes")));
                u64::try_from(seconds * 1_000_000_000 + nanos).ok().filter(|&at| at > 0)
            }
            _ => None,
        })
    }
}

/// Makes the kernel record the arrival of each datagram at a socket, before the socket's queue.
pub(crate) fn stamp_arrivals(socket: RawFd) -> io::Result<()> {
    let flags = libc::SOF_TIMESTAMPING_RX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE;
    set_option(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, flags as i32)
}

/// Receive slots, filled from the first on, so that light load reuses the same few.
pub(crate) struct Slots {
    bytes: Vec<u8>,
    addresses: Vec<RawAddress>,
    controls: Vec<Control>,
    messages: Vec<libc::mmsghdr>,
    parts: Vec<libc::iovec>,
}

// SAFETY: the pointers in messages and parts are written anew before each system call and never followed outside it.
unsafe impl Send for Slots {}

impl Slots {
    pub(crate) fn new(count: usize) -> Self {
        Self {
            bytes: vec![0; count * SLOT_LEN],
            addresses: vec![RawAddress::EMPTY; count],
            controls: vec![Control::EMPTY; count],
            messages: vec![libc::mmsghdr { msg_hdr: empty_message(), msg_len: 0 }; count],
            parts: vec![iovec(&[]); count],
        }
    }

    /// Points the first `count` messages at their slots.
    #[inline]
    fn prepare(&mut self, count: usize, controls: bool) {
        let slots =
            self.bytes.chunks_exact_mut(SLOT_LEN).zip(&mut self.addresses).zip(&mut self.controls);
        let messages = self.messages.iter_mut().zip(&mut self.parts);
        for (((bytes, address), control), (message, part)) in slots.zip(messages).take(count) {
            part.iov_base = bytes.as_mut_ptr().cast();
            part.iov_len = bytes.len();
            let header = &mut message.msg_hdr;
            header.msg_name = address.bytes.as_mut_ptr().cast();
            header.msg_namelen = address.bytes.len() as u32;
            header.msg_iov = &raw mut *part;
            header.msg_iovlen = 1;
            point_at_control(header, &mut control.0[..if controls { CONTROL_LEN } else { 0 }]);
        }
    }

    /// Receives one datagram into the first slot. `segments`: it may be several, which the kernel reports by a control message;
    /// requesting that costs 0.1 µs.
    #[inline]
    pub(crate) fn receive_one(&mut self, socket: RawFd, segments: bool) -> io::Result<()> {
        let received =
            if segments { self.receive_message(socket) } else { self.receive_plain(socket) };
        self.messages[0].msg_len =
            u32::try_from(received).map_err(|_| io::Error::last_os_error())?;
        Ok(())
    }

    #[inline]
    fn receive_message(&mut self, socket: RawFd) -> isize {
        self.prepare(1, true);
        // SAFETY: `prepare` has pointed the message at its slot's bytes, address and control buffer with their lengths; all of them
        // belong to self, which is borrowed mutably.
        unsafe { libc::recvmsg(socket, &raw mut self.messages[0].msg_hdr, libc::MSG_DONTWAIT) }
    }

    #[inline]
    fn receive_plain(&mut self, socket: RawFd) -> isize {
        let slot = &mut self.bytes[..SLOT_LEN];
        let header = &mut self.messages[0].msg_hdr;
        let address = &mut self.addresses[0].bytes;
        header.msg_namelen = address.len() as u32;
        header.msg_controllen = 0;
        // A datagram is shorter than a slot, so it is never truncated.
        header.msg_flags = 0;
        // SAFETY: the pointers come from live references, with the lengths of their targets.
        unsafe {
            libc::recvfrom(
                socket,
                slot.as_mut_ptr().cast(),
                slot.len(),
                libc::MSG_DONTWAIT,
                address.as_mut_ptr().cast(),
                &raw mut header.msg_namelen,
            )
        }
    }

    /// Receives one datagram: the header of a DATA packet into the first slot, the following bytes behind the message, and the
    /// bytes for which the message has no room into the slot again, at their usual place. Returns the number of bytes appended to
    /// the message.
    pub(crate) fn receive_behind(
        &mut self,
        socket: RawFd,
        receive_target: ReceiveTarget<'_>,
    ) -> io::Result<usize> {
        let ReceiveTarget { message: target, room } = receive_target;
        let spare = target.spare_capacity_mut();
        let room = room.min(spare.len()).min(SLOT_LEN - DATA_HEADER_LEN);
        let (head, tail) = self.bytes[..SLOT_LEN].split_at_mut(DATA_HEADER_LEN);
        let mut parts = [
            iovec(head),
            libc::iovec { iov_base: spare.as_mut_ptr().cast(), iov_len: room },
            iovec(&tail[room..]),
        ];
        let header = &mut self.messages[0].msg_hdr;
        header.msg_name = self.addresses[0].bytes.as_mut_ptr().cast();
        header.msg_namelen = self.addresses[0].bytes.len() as u32;
        point_at_parts(header, &mut parts);
        header.msg_controllen = 0;
        // SAFETY: the message points at its slot's address and bytes, which belong to self, and at the spare capacity of the
        // target; both are borrowed mutably, and each part has its stated length.
        let received = unsafe { libc::recvmsg(socket, &raw mut *header, libc::MSG_DONTWAIT) };
        let received = u32::try_from(received).map_err(|_| io::Error::last_os_error())?;
        self.messages[0].msg_len = received;
        let appended = (received as usize).saturating_sub(DATA_HEADER_LEN).min(room);
        // SAFETY: the kernel has just written this many bytes of the spare capacity.
        unsafe { target.set_len(target.len() + appended) };
        Ok(appended)
    }

    /// Returns the header of the datagram that [`receive_behind`](Self::receive_behind) took.
    pub(crate) fn header(&self) -> &[u8; DATA_HEADER_LEN] {
        self.bytes.first_chunk().expect("a slot is longer")
    }

    /// Moves the bytes that [`receive_behind`](Self::receive_behind) appended elsewhere to their place in the first slot.
    pub(crate) fn bring_back(&mut self, appended: &[u8]) {
        self.bytes[DATA_HEADER_LEN..][..appended.len()].copy_from_slice(appended);
    }

    /// Receives all waiting datagrams, up to `count` or the number of slots. Returns their number. `segments`: see `receive_one`.
    #[inline]
    pub(crate) fn receive_many(
        &mut self,
        socket: RawFd,
        count: usize,
        segments: bool,
    ) -> io::Result<usize> {
        let count = count.min(self.messages.len());
        self.prepare(count, segments);
        // SAFETY: as in `receive_message`, for each message; the timeout may be null.
        let received = unsafe {
            libc::recvmmsg(
                socket,
                self.messages.as_mut_ptr(),
                count as u32,
                libc::MSG_DONTWAIT as _, // unsigned for musl
                std::ptr::null_mut(),
            )
        };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }

    /// Returns the bytes of slot `index`, which the last receive call must have filled.
    pub(crate) fn bytes(&mut self, index: usize) -> &mut [u8] {
        let len = (self.messages[index].msg_len as usize).min(SLOT_LEN);
        &mut self.bytes[index * SLOT_LEN..][..len]
    }

    /// Returns the datagram in slot `index`, which the last receive call must have filled.
    #[inline]
    pub(crate) fn received(&mut self, index: usize) -> Received<'_> {
        let message = &self.messages[index];
        let header = &message.msg_hdr;
        let len = (message.msg_len as usize).min(SLOT_LEN);
        self.addresses[index].len = header.msg_namelen;
        let controls = &self.controls[index].0[..control_len(header).min(CONTROL_LEN)];
        Received {
            from: &self.addresses[index],
            bytes: &mut self.bytes[index * SLOT_LEN..][..len],
            truncated: header.msg_flags & libc::MSG_TRUNC != 0,
            segment: if controls.is_empty() { None } else { segment_size(controls) },
            controls,
        }
    }
}

fn segment_size(controls: &[u8]) -> Option<usize> {
    control_messages(controls)
        .find(|&(level, kind, _)| level == libc::SOL_UDP && kind == libc::UDP_GRO)
        .and_then(|(_, _, value)| {
            usize::try_from(i32::from_ne_bytes(value.get(..4)?.try_into().ok()?)).ok()
        })
        .filter(|&size| size > 0)
}

/// One entry of a socket's error queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedError {
    /// Destination of the offending datagram.
    pub(crate) to: Option<SocketAddr>,
    pub(crate) errno: i32,
    /// MTU of the path, for `EMSGSIZE`.
    pub(crate) info: u32,
    /// Bytes 2 and 3 of the quoted datagram: on a native link, its destination port in Homa.
    pub(crate) port: Option<u16>,
}

/// Removes and returns the next entry of the error queue. `None`: the queue is empty, or cannot be read.
pub(crate) fn next_queued_error(socket: RawFd) -> Option<QueuedError> {
    // Room for the error (16 bytes) and the offender's address (up to 28) in IPv4 and IPv6 form.
    #[repr(C, align(8))]
    struct Room([u8; 256]);
    let mut address = RawAddress::EMPTY;
    let mut room = Room([0; 256]);
    let mut message = empty_message();
    message.msg_name = address.bytes.as_mut_ptr().cast();
    message.msg_namelen = address.bytes.len() as u32;
    point_at_control(&mut message, &mut room.0);
    let mut head = [0u8; 4];
    let mut part = libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    // SAFETY: the message points at a local address, a local control buffer and a local buffer with their lengths.
    let received =
        unsafe { libc::recvmsg(socket, &raw mut message, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) };
    if received < 0 {
        return None;
    }
    address.len = message.msg_namelen;
    let is_error = |&(level, kind, _): &(i32, i32, &[u8])| {
        (level, kind) == (libc::IPPROTO_IP, libc::IP_RECVERR)
            || (level, kind) == (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
    };
    // struct sock_extended_err: u32 errno, 4 bytes of origin, type, code and padding, u32 info, u32 data.
    let value = control_messages(&room.0[..control_len(&message).min(256)])
        .find(is_error)
        .map(|(_, _, value)| value);
    let word = |at: usize| {
        value.and_then(|value| value.get(at..at + 4)?.try_into().ok()).map_or(0, u32::from_ne_bytes)
    };
    let port = (received >= 4).then(|| u16::from_be_bytes([head[2], head[3]]));
    Some(QueuedError { to: address.decode(), errno: word(0).cast_signed(), info: word(8), port })
}

/// Sets an option whose value is an `int`.
pub(crate) fn set_option(socket: RawFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the pointer and the length are those of a live i32.
    let result = unsafe {
        libc::setsockopt(socket, level, name, (&raw const value).cast(), size_of::<i32>() as u32)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Attaches a program that chooses a datagram's socket among those that share an address: it returns the socket's number.
pub(crate) fn steer(socket: RawFd, program: &[libc::sock_filter]) -> io::Result<()> {
    attach(socket, libc::SO_ATTACH_REUSEPORT_CBPF, program)
}

/// Attaches a program that filters a socket's datagrams: it returns the number of bytes to keep, 0 to drop.
pub(crate) fn filter(socket: RawFd, program: &[libc::sock_filter]) -> io::Result<()> {
    attach(socket, libc::SO_ATTACH_FILTER, program)
}

fn attach(socket: RawFd, option: i32, program: &[libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).expect("programs are short");
    // The kernel is given the bytes between the members as well, which checkers of memory see.
    let mut all = [0u8; size_of::<libc::sock_fprog>()];
    let at = all.as_mut_ptr().cast::<libc::sock_fprog>();
    // SAFETY: the array has room for the members.
    unsafe {
        (&raw mut (*at).len).write_unaligned(len);
        (&raw mut (*at).filter).write_unaligned(program.as_ptr().cast_mut());
    }
    // SAFETY: the kernel copies the program, which is borrowed for the whole call and as long as `len` states.
    let result = unsafe {
        libc::setsockopt(socket, libc::SOL_SOCKET, option, all.as_ptr().cast(), all.len() as u32)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads an option whose value is an `int`.
pub(crate) fn option(socket: RawFd, level: i32, name: i32) -> io::Result<i32> {
    let mut value = 0i32;
    let mut len = size_of::<i32>() as u32;
    // SAFETY: both pointers are to live locals, and the length bounds the write.
    let result =
        unsafe { libc::getsockopt(socket, level, name, (&raw mut value).cast(), &raw mut len) };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Returns the number of datagrams that the kernel dropped on this socket, from `SO_MEMINFO`.
pub(crate) fn dropped(socket: RawFd) -> Option<u32> {
    const DROPS: usize = 8; // SK_MEMINFO_DROPS
    let mut values = [0u32; DROPS + 1];
    let mut len = size_of_val(&values) as u32;
    // SAFETY: both pointers are to live locals, and the length bounds the write.
    let result = unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            values.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    (result == 0 && len as usize == size_of_val(&values)).then(|| values[DROPS])
}

/// Returns the MTU of an interface, queried by `socket`.
pub(crate) fn mtu_of(socket: RawFd, name: &CStr) -> Option<usize> {
    let mut request = request_of(name)?;
    // SAFETY: the request names an interface by a null-terminated string, and the kernel writes no more than the structure.
    if unsafe { libc::ioctl(socket, libc::SIOCGIFMTU as _, &raw mut request) } != 0 {
        return None;
    }
    // SAFETY: the call has succeeded and has written this field.
    usize::try_from(unsafe { request.ifr_ifru.ifru_mtu }).ok()
}

/// Returns a query about an interface, or `None` if its name is too long.
fn request_of(name: &CStr) -> Option<libc::ifreq> {
    // SAFETY: ifreq is made of integers, for which all zeroes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let bytes = name.to_bytes();
    // The last byte stays zero.
    let target = request.ifr_name.get_mut(..bytes.len()).filter(|it| it.len() < libc::IFNAMSIZ)?;
    for (to, &byte) in target.iter_mut().zip(bytes) {
        *to = libc::c_char::from_ne_bytes([byte]);
    }
    Some(request)
}

/// Calls `visit` with each address, the name of its interface, and whether that is loopback.
pub(crate) fn each_interface_address(mut visit: impl FnMut(IpAddr, &CStr, bool)) {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the pointer is to a live local.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        // Netlink is forbidden: RestrictAddressFamilies= of systemd.
        if let Ok(socket) = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)) {
            each_ipv4_address(socket.as_raw_fd(), &mut visit);
            each_ipv6_address(socket.as_raw_fd(), &mut visit);
        }
        return;
    }
    let mut next = list;
    // SAFETY: the list is valid until freeifaddrs; each entry's `ifa_next` is null or the next entry.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        if let Some(ip) = interface_address(entry) {
            // SAFETY: `ifa_name` is a null-terminated string that lives as long as the list.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            visit(ip, name, entry.ifa_flags & libc::IFF_LOOPBACK as u32 != 0);
        }
    }
    // SAFETY: the list came from getifaddrs, is freed once, and no borrow from it is left.
    unsafe { libc::freeifaddrs(list) };
}

/// Visits the IPv4 addresses, queried by a socket.
fn each_ipv4_address(socket: RawFd, visit: &mut impl FnMut(IpAddr, &CStr, bool)) {
    // SAFETY: ifreq is made of integers, for which all zeroes are valid.
    let mut requests = vec![unsafe { std::mem::zeroed::<libc::ifreq>() }; ADDRESSES_MAX];
    let mut all = libc::ifconf {
        ifc_len: size_of_val(&requests[..]) as libc::c_int,
        ifc_ifcu: libc::__c_anonymous_ifc_ifcu { ifcu_req: requests.as_mut_ptr() },
    };
    // SAFETY: the kernel writes at most as many bytes as the requests have.
    if unsafe { libc::ioctl(socket, libc::SIOCGIFCONF as _, &raw mut all) } != 0 {
        return;
    }
    let count = usize::try_from(all.ifc_len).unwrap_or(0) / size_of::<libc::ifreq>();
    for request in requests.iter_mut().take(count) {
        // SAFETY: the kernel has written an IPv4 address, which fits, and a name that ends with a zero.
        let (address, name) = unsafe {
            let address = (&raw const request.ifr_ifru.ifru_addr).cast::<libc::sockaddr_in>();
            (address.read_unaligned(), CStr::from_ptr(request.ifr_name.as_ptr()).to_owned())
        };
        // A second address may have the name of a label, after a colon.
        let bytes = name.to_bytes().split(|&byte| byte == b':').next().unwrap_or_default();
        let Ok(name) = CString::new(bytes) else { continue };
        let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
        visit(ip.into(), &name, is_loopback(socket, &name));
    }
}

fn is_loopback(socket: RawFd, name: &CStr) -> bool {
    let Some(mut request) = request_of(name) else { return false };
    // SAFETY: the request names an interface by a null-terminated string, and the kernel writes no more than the structure.
    let asked = unsafe { libc::ioctl(socket, libc::SIOCGIFFLAGS as _, &raw mut request) };
    // SAFETY: the call has written this field if it has succeeded.
    asked == 0 && unsafe { request.ifr_ifru.ifru_flags } & libc::IFF_LOOPBACK as i16 != 0
}

/// Visits the IPv6 addresses of the kernel's table.
fn each_ipv6_address(socket: RawFd, visit: &mut impl FnMut(IpAddr, &CStr, bool)) {
    let table = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    for (ip, name) in table.lines().filter_map(ipv6_address) {
        visit(ip.into(), &name, is_loopback(socket, &name));
    }
}

/// Parses a line of `/proc/net/if_inet6`: the address, four numbers, and the interface.
fn ipv6_address(line: &str) -> Option<(Ipv6Addr, CString)> {
    let mut fields = line.split_ascii_whitespace();
    let ip = u128::from_str_radix(fields.next().filter(|it| it.len() == 32)?, 16).ok()?;
    Some((ip.into(), CString::new(fields.nth(4)?).ok()?))
}

/// Upper bound on IPv4 addresses that are visited where netlink is forbidden.
const ADDRESSES_MAX: usize = 1_024;

fn interface_address(entry: &libc::ifaddrs) -> Option<IpAddr> {
    let mut raw = RawAddress::EMPTY;
    // SAFETY: `ifa_addr` is null or points at a socket address whose first field is its family.
    let family = i32::from(unsafe { entry.ifa_addr.as_ref() }?.sa_family);
    raw.len = match family {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return None,
    } as u32;
    // SAFETY: an address of this family has this many bytes, and `raw` has room for the longer of the two.
    unsafe {
        std::ptr::copy_nonoverlapping(
            entry.ifa_addr.cast::<u8>(),
            raw.bytes.as_mut_ptr(),
            raw.len as usize,
        );
    }
    raw.decode().map(|address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_survive_the_way_through_the_kernels_form() {
        let mut control = Control::EMPTY;
        let source = Some("2001:db8::7".parse().unwrap());
        let tos = Some((0xE0, IpVersion::V6));
        let options = SendOptions { tos, source, segment: Some(1_472) };
        let len = options.write(&mut control);
        let seen: Vec<_> = control_messages(&control.0[..len]).collect();
        assert_eq!(seen.len(), 3);
        assert_eq!(seen[0], (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &0xE0i32.to_ne_bytes()[..]));
        assert_eq!(seen[2], (libc::SOL_UDP, libc::UDP_SEGMENT, &1_472u16.to_ne_bytes()[..]));
    }

    #[test]
    fn a_control_message_that_ends_too_early_is_left_alone() {
        let mut control = Control::EMPTY;
        let len = control.put(0, libc::SOL_UDP, libc::UDP_GRO, &1_200i32.to_ne_bytes());
        assert_eq!(segment_size(&control.0[..len]), Some(1_200));
        for cut in 0..20 {
            assert_eq!(segment_size(&control.0[..cut]), None, "{cut}");
        }
        control.0[..8].copy_from_slice(&3usize.to_ne_bytes());
        assert_eq!(segment_size(&control.0[..len]), None);
    }
}
