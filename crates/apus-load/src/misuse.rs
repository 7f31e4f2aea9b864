//! Options that make no sense.

use thiserror::Error;

/// An option that is well formed but makes no sense. The text names the option as on the command line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Misuse(pub String);
