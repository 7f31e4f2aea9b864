//! Carried connections and candidates: a lock-free table, safe in signal handlers.

#[cfg(all(test, apus_model))]
mod model;

use std::ptr;

use libc::c_int;

use crate::carry::connection::blocking::Blocking;
use crate::carry::connection::holders::Holders;
use crate::carry::connection::side::{Bell, Side};
use crate::carry::holds::{self, Hold, PARTIAL_WRITE, RELIES, SLEEPS};
use crate::carry::sync::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering, spin_loop,
};
use crate::carry::thread;
use crate::descriptors::{self, CANDIDATE, CARRIED, INHERITED, SET, SHARED};

/// Upper bound on carried connections and candidates of a process at a time.
pub(crate) const SLOTS_MAX: usize = 4_096;

static SLOTS: [Slot; SLOTS_MAX] = [const { Slot::new() }; SLOTS_MAX];

/// Upper end of the slots that were ever in use.
static USED: AtomicUsize = AtomicUsize::new(0);

/// A connection.
pub(crate) struct Slot {
    state: AtomicU32,
    /// A descriptor of the connection, for the answering thread.
    fd: AtomicI32,
    /// Number of descriptors of the connection.
    descriptors: AtomicU32,
    /// Whether the connection was accepted rather than made by this process.
    pub(crate) accepted: AtomicBool,
    /// Calls that moved bytes, until the search for the peer begins.
    calls: AtomicU32,
    /// The options that decide whether calls block.
    blocking: Blocking,
    /// Whether all epoll sets with the connection wake for it, so that bytes may come through a ring.
    attached: AtomicBool,
    /// Whether writes go into the ring. The kernel then does not know whether there is room.
    pub(crate) ring_takes_writes: AtomicBool,
    /// The last fork before the connection was made.
    since: AtomicU32,
    /// The number of the count of processes that have the connection.
    holders: AtomicU32,
    /// Whether this process is no longer among them.
    is_handed_over: AtomicBool,
    /// Whether this process becomes a program.
    is_program: AtomicBool,
    /// Whether the answering thread uses the descriptor, which delays its close.
    held: AtomicBool,
    side: AtomicPtr<Side>,
}

/// The state of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum State {
    Free = 0,
    /// The slot is being set up.
    Reserved,
    /// The connection may become carried once it has moved some bytes.
    Candidate,
    /// The answering thread should look for the peer.
    Wanted,
    /// The answering thread looks for the peer.
    Meeting,
    Carried,
    /// The connection returns to TCP.
    Returning,
    /// The connection is not carried any more, or never will be. The slot is free once no call uses it.
    Over,
}

const STATES: [State; 8] = [
    State::Free,
    State::Reserved,
    State::Candidate,
    State::Wanted,
    State::Meeting,
    State::Carried,
    State::Returning,
    State::Over,
];

/// Calls after which the search for the peer begins. Connections that end earlier would only pay for it.
const CALLS: u32 = 4;

/// Position of the slot number in the word of a descriptor.
const SHIFT: u32 = 8;
/// Mask of the slot number in the word of a descriptor.
pub(crate) const MASK: u64 = 0xffff << SHIFT;

impl Slot {
    const fn new() -> Self {
        Self {
            state: AtomicU32::new(0),
            fd: AtomicI32::new(-1),
            descriptors: AtomicU32::new(0),
            accepted: AtomicBool::new(false),
            calls: AtomicU32::new(0),
            blocking: Blocking::new(),
            attached: AtomicBool::new(false),
            ring_takes_writes: AtomicBool::new(false),
            since: AtomicU32::new(0),
            holders: AtomicU32::new(0),
            is_handed_over: AtomicBool::new(false),
            is_program: AtomicBool::new(false),
            held: AtomicBool::new(false),
            side: AtomicPtr::new(ptr::null_mut()),
        }
    }

