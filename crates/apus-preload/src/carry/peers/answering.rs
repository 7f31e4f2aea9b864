//! The answering thread of this library: looks for peers, and answers them while the program computes.
//!
//! The thread starts with the first candidate, and has all signals blocked. A child of fork has no such thread until it has a
//! candidate itself, or uses a carried connection.

#[cfg(all(test, apus_model))]
mod model;

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use apus_sockets::introduction;
use libc::{c_int, c_short, pollfd};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::containers;
use super::net;
use crate::carry::connection::side::{CHECKED_AT_ONCE, Side};
use crate::carry::connection::slots::{self, Released, Slot, State};
use crate::carry::inner::{self, Checked, Inner};
use crate::carry::kernel;
use crate::carry::leaving::children;
use crate::carry::peers::meeting::{self, Addresses, Listener, PendingMeeting, Where};
use crate::carry::sets::attaching::{self, Attached};
use crate::carry::spin::Clock;
use crate::originals::own as originals;
use crate::{errno, report};

/// Whether the thread runs or is being started.
static RUNS: AtomicBool = AtomicBool::new(false);

/// Eventfd that wakes the thread. -1 before the thread runs.
static WAKE: AtomicI32 = AtomicI32::new(-1);

/// Failed starts of the thread. Without it, connections are carried, but get no answers while the program computes.
static FAILURES: AtomicU32 = AtomicU32::new(0);

/// Upper bound on failed starts.
const FAILURES_MAX: u32 = 3;

/// Forks that have begun and not returned. Meanwhile no connection becomes carried, because the child would not have its memory.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Whether the thread is setting up a carried connection.
static CARRIES: AtomicBool = AtomicBool::new(false);

/// Runs before a fork.
pub(crate) fn pause() {
    FORKS.fetch_add(1, Ordering::SeqCst);
    while CARRIES.load(Ordering::SeqCst) {
        std::hint::spin_loop();
    }
}

/// Runs after a fork. Returns `true` if the thread may have waited for it.
pub(crate) fn go_on() -> bool {
    FORKS.fetch_sub(1, Ordering::SeqCst) == 1 && RUNS.load(Ordering::Relaxed)
}

/// Starts the thread unless it runs.
#[inline]
pub(crate) fn start() {
    if !RUNS.load(Ordering::Relaxed) && FAILURES.load(Ordering::Relaxed) < FAILURES_MAX {
        start_thread();
    }
}

#[cold]
fn start_thread() {
    if RUNS.swap(true, Ordering::AcqRel) {
        return;
    }
    if !try_to_start() {
        FAILURES.fetch_add(1, Ordering::Relaxed);
        RUNS.store(false, Ordering::Release);
    }
}

/// Returns `false` without a descriptor or a thread.
fn try_to_start() -> bool {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let Some(wake) =
        EventFd::from_value_and_flags(0, flags).ok().and_then(|wake| inner::keep(wake.into()).ok())
    else {
        return false; // Connections stay with the kernel.
    };
    // SAFETY: the first calls initialize the sets.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let thread = std::thread::Builder::new().name("apus-sockets".into());
        let wake_by = wake.as_raw_fd();
        WAKE.store(wake_by, Ordering::Release);
        let started = thread.stack_size(stack()).spawn(move || Answering::new(wake).run());
        if started.is_err() {
            // The eventfd is closed, and its number may belong to another file.
            let _ = WAKE.compare_exchange(wake_by, -1, Ordering::AcqRel, Ordering::Relaxed);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        started.is_ok()
    }
}

