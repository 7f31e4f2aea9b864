//! Processes of this host with which the node shares memory ([docs/protocol.md](https://github.com/apus-rpc/apus/blob/main/docs/protocol.md#within-one-host)).
//!
//! | file | contents |
//! |---|---|
//! | [`neighbours`] | all of them: messages in and out, which pairs are looked at, sleep, and death |
//! | [`meetings`], [`meeting`] | how two nodes come to share memory (rule local-7), and the state of one that is on its way there |
//! | [`places`] | where a node is met, and where it looks for others |
//! | [`paired`] | a process with which memory is shared |
//! | [`shares`] | how many descriptors go to neighbours |
//! | [`neighbour_key`] | the handle of a neighbour |

mod meeting;
mod shares;
mod silence;

pub(crate) mod meetings;
pub(crate) mod neighbour_key;
pub(crate) mod neighbours;
pub(crate) mod paired;
pub(crate) mod places;
