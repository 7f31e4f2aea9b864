//! An XSK: a socket of the family `AF_XDP`, which passes whole frames to one queue of a device.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::program::{self, Attachment};
use super::region::Region;
use super::ring::{Consumer, Layout, Producer, RingEntry};
use super::umem::{FRAME_LEN, Umem};

/// Number of frames for sending, and of the places of both rings. A flush has at most 128 datagrams; a device that is slow to send
/// them holds the others. The kernel charges the frames, 1 MiB, to the limit of locked memory.
const FRAMES: u32 = 512;

/// Upper bound on frames per reception.
const RECEIVED_MAX: usize = 64;

/// Number of queues that are tried. Each has at most one XSK, of this or another process.
const QUEUES: u32 = 16;

/// Upper bound on wake-ups per flush. Linux sends at most 32 frames per call.
const WAKE_UPS: u32 = 8;

/// An XSK.
#[derive(Debug)]
pub(super) struct Xsk {
    /// The program that passes packets to the socket, if the socket receives any.
    attachment: Option<Attachment>,
    socket: OwnedFd,
    umem: Umem,
    transmit: Producer<libc::xdp_desc>,
    completed: Consumer<u64>,
    receive: Consumer<libc::xdp_desc>,
    fill: Producer<u64>,
    /// Number of system calls for sending.
    pub(super) calls: u64,
}

impl Xsk {
    /// Opens an XSK at the first free queue of a device. It receives short datagrams to an address that arrive at this queue, if one is
    /// given and the kernel takes the program for it ([`receives`](Self::receives)).
    ///
    /// # Errors
    ///
    /// `EPERM` without `CAP_NET_RAW`, `EAFNOSUPPORT` if the kernel has no XSKs, `EBUSY` if no queue is free, `ENODEV` without
    /// such a device, `ENOBUFS` past the limit of locked memory, and other errors of the kernel.
    pub(super) fn open(device: u32, own: Option<SocketAddr>) -> io::Result<Self> {
        let mut busy = io::Error::from_raw_os_error(libc::EBUSY);
        for queue in 0..QUEUES {
            match Self::open_at(device, queue, own) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => busy = error,
                // The device has no such queue.
                Err(error) if queue > 0 && error.raw_os_error() == Some(libc::EINVAL) => break,
                opened => return opened,
            }
        }
        Err(busy)
    }

    fn open_at(device: u32, queue: u32, own: Option<SocketAddr>) -> io::Result<Self> {
        let socket = open()?;
        let received = if own.is_some() { FRAMES } else { 0 };
        let mut umem = Umem::new(FRAMES + received)?;
        register(&socket, &umem)?;
        for (option, size) in [
            (libc::XDP_UMEM_FILL_RING, FRAMES),
            (libc::XDP_UMEM_COMPLETION_RING, FRAMES),
            (libc::XDP_TX_RING, FRAMES),
            (libc::XDP_RX_RING, FRAMES),
        ] {
            set(&socket, option, &size)?;
        }
        let offsets = offsets(&socket)?;
        let (region, layout) = map::<libc::xdp_desc>(&socket, offsets.tx, libc::XDP_PGOFF_TX_RING)?;
        let transmit = Producer::new(region, layout, FRAMES);
        let place = libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t;
        let (region, layout) = map::<u64>(&socket, offsets.cr, place)?;
        let completed = Consumer::new(region, layout, FRAMES);
        let (region, layout) = map::<libc::xdp_desc>(&socket, offsets.rx, libc::XDP_PGOFF_RX_RING)?;
        let receive = Consumer::new(region, layout, FRAMES);
        let place = libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t;
        let (region, layout) = map::<u64>(&socket, offsets.fr, place)?;
        let mut fill = Producer::new(region, layout, FRAMES);
        for frame in std::iter::from_fn(|| umem.take()).take(received as usize) {
            fill.push(frame.address());
        }
        fill.publish();
        bind(&socket, device, queue)?;
        let attachment = own.and_then(|own| program::attach(device, queue, own, &socket).ok());
        Ok(Self { attachment, socket, umem, transmit, completed, receive, fill, calls: 0 })
    }

    /// Queues a frame, which `write` makes; it returns the length. Returns `false` if there is no room.
    #[inline]
    pub(super) fn push(&mut self, write: impl FnOnce(&mut [u8; FRAME_LEN]) -> usize) -> bool {
        let Some(mut frame) = self.umem.take() else { return false };
        let len = write(self.umem.bytes(&mut frame)).min(FRAME_LEN);
        let descriptor = libc::xdp_desc { addr: frame.address(), len: len as u32, options: 0 };
        let pushed = self.transmit.push(descriptor);
        debug_assert!(pushed, "the ring has a place for each frame");
        if !pushed {
            self.umem.give_back(frame);
        }
        pushed
    }

    /// Returns whether packets are passed to the socket.
    pub(super) fn receives(&self) -> bool {
        self.attachment.is_some()
    }

    /// Returns the descriptor, which is ready while received frames wait.
    pub(super) fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Passes received frames to `take`, up to a number. Returns how many there were. Makes no system call.
    #[inline]
    pub(super) fn receive(&mut self, mut take: impl FnMut(&mut [u8])) -> usize {
        let mut count = 0;
        while count < RECEIVED_MAX
            && let Some(descriptor) = self.receive.pop()
        {
            count += 1;
            if let Some(bytes) = self.umem.received(descriptor.addr, descriptor.len as usize) {
                take(bytes);
            }
            if let Some(frame) = self.umem.returned(descriptor.addr) {
                self.fill.push(frame.address());
            }
        }
        if count > 0 {
            self.receive.release();
            self.fill.publish();
        }
        count
    }

    /// Takes back the frames that were sent.
    #[inline]
    pub(super) fn reclaim(&mut self) {
        while let Some(address) = self.completed.pop() {
            if let Some(frame) = self.umem.returned(address) {
                self.umem.give_back(frame);
            }
        }
        self.completed.release();
    }

    /// Passes all queued frames to the device, as far as it takes them; [`is_idle`](Self::is_idle) then returns `true`. The others
    /// stay queued.
    ///
    /// # Errors
    ///
    /// When the device is gone or down. No frame will leave.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.transmit.publish();
        for _ in 0..WAKE_UPS {
            if !self.transmit.needs_wake_up() {
                return Ok(());
            }
            self.calls += 1;
            if let Err(error) = wake(&self.socket) {
                match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => {}
                    _ => return Err(error),
                }
            }
            if self.is_idle() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns whether the kernel has taken all queued frames.
    #[inline]
    pub(super) fn is_idle(&mut self) -> bool {
        self.transmit.unread() == 0
    }
}