/// Size of the thread's stack. The C library also places the thread-local variables of the program and all its libraries on it.
/// Their total size has no bound.
fn stack() -> usize {
    /// Adds up the thread-local variables of one library or of the program.
    unsafe extern "C" fn add(
        of: *mut libc::dl_phdr_info,
        _: libc::size_t,
        sum: *mut libc::c_void,
    ) -> c_int {
        // SAFETY: the linker passes its own description, and the sum belongs to the caller below.
        let (of, sum) = unsafe { (&*of, &mut *sum.cast::<usize>()) };
        if !of.dlpi_phdr.is_null() {
            // SAFETY: the headers of a loaded object stay in memory, and the description has their number.
            let headers =
                unsafe { std::slice::from_raw_parts(of.dlpi_phdr, usize::from(of.dlpi_phnum)) };
            for header in headers.iter().filter(|header| header.p_type == libc::PT_TLS) {
                let size = header.p_memsz.saturating_add(header.p_align);
                *sum = sum.saturating_add(usize::try_from(size).unwrap_or(usize::MAX));
            }
        }
        0
    }
    let mut locals = 0_usize;
    // SAFETY: `add` is called only during this call, with the address of the sum.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut locals).cast()) };
    locals.saturating_add(256 << 10)
}

/// Makes the thread look at the table.
pub(crate) fn wake() {
    let fd = WAKE.load(Ordering::Acquire);
    if fd >= 0 {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: the count has 8 bytes.
        errno::kept(|| unsafe { originals::write(fd, one.as_ptr().cast(), one.len()) });
    }
}

/// Whether the thread must end.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// The thread's kernel id. 0 if no thread has run.
static THREAD: AtomicI32 = AtomicI32::new(0);

/// Ends the thread for good. When this returns, the thread makes no more system calls, or has not ended within a second.
pub(crate) fn end() {
    if !RUNS.swap(true, Ordering::AcqRel) || WAKE.load(Ordering::Acquire) < 0 {
        return; // The thread never runs: it was not started, or could not be.
    }
    IS_OVER.store(true, Ordering::SeqCst);
    wake();
    WAKE.store(-1, Ordering::Release);
    let until = Clock::now() + Duration::from_secs(1);
    let runs = || match THREAD.load(Ordering::SeqCst) {
        0 => true,
        // SAFETY: signal 0 is not sent; the call only checks that the thread exists.
        thread => unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) == 0 },
    };
    while runs() && Clock::now() < until {
        let _ = kernel::wait(&mut [], Some(kernel::spec(Duration::from_micros(50))));
    }
}

/// Runs in a child of fork: the thread is the parent's.
pub(crate) fn forget() {
    THREAD.store(0, Ordering::Relaxed);
    RUNS.store(false, Ordering::Release);
    WAKE.store(-1, Ordering::Release);
    FAILURES.store(0, Ordering::Relaxed);
    FORKS.store(0, Ordering::Relaxed);
    CARRIES.store(false, Ordering::Relaxed);
}

/// The search for a connection's peer.
struct Search {
    slot: &'static Slot,
    addresses: Addresses,
    way: Way,
    state: MeetingState,
    /// Time of the next repetition.
    due: Duration,
    /// Number of repetitions.
    tries: u32,
}

/// The way in which the other end is looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Meeting(Where),
    /// Through the carrier of this host.
    Carrier,
}

impl Way {
    /// The likeliest way.
    fn first(addresses: &Addresses) -> Self {
        match addresses.are_here() {
            true => Self::Meeting(Where::Here),
            false if containers::is_wanted() => Self::Meeting(Where::Directory),
            false => Self::Carrier,
        }
    }

    /// The way to try after this one.
    fn next(self) -> Option<Self> {
        let is_last = self != Self::Meeting(Where::Directory) || net::port().is_none();
        (!is_last).then_some(Self::Carrier)
    }
}

enum MeetingState {
    /// The end that accepted the connection listens.
    Listening(Listener),
    /// The end that made the connection connects.
    Connecting,
    /// The end waits for the other end or the carrier.
    Pending(Option<PendingMeeting>),
}

impl MeetingState {
    fn first(slot: &Slot, addresses: Addresses, way: Way) -> std::io::Result<Self> {
        let accepted = slot.accepted.load(Ordering::Relaxed);
        match way {
            Way::Meeting(at) if accepted => {
                return Listener::new(&addresses, at).map(Self::Listening);
            }
            Way::Meeting(_) => return Ok(Self::Connecting),
            Way::Carrier => {}
        }
        let unknown = std::io::ErrorKind::NotConnected;
        let port = net::port().filter(|_| net::may_carry(&addresses)).ok_or(unknown)?;
        let held = slot.hold().ok_or(unknown)?;
        let sockets = [meeting::carrier(port)?, meeting::carrier(port)?];
        PendingMeeting::send_to_carrier(sockets, held.fd, addresses, accepted)
            .map(|pending| Self::Pending(Some(pending)))
    }
}

