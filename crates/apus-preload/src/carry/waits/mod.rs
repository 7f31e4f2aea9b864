//! `poll` and `select` with members that are carried.
//!
//! | file | |
//! |---|---|
//! | [`mod@poll`] | `poll` |
//! | [`mod@select`] | `select` as a `poll` |

pub(crate) mod poll;
pub(crate) mod select;
