//! `poll` and `select` with carried members.
//!
//! | file | |
//! |---|---|
//! | [`mod@poll`] | `poll` |
//! | [`mod@select`] | `select`, by `poll` |

pub(crate) mod poll;
pub(crate) mod select;