struct Answering {
    wake: Inner,
    searches: Vec<Search>,
    carried: Vec<&'static Slot>,
    /// Sides of connections that are no longer carried but may be in use by calls.
    released: Vec<Released>,
}

/// First interval of a search. It doubles with each step.
const FIRST_STEP: Duration = Duration::from_millis(1);
/// Upper bound on the steps of a search.
const STEPS: u32 = 11;
/// Interval at which bytes are put back into TCP that found no room.
const REFILL: Duration = Duration::from_millis(5);

impl Answering {
    fn new(wake: Inner) -> Self {
        // A child of fork has its parent's connections.
        let carried = slots::all().filter(|slot| slot.side().is_some()).collect();
        Self { wake, searches: Vec::new(), carried, released: Vec::new() }
    }

    fn run(&mut self) {
        // SAFETY: the call takes no arguments.
        THREAD.store(unsafe { libc::gettid() }, Ordering::SeqCst);
        let mut refills = false;
        while !IS_OVER.load(Ordering::SeqCst) {
            let mut members = self.members();
            let now = Clock::now();
            let due = self.searches.iter().map(|search| search.due).min();
            let due = if refills {
                Some(due.map_or(now + REFILL, |due| due.min(now + REFILL)))
            } else {
                due
            };
            let timeout = due.map(|due| kernel::spec(due.saturating_sub(now)));
            if kernel::wait(&mut members, timeout).is_err() {
                continue;
            }
            let mut count = 0_u64;
            // SAFETY: the buffer has room for the count.
            let _ = unsafe { originals::read(self.wake.as_raw_fd(), (&raw mut count).cast(), 8) };
            children::look();
            self.begin();
            self.search();
            refills = self.answer();
            self.reclaim();
        }
    }

    fn members(&self) -> Vec<pollfd> {
        let member = |fd: c_int| pollfd { fd, events: libc::POLLIN as c_short, revents: 0 };
        let searches = self.searches.iter().flat_map(|search| {
            let (listener, pending) = match &search.state {
                MeetingState::Listening(listener) => (Some(listener), None),
                MeetingState::Connecting => (None, None),
                MeetingState::Pending(pending) => (None, pending.as_ref()),
            };
            let pending = pending.map(PendingMeeting::descriptor);
            listener.into_iter().flat_map(Listener::descriptors).chain(pending)
        });
        let carried = self.carried.iter().filter_map(|slot| {
            let side = slot.side().filter(|side| !side.peer_is_dead.load(Ordering::Relaxed))?;
            Some(side.channel.descriptor().as_raw_fd())
        });
        let first = std::iter::once(self.wake.as_raw_fd()).chain(children::pipes());
        first.chain(searches).chain(carried).map(member).collect()
    }

    /// Begins the search for each wanted peer.
    fn begin(&mut self) {
        for slot in slots::all().filter(|slot| slot.state() == State::Wanted) {
            if !slot.begin_meeting() {
                continue;
            }
            let has_room = inner::has_room();
            let addresses =
                slot.hold().filter(|_| has_room).and_then(|held| Addresses::of(held.fd));
            let search = addresses.and_then(|addresses| Search::new(slot, addresses));
            match search {
                Some(search) => self.searches.push(search),
                None => leave(slot),
            }
        }
    }

    fn search(&mut self) {
        let (now, has_room) = (Clock::now(), inner::has_room());
        let mut index = 0;
        while index < self.searches.len() {
            let progress =
                if has_room { self.searches[index].advance(now) } else { Progress::Failed };
            match progress {
                Progress::Goes => index += 1,
                Progress::Failed => {
                    leave(self.searches.swap_remove(index).slot);
                }
                Progress::Met(side) => {
                    let search = self.searches.swap_remove(index);
                    if carry(search.slot, side) {
                        self.carried.push(search.slot);
                        begin(search.slot);
                    }
                }
            }
        }
    }