    pub(crate) fn state(&self) -> State {
        STATES[self.state.load(Ordering::Acquire) as usize]
    }

    fn change(&self, from: State, to: State) -> bool {
        let (from, to) = (from as u32, to as u32);
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The number of the slot, from 1.
    pub(crate) fn number(&self) -> usize {
        let bytes = ptr::from_ref(self).addr() - SLOTS.as_ptr().addr();
        bytes / size_of::<Self>() + 1
    }

    /// Whether kernel calls that began before the connection was carried may still wait. `direction` is `RECEIVES` or `SENDS`.
    pub(crate) fn is_in_kernel(&self, direction: u64) -> bool {
        holds::have(self.number(), direction)
    }

    /// A call moved bytes. Returns `true` if the search for the peer must begin.
    pub(crate) fn note_call(&self) -> bool {
        if self.calls.fetch_add(1, Ordering::Relaxed) + 1 < CALLS {
            return false;
        }
        if self.holders().are_several() {
            // With several processes, the bytes of rings would reach only one. This one may soon be the only one, like a process
            // forked for the connection.
            self.calls.store(0, Ordering::Relaxed);
            return false;
        }
        self.want()
    }

    /// Asks for a search for the peer. Returns `false` if it was asked for before.
    pub(crate) fn want(&self) -> bool {
        self.change(State::Candidate, State::Wanted)
    }

    /// Whether a search for the peer runs or is due.
    pub(crate) fn is_looked_for(&self) -> bool {
        matches!(self.state(), State::Wanted | State::Meeting)
    }

    /// The processes that have the connection.
    pub(crate) fn holders(&self) -> Holders {
        Holders::numbered(self.holders.load(Ordering::Relaxed))
    }

    /// The search has ended because another process has the connection too. It is repeated later.
    pub(crate) fn wait_until_alone(&self) {
        self.calls.store(0, Ordering::Relaxed);
        self.change(State::Meeting, State::Candidate);
    }

    /// The answering thread begins the search for the peer.
    pub(crate) fn begin_meeting(&self) -> bool {
        self.change(State::Wanted, State::Meeting)
    }

    /// The connection is carried from now on. Returns `false` if it was closed meanwhile. No bytes come through a ring before
    /// [`begin`](Self::begin).
    pub(crate) fn carry(&self, side: Box<Side>) -> bool {
        side.set_number(self.number());
        self.side.store(Box::into_raw(side), Ordering::Release);
        let is_wanted = self.change(State::Meeting, State::Carried);
        if is_wanted {
            self.set_words(CARRIED, CANDIDATE);
        }
        is_wanted
    }

    /// Bytes may go through rings from now on.
    pub(crate) fn begin(&self) {
        self.attached.store(true, Ordering::SeqCst);
    }

    /// Whether a direction may begin an epoch.
    pub(crate) fn may_begin(&self) -> bool {
        self.attached.load(Ordering::SeqCst) && self.state() == State::Carried
    }

    /// The last fork before the connection was made. Its child does not have the connection.
    pub(crate) fn since(&self) -> u32 {
        self.since.load(Ordering::SeqCst)
    }

    /// Whether epoll sets may have the bells.
    pub(crate) fn may_be_attached(&self) -> bool {
        self.state() == State::Carried
    }

    /// Whether this process has several descriptors of the connection.
    pub(crate) fn has_other_descriptors(&self) -> bool {
        self.descriptors.load(Ordering::SeqCst) > 1
    }

    /// Whether another process has the connection too.
    pub(crate) fn is_shared(&self) -> bool {
        self.holders().are_several()
    }

    /// This process leaves the connection to other processes.
    pub(crate) fn hand_over(&self) {
        if !self.is_handed_over.swap(true, Ordering::SeqCst) {
            self.holders().remove();
        }
    }

    /// This process keeps the connection after all.
    pub(crate) fn take_back(&self) {
        if self.is_handed_over.swap(false, Ordering::SeqCst) {
            self.holders().add();
        }
        self.is_no_program();
    }

    /// This process does not become a program with the connection after all.
    pub(crate) fn is_no_program(&self) {
        if self.is_program.swap(false, Ordering::SeqCst)
            && let Some(side) = self.side()
        {
            side.remove_program();
        }
    }

    /// Whether `holds` is true for all descriptors of the connection.
    pub(crate) fn all_descriptors(&self, holds: impl Fn(c_int) -> bool) -> bool {
        let is_its =
            |fd: &c_int| slot_of(descriptors::word(*fd)).is_some_and(|it| ptr::eq(it, self));
        descriptors::used_in(0..=u32::MAX).filter(is_its).all(holds)
    }

    /// An option of the connection may change now, or has changed.
    pub(crate) fn changes_options(&self) {
        self.blocking.changes();
        if let Some(side) = self.side() {
            side.note_option();
        }
    }

    /// Whether calls return instead of blocking.
    #[inline]
    pub(crate) fn is_nonblocking(&self, fd: c_int) -> bool {
        self.blocking.is_off(fd, self.option_changes())
    }

    /// The low-water mark: the number of bytes that makes the socket readable and that a read waits for. At least 1.
    #[inline]
    pub(crate) fn least(&self, fd: c_int) -> u64 {
        self.blocking.least(fd, self.option_changes())
    }

    /// Whether `recvmsg` reports the number of unread bytes.
    pub(crate) fn reports_rest(&self, fd: c_int) -> bool {
        self.blocking.reports_rest(fd, self.option_changes())
    }

    #[inline]
    fn option_changes(&self) -> u64 {
        self.side().map_or(0, Side::option_changes)
    }

    /// This process, a child of fork, becomes a program with the connection.
    pub(crate) fn become_program(&self) {
        if let Some(side) = self.side()
            && !self.is_program.swap(true, Ordering::SeqCst)
        {
            side.add_program();
        }
    }

    /// The connection stays with the kernel or has returned to it.
    pub(crate) fn give_up(&self) {
        self.state.store(State::Over as u32, Ordering::SeqCst);
    }

    /// The connection begins to return. Returns `false` if it was not carried, or if another thread returns it.
    pub(crate) fn end_carrying(&self) -> bool {
        self.change(State::Carried, State::Returning)
    }

    /// The connection stays carried, because only this process can read the remaining bytes.
    pub(crate) fn carry_on(&self) {
        self.change(State::Returning, State::Carried);
    }

    /// From now on the kernel handles all calls on its descriptors.
    pub(crate) fn uncarry(&self) {
        self.set_words(0, CARRIED | CANDIDATE);
    }

    fn set_words(&self, ones: u64, zeros: u64) {
        let is_its = |word| slot_of(word).is_some_and(|it| ptr::eq(it, self));
        for fd in descriptors::used_in(0..=u32::MAX) {
            descriptors::set_if(fd, is_its, ones, zeros);
        }
    }

    /// A descriptor of the connection that stays open while the value lives.
    pub(crate) fn hold(&self) -> Option<Held<'_>> {
        self.held.store(true, Ordering::SeqCst);
        let held = Held { slot: self, fd: self.fd.load(Ordering::SeqCst) };
        let is_its = slot_of(descriptors::word(held.fd)).is_some_and(|it| ptr::eq(it, self));
        is_its.then_some(held)
    }

