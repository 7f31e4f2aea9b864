//! The production core with hosts that run the Linux module: a [`module`] that models it, and captures of the real one.

mod exchanges;
mod fields;
mod module;
mod replay;
#[path = "../../../apus-net/tests/skipped/mod.rs"]
mod skipped;
