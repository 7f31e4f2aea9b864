//! The thread of this library: it looks for peers, and answers them while the program computes.
//!
//! It starts with the first connection that may be carried. All signals are blocked in it. A child of fork has none until it has such a
//! connection itself.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use apus_sockets::introduction;
use libc::{c_int, c_short, pollfd};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::children;
use super::inner::{self, Inner};
use super::kernel;
use super::meeting::{self, Addresses, Offer};
use super::net;
use super::sets::{self, Attached};
use super::side::{Bell, Side};
use super::slots::{self, Slot, State};
use super::spin::Clock;
use crate::{errno, originals, report};

/// The thread runs, or is being started.
static RUNS: AtomicBool = AtomicBool::new(false);

/// Writing to it wakes the thread; -1 before it runs.
static WAKE: AtomicI32 = AtomicI32::new(-1);

/// Starts the thread unless it runs.
pub(crate) fn start() {
    if RUNS.swap(true, Ordering::AcqRel) {
        return;
    }
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let Some(wake) =
        EventFd::from_value_and_flags(0, flags).ok().and_then(|wake| inner::keep(wake.into()).ok())
    else {
        return; // Connections stay with the kernel.
    };
    WAKE.store(wake.as_raw_fd(), Ordering::Release);
    // SAFETY: the sets are initialised by the calls that come first.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let thread = std::thread::Builder::new().name("apus-sockets".into());
        let _ = thread.stack_size(256 << 10).spawn(move || Answering::new(wake).run());
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
    }
}

/// Has the thread look at the table.
pub(crate) fn wake() {
    let fd = WAKE.load(Ordering::Acquire);
    if fd >= 0 {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: the count has 8 bytes.
        errno::kept(|| unsafe { originals::write(fd, one.as_ptr().cast(), one.len()) });
    }
}

/// In a child of fork: the thread is the parent's.
pub(crate) fn forget() {
    RUNS.store(false, Ordering::Release);
    WAKE.store(-1, Ordering::Release);
}

/// A connection whose peer is being looked for.
struct Search {
    slot: &'static Slot,
    addresses: Addresses,
    step: Step,
    /// When to do something although nothing came, and how often that was.
    due: Duration,
    tries: u32,
}

enum Step {
    /// The end that accepted it.
    Listens(Inner),
    /// The end that made it.
    Knocks,
    /// It waits for the other end, or for the carrier.
    Offers(Option<Offer>),
}

impl Step {
    fn first(slot: &Slot, addresses: Addresses) -> std::io::Result<Self> {
        let accepted = slot.accepted.load(Ordering::Relaxed);
        if addresses.are_here() {
            return if accepted {
                meeting::listen(&addresses).map(Self::Listens)
            } else {
                Ok(Self::Knocks)
            };
        }
        let unknown = std::io::ErrorKind::NotConnected;
        let port = net::port().filter(|_| net::may_carry(&addresses)).ok_or(unknown)?;
        let held = slot.hold().ok_or(unknown)?;
        let carrier = meeting::carrier(port)?;
        Offer::send_to_carrier(carrier, held.fd, addresses, accepted)
            .map(|offer| Self::Offers(Some(offer)))
    }
}

struct Answering {
    wake: Inner,
    searches: Vec<Search>,
    carried: Vec<&'static Slot>,
}

/// How long a peer is looked for: in steps, each twice as long as the one before.
const FIRST_STEP: Duration = Duration::from_millis(1);
const STEPS: u32 = 11;
/// How often bytes are put back into TCP that had no room before.
const REFILL: Duration = Duration::from_millis(5);

impl Answering {
    fn new(wake: Inner) -> Self {
        Self { wake, searches: Vec::new(), carried: Vec::new() }
    }

