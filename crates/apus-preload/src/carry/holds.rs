//! Records of the objects that each thread's calls hold: connections and sets in use or slept for, tokens, memory, descriptors.
//!
//! A signal handler may leave a call for good by `siglongjmp`, and the call then finishes none of its work. So a hold is not
//! counted at the held object. It is an entry in the thread's record, and other threads scan the records. A jump
//! ([`before_jump`]) strikes out the entries of the functions that it leaves, which lie below its target on the stack.
//!
//! A child of `fork` keeps the record of the thread that forked, and strikes out all others. If a signal handler forked, the thread
//! was in calls, which continue in both processes. Objects in the child's memory alone belong to the child. A token of a connection
//! stays the parent's, and the child's call continues with a [snapshot](Snapshots).
//!
//! Only the thread itself writes to its record, and handlers that interrupt it and finish before it continues.

pub(super) mod forks;

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicU64 as Word, compiler_fence};

use libc::c_int;

use crate::carry::mapping::map_or_abort;
use crate::carry::snapshots::{Region, Snapshots};
use crate::carry::spin::SLEEPERS;
use crate::carry::sync::{
    AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence, thread_local,
};
use crate::carry::thread;
use crate::originals::own;

/// Entries of a record. A thread with more has a separate list.
const FEW: usize = if cfg!(all(test, apus_model)) { 8 } else { 240 };
/// Number of static records.
const FIRST: usize = if cfg!(all(test, apus_model)) { 5 } else { 64 };
/// Upper bound on records that a new thread checks for an ended owner.
const ASKED_MAX: usize = 8;

struct Record {
    /// The owning thread. 0 for a free record.
    owner: AtomicU64,
    next: AtomicPtr<Self>,
    /// Entries from this index on are free.
    length: AtomicUsize,
    /// Entries below this index stay, because one of them is being written.
    floor: AtomicUsize,
    few: [Entry; FEW],
    /// A longer list that replaces `few`. It never becomes shorter.
    many: AtomicPtr<Entry>,
    capacity: AtomicUsize,
    /// Copies for the child of a fork that the thread is making.
    made: Snapshots,
    /// Copies for calls that a fork interrupted, in the child. A record with copies has `many`.
    snapshots: Snapshots,
}

/// An object that a thread holds.
struct Entry {
    /// The kind and the object. 0 for no object.
    what: AtomicU64,
    /// Stack position of the function that holds the object.
    position: AtomicUsize,
}

/// Position of the kind in an entry.
const KIND: u32 = 58;
/// Position of the flags of a connection or a set.
const FLAGS: u32 = 32;
/// Mask of a number.
const NUMBER: u64 = (1 << FLAGS) - 1;
/// Mask of an address.
const ADDRESS: u64 = (1 << KIND) - 1;

/// The type of the object of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
enum ObjectType {
    /// The number of a connection, with flags.
    Connection = 1,
    /// The number of an epoll set, with flags.
    Set,
    /// The address of a word that has the thread's number, or is about to.
    Token,
    /// A descriptor that this library has created for a call.
    Descriptor,
    /// The number of a connection that a call is returning to TCP.
    Return,
    /// The address of a word that the parent holds. The call continues with a snapshot.
    Parents,
}

impl ObjectType {
    fn entry(self, of: u64) -> u64 {
        (self as u64) << KIND | of
    }

    fn has(self, entry: u64) -> bool {
        entry >> KIND == self as u64
    }
}

/// The kernel handles the call, which receives. The connection was not carried when it began.
pub(super) const RECEIVES: u64 = 1 << FLAGS;
/// The same for a call that sends.
pub(super) const SENDS: u64 = 2 << FLAGS;
/// The call sleeps for bytes, for room. For a set, it sleeps for any member.
pub(super) const SLEEPS: [u64; 2] = [4 << FLAGS, 8 << FLAGS];
/// The call sleeps without having asked the kernel, which has nothing to report.
pub(super) const RELIES: [u64; 2] = [16 << FLAGS, 32 << FLAGS];

/// A write of the call is done in part.
pub(super) const PARTIAL_WRITE: u64 = 64 << FLAGS;

static RECORDS: [Record; FIRST] = [const { Record::new() }; FIRST];
/// Records beyond the static ones.
static MORE: AtomicPtr<Record> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    static OWN: Cell<Option<&'static Record>> = const { Cell::new(None) };
}

