//! The methods that services are known to have: their paths are labels of histograms.
//!
//! Without the feature `metrics` the type is empty.

#[cfg(not(feature = "metrics"))]
mod absent;
#[cfg(feature = "metrics")]
mod learned;

#[cfg(not(feature = "metrics"))]
pub(crate) use absent::KnownMethods;
#[cfg(feature = "metrics")]
pub(crate) use learned::KnownMethods;
