//! A carrier against programs and nodes of the tests.

mod descriptors;
mod program;
mod strangers;
