//! The program's epoll sets, as far as their members are carried.
//!
//! A member that is carried stays in the kernel's set, which tells of the end of the connection and of bytes by TCP. Instead of the
//! program's data the kernel has a *tag* with the member's descriptor. While bytes go through the ring, the kernel is not asked whether
//! the socket is writable: it always is. The side's bells are in the kernel's set as well, so that one wake-up ends the sleep there.
//!
//! A set that this library does not know, such as one that was inherited, has no carried members: a connection that comes into one
//! returns to the kernel. [`nested`](super::nested) has sets that are put into other ones or waited for by `poll`.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use libc::{c_int, epoll_event};

use super::early::Early;
use super::events::{Events, Kind, tag, tagged};
use super::inner;
use super::member::{ALWAYS, EXCLUSIVE, IN, Member, ONCE, OUT, PRIVATE};
use super::nested::Nested;
use super::side::{Bell, Side};
use super::slots::{self, Slot};
use super::spin::Spin;
use super::token;
use crate::descriptors::{self, EARLY, INHERITED, SET, WATCHED};
use crate::originals::own;

/// Sets of a process whose members may be carried.
const SETS_MAX: usize = 256;
/// Carried members of a set: each wait looks at all of them.
const MEMBERS_MAX: usize = 2_048;

static SETS: [Set; SETS_MAX] = [const { Set::new() }; SETS_MAX];

/// Sets up to this one were in use.
static USED: AtomicUsize = AtomicUsize::new(0);

/// A set of the program.
pub(crate) struct Set {
    /// Descriptors of it; 0: the place is free.
    descriptors: AtomicU32,
    /// One of them.
    pub(super) fd: AtomicI32,
    /// The set of this library that has the bells, if it is watched; -1: they are in the program's.
    pub(super) bells: AtomicI32,
    /// The thread that has the members.
    holder: AtomicU64,
    members: UnsafeCell<Lists>,
    /// Members that are attached.
    pub(crate) attached: AtomicUsize,
    /// Members that are sets.
    pub(crate) nested: AtomicUsize,
    /// Waits that sleep.
    pub(super) sleepers: AtomicU32,
    /// It is waited for in a way that only the kernel knows: its members are not carried.
    pub(super) is_kernels: AtomicBool,
    /// It is the parent's, and this process has not used it.
    is_inherited: AtomicBool,
    /// When the kernel was asked last, in nanoseconds.
    pub(crate) asked_kernel: AtomicU64,
    /// It had something to report then.
    pub(crate) kernel_told: AtomicBool,
    /// It had so much to report that rings had no turn.
    pub(crate) kernel_took_all: AtomicBool,
    pub(crate) spin: Spin,
}

// SAFETY: the members are used by the thread that `holder` names.
unsafe impl Sync for Set {}

struct Lists {
    members: Vec<Member>,
    early: Vec<Early>,
    nested: Vec<Nested>,
    turns: Turns,
}

/// Whose turn it is when more is ready than a call has room for.
#[derive(Clone, Copy)]
struct Turns {
    /// The next report begins with this descriptor.
    next: c_int,
    /// The next report begins with members that are sets.
    is_of_nested: bool,
    /// The kernel is not asked for bytes of some members.
    are_hushed: bool,
}

impl Lists {
    const fn new() -> Self {
        Self {
            members: Vec::new(),
            early: Vec::new(),
            nested: Vec::new(),
            turns: Turns { next: 0, is_of_nested: false, are_hushed: false },
        }
    }
}

/// The members of a set, for one thread.
pub(crate) struct Members<'a> {
    pub(super) set: &'a Set,
}

/// The calling thread has the members already: a signal handler interrupted it.
pub(crate) struct Interrupted;

impl Set {
    const fn new() -> Self {
        Self {
            descriptors: AtomicU32::new(0),
            fd: AtomicI32::new(-1),
            bells: AtomicI32::new(-1),
            holder: AtomicU64::new(0),
            members: UnsafeCell::new(Lists::new()),
            attached: AtomicUsize::new(0),
            nested: AtomicUsize::new(0),
            sleepers: AtomicU32::new(0),
            is_kernels: AtomicBool::new(false),
            is_inherited: AtomicBool::new(false),
            asked_kernel: AtomicU64::new(0),
            kernel_told: AtomicBool::new(false),
            kernel_took_all: AtomicBool::new(false),
            spin: Spin::new(),
        }
    }

