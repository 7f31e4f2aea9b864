//! Calls that move bytes, and wait.
//!
//! | file | |
//! |---|---|
//! | [`transfer`] | all calls that send or receive, and their waits |
//! | [`parts`] | the buffers of a call |
//! | [`mod@sendfile`] | `sendfile` |
//! | [`mod@splice`] | `splice` |

pub(crate) mod parts;
pub(crate) mod sendfile;
pub(crate) mod splice;
pub(crate) mod transfer;
