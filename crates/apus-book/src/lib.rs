//! The book: links out of it, and its Rust samples as tests.
//!
//! `book.toml` names the program of this crate as a preprocessor of mdBook. [`preprocess`] leads links to files outside of `docs/` to
//! the repository, because a page refers to them by a relative path, which works in a checkout and not on a site. The samples are in
//! `samples.rs`: one item for each page, so that `cargo test -p apus-book --doc` compiles and runs them.

#![forbid(unsafe_code)]

mod links;
#[cfg(doctest)]
mod samples;

pub use links::{preprocess, redirect};