/// An object that the calling thread holds, until the value is dropped.
pub(crate) struct Hold {
    record: &'static Record,
    index: u32,
}

impl Hold {
    /// A connection is in use.
    #[inline]
    pub(super) fn connection(number: usize) -> Self {
        own_record().push(ObjectType::Connection.entry(number as u64))
    }

    /// A set is waited for.
    pub(super) fn set(number: usize) -> Self {
        own_record().push(ObjectType::Set.entry(number as u64))
    }

    /// A word is about to have the thread's number. Only this thread reads the entry.
    #[inline]
    pub(super) fn token(word: &Word) -> Self {
        own_record()
            .push_for_itself(ObjectType::Token.entry(ptr::from_ref(word).addr() as u64 & ADDRESS))
    }

    /// A descriptor that must be closed.
    pub(super) fn descriptor(fd: c_int) -> Self {
        own_record().push_for_itself(ObjectType::Descriptor.entry(fd as u64 & NUMBER))
    }

    /// A connection that is returning to TCP. If a jump leaves the call, the connection stays carried.
    pub(super) fn returning(number: usize) -> Self {
        own_record().push_for_itself(ObjectType::Return.entry(number as u64))
    }

    /// The thread that holds the object, which is the calling thread.
    #[inline]
    pub(super) fn thread(&self) -> u64 {
        self.record.owner.load(Ordering::Relaxed)
    }

    /// Adds flags to the entry of a connection or a set.
    #[inline]
    pub(super) fn add(&self, flags: u64) {
        let entry = self.record.at(self.index as usize);
        let what = entry.what.load(Ordering::Relaxed);
        if what & flags != flags {
            entry.what.swap(what | flags, Ordering::SeqCst);
        }
    }

    /// Removes flags from the entry.
    #[inline]
    pub(super) fn remove(&self, flags: u64) {
        let entry = self.record.at(self.index as usize);
        let what = entry.what.load(Ordering::Relaxed);
        if what & flags != 0 {
            entry.what.swap(what & !flags, Ordering::SeqCst);
        }
    }
}

impl Drop for Hold {
    #[inline]
    fn drop(&mut self) {
        self.record.remove(self.index as usize);
    }
}

impl Record {
    const fn new() -> Self {
        Self {
            owner: AtomicU64::new(0),
            next: AtomicPtr::new(ptr::null_mut()),
            length: AtomicUsize::new(0),
            floor: AtomicUsize::new(0),
            few: [const { Entry { what: AtomicU64::new(0), position: AtomicUsize::new(0) } }; FEW],
            many: AtomicPtr::new(ptr::null_mut()),
            capacity: AtomicUsize::new(FEW),
            made: Snapshots::new(),
            snapshots: Snapshots::new(),
        }
    }

    #[inline]
    fn entries(&self) -> &[Entry] {
        // The capacity never exceeds the list, because a longer list is stored first.
        let capacity = self.capacity.load(Ordering::SeqCst);
        let many = self.many.load(Ordering::SeqCst);
        if many.is_null() {
            return &self.few;
        }
        // SAFETY: a list has at least `capacity` entries, and is never freed.
        unsafe { std::slice::from_raw_parts(many, capacity) }
    }

    #[inline]
    fn at(&self, index: usize) -> &Entry {
        &self.entries()[index]
    }

    /// Adds an entry, which other threads see before the caller checks the object once more.
    #[inline]
    fn push(&'static self, what: u64) -> Hold {
        self.write(|entry| _ = entry.what.swap(what, Ordering::SeqCst))
    }

    #[inline]
    fn push_for_itself(&'static self, what: u64) -> Hold {
        self.write(|entry| entry.what.store(what, Ordering::Relaxed))
    }

