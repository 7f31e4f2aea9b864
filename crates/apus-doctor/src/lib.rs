//! Doctors: the abilities of a machine, a path or a program, their use, and the changes that would help. Nothing is changed here.
//!
//! | module | |
//! |---|---|
//! | [`Finding`], [`Verdict`], [`Subject`] | one line of a report |
//! | [`Report`], [`Inspected`] | all lines, as text and as JSON; the object of the inspection |
//! | [`machine`] | the abilities of this machine that matter to Apus: one file for each subject |
//! | [`path`] | the path to a peer: calls to its node, and datagrams to the doctor there; the service at the peer |
//! | [`suspension`] | obstacles to IRQ suspension for a program or on a device, and whether it acts |
//! | `device`, `files` | the interface under inspection; files of `/proc` and `/sys`, and texts that replace them in tests |
//!
//! A subject is a type that is read from the machine, as [`Clock`](machine) or [`Suspension`](suspension::Suspension). Its findings
//! are a pure function of it, so that tests need no machine of that kind.

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
