//! The output of `apus run --explain`: for each TCP connection of the process, whether it was carried, and if not, the reason.
//!
//! Connections are recorded when they are made, without allocation or lock, and printed when the process ends or becomes another
//! program. The connection of a non-blocking socket has no addresses until it is established. It is checked again when the
//! program asks for `SO_ERROR`, when it closes the descriptor, and at the end.
//!
//! The records lie in memory that a process shares with its children. A child of `fork` writes into the record of an inherited
//! connection, and the process that made or accepted the connection prints the line. So a server that forks for each connection
//! reports their outcomes.
//!
//! The lines go to standard error, one write each, if it is still the same file as at the start: a daemon closes it, and may have
//! data there instead.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::fmt::{self, Write};
use std::mem;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering,
};

use libc::{c_int, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use crate::descriptors::{self, REPORTED};
use crate::errno;
use crate::originals;

/// The variable that `apus run --explain` sets.
const VARIABLE: &std::ffi::CStr = c"APUS_EXPLAIN";

/// Upper bound on recorded connections of a process and its children. Further ones are only counted.
const CONNECTIONS_MAX: usize = 4096;

static WANTED: AtomicBool = AtomicBool::new(false);

/// Number of connections of this process since the last report.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Number of those that have no record.
static BEYOND: AtomicUsize = AtomicUsize::new(0);

/// The records of a process and its children. Initially zeros.
struct Records {
    count: AtomicUsize,
    connections: [Connection; CONNECTIONS_MAX],
    texts: [Known; TEXTS_MAX],
}

static RECORDS: AtomicPtr<Records> = AtomicPtr::new(ptr::null_mut());

/// The records. `None` without a report.
fn records() -> Option<&'static Records> {
    // SAFETY: the memory stays mapped, and any thread and process may use it at any time.
    unsafe { RECORDS.load(Ordering::Acquire).as_ref() }
}

fn own_process() -> libc::pid_t {
    // SAFETY: the call takes no arguments and cannot fail.
    unsafe { libc::getpid() }
}

/// Device and inode of standard error at the start.
static TERMINAL: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Whether connections are recorded.
#[inline(always)]
pub(crate) fn is_wanted() -> bool {
    WANTED.load(Ordering::Relaxed)
}

/// Reads from the environment whether to report.
pub(crate) fn start() {
    // SAFETY: the name ends with a zero byte, and no other thread runs yet that could change the environment.
    let value = unsafe { libc::getenv(VARIABLE.as_ptr()) };
    // SAFETY: a value ends with a zero byte, so its first byte is readable.
    let is_set = !value.is_null() && unsafe { *value } != 0;
    if let Some(file) = standard_error().filter(|_| is_set) {
        if !make_records() {
            return;
        }
        TERMINAL.iter().zip(file).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        WANTED.store(true, Ordering::Relaxed);
    }
}

/// Maps the memory of the records. Returns `false` on failure.
fn make_records() -> bool {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the call makes a new mapping of zeros.
    let memory = unsafe { libc::mmap(ptr::null_mut(), size_of::<Records>(), access, flags, -1, 0) };
    if memory != libc::MAP_FAILED {
        RECORDS.store(memory.cast(), Ordering::Release);
    }
    memory != libc::MAP_FAILED
}

/// Runs in a child: the parent prints its connections so far. The child still updates their records.
pub(crate) fn forget() {
    COUNT.store(0, Ordering::Relaxed);
    BEYOND.store(0, Ordering::Relaxed);
}

/// The part of a descriptor's word with the index of its record.
const PLACE: u64 = 0xffff_ffff << 32;

/// Records an accepted connection.
#[cold]
pub(crate) extern "C" fn accepted(fd: c_int) {
    if is_tcp(fd) {
        record(fd, Role::Accepted);
    }
}

/// Records a connection that was made or is being made. `error` is the errno of `connect`.
#[cold]
pub(crate) extern "C" fn connected(fd: c_int, error: c_int) {
    let has_begun = matches!(error, 0 | libc::EINPROGRESS | libc::EINTR);
    if has_begun && is_tcp(fd) && descriptors::word(fd) & REPORTED == 0 {
        record(fd, Role::Connected);
    }
}

