//! Carries TCP connections between two processes of one host through shared memory.
//!
//! The descriptor of a program stays the kernel's TCP socket. If both ends of a connection are carried, each direction of its byte
//! stream moves at an offset from the kernel's stream into a ring, and back when a program does something that is not carried.
//! [`direction`] has the state machine of one direction. It has no clock, thread or descriptor.

#![forbid(unsafe_code)]

pub mod direction;
