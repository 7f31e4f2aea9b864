//! The library that `apus run` preloads into an unmodified program, `libapus_preload.so`.
//!
//! It sits between the program and the C library: it exports the calls that act on sockets, and the program's calls arrive here
//! first. Each of the program's descriptors stays a TCP socket of the kernel.
//!
//! TCP connections between two such programs of one host are *carried*: their bytes go through shared memory ([`carry`]). Each
//! call makes one check, [`descriptors::is_carried`], which costs a load and a branch.
//!
//! | file | |
//! |---|---|
//! | [`originals`] | the C library's calls behind ours: one table with names and signatures |
//! | [`descriptors`] | one word for each descriptor: whether it is carried, and whether the report has it |
//! | [`carry`] | the table of connections, their rings, and calls that move bytes or wait |
//! | [`carried`] | the return of carried descriptors before a call that only the kernel can handle |
//! | [`polling`] | busy polling of the kernel's epoll sets, and waits that do not sleep |
//! | [`calls`] | the exported calls, grouped by purpose |
//! | [`report`] | the output of `apus run --explain` |
//! | [`start`] | the start and the end of the library |
//!
//! # Rules
//!
//! - **Only calls are exported**, besides a function by which AddressSanitizer asks for options. rustc gives the linker a version
//!   script with the `no_mangle` functions of this crate and `local: *`. `tests/exports.rs` compares the symbols with the table
//!   of `docs/sockets.md`.
//! - **Functions that read, write, poll or close are async-signal-safe**: they allocate nothing, have no thread-local destructor,
//!   and wait for no lock whose holder they may have interrupted: a token and the members of a set know the thread that holds
//!   them. They use no `std::net`, `std::fs` or `std::io`, whose system calls would reenter this library.
//! - **errno stays as the C library left it.** Code that runs after an original call preserves it ([`errno::kept`]).
//! - **A cancelled thread unwinds through this library, and no panic unwinds into C.** `pthread_cancel` unwinds the stack of a
//!   thread that is blocked in an original. Unwinding an `extern "C"` function is undefined behaviour in Rust, so exported calls
//!   are `extern "C-unwind"`, have no destructors, and never panic. All other work is in `extern "C"` functions, which abort on a
//!   panic.
//! - **Variadic calls** have fixed arguments of register size (`fcntl`, `ioctl`, `syscall`), which matches how the ABIs of x86-64
//!   and AArch64 pass them. Calls with any number of arguments are in [`calls::variadic`].

#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
#![allow(rustdoc::private_intra_doc_links, reason = "no program links this library")]
#![allow(non_snake_case, reason = "the calls have the names of the C library")]

mod calls;
mod carried;
mod carry;
mod descriptors;
mod errno;
mod originals;
mod polling;
mod report;
mod start;
