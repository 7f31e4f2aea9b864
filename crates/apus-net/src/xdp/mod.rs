//! Packets past the kernel's network stack, by XSKs (sockets of the family `AF_XDP`, Linux 5.10).
//!
//! | part | |
//! |---|---|
//! | `region` | memory that is shared with the kernel |
//! | `ring` | the queues between this process and the kernel |
//! | `umem` | the memory of the packets |
//! | `socket` | an XSK: opening, sending |
//! | `headers` | Ethernet, IP and UDP headers |
//! | `routes` | the kernel's routes and neighbours |
//! | `ways` | the known ways to peers |

#![cfg_attr(not(test), expect(dead_code, reason = "no link sends by an XSK yet"))]

mod headers;
#[cfg(test)]
mod namespace;
mod region;
mod ring;
mod routes;
mod socket;
mod umem;
mod ways;