    /// Answers peers. Returns `true` if bytes are left to be put back into TCP.
    fn answer(&self) -> bool {
        let mut left = false;
        for slot in &self.carried {
            let Some(side) = slot.side() else { continue };
            children::follow(slot, side);
            if slot.state() == State::Carried && side.has_left() {
                leave(slot); // Another process of this side has left.
            }
            if slot.state() == State::Carried && !slot.may_begin() {
                begin(slot);
            }
            if has_ended(side) {
                if side.peer_was_lost()
                    && !side.has_left()
                    && let Some(held) = slot.hold()
                {
                    // Bytes on their way may be lost, so the connection is reset, and the program's next call reports that.
                    side.lose();
                    report::lost(held.fd);
                    kernel::reset(held.fd);
                }
                side.peer_is_dead.store(true, Ordering::Release);
                side.nudge();
            }
            if let Some(held) = slot.hold() {
                left |= side.follow(held.fd) | side.follow_room() | is_leaving(slot, side, held.fd);
                attaching::follow_room(slot, side);
                let _ = side.finish_shut(held.fd);
                if slot.state() == State::Carried && side.peer_has_left(held.fd) {
                    let _ = side.finish_shut(held.fd); // All bytes of the ring are in TCP now.
                    leave(slot);
                }
            }
        }
        left
    }

    /// Frees unused sides and slots. A slot with a search is kept, or the search would pass to the slot's next connection. The
    /// next turn ends the search first.
    fn reclaim(&mut self) {
        self.released.extend(self.carried.iter().filter_map(|slot| slot.release()));
        self.released.retain(|released| !released.is_over());
        self.carried.retain(|slot| !slot.reclaim());
        let known = |slot: &Slot| {
            let searched = self.searches.iter().map(|search| search.slot);
            self.carried.iter().copied().chain(searched).any(|known| std::ptr::eq(known, slot))
        };
        for slot in slots::all().filter(|slot| slot.state() == State::Over) {
            if !known(slot) {
                slot.reclaim();
            }
        }
    }
}

/// Carries a connection from now on, unless another process has it, which would not see the bytes of the rings.
fn carry(slot: &Slot, side: Box<Side>) -> bool {
    CARRIES.store(true, Ordering::SeqCst);
    let may = FORKS.load(Ordering::SeqCst) == 0 && !slot.is_shared();
    let is_carried = if may {
        slot.carry(side)
    } else {
        side.leave();
        slot.wait_until_alone();
        false
    };
    CARRIES.store(false, Ordering::SeqCst);
    is_carried
}

/// Whether the connection is returning to TCP, because the program may need descriptors or the carrier was switched off.
fn is_leaving(slot: &'static Slot, side: &Side, fd: c_int) -> bool {
    if slot.state() != State::Carried || !side.gives_way() {
        return false;
    }
    if !side.step_back(fd) || side.has_rest(fd) {
        side.ask_peer();
        return true;
    }
    match side.is_between_hosts {
        true => report::switched_off(fd),
        false => report::returned(fd, "more than its limit of descriptors allows"),
    }
    let _ = side.finish_shut(fd);
    side.leave();
    leave(slot);
    false
}

/// A carried connection begins to use its rings, once all epoll sets with it wake for it.
fn begin(slot: &'static Slot) {
    if let Some(side) = slot.side()
        && slot.hold().is_some_and(|held| was_shut_before(side, held.fd))
    {
        side.leave();
        return leave(slot);
    }
    match attaching::attach(slot) {
        Attached::Everywhere => {
            slot.begin();
            if let Some(held) = slot.hold() {
                let between_hosts = slot.side().is_some_and(|side| side.is_between_hosts);
                report::carried(held.fd, between_hosts);
            }
        }
        Attached::Later => {}
        Attached::Never => leave(slot),
    }
}

/// Whether the program had shut the connection down before it was carried. TCP refuses bytes that the ring would take, and the
/// connection is about to end.
fn was_shut_before(side: &Side, fd: c_int) -> bool {
    !side.is_between_hosts && !side.has_shut() && kernel::has_shut(fd)
}

