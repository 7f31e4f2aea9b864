//! Carries TCP connections between two processes through shared memory, and between hosts over Apus.
//!
//! The descriptor of a program stays the kernel's TCP socket. If both ends of a connection are carried, each direction of its byte
//! stream moves at an offset from the kernel's stream into a ring, and back when a program does something that is not carried.
//! [`direction`] has the state machine of one direction. It has no clock, thread or descriptor.
//!
//! | part | |
//! |---|---|
//! | [`direction`] | the states of one direction |
//! | [`layout`] | where the words and the ring lie in memory |
//! | [`introduction`] | what a program says to the carrier of its host, and a carrier to the carrier of another host |
//! | [`diagnosis`] | the question to the kernel which socket a connection has, and its answer |

#![forbid(unsafe_code)]

pub mod diagnosis;
pub mod direction;
pub mod introduction;
pub mod layout;
