//! The C library of Apus: `libapus.so.0` and `apus.h`. Programs in Rust use the crate [`apus`] instead.
//!
//! [docs/c.md](https://github.com/apus-rpc/apus/blob/main/docs/c.md) is the guide. The head of
//! [`apus.h`](https://github.com/apus-rpc/apus/blob/main/crates/apus-capi/include/apus/apus.h) states the rules for callers:
//! handles, pointers, threads, errors and forks.
//!
//! | file | contents |
//! |---|---|
//! | `address`, `config`, `node`, `client`, `port`, `request`, `message` | the functions, by handle |
//! | `call_options`, `completion`, `stat` | structures that programs and the library exchange |
//! | `error` | numbers of errors and their texts |
//! | `last_error` | the error of the calling thread |
//! | `entry` | the frame of every function: no panic leaves it |
//! | `argument` | checks of arguments |
//! | `sized` | structures that may grow |
//! | `failure` | errors of `apus` as numbers and texts |
//! | `owned` | bodies of the program that are sent without a copy |
//!
//! The header is made from these files by cbindgen (`.ci/c`), so the documentation of an item is written for programmers in C. A
//! test makes the manual pages from the header.
//!
//! # Panics and forks
//!
//! No function panics or unwinds into C: `entry.rs` catches a panic and returns `APUS_EPANIC`. Functions that take no lock of
//! `apus` compare the process with the one that made the handle, and return `APUS_EFORKED` in another one, before they take a
//! lock of their own.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![allow(non_camel_case_types, reason = "types have their names in C, which cbindgen copies")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the head of apus.h states the rules for all functions"
)]

mod argument;
mod entry;
mod failure;
mod owned;
mod process;
mod sized;

// In the order of the header.
mod config;

mod address;

mod node;

mod call_options;
mod client;
mod completion;

mod message;

mod port;

mod request;

mod stat;

mod error;
mod last_error;

pub use address::*;
pub use call_options::*;
pub use client::*;
pub use completion::*;
pub use config::*;
pub use error::*;
pub use last_error::*;
pub use message::*;
pub use node::*;
pub use owned::apus_release;
pub use port::*;
pub use request::*;
pub use stat::*;
