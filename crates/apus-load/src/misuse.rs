//! Options that cannot be meant.

use thiserror::Error;

/// An option that is well formed but cannot be meant; the text names the option as the command line does.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Misuse(pub String);
