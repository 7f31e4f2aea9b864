//! The library that `apus run` preloads into an unmodified program, `libapus_preload.so`.
//!
//! It stands between the program and the C library: it exports the calls by which a program touches its sockets, and a call of the
//! program arrives here first. A descriptor of the program stays the kernel's TCP socket in every case.
//!
//! TCP connections between two such programs of one host are *carried*: their bytes go through shared memory ([`carry`]). Each call asks
//! one question, [`descriptors::is_carried`], which costs a load and a branch.
//!
//! | file | |
//! |---|---|
//! | [`originals`] | the calls of the C library behind ours: one table with names and signatures |
//! | [`descriptors`] | one word for each descriptor: whether it is carried, whether the report has it |
//! | [`carry`] | the table of connections, their rings, and calls that move bytes or wait |
//! | [`carried`] | what happens to a carried descriptor before a call that only the kernel can answer |
//! | [`polling`] | busy polling of the kernel's epoll sets, and waits that do not sleep |
//! | [`calls`] | the calls that the program sees, by what they are for |
//! | [`report`] | what `apus run --explain` prints |
//! | [`start`] | what happens when the library is loaded |
//!
//! # Rules
//!
//! - **Nothing but calls is exported**, and a function by which AddressSanitizer asks for options. rustc gives the linker a version script with the `no_mangle` functions of this crate and
//!   `local: *`. `tests/exports.rs` compares the symbols with the table of `docs/sockets.md`.
//! - **Functions that read, write, poll or close are async-signal-safe**: they allocate nothing, have no destructor of a thread, and wait
//!   for no lock whose holder they may have interrupted: a token and the members of a set know the thread that holds them. They use no
//!   `std::net`, `std::fs` or `std::io`, whose system calls would come back to this library.
//! - **errno stays what the C library left.** Code that runs after an original call keeps it ([`errno::kept`]).
//! - **A cancelled thread unwinds through us, and no panic unwinds into C.** `pthread_cancel` unwinds the stack of a thread that is
//!   blocked in an original. Rust leaves undefined what happens when an `extern "C"` function is unwound, so exported calls are
//!   `extern "C-unwind"`, have no destructors, and do nothing that can panic. All other work is in `extern "C"` functions, which
//!   abort at a panic.
//! - **Variadic calls** have fixed arguments of the size of a register (`fcntl`, `ioctl`, `syscall`), which is how the ABIs of x86-64
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
mod sync;