/// The bytes of the connection go through memory, to another process of this host or to a carrier.
pub(crate) fn carried(fd: c_int, between_hosts: bool) {
    if let Some(connection) = connection(fd) {
        connection.complete(fd);
        connection.why.clear(); // The connection may have been in TCP before.
        connection.was_carried.store(1 + u8::from(between_hosts), Ordering::Relaxed);
    }
}

/// A connection between hosts is reset, because bytes may have been lost with a carrier.
pub(crate) fn lost(fd: c_int) {
    if let Some(connection) = connection(fd) {
        connection.was_carried.store(3, Ordering::Relaxed);
    }
}

/// A connection between hosts returned to the kernel, because its carrier was switched off.
pub(crate) fn switched_off(fd: c_int) {
    if let Some(connection) = connection(fd) {
        connection.was_carried.store(4, Ordering::Relaxed);
    }
}

/// A connection returned to the kernel. `why` is a call of the program, or the peer.
pub(crate) fn returned(fd: c_int, why: &'static str) {
    if let Some(connection) = connection(fd) {
        connection.why.set(why);
    }
}

fn connection(fd: c_int) -> Option<&'static Connection> {
    let word = descriptors::word(fd);
    records()?.connections.get((word >> 32) as usize).filter(|_| word & REPORTED != 0)
}

/// Completes the record of a descriptor if the connection is established. Preserves errno.
#[cold]
pub(crate) extern "C" fn settle(fd: c_int) {
    if let Some(connection) = connection(fd) {
        errno::kept(|| connection.complete(fd));
    }
}

/// Prints all connections recorded since the last call. Runs when the process ends or becomes another program.
pub(crate) extern "C" fn print() {
    if !is_wanted() || COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    for fd in descriptors::used_in(0..=u32::MAX) {
        if descriptors::word(fd) & REPORTED != 0 {
            settle(fd);
            descriptors::set(fd, 0, REPORTED | PLACE);
        }
    }
    COUNT.store(0, Ordering::Relaxed);
    errno::kept(|| {
        if standard_error() == Some(TERMINAL.each_ref().map(|word| word.load(Ordering::Relaxed))) {
            without_sigpipe(print_lines);
        }
    });
}

/// Prints all records and stops recording, which takes system calls that the program may no longer make.
pub(crate) fn end() {
    if !is_wanted() {
        return;
    }
    print();
    WANTED.store(false, Ordering::Relaxed);
    say(format_args!(
        "the program restricts its system calls: from now on no connection is carried or explained"
    ));
}

