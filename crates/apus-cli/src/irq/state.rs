//! The directory that keeps the values before a change.

use std::path::PathBuf;

use anyhow::Result;
use apus_irq::StateDirectory;
use apus_load::misuse::Misuse;

/// The directory of the values before a change.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct StateArgs {
    /// Directory that keeps the values before [default: /run/apus-irq for root, else $XDG_RUNTIME_DIR/apus-irq]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

impl StateArgs {
    /// Opens the given directory, or the directory of this user.
    ///
    /// # Errors
    /// When no directory is given, and this user has none.
    pub(super) fn open(&self) -> Result<StateDirectory> {
        if let Some(directory) = &self.state {
            return Ok(StateDirectory::at(directory));
        }
        let of_user = StateDirectory::of_user().ok_or_else(|| {
            Misuse(
                "XDG_RUNTIME_DIR is not set: use '--state DIR' with a directory of this user"
                    .to_owned(),
            )
        })?;
        Ok(of_user)
    }
}