/// Opens a socket without a device: a test of the privilege, and of the kernel.
pub(super) fn open() -> io::Result<OwnedFd> {
    // SAFETY: takes integers only.
    let socket = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, so only this function owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

fn register(socket: &OwnedFd, umem: &Umem) -> io::Result<()> {
    let (addr, len) = umem.place();
    let chunk_size = FRAME_LEN as u32;
    let memory =
        libc::xdp_umem_reg { addr, len, chunk_size, headroom: 0, flags: 0, tx_metadata_len: 0 };
    set(socket, libc::XDP_UMEM_REG, &memory)
}

/// Sets an option whose value consists of integers.
fn set<T>(socket: &OwnedFd, option: i32, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as u32;
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: the pointer and the length are those of a live value, which the kernel reads. The memory that a umem names stays
    // mapped as long as its socket is open: `Xsk` drops the socket first.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, value, len) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the places of the parts of all rings.
fn offsets(socket: &OwnedFd) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: the structure is made of integers, for which all zeroes are valid.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&offsets) as u32;
    let option = libc::XDP_MMAP_OFFSETS;
    // SAFETY: both pointers are to live locals, and the length bounds the write.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            option,
            (&raw mut offsets).cast(),
            &raw mut len,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    if len as usize == size_of_val(&offsets) {
        Ok(offsets)
    } else {
        // Before Linux 5.4, rings have no flags.
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }
}

/// Maps a ring of `FRAMES` entries.
fn map<T: RingEntry>(
    socket: &OwnedFd,
    offset: libc::xdp_ring_offset,
    place: libc::off_t,
) -> io::Result<(Region, Layout)> {
    let at = |offset: u64| usize::try_from(offset).map_err(io::Error::other);
    let layout = Layout {
        producer: at(offset.producer)?,
        consumer: at(offset.consumer)?,
        flags: at(offset.flags)?,
        entries: at(offset.desc)?,
    };
    let len = layout.entries + FRAMES as usize * size_of::<T>();
    Ok((Region::of_file(socket.as_raw_fd(), place, len)?, layout))
}