    /// The side. Only for the answering thread, which is the only one to free it.
    pub(crate) fn side(&self) -> Option<&Side> {
        // SAFETY: the side lives until `reclaim`, which only the answering thread calls.
        unsafe { self.side.load(Ordering::Acquire).as_ref() }
    }

    /// Takes the side of a connection that is no longer carried but still open, since it needs no memory and descriptors any
    /// more. Only for the answering thread.
    pub(crate) fn release(&'static self) -> Option<Released> {
        if self.state() != State::Over || self.descriptors.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let side = self.side.swap(ptr::null_mut(), Ordering::SeqCst);
        (!side.is_null()).then_some(Released { slot: self, side })
    }

    /// Frees the slot if it is no longer used. Only for the answering thread.
    pub(crate) fn reclaim(&self) -> bool {
        if self.is_used() || !self.change(State::Over, State::Reserved) {
            return false;
        }
        let side = self.side.swap(ptr::null_mut(), Ordering::AcqRel);
        if !side.is_null() {
            // SAFETY: the pointer comes from a box, and no call uses the side. No call can begin to, because no descriptor refers
            // to the slot.
            drop(unsafe { Box::from_raw(side) });
        }
        self.state.store(State::Free as u32, Ordering::Release);
        true
    }

    /// Frees a reserved slot that the answering thread has never seen. If a call uses it, that is left to the thread.
    fn free_unseen(&self) -> bool {
        let is_free = !self.is_used();
        let state = if is_free { State::Free } else { State::Over };
        self.state.store(state as u32, Ordering::Release);
        is_free
    }