    fn run(&mut self) {
        let mut refills = false;
        loop {
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
            // SAFETY: there is room for the count.
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
        let searches = self.searches.iter().filter_map(|search| match &search.step {
            Step::Listens(listener) => Some(listener.as_raw_fd()),
            Step::Knocks => None,
            Step::Offers(offer) => offer.as_ref().map(|offer| offer.descriptor().as_raw_fd()),
        });
        let carried = self.carried.iter().filter_map(|slot| {
            let side = slot.side().filter(|side| !side.peer_is_dead.load(Ordering::Relaxed))?;
            Some(side.channel.descriptor().as_raw_fd())
        });
        let first = std::iter::once(self.wake.as_raw_fd()).chain(children::pipes());
        first.chain(searches).chain(carried).map(member).collect()
    }

    /// Takes up connections whose peers are wanted.
    fn begin(&mut self) {
        for slot in slots::all().filter(|slot| slot.state() == State::Wanted) {
            if !slot.begin_meeting() {
                continue;
            }
            let addresses = slot.hold().and_then(|held| Addresses::of(held.fd));
            match addresses.map(|addresses| (addresses, Step::first(slot, addresses))) {
                Some((addresses, Ok(step))) => {
                    let due = Clock::now();
                    self.searches.push(Search { slot, addresses, step, due, tries: 0 });
                }
                Some((_, Err(_))) | None => leave(slot),
            }
        }
    }

    fn search(&mut self) {
        let now = Clock::now();
        let mut index = 0;
        while index < self.searches.len() {
            match self.searches[index].advance(now) {
                Progress::Goes => index += 1,
                Progress::Failed => {
                    leave(self.searches.swap_remove(index).slot);
                }
                Progress::Met(side) => {
                    let search = self.searches.swap_remove(index);
                    if search.slot.carry(side) {
                        self.carried.push(search.slot);
                        begin(search.slot);
                    }
                }
            }
        }
    }

    /// Answers peers. True if bytes are left that are to be put back into TCP.
    fn answer(&self) -> bool {
        let mut left = false;
        for slot in &self.carried {
            let Some(side) = slot.side() else { continue };
            stop_sharing(slot, side);
            if slot.state() == State::Carried && !slot.may_begin() {
                begin(slot);
            }
            if has_ended(side) {
                if side.peer_was_lost()
                    && !side.has_left()
                    && let Some(held) = slot.hold()
                {
                    // Bytes may be lost on their way. Whoever meets the socket then knows why it is not connected.
                    side.lose();
                    report::lost(held.fd);
                    kernel::reset(held.fd);
                }
                side.peer_is_dead.store(true, Ordering::Release);
                side.wake_self(Bell::Bytes);
                side.wake_self(Bell::Room);
            }
            if let Some(held) = slot.hold() {
                left |= side.follow(held.fd);
                sets::follow_room(slot, side);
                let _ = side.finish_shut(held.fd);
                if slot.state() == State::Carried && side.peer_has_left(held.fd) {
                    leave(slot);
                }
                if slot.state() == State::Carried && side.is_asked_to_leave() {
                    if side.may_leave(held.fd) {
                        report::switched_off(held.fd);
                        leave(slot);
                        side.leave();
                    } else {
                        left = true; // A call may have had the direction just now.
                    }
                }
            }
        }
        left
    }

    /// Frees what nobody uses any more. A slot with a search is not freed, or the search would be taken for that of the next connection
    /// in the slot: the next turn ends it first.
    fn reclaim(&mut self) {
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

/// If no child has the connection any more, both ends may offer again.
fn stop_sharing(slot: &Slot, side: &Side) {
    let fork = slot.fork();
    if fork != 0 && children::are_gone(slot.since(), fork) && slot.unshare(fork) {
        side.stop_sharing();
        if slot.fork() != 0 {
            side.begin_to_share(); // Another fork has begun meanwhile.
        }
    }
}

/// A connection that is carried begins to use its rings, once all epoll sets that have it wake for it.
fn begin(slot: &'static Slot) {
    if slot.fork() != 0 {
        return; // A child may have it.
    }
    match sets::attach(slot) {
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

/// A connection stays with the kernel.
fn leave(slot: &'static Slot) {
    slot.give_up();
    sets::detach(slot);
    slot.uncarry();
}

/// Reads what the peer has sent over the channel. True if the peer is dead.
fn has_ended(side: &Side) -> bool {
    if side.peer_is_dead.load(Ordering::Relaxed) {
        return false;
    }
    let mut byte = [0];
    loop {
        match side.channel.receive(&mut byte) {
            Ok(_) if byte == [introduction::LEAVE] => side.ask_to_leave(),
            Ok(_) => {}
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

enum Progress {
    Goes,
    Failed,
    Met(Box<Side>),
}

impl Search {
    fn advance(&mut self, now: Duration) -> Progress {
        if self.slot.state() != State::Meeting {
            return Progress::Failed; // The program has closed it.
        }
        match &mut self.step {
            Step::Listens(listener) => {
                if let Ok(socket) = meeting::accept(listener.as_fd()) {
                    return self.offer(socket);
                }
            }
            Step::Knocks if now >= self.due => {
                if let Ok(socket) = meeting::connect(&self.addresses) {
                    return self.offer(socket);
                }
            }
            Step::Knocks => {}
            Step::Offers(offer) => match offer.take().map(Offer::complete) {
                Some(Ok(Ok(side))) => return Progress::Met(Box::new(side)),
                Some(Ok(Err(waits))) => *offer = Some(waits),
                Some(Err(_)) | None => return Progress::Failed,
            },
        }
        if now >= self.due {
            let is_last = self.tries == STEPS;
            if is_last && self.addresses.are_here() {
                return Progress::Failed; // Between hosts the carrier gives up.
            }
            self.due = now + FIRST_STEP * (1 << self.tries);
            self.tries += u32::from(!is_last);
        }
        Progress::Goes
    }

    fn offer(&mut self, socket: Inner) -> Progress {
        let Some(held) = self.slot.hold() else { return Progress::Failed };
        match Offer::send(socket, held.fd, self.addresses) {
            Ok(offer) => {
                self.step = Step::Offers(Some(offer));
                Progress::Goes
            }
            // Somebody else came; the peer still may.
            Err(_) if matches!(self.step, Step::Listens(_)) => Progress::Goes,
            Err(_) => Progress::Failed,
        }
    }
}