    #[inline]
    fn write(&'static self, write: impl FnOnce(&Entry)) -> Hold {
        let mark = 0_u8;
        let index = self.length.load(Ordering::Relaxed);
        let floor = self.floor.load(Ordering::Relaxed);
        self.floor.store(index + 1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.length.store(index + 1, Ordering::Relaxed);
        let has_few = self.has_few();
        let entry = match self.few.get(index) {
            Some(entry) if has_few => entry,
            _ => self.further(index),
        };
        entry.position.store((&raw const mark).addr(), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst); // The position is visible to a handler that jumps.
        write(entry);
        compiler_fence(Ordering::SeqCst);
        self.floor.store(floor, Ordering::Relaxed);
        if !has_few {
            self.follow_snapshots();
        }
        Hold { record: self, index: index as u32 }
    }

    /// Whether the entries are in `few`. Only for the thread itself.
    #[inline]
    fn has_few(&self) -> bool {
        self.many.load(Ordering::Relaxed).is_null()
    }

    /// An entry beyond `few`.
    #[cold]
    fn further(&self, index: usize) -> &Entry {
        if index >= self.entries().len() {
            self.grow();
        }
        self.at(index)
    }

    /// Doubles the list. The old one stays, because other threads may be reading it.
    #[cold]
    fn grow(&self) {
        let before = self.entries();
        let capacity = 2 * before.len();
        let list: *mut Entry = map_or_abort(capacity * size_of::<Entry>()).cast();
        for (index, entry) in before.iter().enumerate() {
            // SAFETY: the list has room for them, and zeros are valid entries.
            let new = unsafe { &*list.add(index) };
            new.position.store(entry.position.load(Ordering::Relaxed), Ordering::Relaxed);
            new.what.store(entry.what.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.many.store(list, Ordering::SeqCst);
        self.capacity.store(capacity, Ordering::SeqCst);
    }

    #[inline]
    fn remove(&self, index: usize) {
        if self.has_few() {
            self.remove_from(&self.few, index);
        } else {
            self.remove_from_many(index);
        }
    }

    #[cold]
    fn remove_from_many(&self, index: usize) {
        self.remove_from(self.entries(), index);
        self.follow_snapshots();
    }

    #[inline]
    fn remove_from(&self, entries: &[Entry], index: usize) {
        entries[index].what.store(0, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        let floor = self.floor.load(Ordering::Relaxed);
        let mut length = self.length.load(Ordering::Relaxed);
        while length > floor && entries[length - 1].what.load(Ordering::Relaxed) == 0 {
            length -= 1;
        }
        self.length.store(length, Ordering::Relaxed);
    }

    /// Whether the record has an entry that satisfies `is_one`.
    fn any(&self, is_one: &impl Fn(u64) -> bool) -> bool {
        // A thread publishes an entry after the length.
        let length = self.length.load(Ordering::SeqCst);
        self.entries().iter().take(length).any(|entry| is_one(entry.what.load(Ordering::SeqCst)))
    }

    /// Releases the objects of all entries whose function has been left, according to `is_left`.
    #[cold]
    fn strike_out(&self, is_left: impl Fn(usize) -> bool) {
        let owner = self.owner.load(Ordering::Relaxed);
        let length = self.length.load(Ordering::Relaxed);
        let mut kept = 0;
        for index in (0..length.min(self.entries().len())).rev() {
            let entry = self.at(index);
            let what = entry.what.load(Ordering::Relaxed);
            if what == 0 {
                continue;
            }
            if !is_left(entry.position.load(Ordering::Relaxed)) {
                kept = kept.max(index + 1);
                continue;
            }
            let of = what & ADDRESS;
            for sleeps in [0, 1] {
                if ObjectType::Connection.has(what) && what & SLEEPS[sleeps] != 0 {
                    (left().awake)((what & NUMBER) as usize, sleeps, owner);
                }
            }
            entry.what.store(0, Ordering::SeqCst);
            if ObjectType::Token.has(what) && !self.any(&|other| other == what) {
                let word: *const Word = ptr::with_exposed_provenance(of as usize);
                // SAFETY: the word is static, or belongs to a side that the same call used and that lives until the call's entry
                // goes.
                let word = unsafe { &*word };
                let _ = word.compare_exchange(owner, 0, Ordering::Release, Ordering::Relaxed);
            } else if ObjectType::Return.has(what) {
                (left().carry_on)(of as usize);
            } else if ObjectType::Descriptor.has(what) {
                // SAFETY: the descriptor is this library's, and no longer used.
                let _ = unsafe { own::close((what & NUMBER) as c_int) };
            }
        }
        self.length.store(kept, Ordering::Relaxed);
        self.floor.fetch_min(kept, Ordering::Relaxed);
        if kept == 0 {
            self.floor.store(0, Ordering::Relaxed);
        }
        self.follow_snapshots();
    }
}

fn records() -> impl Iterator<Item = &'static Record> {
    let mut next = MORE.load(Ordering::Acquire);
    let more = std::iter::from_fn(move || {
        // SAFETY: records are never freed.
        let record: &'static Record = unsafe { next.as_ref()? };
        next = record.next.load(Ordering::Acquire);
        Some(record)
    });
    RECORDS.iter().chain(more)
}

#[inline]
fn own_record() -> &'static Record {
    OWN.with(Cell::get).unwrap_or_else(claim)
}

/// Finds a record for this thread: a free one, the record of an ended thread, or a new one.
#[cold]
fn claim() -> &'static Record {
    /// The next record to check for an ended owner.
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let me = thread::thread();
    let take = |record: &&Record, owner: u64| {
        record.owner.compare_exchange(owner, me, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let mut found = records().find(|record| take(record, 0));
    for _ in 0..if found.is_some() { 0 } else { ASKED_MAX } {
        let count = records().count();
        let at = NEXT.fetch_add(1, Ordering::Relaxed) % count;
        let record = records().nth(at);
        let owner = record.map_or(0, |record| record.owner.load(Ordering::Relaxed));
        found = record.filter(|it| (owner == me || thread::is_dead(owner)) && take(it, owner));
        if found.is_some() {
            (left().give_back)(owner);
            break;
        }
    }
    let record = found.unwrap_or_else(|| {
        let memory: *mut Record = map_or_abort(size_of::<Record>()).cast();
        // SAFETY: the memory has room for the record, and is not shared yet.
        let record: &'static Record = unsafe {
            memory.write(Record::new());
            &*memory
        };
        record.owner.store(me, Ordering::Relaxed);
        let link = |first| {
            record.next.store(first, Ordering::Relaxed);
            Some(memory)
        };
        let _ = MORE.fetch_update(Ordering::AcqRel, Ordering::Acquire, link);
        record
    });
    for entry in record.entries() {
        // A thread that waits for a token takes it over from an ended holder. The token's word may be gone.
        if ObjectType::Token.has(entry.what.load(Ordering::Relaxed)) {
            entry.what.store(0, Ordering::Relaxed);
        }
    }
    record.strike_out(|_| true);
    OWN.with(|own| own.set(Some(record)));
    record
}

/// Whether any thread has an entry that satisfies `is_one`. The fence orders the caller's earlier stores.
fn any(is_one: impl Fn(u64) -> bool) -> bool {
    fence(Ordering::SeqCst);
    records().any(|record| record.any(&is_one))
}

/// Whether a live thread uses a connection.
pub(super) fn use_connection(number: usize) -> bool {
    let its = ObjectType::Connection.entry(number as u64);
    let is_its = |what: u64| what & !(ADDRESS ^ NUMBER) == its;
    fence(Ordering::SeqCst);
    records()
        .any(|record| record.any(&is_its) && !thread::is_dead(record.owner.load(Ordering::Relaxed)))
}

/// Whether calls on a connection have any of these flags.
pub(super) fn have(number: usize, flags: u64) -> bool {
    let its = ObjectType::Connection.entry(number as u64);
    any(|what| what & !(ADDRESS ^ NUMBER) == its && what & flags != 0)
}

/// Whether calls of this thread about a connection have these flags: the call itself, or one that a signal handler has interrupted.
pub(super) fn this_thread_has(number: usize, flags: u64) -> bool {
    let its = ObjectType::Connection.entry(number as u64);
    own_record().any(&|what| what & !(ADDRESS ^ NUMBER) == its && what & flags != 0)
}

/// Ends a run of a model: no thread holds anything.
#[cfg(all(test, apus_model))]
pub(super) fn forget_all() {
    for record in records() {
        record.owner.store(0, Ordering::Relaxed);
        record.entries().iter().for_each(|entry| entry.what.store(0, Ordering::Relaxed));
        record.length.store(0, Ordering::Relaxed);
        record.floor.store(0, Ordering::Relaxed);
    }
}

/// Whether a thread sleeps in a set.
pub(super) fn sleep_in(number: usize) -> bool {
    let its = ObjectType::Set.entry(number as u64);
    any(|what| what & !(ADDRESS ^ NUMBER) == its && what & SLEEPS[0] != 0)
}

/// Whether the thread is returning a connection to TCP.
pub(super) fn this_thread_returns(number: usize) -> bool {
    OWN.with(Cell::get)
        .is_some_and(|own| own.any(&|what| what == ObjectType::Return.entry(number as u64)))
}

/// Whether the call that uses a token continues with a snapshot, because the token is the parent's. The call must change nothing
/// that the parent's call changes as well.
pub(super) fn is_parents_call() -> bool {
    OWN.with(Cell::get).is_some_and(|own| own.snapshots.are_shown())
}

/// The value by which the C library masks the stack pointer that `setjmp` stores.
static GUARD: AtomicU64 = AtomicU64::new(0);
/// Nonzero once the mask is known.
static IS_KNOWN: AtomicI32 = AtomicI32::new(0);

/// The actions for calls that a jump has left or a fork has interrupted, and for ended threads.
pub(crate) struct Left {
    /// A thread no longer sleeps. The arguments are the number of the connection, the awaited event and the thread.
    pub(crate) awake: fn(usize, usize, u64),
    /// A thread of a child sleeps as its parent does.
    pub(crate) asleep: fn(usize, usize, u64),
    /// A connection, given by its number, stays carried.
    pub(crate) carry_on: fn(usize),
    /// A thread has ended. Frees its memory.
    pub(crate) give_back: fn(u64),
    /// The segments of the connection that has a word, given by its address: the own one and the peer's.
    pub(crate) segments: fn(usize) -> Option<[Region; 2]>,
}

static LEFT: AtomicPtr<Left> = AtomicPtr::new(ptr::null_mut());

const NOTHING: Left = Left {
    awake: |_, _, _| {},
    asleep: |_, _, _| {},
    carry_on: |_| {},
    give_back: |_| {},
    segments: |_| None,
};

fn left() -> &'static Left {
    // SAFETY: the pointer is null or to a static.
    unsafe { LEFT.load(Ordering::Acquire).as_ref() }.unwrap_or(const { &NOTHING })
}

/// Stores the actions, and derives the mask from two calls of `setjmp` at different stack positions.
pub(crate) fn begin(left: &'static Left) {
    LEFT.store(ptr::from_ref(left).cast_mut(), Ordering::Release);
    let [one, other] = [guard(), deeper()];
    if let Some(guard) = one.filter(|_| one == other) {
        GUARD.store(guard, Ordering::Relaxed);
        IS_KNOWN.store(1, Ordering::Release);
    }
}

#[inline(never)]
fn deeper() -> Option<u64> {
    let room = std::hint::black_box([0_u8; 200]);
    let guard = guard();
    std::hint::black_box(&room);
    guard
}

/// Words of a `jmp_buf`, including room for a signal mask.
const WORDS: usize = 64;
/// Index of the word with the stack pointer (`JB_RSP`, `JB_SP` of glibc).
const STACK: usize = if cfg!(target_arch = "x86_64") { 6 } else { 13 };

unsafe extern "C" {
    fn _setjmp(buffer: *mut u64) -> c_int;
}

#[inline(never)]
fn guard() -> Option<u64> {
    let mut words = [0_u64; WORDS];
    let at: u64;
    // SAFETY: the function stores registers into the words, which have room for them. The buffer is never jumped to.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "mov r12, rsp",
            "call {set}",
            set = in(reg) _setjmp as *const () as usize,
            in("rdi") words.as_mut_ptr(),
            out("r12") at,
            clobber_abi("C"),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "mov x20, sp",
            "blr {set}",
            set = in(reg) _setjmp as *const () as usize,
            in("x0") words.as_mut_ptr(),
            out("x20") at,
            clobber_abi("C"),
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return None;
    Some(shown(words[STACK]) ^ at)
}

/// Undoes the rotation that x86-64 adds.
fn shown(word: u64) -> u64 {
    if cfg!(target_arch = "x86_64") { word.rotate_right(17) } else { word }
}

/// Runs before `longjmp` or one of its relatives. Releases the holds of the functions that it leaves.
///
/// # Safety
///
/// The buffer was filled by `setjmp`.
pub(crate) unsafe extern "C" fn before_jump(buffer: *const u64) {
    let Some(record) =
        OWN.with(Cell::get).filter(|record| record.length.load(Ordering::Relaxed) > 0)
    else {
        return; // This thread is in no call.
    };
    let aim = if IS_KNOWN.load(Ordering::Acquire) != 0 {
        // SAFETY: guaranteed by the caller.
        shown(unsafe { *buffer.add(STACK) }) ^ GUARD.load(Ordering::Relaxed)
    } else {
        u64::MAX // It is likely to leave the handler, and with it all calls.
    };
    let handlers = HandlerStack::of_this_thread();
    let aim = aim as usize;
    record.strike_out(|position| match (handlers.has(position), handlers.has(aim)) {
        (true, false) => true,
        (false, true) => false,
        _ => position < aim,
    });
    recount_sleepers();
}

fn recount_sleepers() {
    let sleeps = |what: u64| what & (SLEEPS[0] | SLEEPS[1]) != 0;
    let may = |what: u64| ObjectType::Connection.has(what) || ObjectType::Set.has(what);
    let count = records().filter(|it| it.any(&|what| may(what) && sleeps(what))).count();
    SLEEPERS.store(u32::try_from(count).unwrap_or(u32::MAX), Ordering::Relaxed);
}

/// The thread's alternate signal stack, if it has one.
struct HandlerStack {
    first: usize,
    bytes: usize,
}

impl HandlerStack {
    fn of_this_thread() -> Self {
        // SAFETY: all zeros are a valid value.
        let mut stack: libc::stack_t = unsafe { std::mem::zeroed() };
        // SAFETY: without a new stack, the call only returns the current one.
        let result = unsafe { libc::sigaltstack(ptr::null(), &raw mut stack) };
        let has_one = result == 0 && stack.ss_flags & libc::SS_DISABLE == 0;
        Self { first: stack.ss_sp.addr(), bytes: if has_one { stack.ss_size } else { 0 } }
    }