    /// The set of a descriptor, if it is known.
    #[inline]
    pub(crate) fn of(fd: c_int) -> Option<&'static Self> {
        let word = descriptors::word(fd);
        let set = SETS.get(slots::number(word).wrapping_sub(1))?;
        (word & SET != 0).then_some(set)
    }

    /// Takes the members. Their holder never sleeps with them.
    pub(crate) fn members(&self) -> Result<Members<'_>, Interrupted> {
        let me = token::thread();
        while let Err(holder) =
            self.holder.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
        {
            if holder == me {
                return Err(Interrupted);
            }
            // SAFETY: the call has no arguments.
            unsafe { own::sched_yield() };
        }
        Ok(Members { set: self })
    }

    /// Whether a wait has to look at rings.
    #[inline]
    pub(crate) fn has_rings(&self) -> bool {
        self.attached.load(Ordering::SeqCst) > 0 || self.nested.load(Ordering::SeqCst) > 0
    }

    fn is_used(&self) -> bool {
        self.descriptors.load(Ordering::SeqCst) != 0
    }
}

impl Drop for Members<'_> {
    fn drop(&mut self) {
        self.set.holder.store(0, Ordering::Release);
    }
}

impl Members<'_> {
    pub(super) fn list(&mut self) -> &mut Vec<Member> {
        // SAFETY: this value exists once at a time.
        unsafe { &mut (*self.set.members.get()).members }
    }

    /// Members that are not connected yet.
    pub(super) fn early(&mut self) -> &mut Vec<Early> {
        // SAFETY: as above.
        unsafe { &mut (*self.set.members.get()).early }
    }

    fn turns(&mut self) -> &mut Turns {
        // SAFETY: as above.
        unsafe { &mut (*self.set.members.get()).turns }
    }

    /// Members that are sets.
    pub(super) fn nested(&mut self) -> &mut Vec<Nested> {
        // SAFETY: as above.
        unsafe { &mut (*self.set.members.get()).nested }
    }

    /// Whether the member at a place is this connection.
    fn is_at(&mut self, index: usize, slot: &Slot) -> bool {
        std::ptr::eq(self.list()[index].slot, slot)
    }

    pub(super) fn find(&mut self, fd: c_int) -> Result<usize, usize> {
        self.list().binary_search_by_key(&fd, |member| member.fd)
    }

    pub(super) fn control(&self, operation: c_int, fd: c_int, events: u32, data: u64) -> bool {
        let mut event = epoll_event { events, u64: data };
        let set = self.set.fd.load(Ordering::Relaxed);
        // SAFETY: the event lives here.
        unsafe { own::epoll_ctl(set, operation, fd, &raw mut event) == 0 }
    }

    /// Changes what the kernel reports of a socket, and with which data.
    fn change(&self, fd: c_int, events: u32, data: u64) -> bool {
        if events & EXCLUSIVE == 0 {
            return self.control(libc::EPOLL_CTL_MOD, fd, events, data);
        }
        // The kernel changes no member that is to wake one of several sets only. It can be put in anew.
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
        self.control(libc::EPOLL_CTL_ADD, fd, events, data)
    }

    /// Has the kernel's set wake for what happens to the member.
    pub(super) fn attach(&mut self, index: usize) -> bool {
        let member = &self.list()[index];
        if member.attached {
            return true;
        }
        let (fd, slot) = (member.fd, member.slot);
        let Some(side) = slot.side() else { return false };
        let has_room = self.set.attached.load(Ordering::Relaxed) < MEMBERS_MAX;
        if !has_room || self.set.is_kernels.load(Ordering::SeqCst) {
            return false;
        }
        let bells = side.bells();
        for (count, bell) in bells.into_iter().enumerate() {
            if !self.control_bell(libc::EPOLL_CTL_ADD, bell, fd) {
                for bell in &bells[..count] {
                    self.control_bell(libc::EPOLL_CTL_DEL, *bell, fd);
                }
                return false;
            }
        }
        self.list()[index].attached = true;
        self.set.attached.fetch_add(1, Ordering::SeqCst);
        self.tell_kernel(index);
        side.nudge(); // Waits that are under way look at it from now on.
        true
    }

    /// Tells the kernel what it is to report of a member that is attached.
    pub(super) fn tell_kernel(&mut self, index: usize) -> bool {
        let member = &mut self.list()[index];
        let (fd, events) = (member.fd, member.of_kernel());
        member.told = events;
        self.change(fd, events, tag(Kind::Socket, fd))
    }

    /// The same, unless the kernel reports all of that already. What it reports beyond that, [`translate`](Self::translate) leaves out;
    /// but whoever waits for the set as a descriptor would see it.
    pub(super) fn tell_kernel_if_needed(&mut self, index: usize) -> bool {
        let is_watched = self.set.is_watched();
        let member = &self.list()[index];
        let events = member.of_kernel();
        let is_simple = (events | member.told) & PRIVATE == 0 && !is_watched;
        is_simple && events & !member.told == 0 || self.tell_kernel(index)
    }

    /// Takes the member out of this table; the bells leave the kernel's set.
    pub(super) fn forget(&mut self, index: usize) -> Member {
        let mut member = self.list().remove(index);
        if !member.attached {
            return member;
        }
        self.set.attached.fetch_sub(1, Ordering::SeqCst);
        if let Some(side) = member.slot.side() {
            for bell in side.bells() {
                self.control_bell(libc::EPOLL_CTL_DEL, bell, member.fd);
            }
            for what in [Bell::Bytes, Bell::Room] {
                if std::mem::take(&mut member.asked[what as usize]) {
                    side.get_up(what, false);
                }
            }
        }
        member
    }

    /// The member is the kernel's alone from now on.
    pub(super) fn detach(&mut self, index: usize) {
        let member = self.forget(index);
        if !member.is_in {
            self.control(libc::EPOLL_CTL_DEL, member.fd, 0, 0);
        } else if member.attached {
            let events = if member.armed { member.wants } else { member.wants & PRIVATE };
            self.change(member.fd, events, member.data);
        }
    }

    /// Whether a member has something to report from its ring.
    pub(crate) fn is_any_ready(&mut self) -> bool {
        self.list().iter().any(|member| member.ready() != 0)
            || self.nested().iter().any(|nested| nested.ready() != 0)
    }

    /// Reports what rings have, behind the first `count` events, and with those that are about the same members. Returns how many
    /// events there are then.
    pub(crate) fn report(&mut self, events: &mut Events, count: usize) -> usize {
        let told = self.translate(events, count);
        self.ask_for_bytes_again();
        let mut count = told;
        if self.turns().is_of_nested {
            count = self.report_nested_rings(events, told, count);
        }
        count = self.report_rings(events, told, count);
        if !self.turns().is_of_nested {
            count = self.report_nested_rings(events, told, count);
        }
        let turns = self.turns();
        turns.is_of_nested = count == events.limit && !turns.is_of_nested;
        count
    }

    /// Reports the rings of members. The kernel has told of `told` members: few, most often none.
    fn report_rings(&mut self, events: &mut Events, told: usize, mut count: usize) -> usize {
        let mut next = self.turns().next;
        let list = self.list();
        let first = list.partition_point(|member| member.fd < next);
        let (before, behind) = list.split_at_mut(first);
        for member in behind.iter_mut().chain(before) {
            let ready = member.ready();
            if ready == 0 {
                continue;
            }
            let data = member.data;
            let its = (0..told).find(|at| events.get(*at).u64 == data);
            if let Some(at) = its {
                events.put(at, epoll_event { events: events.get(at).events | ready, u64: data });
            } else if count < events.limit {
                events.put(count, epoll_event { events: ready, u64: data });
                count += 1;
                next = member.fd + 1;
            } else {
                break;
            }
            member.reported(ready);
        }
        self.turns().next = next;
        count
    }

    /// The same of members that are sets.
    fn report_nested_rings(&mut self, events: &mut Events, told: usize, mut count: usize) -> usize {
        let list = self.nested();
        for index in 0..list.len() {
            let nested = &mut list[index];
            let ready = nested.ready();
            if ready == 0 || (0..told).any(|at| events.get(at).u64 == nested.data) {
                continue;
            }
            if count == events.limit {
                list.rotate_left(index); // It is the first one next time.
                break;
            }
            events.put(count, epoll_event { events: ready, u64: nested.data });
            nested.reported();
            count += 1;
        }
        count
    }

    /// Puts the program's data into events that the kernel has tagged. Returns how many are left.
    fn translate(&mut self, events: &mut Events, count: usize) -> usize {
        let mut kept = 0;
        for at in 0..count {
            let mut event = events.get(at);
            if let Some((Kind::Set, fd)) = tagged(event.u64) {
                let Some(its) = self.report_nested(fd, event.events) else { continue };
                event = its;
            } else if let Some((kind, fd)) = tagged(event.u64) {
                let Ok(index) = self.find(fd) else { continue };
                if kind == Kind::Bell {
                    self.hear(index);
                    continue;
                }
                let wanted = self.list()[index].of_kernel() | ALWAYS;
                let (is_in, armed) = (self.list()[index].is_in, self.list()[index].armed);
                if !is_in {
                    self.detach(index);
                    continue;
                }
                event.events &= wanted;
                if event.events == 0 {
                    self.tell_kernel(index);
                }
                if event.events == 0 || !armed {
                    continue;
                }
                if self.is_of_bell_alone(index) {
                    self.hush(index);
                    event.events &= !IN;
                    if event.events & wanted == 0 {
                        continue;
                    }
                }
                let member = &mut self.list()[index];
                event.u64 = member.data;
                member.armed = member.wants & ONCE == 0;
            }
            events.put(kept, event);
            kept += 1;
        }
        kept
    }

    /// A bell of a member has rung. The kernel tells of the next time as well if it is not emptied, unless it is full.
    pub(super) fn hear(&mut self, index: usize) {
        if let Some(side) = self.list()[index].slot.side() {
            side.hear_now_and_then();
        }
    }

    /// Whether a read finds nothing although the kernel has bytes of the member, since others come first.
    fn is_of_bell_alone(&mut self, index: usize) -> bool {
        let side = self.list()[index].slot.side();
        side.is_some_and(|side| side.only_bell_tells(Bell::Bytes) && !side.is_readable())
    }

    /// The kernel is not asked for bytes of a member until a bell has rung.
    fn hush(&mut self, index: usize) {
        self.list()[index].is_hushed = true;
        self.turns().are_hushed = true;
        self.tell_kernel(index);
    }

    /// The kernel is asked for bytes again where a bell has rung.
    fn ask_for_bytes_again(&mut self) {
        if !std::mem::take(&mut self.turns().are_hushed) {
            return;
        }
        for index in 0..self.list().len() {
            if !self.list()[index].is_hushed {
                continue;
            }
            if self.list()[index].attached && self.is_of_bell_alone(index) {
                self.turns().are_hushed = true;
                continue;
            }
            self.list()[index].is_hushed = false;
            if self.list()[index].attached {
                self.tell_kernel(index);
            }
        }
    }

    /// Before a wait sleeps in the kernel. The caller looks once more.
    pub(crate) fn prepare_sleep(&mut self) {
        self.set.sleepers.fetch_add(1, Ordering::SeqCst);
        self.ask();
    }

    /// Asks all members to wake the waits that sleep.
    pub(super) fn ask(&mut self) {
        self.ask_for_bytes_again();
        self.list().iter_mut().for_each(Member::ask);
        self.ask_nested();
    }

    /// A member has changed while other threads may sleep: it is asked for them, and wakes them if something is there.
    pub(super) fn tell_sleepers(&mut self, index: usize) {
        if self.set.sleepers.load(Ordering::SeqCst) == 0 {
            return;
        }
        let member = &mut self.list()[index];
        member.ask();
        if member.ready() != 0
            && let Some(side) = member.slot.side()
        {
            side.nudge();
        }
    }

    /// After a wait slept.
    pub(crate) fn get_up(&mut self) {
        if self.set.sleepers.fetch_sub(1, Ordering::SeqCst) != 1 {
            if self.set.is_watched() && self.is_any_ready() {
                self.wake(); // The kernel may have told this one only.
            }
            return;
        }
        for member in self.list().iter_mut() {
            for what in [Bell::Bytes, Bell::Room] {
                if std::mem::take(&mut member.asked[what as usize])
                    && let Some(side) = member.slot.side()
                {
                    side.get_up(what, false);
                }
            }
        }
        self.withdraw_nested();
    }

    /// Whether looking at memory would only keep the peer of a member from running.
    pub(crate) fn shares_processor(&mut self) -> bool {
        let mut attached = self.list().iter().filter(|member| member.attached);
        attached.all(|member| member.slot.side().is_some_and(Side::shares_processor))
            && self.nested().iter().all(|nested| {
                nested.set.members().is_ok_and(|mut members| members.shares_processor())
            })
    }
}