/// Binds the socket to a queue in the mode of all devices, in which the kernel copies frames.
fn bind(socket: &OwnedFd, device: u32, queue: u32) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: device,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let len = size_of_val(&address) as u32;
    // SAFETY: the pointer and the length are those of a live address.
    let done = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes the kernel send queued frames.
fn wake(socket: &OwnedFd) -> io::Result<()> {
    let (none, no_address) = (std::ptr::null(), std::ptr::null());
    // SAFETY: the buffer and the address are empty.
    let done =
        unsafe { libc::sendto(socket.as_raw_fd(), none, 0, libc::MSG_DONTWAIT, no_address, 0) };
    if done >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::namespace::in_a_namespace;
    use super::*;

    #[test]
    fn frames_leave_in_batches_and_come_back() {
        if !in_a_namespace() {
            return;
        }
        let mut xsk = Xsk::open(1, None).expect("the namespace is ours");
        for round in 0..20 {
            for _ in 0..100 {
                let pushed = xsk.push(|frame| {
                    frame[..14].fill(0xFF);
                    60
                });
                assert!(pushed, "round {round}");
            }
            xsk.flush().unwrap();
            assert!(xsk.is_idle(), "round {round}");
            xsk.reclaim();
        }
        assert_eq!(xsk.umem.free(), FRAMES as usize);
        assert!(xsk.calls < 20 * 8, "{} calls", xsk.calls);
    }

    #[test]
    fn a_queue_has_one_xsk_and_frames_are_bounded() {
        if !in_a_namespace() {
            return;
        }
        let mut first = Xsk::open(1, None).expect("the namespace is ours");
        assert_eq!(Xsk::open(1, None).unwrap_err().raw_os_error(), Some(libc::EBUSY));
        assert_eq!((0..FRAMES + 9).filter(|_| first.push(|_| 60)).count(), FRAMES as usize);
        drop(first);
        // The kernel frees the queue a moment after the socket.
        let start = Instant::now();
        while let Err(error) = Xsk::open(1, None) {
            assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
            assert!(start.elapsed() < Duration::from_secs(20), "the queue is never free again");
            std::thread::yield_now();
        }
        assert_eq!(Xsk::open(99, None).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }

    /// Opens an XSK that receives. The kernel frees queue and device a moment after the last one.
    fn receiving(own: &str) -> Xsk {
        let start = Instant::now();
        loop {
            match Xsk::open(1, Some(own.parse().unwrap())) {
                Ok(xsk) if xsk.receives() => return xsk,
                _ => assert!(start.elapsed() < Duration::from_secs(20), "{own}: no program"),
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn datagrams_to_the_address_arrive_and_others_do_not() {
        if !in_a_namespace() {
            return;
        }
        for own in ["127.0.0.1", "[::1]"] {
            let other = std::net::UdpSocket::bind((own.trim_matches(['[', ']']), 0)).unwrap();
            let port = if other.local_addr().unwrap().port() == 7 { 8 } else { 7 };
            let mut xsk = receiving(&format!("{own}:{port}"));
            let to_other = format!("{own}:{}", other.local_addr().unwrap().port());
            let sender = if own.starts_with('[') { "[::1]:0" } else { "127.0.0.1:0" };
            let sender = std::net::UdpSocket::bind(sender).unwrap();
            sender.send_to(b"for the socket", to_other).unwrap();
            assert_eq!(other.recv(&mut [0; 99]).unwrap(), 14);
            for number in 0..2 * FRAMES {
                sender.send_to(&number.to_be_bytes(), format!("{own}:{port}")).unwrap();
                let mut seen = Vec::new();
                let start = Instant::now();
                while seen.is_empty() {
                    xsk.receive(|frame| seen.push(frame.to_vec()));
                    assert!(start.elapsed() < Duration::from_secs(20), "{own}: {number}");
                }
                assert!(seen[0].ends_with(&number.to_be_bytes()) && seen.len() == 1);
            }
        }
    }
}
