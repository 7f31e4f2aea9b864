//! A carrier against programs and nodes that are played by the tests.

mod descriptors;
mod program;
mod strangers;