/// The program has made a set.
pub(crate) fn made(fd: c_int) {
    for (index, set) in SETS.iter().enumerate() {
        let taken =
            set.descriptors.compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        if taken {
            USED.fetch_max(index + 1, Ordering::AcqRel);
            set.fd.store(fd, Ordering::SeqCst);
            set.is_kernels.store(false, Ordering::SeqCst);
            set.is_inherited.store(false, Ordering::SeqCst);
            set.bells.store(-1, Ordering::SeqCst);
            shared::clear(index);
            descriptors::set(fd, SET | slots::word_of(index), slots::MASK);
            return;
        }
    }
}

pub(super) fn all() -> impl Iterator<Item = &'static Set> {
    let is_known = |set: &&Set| set.is_used() && !set.is_inherited.load(Ordering::Relaxed);
    SETS[..USED.load(Ordering::Acquire)].iter().filter(is_known)
}

/// What became of [`attach`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Attached {
    /// All sets that have the connection wake for its bells.
    Everywhere,
    /// A member that fires once may have fired. Only the kernel knows, until the program arms it anew.
    Later,
    /// A set cannot have its bells.
    Never,
}

/// The connection is carried: has all sets that have it wake for its bells.
pub(crate) fn attach(slot: &'static Slot) -> Attached {
    let attach = |members: &mut Members<'_>, index: usize| {
        let member = &members.list()[index];
        match member.attached || member.wants & ONCE == 0 {
            true if members.attach(index) => Attached::Everywhere,
            true => Attached::Never,
            false => Attached::Later,
        }
    };
    let in_set = |set: &Set| {
        let Ok(mut members) = set.members() else { return Some(Attached::Never) };
        let mut result = None;
        for index in 0..members.list().len() {
            if members.is_at(index, slot) {
                result = result.max(Some(attach(&mut members, index)));
            }
        }
        result
    };
    all().filter_map(in_set).max().unwrap_or(Attached::Everywhere)
}

