//! An event loop of tokio (feature `tokio`).

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::yield_now;

use apus_proto::Time;

use crate::delivery::event_source::Look;
use crate::delivery::parker;
use crate::event_loop::EventLoop;
use crate::sync::clock;

/// The longest poll between looks at other tasks.
const POLL_MAX: Duration = Duration::from_micros(50);

/// How often a task that polls lets tokio look at its timers and sockets, which costs a system call.
const RUNTIME_EVERY: Duration = Duration::from_micros(100);

/// Other tasks were ready if it takes longer than this until a task runs again that has stepped behind them.
const OTHERS_RAN: Duration = Duration::from_nanos(500);

/// Tasks may wake each other for this long after a message, each for less time than [`OTHERS_RAN`]: a task that receives requests
/// spawns a handler, whose response it then sends. A poll that blocks the thread would keep them waiting.
const SETTLED: Duration = Duration::from_micros(3);

/// Turns of the future of `block_on` after a message or another task, which may have woken it: tokio runs it only after a look at its
/// I/O. The first turn comes as soon as no other task seems to be ready, the second before a poll that blocks the thread, because a
/// task may run for less than [`OTHERS_RAN`].
const ROOT_TURNS: u8 = 2;

impl EventLoop {
    /// Watches the descriptor in tokio's own event loop, and turns the engine when it is readable. Ends when the node is closed.
    /// To be spawned once, in a runtime with I/O (`enable_io`), of any flavor.
    ///
    /// In a runtime of the flavor `current_thread` this task also [polls](Self::poll), if that pays and no other task is ready: a message
    /// that comes soon then needs no wake-up. Tokio looks at its timers and sockets every 100 µs meanwhile. In a runtime with several
    /// threads the task does not poll, because another thread may run the tasks that it wakes.
    ///
    /// # Errors
    ///
    /// The descriptor cannot be registered: the runtime has no I/O, or no memory is left.
    ///
    /// # Panics
    ///
    /// Outside of a runtime, as all of tokio's I/O does.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut config = apus::Config::new();
    /// # config.listen("127.0.0.1:0".parse()?);
    /// let node = apus::Node::start(&config)?;
    /// let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    /// runtime.spawn(node.event_loop()?.drive());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn drive(self) -> io::Result<()> {
        let is_alone = Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread;
        #[allow(
            deprecated,
            reason = "for types that do not own their descriptor, as this one does"
        )]
        let descriptor = AsyncFd::with_interest(self, Interest::READABLE)?;
        loop {
            let mut ready = descriptor.readable().await?;
            let event_loop = descriptor.get_ref();
            let look = event_loop.inner.turn();
            if look.received == 0 {
                ready.clear_ready();
                if look.stopped {
                    return Ok(());
                }
            } else if is_alone {
                event_loop.run_between_tasks(&look).await;
            } else {
                after_other_tasks().await;
            }
        }
    }

    /// Looks for messages again and again, after other tasks, until polling was in vain. `first`: the look before.
    async fn run_between_tasks(&self, first: &Look) {
        let mut now = first.now;
        let (mut runtime_looked, mut last_message, mut last_active) = (now, now, now);
        let mut woke = first.woke.then(parker::task_polls);
        let mut root_turns = ROOT_TURNS;
        loop {
            let before = clock::now();
            after_other_tasks().await;
            now = clock::now();
            let others_ran = now.saturating_since(before) > OTHERS_RAN;
            if others_ran {
                (last_active, root_turns) = (now, ROOT_TURNS);
            }
            let root_is_due = match root_turns {
                ROOT_TURNS => !others_ran,
                0 => false,
                _ => now.saturating_since(last_active) > SETTLED,
            };
            // The task that was woken has not run: it is the future of `block_on`.
            if root_is_due || woke == Some(parker::task_polls()) {
                root_turns -= u8::from(root_is_due);
                (last_active, runtime_looked) = (now, Time::ZERO);
            }
            if now.saturating_since(runtime_looked) > RUNTIME_EVERY {
                yield_now().await;
                now = clock::now();
                runtime_looked = now;
            }
            let look = if now.saturating_since(last_active) > SETTLED {
                self.inner.poll(POLL_MAX, true)
            } else if now.saturating_since(last_message) < POLL_MAX {
                self.inner.turn_between_tasks()
            } else {
                self.inner.turn()
            };
            woke = look.woke.then(parker::task_polls);
            match look {
                Look { awake: false, .. } => return,
                Look { received: 0, .. } => {}
                Look { now: looked, .. } => {
                    (last_message, last_active, root_turns) = (looked, looked, ROOT_TURNS);
                }
            }
        }
    }
}

/// Runs the tasks that are ready, without a look at the runtime's I/O.
async fn after_other_tasks() {
    let mut is_first = true;
    poll_fn(|context| {
        if std::mem::take(&mut is_first) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}