    fn is_used(&self) -> bool {
        self.descriptors.load(Ordering::SeqCst) > 0 || holds::use_connection(self.number())
    }
}

/// A side that no new call can use.
pub(crate) struct Released {
    slot: &'static Slot,
    side: *mut Side,
}

impl Released {
    /// Frees the side if no call uses it. Returns whether it did.
    pub(crate) fn is_over(&self) -> bool {
        let is_over = !holds::use_connection(self.slot.number());
        if is_over {
            // SAFETY: the pointer comes from a box. Calls that began before the side left the slot have ended, and this value is
            // dropped next.
            drop(unsafe { Box::from_raw(self.side) });
        }
        is_over
    }
}

/// A descriptor that stays open.
pub(crate) struct Held<'a> {
    slot: &'a Slot,
    pub(crate) fd: c_int,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.slot.held.store(false, Ordering::SeqCst);
    }
}

/// A call that uses a connection.
pub(crate) struct Use {
    pub(crate) slot: &'static Slot,
    hold: Hold,
}

impl Use {
    /// The connection of a descriptor, if any.
    #[inline]
    pub(crate) fn of(fd: c_int) -> Option<Self> {
        let word = descriptors::word(fd);
        let slot = slot_of(word)?;
        let held = Self { slot, hold: Hold::connection(number(word)) };
        // The slot may have been freed and taken again meanwhile. If the connection became carried meanwhile, it still must not
        // be left to the kernel, because the bytes that go by the kernel have to be counted then.
        slot_of(descriptors::word(fd)).is_some_and(|now| ptr::eq(now, slot)).then_some(held)
    }

    /// The side, if the connection is carried.
    #[inline]
    pub(crate) fn side(&self) -> Option<&Side> {
        // SAFETY: `reclaim` does not free the side while this call holds the connection.
        unsafe { self.slot.side.load(Ordering::Acquire).as_ref() }
    }

    /// The kernel handles the call now, which may wait there. `direction` is `RECEIVES` or `SENDS`.
    pub(crate) fn enter_kernel(&self, direction: u64) {
        self.hold.add(direction);
    }

    pub(crate) fn leave_kernel(&self, direction: u64) {
        self.hold.remove(direction);
    }

    /// A write of the call is done in part.
    pub(crate) fn begin_partial_write(&self) {
        self.hold.add(PARTIAL_WRITE);
    }

    pub(crate) fn end_partial_write(&self) {
        self.hold.remove(PARTIAL_WRITE);
    }

    /// The call sleeps until there is something. The caller [asks](Side::ask) before each sleep.
    pub(crate) fn begin_sleep(&self, what: Bell) {
        self.hold.add(SLEEPS[what as usize]);
        self.slot.holders().add_sleeper(what as usize, thread::thread());
    }

