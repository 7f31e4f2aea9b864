//! Tokens. A direction's token lets one thread at a time, of any process of the side, act for the side. The token of an epoll set
//! gives one thread of the process its members.
//!
//! The word of a token holds the number of its holder. A thread of a killed process never releases its token; the next thread
//! that waits long notices and takes it over. The words of the direction are consistent at any time.

use std::sync::atomic::{AtomicU64, Ordering};

use apus_shm::Memory;

use crate::carry::holds::Hold;
use crate::carry::thread::is_dead;
use crate::errno;

/// A held token. Dropping it releases it.
pub(crate) struct Token<'a, W: Word = AtomicU64> {
    word: &'a W,
    /// Releases the token if a jump leaves the call.
    _hold: W::Hold,
}

/// The word of a token, and the state of the threads in it. The model in the tests has another implementation.
pub(crate) trait Word {
    /// The thread in the word. 0 for none.
    fn holder(&self) -> u64;
    /// Replaces one thread by another. Returns `false` if the word has changed.
    fn exchange(&self, from: u64, to: u64) -> bool;
    /// Clears the word.
    fn release(&self);
    /// Whether a thread has ended and its stores are visible.
    fn is_dead(&self, holder: u64) -> bool;
    /// Lets other threads run. `tries` is the caller's number of looks so far.
    fn pause(&self, tries: u32);
    /// Number of looks after which a waiting thread checks that the holder lives.
    const LOOK_EVERY: u32;
    /// The value that releases the token if a jump leaves the call.
    type Hold;
    /// Notes that this thread is about to take the token.
    fn hold(&self) -> Self::Hold;
}

impl Word for AtomicU64 {
    const LOOK_EVERY: u32 = 1_000;
    type Hold = Hold;

    #[inline]
    fn hold(&self) -> Hold {
        Hold::token(self)
    }

    #[inline]
    fn holder(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }

    #[inline]
    fn exchange(&self, from: u64, to: u64) -> bool {
        self.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    fn release(&self) {
        self.store(0, Ordering::Release);
    }

    fn is_dead(&self, holder: u64) -> bool {
        errno::kept(|| is_dead(holder))
    }

    fn pause(&self, tries: u32) {
        #[cfg(all(test, apus_model))]
        if crate::carry::sync::thread().is_some() {
            return shuttle::thread::yield_now();
        }
        if tries > SPINS {
            // SAFETY: the call takes no arguments.
            unsafe { crate::originals::own::sched_yield() };
        } else {
            std::hint::spin_loop();
        }
    }
}

/// The calling thread already has the token, because a signal handler interrupted it.
pub(crate) struct Interrupted;

impl<'a> Token<'a> {
    /// Takes the token whose word is at `offset`. Waits for its holder, which never sleeps with it.
    #[inline]
    pub(crate) fn take(memory: &'a Memory, offset: usize) -> Result<Self, Interrupted> {
        Self::of(memory.word(offset))
    }

    /// The same for a token whose word is elsewhere.
    #[inline]
    pub(crate) fn of(word: &'a AtomicU64) -> Result<Self, Interrupted> {
        let hold = word.hold();
        let me = hold.thread();
        Self::take_for(word, me, hold)
    }
}

impl<'a, W: Word> Token<'a, W> {
    #[inline]
    fn take_for(word: &'a W, me: u64, hold: W::Hold) -> Result<Self, Interrupted> {
        match word.exchange(0, me) {
            true => Ok(Self { word, _hold: hold }),
            false => Self::contend(word, me, hold),
        }
    }

    #[cold]
    fn contend(word: &'a W, me: u64, hold: W::Hold) -> Result<Self, Interrupted> {
        let mut tries = 0_u32;
        loop {
            let holder = word.holder();
            if holder == me {
                return Err(Interrupted);
            }
            let looks = tries % W::LOOK_EVERY == W::LOOK_EVERY - 1;
            let is_free = holder == 0 || looks && word.is_dead(holder);
            if is_free && word.exchange(holder, me) {
                return Ok(Self { word, _hold: hold });
            }
            tries = tries.wrapping_add(1);
            word.pause(tries);
        }
    }
}

impl<W: Word> Drop for Token<'_, W> {
    #[inline]
    fn drop(&mut self) {
        self.word.release();
    }
}

