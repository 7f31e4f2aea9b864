//! Doctors: what a machine, a path or a program offers, what is used of it, and what to change. Nothing is changed here.
//!
//! | module | |
//! |---|---|
//! | [`Finding`], [`Verdict`], [`Subject`] | one line of a report |
//! | [`Report`], [`Inspected`] | all lines, as text and as JSON; what was looked at |
//! | [`machine`] | what this machine offers to Apus: one file for each subject |
//! | [`path`] | the path to a peer: calls to its node, and datagrams to the doctor there; the service that is the peer |
//! | [`suspension`] | what keeps IRQ suspension of the kernel from acting for a program or on a device, and whether it acts |
//! | `device`, `files` | the interface that is looked at; files of `/proc` and `/sys`, and texts that stand for them in tests |
//!
//! A subject is a type that is read from the machine, as [`Clock`](machine) or [`Suspension`](suspension::Suspension); its findings are
//! a pure function of it, so that tests need no machine of that kind.

#![forbid(unsafe_code)]

mod device;
mod files;
mod finding;
pub mod machine;
pub mod path;
mod report;
pub mod suspension;

pub use finding::{Finding, Subject, Verdict};
pub use report::{Inspected, Report};
