//! The search of two ends for each other.
//!
//! | file | |
//! |---|---|
//! | [`answering`] | the thread that looks for peers, and answers them while the program computes |
//! | [`meeting`] | the meeting of two ends of one host |
//! | [`diagnosis`] | the proof that they are the ends of one connection |
//! | [`descriptors_of`] | finds a socket among another process's descriptors |
//! | [`containers`] | connections between network namespaces of a host |
//! | [`net`] | connections to other hosts, by the carrier |

pub(crate) mod answering;
pub(crate) mod containers;
mod descriptors_of;
pub(crate) mod diagnosis;
pub(crate) mod meeting;
pub(crate) mod net;
