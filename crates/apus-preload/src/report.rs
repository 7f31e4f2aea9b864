//! What `apus run --explain` prints: for each TCP connection of the process, whether it was carried, and why not.
//!
//! Connections are recorded when they are made, without allocation or lock, and printed when the process ends or becomes another
//! program. A connection of a socket that does not block has no addresses before it is established; it is looked at again when the
//! program asks for `SO_ERROR`, when it closes the descriptor, and at the end.
//!
//! The records lie in memory that a process shares with its children. A child of `fork` writes into the record of a connection that it has
//! from its parent, and the process that made or accepted the connection prints the line: so a server that forks for each connection tells
//! what has become of them.
//!
//! The lines go to standard error, one write each, if it is still the file that it was at the start: a daemon closes it, and may have
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

/// Connections of a process and its children that reports name; those beyond are counted.
const CONNECTIONS_MAX: usize = 4096;

static WANTED: AtomicBool = AtomicBool::new(false);

/// Connections of this process since the last report.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Those of them that have no record.
static BEYOND: AtomicUsize = AtomicUsize::new(0);

/// What a process and its children have recorded. Zeroes are the state before.
struct Records {
    count: AtomicUsize,
    connections: [Connection; CONNECTIONS_MAX],
    texts: [Known; TEXTS_MAX],
}

static RECORDS: AtomicPtr<Records> = AtomicPtr::new(ptr::null_mut());

/// The records; `None` if there is to be no report.
fn records() -> Option<&'static Records> {
    // SAFETY: the memory stays mapped, and any thread and process may use it at any time.
    unsafe { RECORDS.load(Ordering::Acquire).as_ref() }
}

fn own_process() -> libc::pid_t {
    // SAFETY: the call has no arguments and cannot fail.
    unsafe { libc::getpid() }
}

/// Device and inode of standard error at the start.
static TERMINAL: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Whether connections are to be recorded.
#[inline(always)]
pub(crate) fn is_wanted() -> bool {
    WANTED.load(Ordering::Relaxed)
}

/// Reads whether there is to be a report.
pub(crate) fn start() {
    // SAFETY: the name ends with a zero, and no other thread runs yet that could change the environment.
    let value = unsafe { libc::getenv(VARIABLE.as_ptr()) };
    // SAFETY: a value ends with a zero, so its first byte can be read.
    let is_set = !value.is_null() && unsafe { *value } != 0;
    if let Some(file) = standard_error().filter(|_| is_set) {
        if !make_records() {
            return;
        }
        TERMINAL.iter().zip(file).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        WANTED.store(true, Ordering::Relaxed);
    }
}

/// Makes the memory of the records. False if there is none.
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

/// In a child: the connections so far are those of the parent, which prints them. What becomes of them here is recorded all the same.
pub(crate) fn forget() {
    COUNT.store(0, Ordering::Relaxed);
    BEYOND.store(0, Ordering::Relaxed);
}

/// Where the place of a record lies in the word of a descriptor.
const PLACE: u64 = 0xffff_ffff << 32;

/// Records a connection that was accepted.
#[cold]
pub(crate) extern "C" fn accepted(fd: c_int) {
    if is_tcp(fd) {
        record(fd, Role::Accepted);
    }
}

/// Records a connection that was made, or begun; `error` is what `connect` left.
#[cold]
pub(crate) extern "C" fn connected(fd: c_int, error: c_int) {
    let has_begun = matches!(error, 0 | libc::EINPROGRESS | libc::EINTR);
    if has_begun && is_tcp(fd) && descriptors::word(fd) & REPORTED == 0 {
        record(fd, Role::Connected);
    }
}

/// The bytes of a connection go through memory, to another process of this host or to a carrier.
pub(crate) fn carried(fd: c_int, between_hosts: bool) {
    if let Some(connection) = connection(fd) {
        connection.complete(fd);
        connection.why.clear(); // It may have been with TCP for a while.
        connection.was_carried.store(1 + u8::from(between_hosts), Ordering::Relaxed);
    }
}

/// A connection between hosts is reset, because bytes may be lost with a carrier.
pub(crate) fn lost(fd: c_int) {
    if let Some(connection) = connection(fd) {
        connection.was_carried.store(3, Ordering::Relaxed);
    }
}

/// A connection between hosts is the kernel's from now on, because its carrier was switched off.
pub(crate) fn switched_off(fd: c_int) {
    if let Some(connection) = connection(fd) {
        connection.was_carried.store(4, Ordering::Relaxed);
    }
}

/// A connection is the kernel's from now on, because of what the program does, or because of the peer.
pub(crate) fn returned(fd: c_int, why: &'static str) {
    if let Some(connection) = connection(fd) {
        connection.why.set(why);
    }
}

fn connection(fd: c_int) -> Option<&'static Connection> {
    let word = descriptors::word(fd);
    records()?.connections.get((word >> 32) as usize).filter(|_| word & REPORTED != 0)
}

/// Completes the record of a descriptor, if the connection is established by now. Keeps errno.
#[cold]
pub(crate) extern "C" fn settle(fd: c_int) {
    if let Some(connection) = connection(fd) {
        errno::kept(|| connection.complete(fd));
    }
}

/// Prints all connections that were recorded since the last time. The process ends, or becomes another program.
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