/// The connection is the kernel's: sets report what the kernel says of it.
pub(crate) fn detach(slot: &Slot) {
    of_all(slot, |members, index| members.detach(index));
}

/// Does something with the members of all sets that are this connection.
fn of_all(slot: &Slot, work: impl Fn(&mut Members<'_>, usize)) {
    for set in all() {
        let Ok(mut members) = set.members() else { continue };
        for index in (0..members.list().len()).rev() {
            if members.is_at(index, slot) {
                work(&mut members, index); // It may take the member out.
            }
        }
    }
}

/// Writes of the connection go into the ring, or into TCP: the kernel is not asked for room, or is.
pub(crate) fn ask_kernel_for_room(slot: &Slot, asks: bool) {
    slot.ring_takes_writes.store(!asks, Ordering::SeqCst);
    for set in all().filter(|set| set.attached.load(Ordering::SeqCst) > 0) {
        let Ok(mut members) = set.members() else { continue };
        for index in 0..members.list().len() {
            let member = &members.list()[index];
            let waits_for_room = member.attached && member.wants & OUT != 0;
            if waits_for_room && members.is_at(index, slot) {
                members.tell_kernel(index);
            }
        }
    }
}

/// A write found no room: threads that sleep in sets, and are to know when there is room, did not ask for it while there was some.
#[cold]
pub(crate) fn is_full(slot: &Slot) {
    for set in all().filter(|set| set.sleepers.load(Ordering::SeqCst) > 0) {
        let Ok(mut members) = set.members() else { continue };
        for index in 0..members.list().len() {
            if members.list()[index].wants & OUT != 0 && members.is_at(index, slot) {
                members.tell_sleepers(index);
            }
        }
    }
}

/// What the program waits for has changed: members are reported anew, also those that report changes only.
#[cold]
pub(crate) fn renew(slot: &Slot) {
    for set in all() {
        let Ok(mut members) = set.members() else { continue };
        for index in 0..members.list().len() {
            if members.is_at(index, slot) {
                members.list()[index].seen = u64::MAX;
                members.tell_sleepers(index);
            }
        }
    }
}

/// Once writes go by TCP again, the kernel knows whether there is room.
#[inline]
pub(crate) fn follow_room(slot: &Slot, side: &Side) {
    if slot.ring_takes_writes.load(Ordering::SeqCst) && side.is_writable().is_none() {
        ask_kernel_for_room(slot, true);
    }
}

/// Before a descriptor of a connection is closed. `is_last`: no other descriptor stands for it. False if the members were busy, since
/// a signal handler closes it.
pub(crate) fn closing(fd: c_int, is_last: bool) -> bool {
    let mut done = true;
    for set in all() {
        let Ok(mut members) = set.members() else {
            done = false;
            continue;
        };
        let Ok(index) = members.find(fd) else { continue };
        if is_last {
            let member = members.forget(index);
            if member.attached {
                members.control(libc::EPOLL_CTL_DEL, fd, 0, 0); // No tag is reported any more.
            }
        } else {
            // The kernel goes on to report it, because another descriptor keeps the connection open.
            members.detach(index);
        }
    }
    done
}

/// A descriptor of a set was duplicated.
pub(crate) fn duplicated(fd: c_int) {
    if let Some(set) = Set::of(fd) {
        set.descriptors.fetch_add(1, Ordering::SeqCst);
    }
}

/// All sets are the kernel's from now on, and have nothing of this library in them.
pub(crate) fn give_up_all() {
    for set in all() {
        super::interest::give_up_all(set);
        let bells = set.bells.swap(-1, Ordering::SeqCst);
        if bells >= 0 {
            inner::close(bells);
        }
    }
}

/// Before a descriptor of a set is closed.
pub(crate) fn closing_set(fd: c_int) {
    let Some(set) = Set::of(fd) else { return };
    descriptors::set(fd, 0, SET | slots::MASK);
    let is_last = set.descriptors.load(Ordering::SeqCst) == 1;
    closing_nested(fd, is_last);
    let Ok(mut members) = set.members() else { return };
    if !is_last {
        if set.fd.load(Ordering::SeqCst) == fd {
            let mut others = descriptors::used_in(0..=u32::MAX);
            let other = others.find(|it| Set::of(*it).is_some_and(|it| std::ptr::eq(it, set)));
            set.fd.store(other.unwrap_or(-1), Ordering::SeqCst);
        }
    } else {
        while let Some(last) = members.list().len().checked_sub(1) {
            members.forget(last);
        }
        while let Some(last) = members.nested().len().checked_sub(1) {
            members.forget_nested(last);
        }
        members.early().clear();
        let bells = set.bells.swap(-1, Ordering::SeqCst);
        if bells >= 0 {
            inner::close(bells);
        }
    }
    drop(members);
    set.descriptors.fetch_sub(1, Ordering::SeqCst);
}

/// Before a descriptor of a set is closed that other sets may have as a member.
fn closing_nested(fd: c_int, is_last: bool) {
    for outer in all().filter(|outer| outer.nested.load(Ordering::SeqCst) > 0) {
        let kept = {
            let Ok(mut members) = outer.members() else { continue };
            match members.find_nested(fd) {
                // No tag is reported any more.
                Some(index) if is_last => {
                    members.forget_nested(index);
                    members.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
                    None
                }
                // The kernel goes on to report it, because another descriptor keeps it open.
                Some(index) => Some(members.detach_nested(index)),
                None => None,
            }
        };
        if let Some(set) = kept {
            super::interest::give_up_all(set);
        }
    }
}

/// Which sets a child of fork uses as well: bytes that all children share.
pub(super) mod shared {
    use std::ptr;
    use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

    use super::SETS_MAX;
    use crate::originals::own;

    static BYTES: AtomicPtr<AtomicU8> = AtomicPtr::new(ptr::null_mut());

    fn byte(index: usize) -> Option<&'static AtomicU8> {
        let first = BYTES.load(Ordering::Acquire);
        // SAFETY: there are `SETS_MAX` bytes, which stay mapped.
        (index < SETS_MAX && !first.is_null()).then(|| unsafe { &*first.add(index) })
    }

    /// Makes the bytes if there are none.
    pub(super) fn clear(index: usize) {
        if BYTES.load(Ordering::Acquire).is_null() {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
            // SAFETY: the call makes memory of its own.
            let memory = unsafe { own::mmap(ptr::null_mut(), SETS_MAX, access, flags, -1, 0) };
            if memory == libc::MAP_FAILED {
                return;
            }
            let none = ptr::null_mut();
            let first = memory.cast();
            if BYTES.compare_exchange(none, first, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // SAFETY: nobody knows of this memory.
                let _ = unsafe { own::munmap(memory, SETS_MAX) };
            }
        }
        if let Some(byte) = byte(index) {
            byte.store(0, Ordering::SeqCst);
        }
    }

    pub(crate) fn mark(index: usize) {
        if let Some(byte) = byte(index) {
            byte.store(1, Ordering::SeqCst);
        }
    }

    #[inline]
    pub(crate) fn is_marked(index: usize) -> bool {
        byte(index).is_none_or(|byte| byte.load(Ordering::Relaxed) != 0)
    }
}