/// Leaves a connection to the kernel.
fn leave(slot: &'static Slot) {
    slot.give_up();
    attaching::detach(slot);
    slot.uncarry();
}

/// Reads the peer's channel messages. Returns `true` if the peer is dead.
fn has_ended(side: &Side) -> bool {
    if side.peer_is_dead.load(Ordering::Relaxed) {
        return false;
    }
    for _ in 0..CHECKED_AT_ONCE {
        match side.channel.check() {
            Checked::Message(introduction::LEAVE) => side.ask_to_leave(),
            Checked::Message(introduction::FULL) => side.empty_bells(),
            Checked::Message(_) => {}
            Checked::Nothing => return false,
            Checked::End => return true,
        }
    }
    false
}

enum Progress {
    Goes,
    Failed,
    Met(Box<Side>),
}

impl Search {
    fn new(slot: &'static Slot, addresses: Addresses) -> Option<Self> {
        let way = Way::first(&addresses);
        let begun = |way| {
            let state = MeetingState::first(slot, addresses, way).ok()?;
            Some(Self { slot, addresses, way, state, due: Clock::now(), tries: 0 })
        };
        begun(way).or_else(|| begun(way.next()?))
    }

    /// Advances the search, and changes to the next way if this one has failed.
    fn advance(&mut self, now: Duration) -> Progress {
        match (self.try_to_advance(now), self.way.next()) {
            (Progress::Failed, Some(way)) if self.slot.state() == State::Meeting => {
                let Ok(state) = MeetingState::first(self.slot, self.addresses, way) else {
                    return Progress::Failed;
                };
                (self.way, self.state, self.due, self.tries) = (way, state, now, 0);
                Progress::Goes
            }
            (progress, _) => progress,
        }
    }

    fn try_to_advance(&mut self, now: Duration) -> Progress {
        if self.slot.state() != State::Meeting {
            return Progress::Failed; // The program has closed the connection.
        }
        match &mut self.state {
            MeetingState::Listening(listener) => {
                let Some(held) = self.slot.hold() else { return Progress::Failed };
                let met = listener.advance(held.fd, &self.addresses, self.slot.holders());
                if let Some(side) = met {
                    return Progress::Met(Box::new(side));
                }
            }
            MeetingState::Connecting if now >= self.due => {
                if let Way::Meeting(at) = self.way
                    && let Ok(sockets) = meeting::connect(&self.addresses, at)
                {
                    return self.offer(sockets, at);
                }
            }
            MeetingState::Connecting => {}
            MeetingState::Pending(pending) => {
                let Some(held) = self.slot.hold() else { return Progress::Failed };
                let holders = self.slot.holders();
                match pending.take().map(|pending| pending.complete(held.fd, holders)) {
                    Some(Ok(Ok(side))) => return Progress::Met(Box::new(side)),
                    Some(Ok(Err(waits))) => *pending = Some(waits),
                    Some(Err(_)) | None => return Progress::Failed,
                }
            }
        }
        if now >= self.due {
            let is_last = self.tries == STEPS;
            if is_last && self.way != Way::Carrier {
                return Progress::Failed; // Between hosts, the carrier decides when to give up.
            }
            match &self.state {
                MeetingState::Listening(listener) => listener.repeat(),
                MeetingState::Pending(Some(pending)) => pending.repeat(),
                MeetingState::Connecting | MeetingState::Pending(None) => {}
            }
            self.due = now + FIRST_STEP * (1 << self.tries);
            self.tries += u32::from(!is_last);
        }
        Progress::Goes
    }

    fn offer(&mut self, sockets: [Inner; 2], at: Where) -> Progress {
        let Some(held) = self.slot.hold() else { return Progress::Failed };
        match PendingMeeting::send(sockets, held.fd, self.addresses, at) {
            Ok(pending) => {
                self.state = MeetingState::Pending(Some(pending));
                Progress::Goes
            }
            Err(_) => Progress::Failed,
        }
    }
}
