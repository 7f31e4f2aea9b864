//! The settings that name the files of a node.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

/// The values of the settings `tls_cert`, `tls_key` and `tls_ca`, by key.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TlsSettings {
    tls_cert: String,
    tls_key: String,
    tls_ca: String,
}

impl TlsSettings {
    /// # Errors
    /// When a path is not UTF-8.
    pub(super) fn new(cert: &Path, key: &Path, ca: &Path) -> Result<Self> {
        let text = |path: &Path| {
            let text = path.to_str().with_context(|| format!("'{}' is not UTF-8", path.display()));
            text.map(str::to_owned)
        };
        Ok(Self { tls_cert: text(cert)?, tls_key: text(key)?, tls_ca: text(ca)? })
    }

    /// The table of a file.
    pub(super) fn toml(&self) -> String {
        let text = |path: &str| toml::Value::from(path).to_string();
        let (cert, key, ca) = (text(&self.tls_cert), text(&self.tls_key), text(&self.tls_ca));
        format!("[tls]\ncert = {cert}\nkey = {key}\nca = [{ca}]\n")
    }

    /// The variables of the environment, as lines for a shell.
    pub(super) fn exports(&self) -> String {
        let mut lines = String::new();
        for (key, value) in [("CERT", &self.tls_cert), ("KEY", &self.tls_key), ("CA", &self.tls_ca)]
        {
            writeln!(lines, "export APUS_TLS_{key}={}", quoted(value)).expect("it is a text");
        }
        lines
    }
}

/// A value as a word of a shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%".contains(c);
    if text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}