    fn has(&self, position: usize) -> bool {
        position.wrapping_sub(self.first) < self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function further down the stack that takes a token and is left by a jump.
    #[inline(never)]
    fn take_and_leave(word: &Word) {
        let room = std::hint::black_box([0_u8; 16_384]);
        word.store(thread::thread(), Ordering::Relaxed);
        std::mem::forget((Hold::connection(7), Hold::token(word)));
        std::hint::black_box(&room);
    }

    #[test]
    fn a_jump_gives_back_what_deeper_functions_hold_and_nothing_else() {
        let (own, left) = (Word::new(thread::thread()), Word::new(0));
        let (used, held) = (Hold::connection(5), Hold::token(&own));
        used.add(RECEIVES | SLEEPS[1]);
        take_and_leave(&left);
        assert!(use_connection(5) && use_connection(7) && !use_connection(6));
        assert!(have(5, RECEIVES) && have(5, SLEEPS[1]) && !have(5, SENDS) && !have(7, RECEIVES));

        let here = 0_u8;
        let above = (&raw const here).addr() - 8_192;
        own_record().strike_out(|position| position < above);
        assert!(use_connection(5) && !use_connection(7));
        assert_eq!(
            (own.load(Ordering::Relaxed), left.load(Ordering::Relaxed)),
            (thread::thread(), 0)
        );

        used.remove(RECEIVES);
        assert!(!have(5, RECEIVES) && have(5, SLEEPS[1]));
        drop((used, held));
        assert!(!use_connection(5));
        assert_eq!(own_record().length.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_record_has_room_for_any_number_and_is_used_again() {
        let used: Vec<Hold> = (0..3 * FEW).map(|number| Hold::connection(1_000 + number)).collect();
        assert!((0..3 * FEW).all(|number| use_connection(1_000 + number)));
        drop(used);
        assert!(!use_connection(1_000) && !use_connection(1_000 + 3 * FEW - 1));
        let ended = std::thread::spawn(|| std::mem::forget(Hold::connection(999)));
        ended.join().unwrap();
        // The end of a thread takes the system a moment.
        while use_connection(999) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_stack_pointer_of_a_jump_is_known() {
        begin(const { &NOTHING });
        assert_eq!(IS_KNOWN.load(Ordering::Relaxed), 1);
        let mut words = [0_u64; WORDS];
        // SAFETY: the buffer is never jumped to.
        unsafe { _setjmp(words.as_mut_ptr()) };
        let here = (shown(words[STACK]) ^ GUARD.load(Ordering::Relaxed)) as usize;
        assert!((&raw const words).addr().abs_diff(here) < 4096);
    }
}