    /// Marks the call as not asking the kernel, if the [bell alone](Side::only_bell_ends_wait) can end its wait. Returns whether it
    /// did; the caller then checks once more that this still holds.
    pub(crate) fn relies_on_bell(&self, side: &Side, what: Bell) -> bool {
        let relies = side.only_bell_ends_wait(what);
        if relies {
            self.hold.add(RELIES[what as usize]);
        }
        relies
    }

    /// Ends the call's sleep.
    pub(crate) fn end_sleep(&self, side: &Side, what: Bell) {
        self.slot.holders().remove_sleeper(what as usize, thread::thread());
        self.hold.remove(SLEEPS[what as usize] | RELIES[what as usize]);
        side.end_sleep(what);
    }
}

#[inline]
pub(crate) fn slot_of(word: u64) -> Option<&'static Slot> {
    let slot = SLOTS.get(number(word).wrapping_sub(1))?;
    (word & (SET | INHERITED) == 0).then_some(slot)
}

/// The number of a slot or an epoll set in a word. Numbers begin with 1.
#[inline]
pub(crate) fn number(word: u64) -> usize {
    ((word & MASK) >> SHIFT) as usize
}

/// The number of an index as part of a word.
pub(crate) fn word_of(index: usize) -> u64 {
    (index as u64 + 1) << SHIFT
}

/// A call no longer sleeps, because its thread left it by a jump.
pub(crate) fn awake(number: usize, what: usize, thread: u64) {
    if let Some(slot) = SLOTS.get(number.wrapping_sub(1)) {
        slot.holders().remove_sleeper(what, thread);
    }
}

/// A call of this process, a child of fork, sleeps, because the fork interrupted its sleep.
pub(crate) fn asleep(number: usize, what: usize, thread: u64) {
    if let Some(slot) = SLOTS.get(number.wrapping_sub(1)) {
        slot.holders().add_sleeper(what, thread);
    }
}

/// The segments of the connection whose own segment has a word, given by its address.
pub(crate) fn segments_with(word: usize) -> Option<[(usize, usize); 2]> {
    let has_it = |[(own, bytes), _]: &[(usize, usize); 2]| word.wrapping_sub(*own) < *bytes;
    all().filter_map(|slot| slot.side()).map(Side::segments).find(has_it)
}

/// A connection stays carried, because a jump left the call that returned it.
pub(crate) fn carry_on(number: usize) {
    if let Some(slot) = SLOTS.get(number.wrapping_sub(1)) {
        slot.carry_on();
    }
}

/// Makes a connection a candidate. `fork` is the last fork. Returns `false` if it is one already, or if a table is full.
pub(crate) fn add(fd: c_int, accepted: bool, fork: u32) -> bool {
    if slot_of(descriptors::word(fd)).is_some() {
        return false; // The socket was connected before.
    }
    let Some(holders) = Holders::one() else { return false };
    for (index, slot) in SLOTS.iter().enumerate() {
        if !slot.change(State::Free, State::Reserved) {
            continue;
        }
        USED.fetch_max(index + 1, Ordering::AcqRel);
        slot.fd.store(fd, Ordering::Relaxed);
        slot.descriptors.store(1, Ordering::Relaxed);
        slot.accepted.store(accepted, Ordering::Relaxed);
        slot.calls.store(0, Ordering::Relaxed);
        slot.blocking.changes();
        slot.attached.store(false, Ordering::Relaxed);
        slot.ring_takes_writes.store(false, Ordering::Relaxed);
        slot.since.store(fork, Ordering::Relaxed);
        slot.holders.store(holders.number(), Ordering::Relaxed);
        slot.is_handed_over.store(false, Ordering::Relaxed);
        slot.is_program.store(false, Ordering::Relaxed);
        slot.state.store(State::Candidate as u32, Ordering::Release);
        descriptors::set(fd, CANDIDATE | word_of(index), MASK | CARRIED);
        return true;
    }
    holders.remove();
    false
}

