//! An event loop of tokio (feature `tokio`).

use std::future::poll_fn;
use std::io;
use std::sync::OnceLock;
use std::task::Poll;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::event_loop::EventLoop;

/// The longest time for which a thread of a runtime polls before it parks: timers and sockets of the runtime wait meanwhile.
const POLL_MAX: Duration = Duration::from_micros(50);

impl EventLoop {
    /// Watches the descriptor in tokio's own event loop, and turns the engine when it is readable. Ends when the node is closed.
    /// To be spawned once, in a runtime with I/O (`enable_io`), of any flavor.
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
    /// let event_loop = node.event_loop()?;
    /// let runtime = tokio::runtime::Builder::new_current_thread()
    ///     .enable_all()
    ///     .on_thread_park(event_loop.poll_before_park())
    ///     .build()?;
    /// runtime.spawn(event_loop.drive());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn drive(self) -> io::Result<()> {
        // The deprecation is about types that do not own their descriptor, as this one does.
        #[allow(deprecated)]
        let descriptor = AsyncFd::with_interest(self, Interest::READABLE)?;
        loop {
            let mut ready = descriptor.readable().await?;
            let look = descriptor.get_ref().inner.turn();
            if look.stopped {
                return Ok(());
            }
            if look.received == 0 {
                ready.clear_ready();
            } else {
                // The tasks that were woken come first.
                drop(ready);
                after_other_tasks().await;
            }
        }
    }

    /// A function for tokio's `on_thread_park`, beside [`drive`](Self::drive): the thread of a runtime of the flavor
    /// `current_thread` [polls](Self::poll) for up to 50 µs before it parks, so that a message that comes soon needs no wake-up. In
    /// a runtime with several threads it does nothing, since another thread may run the tasks.
    ///
    /// Tasks that were spawned gain most. The future of `block_on` costs two system calls more for each message.
    pub fn poll_before_park(&self) -> impl Fn() + Send + Sync + 'static {
        let event_loop = self.clone();
        let is_alone = OnceLock::new();
        move || {
            let is_alone = is_alone.get_or_init(|| {
                Handle::try_current()
                    .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::CurrentThread)
            });
            if *is_alone {
                event_loop.poll(POLL_MAX);
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