fn print_lines() {
    let own = own_process();
    let Some(records) = records() else { return };
    let count = records.count.load(Ordering::Acquire).min(CONNECTIONS_MAX);
    let is_own = |it: &&Connection| {
        it.owner.compare_exchange(own, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    for connection in records.connections[..count].iter().filter(is_own) {
        let mut line = Line::new();
        let _ = connection.describe(&mut line);
        line.print();
    }
    let beyond = BEYOND.swap(0, Ordering::Relaxed);
    if beyond > 0 {
        let mut line = Line::new();
        let _ = writeln!(line, "{beyond} more connections without a record");
        line.print();
    }
}

fn record(fd: c_int, role: Role) {
    let Some(records) = records() else { return };
    COUNT.fetch_add(1, Ordering::Relaxed);
    let place = records.count.load(Ordering::Relaxed);
    // The count does not grow beyond the records.
    let place = match place < CONNECTIONS_MAX {
        true => records.count.fetch_add(1, Ordering::AcqRel),
        false => place,
    };
    let Some(connection) = records.connections.get(place) else {
        BEYOND.fetch_add(1, Ordering::Relaxed);
        descriptors::set(fd, 0, REPORTED | PLACE);
        return;
    };
    connection.begin(role);
    connection.complete(fd);
    descriptors::set(fd, REPORTED | (place as u64) << 32, PLACE);
}

/// The role of this process in a connection.
#[derive(Clone, Copy)]
enum Role {
    Accepted,
    Connected,
}

/// A record. Any thread may read it while another one writes it.
struct Connection {
    /// The process that has to print the record. 0 once printed.
    owner: AtomicI32,
    /// 0 until the connection is established, then 1 for an accepted one and 2 for one that this process made.
    role: AtomicU8,
    is_complete: AtomicBool,
    local: Address,
    peer: Address,
    /// 0 if not carried, 1 within this host, 2 between hosts, 3 between hosts until a carrier was lost, 4 between hosts until the
    /// carrier was switched off.
    was_carried: AtomicU8,
    why: Text,
}

impl Connection {
    fn begin(&self, role: Role) {
        self.is_complete.store(false, Ordering::Relaxed);
        self.role.store(role as u8, Ordering::Relaxed);
        self.owner.store(own_process(), Ordering::Relaxed);
        self.was_carried.store(0, Ordering::Relaxed);
        self.why.clear();
    }

    fn complete(&self, fd: c_int) {
        if self.is_complete.load(Ordering::Relaxed) {
            return;
        }
        if let (Some(local), Some(peer)) =
            (address(fd, libc::getsockname), address(fd, libc::getpeername))
        {
            self.local.store(local);
            self.peer.store(peer);
            self.is_complete.store(true, Ordering::Release);
        }
    }

    fn describe(&self, line: &mut Line) -> fmt::Result {
        let is_accepted = self.role.load(Ordering::Relaxed) == Role::Accepted as u8;
        if !self.is_complete.load(Ordering::Acquire) {
            let what = if is_accepted { "an accepted connection" } else { "a connecting socket" };
            return writeln!(
                line,
                "{what}: not carried: it was not established, or was reset at once"
            );
        }
        let (local, peer) = (self.local.load(), self.peer.load());
        let word = if is_accepted { "from" } else { "to" };
        let why = self.why.get();
        write!(line, "{local} {word} {peer}: ")?;
        let carried = match self.was_carried.load(Ordering::Relaxed) {
            0 => None,
            1 => Some("carried"),
            2 => Some("carried between hosts"),
            4 => return writeln!(line, "carried between hosts until the carrier was switched off"),
            _ => {
                return writeln!(
                    line,
                    "carried between hosts, and reset because a carrier ended or lost the other carrier"
                );
            }
        };
        match (carried, why) {
            (Some(carried), None) => writeln!(line, "{carried}"),
            (Some(carried), Some(call)) => {
                writeln!(line, "{carried} until the program called {call}")
            }
            (None, Some(call)) => writeln!(line, "not carried: the program called {call}"),
            (None, None) => writeln!(line, "not carried: {}", reason(local.ip(), peer.ip())),
        }
    }
}

/// Whether connections between hosts are carried too.
static BETWEEN_HOSTS: AtomicBool = AtomicBool::new(false);

/// Notes that connections between hosts are carried too.
pub(crate) fn expect_between_hosts() {
    BETWEEN_HOSTS.store(true, Ordering::Relaxed);
}

/// Whether ends in other network namespaces of this host are met in a directory.
static CONTAINERS: AtomicBool = AtomicBool::new(false);

/// Notes that connections between network namespaces of this host are carried too.
pub(crate) fn expect_containers() {
    CONTAINERS.store(true, Ordering::Relaxed);
}

/// The reason why this process carries no connections.
static NOTHING: Text = Text::new();

/// Notes that this process carries no connections, with the reason.
pub(crate) fn expect_nothing(why: &'static str) {
    NOTHING.set(why);
}

/// The default reason why a connection was not carried.
fn reason(local: IpAddr, peer: IpAddr) -> &'static str {
    if let Some(why) = NOTHING.get() {
        why
    } else if peer.to_canonical().is_loopback() || peer == local {
        "it ended too early, or the peer does not run under `apus run`"
    } else if BETWEEN_HOSTS.load(Ordering::Relaxed) {
        "it ended too early, the peer does not run under `apus run --net`, or the carriers do not reach each other"
    } else if CONTAINERS.load(Ordering::Relaxed) {
        "it ended too early, or the peer does not run under `apus run` as the same user with the same APUS_SHM_DIR"
    } else {
        "the peer is not at an address of this host"
    }
}

/// A text that is set once, by any thread. Stored as the number of a text in [`Records`], so that no thread sees half of it.
struct Text(AtomicU8);

impl Text {
    const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    fn clear(&self) {
        self.0.store(0, Ordering::Release);
    }

    fn set(&self, text: &'static str) {
        let _ = self.0.compare_exchange(0, number(text), Ordering::AcqRel, Ordering::Relaxed);
    }

    fn get(&self) -> Option<&'static str> {
        let number = usize::from(self.0.load(Ordering::Acquire));
        let texts = records().map_or(&[][..], |records| &records.texts);
        Some(texts.get(number.checked_sub(1)?).map_or(OTHER, Known::text))
    }
}

