//! A carrier against programs and nodes that are played by the tests.

mod program;
mod strangers;
