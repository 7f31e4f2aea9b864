//! Closes descriptors of strangers where nothing waits for it: `close` of some blocks, as of a TCP socket with a linger time and
//! unsent bytes.

use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// The thread that closes; `None` if the system gave none.
static THREAD: LazyLock<Option<Sender<OwnedFd>>> = LazyLock::new(|| {
    let (sender, receiver) = channel::<OwnedFd>();
    let close = move || receiver.iter().for_each(drop);
    thread::Builder::new().name("closing".to_owned()).spawn(close).ok().map(|_| sender)
});

/// Closes a descriptor on another thread. Without that thread the descriptor stays open.
pub(crate) fn close_elsewhere(fd: OwnedFd) {
    let left = match THREAD.as_ref() {
        Some(thread) => thread.send(fd).err().map(|error| error.0),
        None => Some(fd),
    };
    if let Some(fd) = left {
        let _ = fd.into_raw_fd();
    }
}