/// Upper bound on the set texts: one for each call that ends carrying, and for each other reason.
const TEXTS_MAX: usize = 254;

/// The text for any beyond that number.
const OTHER: &str = "another call";

/// A text, in memory that all children of this process share.
struct Known {
    /// 0 for a free place, 1 while a thread writes it, 2 once final.
    state: AtomicU8,
    text: UnsafeCell<Option<&'static str>>,
}

// SAFETY: the text is written by the thread that changes the state from 0 to 1, and read when the state is 2.
unsafe impl Sync for Known {}

impl Known {
    fn text(&self) -> &'static str {
        if self.state.load(Ordering::Acquire) != 2 {
            return OTHER;
        }
        // SAFETY: the text is final.
        unsafe { *self.text.get() }.unwrap_or(OTHER)
    }

    fn take(&self, text: &'static str) -> bool {
        let taken = self.state.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if taken {
            // SAFETY: in this state, no other thread reads or writes it.
            unsafe { *self.text.get() = Some(text) };
            self.state.store(2, Ordering::Release);
        }
        taken
    }
}

/// The number of a text, from 1. A place that another thread is writing, or whose writer this handler interrupted, is skipped.
/// The text may then have two numbers.
fn number(text: &'static str) -> u8 {
    let is_its = |known: &Known| {
        known.state.load(Ordering::Acquire) == 2 && ptr::eq(known.text(), text) || known.take(text)
    };
    let texts = records().map_or(&[][..], |records| &records.texts);
    texts.iter().position(is_its).unwrap_or(TEXTS_MAX) as u8 + 1
}

/// An address and a port, as three words.
struct Address([AtomicU64; 3]);

impl Address {
    fn store(&self, address: SocketAddr) {
        let (ip, is_v4) = match address.ip() {
            IpAddr::V4(ip) => (ip.to_ipv6_mapped(), true),
            IpAddr::V6(ip) => (ip, false),
        };
        let ip = u128::from(ip);
        let port = u64::from(address.port()) | u64::from(is_v4) << 16;
        let words = [(ip >> 64) as u64, ip as u64, port];
        self.0.iter().zip(words).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
    }

    fn load(&self) -> SocketAddr {
        let [high, low, port] = self.0.each_ref().map(|word| word.load(Ordering::Relaxed));
        let ip = Ipv6Addr::from(u128::from(high) << 64 | u128::from(low));
        let mapped = ip.to_ipv4_mapped().filter(|_| port >> 16 == 1);
        SocketAddr::new(mapped.map_or(IpAddr::V6(ip), IpAddr::V4), port as u16)
    }
}

fn is_tcp(fd: c_int) -> bool {
    let (mut protocol, mut bytes): (c_int, _) = (0, size_of::<c_int>() as socklen_t);
    let value: *mut c_void = (&raw mut protocol).cast();
    // SAFETY: the value has room for `bytes` bytes.
    let result = unsafe {
        originals::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL, value, &raw mut bytes)
    };
    result == 0 && protocol == libc::IPPROTO_TCP
}

/// The addresses of a connection, the local one first.
pub(crate) fn addresses(fd: c_int) -> Option<(SocketAddr, SocketAddr)> {
    if !is_tcp(fd) {
        return None;
    }
    Some((address(fd, libc::getsockname)?, address(fd, libc::getpeername)?))
}

/// The local address of a TCP socket.
pub(crate) fn local_address(fd: c_int) -> Option<SocketAddr> {
    if !is_tcp(fd) {
        return None;
    }
    address(fd, libc::getsockname)
}

