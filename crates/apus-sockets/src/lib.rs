//! Carries TCP connections between two processes through shared memory, and between hosts over Apus.
//!
//! The descriptor of a program stays the kernel's TCP socket. If both ends of a connection are carried, each direction of its byte
//! stream moves at an offset from the kernel's stream into a ring, and back when a program makes a call that is not carried.
//! [`direction`] has the state machine of one direction. It has no clock, thread or descriptor.
//!
//! | part | |
//! |---|---|
//! | [`direction`] | the states of one direction |
//! | [`layout`] | the places of the words and of the ring in memory |
//! | [`introduction`] | the messages between a program and its carrier, and between carriers of two hosts |
//! | [`diagnosis`] | the query to the kernel for the socket of a connection, and its answer |

#![forbid(unsafe_code)]

pub mod diagnosis;
pub mod direction;
pub mod introduction;
pub mod layout;