/// A descriptor of the connection is about to be closed. Returns `true` for the last descriptor, to one thread only.
pub(crate) fn begin_to_close(used: &Use) -> bool {
    used.slot.descriptors.fetch_sub(1, Ordering::SeqCst) == 1
}

/// Leaves the slot taken forever, because an epoll set still names it.
pub(crate) fn lose(used: &Use, fd: c_int) {
    used.slot.descriptors.fetch_add(1, Ordering::SeqCst);
    descriptors::set(fd, 0, MASK | CANDIDATE | CARRIED);
}

/// The descriptor no longer refers to its connection. `was_last` says that no other one does. Returns `true` if the answering
/// thread must free the slot.
pub(crate) fn remove(used: Use, fd: c_int, was_last: bool) -> bool {
    let slot = used.slot;
    descriptors::set(fd, 0, MASK | CANDIDATE | CARRIED);
    while slot.held.load(Ordering::SeqCst) {
        spin_loop();
    }
    if was_last {
        // The answering thread has never seen a candidate.
        let is_unseen = slot.change(State::Candidate, State::Reserved);
        if !is_unseen {
            slot.give_up();
        }
        drop(used);
        return !is_unseen || !slot.free_unseen();
    }
    if slot.fd.load(Ordering::Relaxed) == fd {
        let mut all = descriptors::used_in(0..=u32::MAX);
        let other =
            all.find(|it| slot_of(descriptors::word(*it)).is_some_and(|it| ptr::eq(it, slot)));
        slot.fd.store(other.unwrap_or(-1), Ordering::SeqCst);
    }
    false
}

/// A descriptor was duplicated, and its word copied.
pub(crate) fn duplicated(fd: c_int) {
    if let Some(used) = Use::of(fd) {
        used.slot.descriptors.fetch_add(1, Ordering::SeqCst);
    }
}

/// All slots that may be in use.
pub(crate) fn all() -> impl Iterator<Item = &'static Slot> {
    SLOTS[..USED.load(Ordering::Acquire)].iter().filter(|slot| slot.state() != State::Free)
}

/// Makes `count` connections return to TCP, because the program may need their descriptors. Returns `false` if no connection is
/// carried.
pub(crate) fn give_way(count: usize) -> bool {
    let carried = all().filter(|slot| slot.state() == State::Carried);
    let sides = carried.filter_map(|slot| slot.side()).filter(|side| !side.gives_way());
    let given = sides.take(count).map(Side::give_way).count();
    given > 0
}

/// Runs before a fork: the child has all connections too.
pub(crate) fn share_all() {
    all().for_each(|slot| slot.holders().add());
}

/// Runs after a failed fork.
pub(crate) fn unshare_all() {
    all().for_each(|slot| _ = slot.holders().remove());
}

/// Runs in a child of fork, which has one thread and all connections of its parent. For a connection that was not carried, the
/// search for the peer begins once no other process has it.
pub(crate) fn begin_in_child() {
    for slot in &SLOTS[..USED.load(Ordering::Acquire)] {
        slot.held.store(false, Ordering::Relaxed);
        match slot.state() {
            State::Wanted | State::Meeting => {
                slot.calls.store(0, Ordering::Relaxed);
                slot.state.store(State::Candidate as u32, Ordering::Release);
            }
            // This call continues in both processes.
            State::Returning if holds::this_thread_returns(slot.number()) => {}
            // A thread of the parent was returning the connection, and continues in the parent.
            State::Returning => slot.carry_on(),
            // A thread of the parent was setting the slot up or freeing it.
            State::Reserved => slot.state.store(State::Free as u32, Ordering::Release),
            State::Free | State::Candidate | State::Carried | State::Over => {}
        }
        if let Some(side) = slot.side() {
            side.begin_in_child();
        }
    }
    for fd in descriptors::used_in(0..=u32::MAX).filter(|fd| descriptors::is_ours(*fd)) {
        descriptors::set(fd, SHARED, 0);
    }
}