/// Prints what there is. Nothing is recorded any more, since that takes system calls which the program may not make.
pub(crate) fn end() {
    if !is_wanted() {
        return;
    }
    print();
    WANTED.store(false, Ordering::Relaxed);
    say(format_args!(
        "the program restricts its system calls: from now on nothing is carried or explained"
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
        let _ =
            writeln!(line, "{beyond} more connections, without a record of what became of them");
        line.print();
    }
}

fn record(fd: c_int, role: Role) {
    let Some(records) = records() else { return };
    COUNT.fetch_add(1, Ordering::Relaxed);
    let place = records.count.load(Ordering::Relaxed);
    // Beyond the records the count stands still.
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

/// Who began a connection.
#[derive(Clone, Copy)]
enum Role {
    Accepted,
    Connected,
}

/// A record; any thread may read it while another one writes it.
struct Connection {
    /// The process that is to print it; 0: it has done so.
    owner: AtomicI32,
    /// 0 when the connection is not established, then 1 for an accepted one and 2 for one that this process made.
    role: AtomicU8,
    is_complete: AtomicBool,
    local: Address,
    peer: Address,
    /// 0: not; 1: within this host; 2: between hosts; 3: between hosts, until a carrier was lost; 4: or until it was
    /// switched off.
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
            let what =
                if is_accepted { "an accepted connection" } else { "a connection that was begun" };
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
                    "carried between hosts, and reset because a carrier ended or could not reach the other one"
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

/// Connections between hosts are carried as well.
static BETWEEN_HOSTS: AtomicBool = AtomicBool::new(false);

/// Says that connections between hosts are carried as well.
pub(crate) fn expect_between_hosts() {
    BETWEEN_HOSTS.store(true, Ordering::Relaxed);
}

/// Ends in other network namespaces of this host are met in a directory.
static CONTAINERS: AtomicBool = AtomicBool::new(false);

/// Says that connections between network namespaces of this host are carried as well.
pub(crate) fn expect_containers() {
    CONTAINERS.store(true, Ordering::Relaxed);
}

/// Why nothing of this process is carried.
static NOTHING: Text = Text::new();

/// Says that no connection of this process is carried, and why.
pub(crate) fn expect_nothing(why: &'static str) {
    NOTHING.set(why);
}

/// Why a connection was not carried, if nothing else is known.
fn reason(local: IpAddr, peer: IpAddr) -> &'static str {
    if let Some(why) = NOTHING.get() {
        why
    } else if peer.to_canonical().is_loopback() || peer == local {
        "it ended before it was worth it, or the peer does not run under Apus"
    } else if BETWEEN_HOSTS.load(Ordering::Relaxed) {
        "it ended before it was worth it, the peer does not run under `apus run --net`, or a carrier does not reach the other one"
    } else if CONTAINERS.load(Ordering::Relaxed) {
        "it ended before it was worth it, or the peer does not run under Apus by the same user and with APUS_SHM_DIR"
    } else {
        "the peer is not at an address of this host"
    }
}

/// A text that is set once, by any thread: the number of one of those in [`Records`], so that no thread sees half of it.
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

/// Texts that were set so far: one for each call that ends carrying, and for each other reason.
const TEXTS_MAX: usize = 254;

/// What is shown beyond that number.
const OTHER: &str = "another call";

/// A text, which lies where all children of this process have it as well.
struct Known {
    /// 0: the place is free; 1: somebody writes it; 2: it stays as it is.
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
        // SAFETY: nobody writes it any more.
        unsafe { *self.text.get() }.unwrap_or(OTHER)
    }

    fn take(&self, text: &'static str) -> bool {
        let taken = self.state.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if taken {
            // SAFETY: nobody else reads or writes it in this state.
            unsafe { *self.text.get() = Some(text) };
            self.state.store(2, Ordering::Release);
        }
        taken
    }
}

/// The number of a text, from 1 on. A place that another thread is writing, or that a handler interrupted, is passed over: the text has
/// two numbers then.
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
    // SAFETY: the value has room for that many bytes.
    let result = unsafe {
        originals::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL, value, &raw mut bytes)
    };
    result == 0 && protocol == libc::IPPROTO_TCP
}

/// The addresses of a connection, its own one first.
pub(crate) fn addresses(fd: c_int) -> Option<(SocketAddr, SocketAddr)> {
    if !is_tcp(fd) {
        return None;
    }
    Some((address(fd, libc::getsockname)?, address(fd, libc::getpeername)?))
}

/// The address that a TCP socket has here.
pub(crate) fn local_address(fd: c_int) -> Option<SocketAddr> {
    if !is_tcp(fd) {
        return None;
    }
    address(fd, libc::getsockname)
}

/// The address of one end of a socket; `ask` is a call that no program of ours replaces.
fn address(
    fd: c_int,
    ask: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int,
) -> Option<SocketAddr> {
    // SAFETY: all zeros are a valid value.
    let mut storage: sockaddr_storage = unsafe { mem::zeroed() };
    let mut bytes = size_of::<sockaddr_storage>() as socklen_t;
    // SAFETY: the storage has room for that many bytes.
    if unsafe { ask(fd, (&raw mut storage).cast(), &raw mut bytes) } != 0 {
        return None;
    }
    match c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: this is how addresses of the family are laid out.
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

/// Runs `work`; a signal because nobody reads standard error any longer ends nothing.
fn without_sigpipe(work: impl FnOnce()) {
    // SAFETY: the sets are initialised by the calls that come first, and belong to this function.
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

/// Writes a line on standard error about what is wrong with a setting; nothing if it is too long.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    let mut line = Line::new();
    if line.write_fmt(text).and_then(|()| line.write_str("\n")).is_ok() {
        line.print();
    }
}

/// A line of the report, without allocation.
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