/// In a child of fork: sets are the parent's, until this process uses one ([`adopt`]).
pub(crate) fn forget_all() {
    for set in &SETS[..USED.load(Ordering::Acquire)] {
        if set.holder.swap(0, Ordering::Relaxed) != 0 {
            // SAFETY: the child has one thread. Another thread of the parent was changing the lists, so they are not dropped.
            unsafe { std::ptr::write(set.members.get(), Lists::new()) };
            set.nested.store(0, Ordering::Relaxed);
            set.attached.store(0, Ordering::Relaxed);
        }
        set.sleepers.store(0, Ordering::Relaxed);
        set.is_inherited.store(true, Ordering::Relaxed);
    }
    for fd in descriptors::used_in(0..=u32::MAX) {
        if descriptors::word(fd) & SET != 0 {
            descriptors::set(fd, INHERITED, SET);
        }
        if descriptors::word(fd) & EARLY != 0 {
            descriptors::set(fd, WATCHED, EARLY);
        }
    }
}

/// A child of fork uses a set of its parent for the first time: the kernel has tags of its members, which this process knows as well.
/// Both processes are to give the members up then.
#[cold]
pub(super) fn adopt(fd: c_int) {
    let index = slots::number(descriptors::word(fd)).wrapping_sub(1);
    let Some(set) = SETS.get(index) else { return };
    if set.is_inherited.swap(false, Ordering::SeqCst) {
        set.fd.store(fd, Ordering::SeqCst);
        if let Ok(mut members) = set.members() {
            members.list().iter_mut().for_each(|member| member.asked = [false; 2]);
            members.nested().iter_mut().for_each(Nested::forget_asked);
        }
    }
    descriptors::set(fd, SET, INHERITED);
    shared::mark(index);
}
