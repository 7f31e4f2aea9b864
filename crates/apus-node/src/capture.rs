//! The option `--capture` of all commands that open a node.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{self, Path, PathBuf};

use anyhow::{Context, Result};
use apus::Config;

/// The file to which a command writes the packets of its node.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct CaptureOptions {
    /// Write all packets to FILE, for Wireshark; the node then shares no memory with other nodes
    #[arg(long = "capture", value_name = "FILE.pcapng")]
    pub file: Option<PathBuf>,
}

impl CaptureOptions {
    /// The capture file, if there is one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Empties the file, which only its owner can read if it is new, and makes nodes with this configuration write their packets to
    /// it. Reports on standard error if these are sealed on the way. Does nothing without a file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn apply(&self, config: &mut Config) -> Result<()> {
        if let Some(file) = &self.file {
            let cannot = || format!("cannot write capture file '{}'", file.display());
            // Nodes append, so that a command may have several nodes.
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            options.open(file).with_context(cannot)?;
            if config.has_identity() {
                let file = file.display();
                let _ = writeln!(
                    io::stderr(),
                    "apus: {file} gets the packets before they are sealed, in plaintext"
                );
            }
            config.capture(Some(path::absolute(file).with_context(cannot)?));
        }
        Ok(())
    }
}