const SPINS: u32 = 200;

/// Threads of both processes of a side take its token in any order, and die at any point.
///
/// `RUSTFLAGS="--cfg apus_model" cargo test -p apus-preload --lib --target-dir target/model model`
#[cfg(all(test, apus_model))]
mod model {
    use std::mem;

    use shuttle::rand::{Rng as _, thread_rng};
    use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
    use shuttle::sync::Arc;
    use shuttle::sync::atomic::AtomicU64 as Modelled;
    use shuttle::{Runner, thread};

    use super::*;

    #[derive(Default)]
    struct Side {
        word: Modelled,
        /// A bit for each ended thread.
        dead: Modelled,
        /// The acting thread.
        acts: Modelled,
        /// The two words that only the acting thread may change. The second follows the first.
        words: [Modelled; 2],
    }

    impl Word for Side {
        const LOOK_EVERY: u32 = 2;
        type Hold = ();

        fn hold(&self) {}

        fn holder(&self) -> u64 {
            self.word.load(Ordering::SeqCst)
        }

        fn exchange(&self, from: u64, to: u64) -> bool {
            self.word.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        }

        fn release(&self) {
            self.word.store(0, Ordering::SeqCst);
        }

        fn is_dead(&self, holder: u64) -> bool {
            self.dead.load(Ordering::SeqCst) & 1 << holder != 0
        }

        fn pause(&self, _: u32) {
            thread::yield_now();
        }
    }

    /// Steps of a thread that does not die.
    const STEPS: u32 = 3;

    /// Acts for the side once, and dies after `steps` steps. Returns the published bytes.
    fn act(side: &Side, me: u64, steps: u32) -> u64 {
        let token = Token::take_for(side, me, ()).ok().expect("no handler interrupts it");
        assert!(
            Token::take_for(side, me, ()).is_err(),
            "a handler that interrupts it does not wait"
        );
        let before = side.acts.swap(me, Ordering::SeqCst);
        assert!(before == 0 || side.is_dead(before), "{me} acts beside {before}");
        let [first, second] = [0, 1].map(|word| side.words[word].load(Ordering::SeqCst));
        assert!(first == second || first == second + 1);
        side.words[1].store(first, Ordering::SeqCst); // A dead thread may have left the words different.
        if steps > 0 {
            side.words[0].store(first + 1, Ordering::SeqCst);
        }
        if steps > 1 {
            side.words[1].store(first + 1, Ordering::SeqCst);
        }
        assert_eq!(side.acts.load(Ordering::SeqCst), me, "another thread acts as well");
        if steps == STEPS {
            side.acts.store(0, Ordering::SeqCst);
            drop(token);
        } else {
            mem::forget(token);
            side.dead.fetch_or(1 << me, Ordering::SeqCst);
        }
        u64::from(steps > 0)
    }

    fn threads_live_and_die() {
        let side = Arc::new(Side::default());
        let threads: Vec<_> = (1..5)
            .map(|me| {
                let side = Arc::clone(&side);
                thread::spawn(move || {
                    act(&side, me, thread_rng().gen_range(0..STEPS + 3).min(STEPS))
                })
            })
            .collect();
        let written: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        act(&side, 5, STEPS);
        assert_eq!(side.words[1].load(Ordering::SeqCst), written + 1);
    }

    fn run(scheduler: impl Scheduler + 'static) {
        Runner::new(scheduler, shuttle::Config::new()).run(threads_live_and_die);
    }

    const RUNS: usize = 20_000;

    #[test]
    fn one_thread_at_a_time_acts_for_a_side() {
        run(RandomScheduler::new(RUNS));
    }

    #[test]
    fn nor_two_if_threads_stand_still_for_long() {
        run(PctScheduler::new(4, RUNS));
    }
}
