//! The socket at which a daemon answers questions of `apus daemon status` and `apus daemon reload`.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

/// The request by which a daemon reloads its file.
pub(super) const RELOAD: &str = "reload";

/// Upper bound on the time of one request.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Default path of an engine's socket.
pub(crate) const SOCKET: &str = "/run/apus/engine.sock";

/// Path of the socket at which the daemon answers.
pub(super) fn beside(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".status");
    path.into()
}

pub(super) fn no_answer(socket: &Path) -> String {
    format!("no daemon answers at '{}'", beside(socket).display())
}

/// Sends a request to a daemon; an empty one asks for its status. Returns the answer.
///
/// # Errors
/// When no daemon answers, or this user may not ask.
pub(super) fn ask(socket: &Path, question: &str) -> Result<String> {
    let mut text = String::new();
    let answer = UnixStream::connect(beside(socket)).and_then(|mut stream| {
        stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
        // The daemon may have refused the connection already. The end of the stream shows that.
        let _ = stream.write_all(question.as_bytes());
        let _ = stream.shutdown(Shutdown::Write);
        stream.read_to_string(&mut text)
    });
    answer.with_context(|| no_answer(socket))?;
    anyhow::ensure!(!text.is_empty(), "only root and the daemon's user may query the daemon");
    Ok(text)
}
