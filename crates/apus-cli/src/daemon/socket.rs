//! The socket at which a daemon answers questions of `apus daemon status` and `apus daemon reload`.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

/// What a daemon is asked that is to read its file.
pub(super) const RELOAD: &str = "reload";

/// How long one who asks may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// Where an engine is to be found unless another place is named.
pub(crate) const SOCKET: &str = "/run/apus/engine.sock";

/// Where the daemon answers.
pub(super) fn beside(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".status");
    path.into()
}

pub(super) fn no_answer(socket: &Path) -> String {
    format!("no daemon answers at '{}'", beside(socket).display())
}

/// Asks a daemon something, its status if that is empty. Returns what it says.
///
/// # Errors
/// When no daemon answers, or only others may ask.
pub(super) fn ask(socket: &Path, question: &str) -> Result<String> {
    let mut text = String::new();
    let answer = UnixStream::connect(beside(socket)).and_then(|mut stream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        // It may have been refused already, which the end of the stream tells.
        let _ = stream.write_all(question.as_bytes());
        let _ = stream.shutdown(Shutdown::Write);
        stream.read_to_string(&mut text)
    });
    answer.with_context(|| no_answer(socket))?;
    anyhow::ensure!(!text.is_empty(), "only root and the daemon's user may ask the daemon");
    Ok(text)
}
