//! `apus daemon reload`: a running daemon reloads its file.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use apus::SharedEngine;

use super::revocable::Revocable;
use super::settings::Settings;
use super::socket::{RELOAD, SOCKET, ask};
use crate::output;

/// Have the engine of this host read its access rules, limits and certificates anew
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus daemon reload
  apus daemon reload --socket /tmp/engine.sock

The daemon reads the table [access] of its file again, and the files of its certificate if they have changed; the settings of \
[node] do not change. If the file has an error, the daemon \
changes nothing. Only root and the user of the daemon may use this command. SIGHUP has the same effect, and the daemon reports the \
result on standard error.")]
pub(super) struct Args {
    /// Unix socket to which processes connect
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
}

/// Has the daemon read its file.
///
/// # Errors
/// When no daemon answers, or the file has an error.
pub(super) fn run(args: &Args) -> Result<()> {
    let report = ask(&args.socket, RELOAD)?;
    ensure!(report.starts_with(DONE), "{}", report.trim_end());
    output::print(&report)
}

/// First word of an answer without an error.
const DONE: &str = "reloaded";

/// The file of a daemon, and the engine to which it applies.
#[derive(Clone, Debug)]
pub(super) struct Reload {
    pub(super) engine: Revocable<SharedEngine>,
    pub(super) config: Option<PathBuf>,
    pub(super) socket: PathBuf,
}

impl Reload {
    /// Reloads the file, and returns a line that reports the result.
    pub(super) fn apply(&self) -> String {
        match self.reload() {
            Ok(detached) => {
                let from = self.config.as_deref().unwrap_or_else(|| Path::new("no file")).display();
                let certificate = match self.engine.with(SharedEngine::reload_identity) {
                    Some(Ok(true)) => "; the files of the certificate were read again".to_owned(),
                    Some(Err(error)) => format!("; the old certificate stays: {error}"),
                    Some(Ok(false)) | None => String::new(),
                };
                format!("{DONE} [access] of {from}; {detached} programs were detached{certificate}")
            }
            Err(error) => format!("not reloaded, the old rules stay: {error:#}"),
        }
    }

    fn reload(&self) -> Result<usize> {
        let access = Settings::read(self.config.as_deref())?.access(&self.socket)?;
        let changed = self.engine.with(|engine| engine.set_access(&access));
        changed.context("the engine is ending")?.context("cannot change the socket's permissions")
    }
}
