//! `--capture`, the same for all commands that open a node.

use std::fs::File;
use std::path::{self, Path, PathBuf};

use anyhow::{Context, Result};
use apus::Config;

/// Where a command writes the packets of its node.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct CaptureOptions {
    /// Write all packets to FILE, for Wireshark; the node then shares no memory with other nodes
    #[arg(long = "capture", value_name = "FILE.pcapng")]
    pub file: Option<PathBuf>,
}

impl CaptureOptions {
    /// The file, if packets are captured.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Has nodes of this configuration write their packets to the file, and empties it. Without a file nothing is done.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn apply(&self, config: &mut Config) -> Result<()> {
        if let Some(file) = &self.file {
            let cannot = || format!("cannot write capture file '{}'", file.display());
            // Nodes append, so that one command may have several.
            File::create(file).with_context(cannot)?;
            config.capture(Some(path::absolute(file).with_context(cannot)?));
        }
        Ok(())
    }
}
