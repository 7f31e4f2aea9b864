//! The signals by which a process is asked to end.

use std::future::Future;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use crate::cancellation::{Cancellation, WaitCancelled};

/// A future that is ready when the process has got SIGTERM or SIGINT, for
/// [`ServerBuilder::serve`](crate::ServerBuilder::serve). All such futures of a process are ready at the same signal, also those that
/// are made later. A second signal ends the process as usual.
///
/// Starts a thread with the first call. A forked child of the process does not notice signals.
///
/// # Errors
///
/// The system has no descriptor or no thread left.
///
/// ```no_run
/// # fn example(server: apus_rpc::ServerBuilder<'_>) -> Result<(), Box<dyn std::error::Error>> {
/// let drained = server.serve(4000, apus_rpc::shutdown_signal()?).wait()?;
/// println!("{} requests were answered, {} given up", drained.finished, drained.cancelled);
/// # Ok(())
/// # }
/// ```
pub fn shutdown_signal() -> io::Result<ShutdownSignal> {
    static SIGNAL: Mutex<Option<Arc<Cancellation>>> = Mutex::new(None);
    let mut signal = SIGNAL.lock().unwrap_or_else(PoisonError::into_inner);
    let arrived = match &*signal {
        Some(arrived) => Arc::clone(arrived),
        None => Arc::clone(signal.insert(listen()?)),
    };
    Ok(ShutdownSignal { wait: WaitCancelled::new(Arrived(arrived)) })
}

/// Has a thread wait for the signals.
fn listen() -> io::Result<Arc<Cancellation>> {
    let arrived = Arc::new(Cancellation::default());
    let (mut reader, writer) = UnixStream::pair()?;
    let is_second = Arc::new(AtomicBool::new(false));
    let event = Arc::clone(&arrived);
    thread::Builder::new().name("apus-rpc-signal".to_owned()).spawn(move || {
        // The other end is open for as long as the process runs.
        if reader.read_exact(&mut [0]).is_ok() {
            event.cancel();
        }
    })?;
    for signal in [SIGTERM, SIGINT] {
        // In this order: the first signal sets the flag after it was looked at.
        flag::register_conditional_default(signal, Arc::clone(&is_second))?;
        flag::register(signal, Arc::clone(&is_second))?;
        low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    Ok(arrived)
}

struct Arrived(Arc<Cancellation>);

impl AsRef<Cancellation> for Arrived {
    fn as_ref(&self) -> &Cancellation {
        &self.0
    }
}

/// Ready when the process is asked to end. From [`shutdown_signal`].
#[must_use = "a future does nothing unless it is polled"]
pub struct ShutdownSignal {
    wait: WaitCancelled<Arrived>,
}

impl Future for ShutdownSignal {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.wait).poll(task)
    }
}

impl std::fmt::Debug for ShutdownSignal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShutdownSignal").finish_non_exhaustive()
    }
}