/// The address of one end of a socket. `ask` is a call that this library does not replace.
fn address(
    fd: c_int,
    ask: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int,
) -> Option<SocketAddr> {
    // SAFETY: all zeros are a valid value.
    let mut storage: sockaddr_storage = unsafe { mem::zeroed() };
    let mut bytes = size_of::<sockaddr_storage>() as socklen_t;
    // SAFETY: the storage has room for `bytes` bytes.
    if unsafe { ask(fd, (&raw mut storage).cast(), &raw mut bytes) } != 0 {
        return None;
    }
    match c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: an address of this family has this layout.
            let at: sockaddr_in = unsafe { ptr::read((&raw const storage).cast()) };
            let ip = u32::from_be(at.sin_addr.s_addr);
            Some(SocketAddr::new(IpAddr::V4(ip.into()), u16::from_be(at.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let at: sockaddr_in6 = unsafe { ptr::read((&raw const storage).cast()) };
            let ip = Ipv6Addr::from(at.sin6_addr.s6_addr);
            Some(SocketAddr::new(IpAddr::V6(ip), u16::from_be(at.sin6_port)))
        }
        _ => None,
    }
}

/// Device and inode of standard error.
fn standard_error() -> Option<[u64; 2]> {
    // SAFETY: all zeros are a valid value.
    let mut file: libc::stat = unsafe { mem::zeroed() };
    // SAFETY: the buffer has room for the result.
    let result = unsafe { libc::fstat(libc::STDERR_FILENO, &raw mut file) };
    (result == 0).then_some([file.st_dev, file.st_ino])
}

/// Runs `work` without dying of `SIGPIPE` if standard error has no reader.
fn without_sigpipe(work: impl FnOnce()) {
    // SAFETY: the first calls initialize the sets, which are local variables.
    unsafe {
        let (mut set, mut before, mut pending) = (mem::zeroed(), mem::zeroed(), mem::zeroed());
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGPIPE);
        libc::sigpending(&raw mut pending);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
        work();
        if libc::sigismember(&raw const pending, libc::SIGPIPE) == 0 {
            let at_once = mem::zeroed();
            libc::sigtimedwait(&raw const set, ptr::null_mut(), &raw const at_once);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
    }
}

/// Writes a line about a wrong setting to standard error. Writes nothing if the line is too long.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    let mut line = Line::new();
    if line.write_fmt(text).and_then(|()| line.write_str("\n")).is_ok() {
        line.print();
    }
}

/// A line of the report, built without allocation.
struct Line {
    bytes: [u8; 256],
    used: usize,
}

impl Line {
    fn new() -> Self {
        let mut line = Self { bytes: [0; 256], used: 0 };
        let _ = write!(line, "apus[{}]: ", own_process());
        line
    }

    fn print(&self) {
        // SAFETY: the line has that many bytes. A line that cannot be written is lost.
        let _ =
            unsafe { originals::write(libc::STDERR_FILENO, self.bytes.as_ptr().cast(), self.used) };
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.used..self.used + text.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.used += text.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_kept_as_they_are() {
        let kept = Address([const { AtomicU64::new(0) }; 3]);
        for text in ["127.0.0.1:80", "[::1]:65535", "[::ffff:10.0.0.1]:1", "[2001:db8::1]:443"] {
            let address: SocketAddr = text.parse().unwrap();
            kept.store(address);
            assert_eq!(kept.load(), address);
        }
    }

    #[test]
    fn a_peer_of_this_host_is_at_loopback_or_at_the_same_address() {
        let is_here = |local: &str, peer: &str| {
            reason(local.parse().unwrap(), peer.parse().unwrap())
                != "the peer is not at an address of this host"
        };
        assert!(is_here("127.0.0.1", "127.0.0.2") && is_here("::1", "::1"));
        assert!(is_here("::ffff:127.0.0.1", "::ffff:127.0.0.1") && is_here("10.0.0.1", "10.0.0.1"));
        assert!(!is_here("10.0.0.1", "10.0.0.2") && !is_here("fe80::1", "fe80::2"));
    }

    #[test]
    fn a_text_is_never_seen_by_halves() {
        const ALL: [&str; 3] = ["a", "a text that is longer", "another one"];
        assert!(make_records());
        let text = Text::new();
        std::thread::scope(|scope| {
            for mine in ALL {
                let text = &text;
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        text.set(mine);
                        assert!(text.get().is_none_or(|seen| ALL.contains(&seen)));
                        text.clear();
                    }
                });
            }
        });
    }

    #[test]
    fn a_line_that_is_too_long_is_cut() {
        let mut line = Line::new();
        assert!(write!(line, "{}", "x".repeat(200)).is_ok());
        assert!(write!(line, "{}", "x".repeat(200)).is_err());
    }
}
