//! The return to TCP, and programs that a child becomes.
//!
//! | file | |
//! |---|---|
//! | [`returning`] | connections return to the kernel |
//! | [`children`] | children of `fork` that become programs |
//! | [`closing`] | descriptors that are closed |
//! | [`rest`] | bytes that a peer has left in its ring |
//! | [`returns`] | returns at random offsets, for tests |

pub(crate) mod children;
pub(crate) mod closing;
pub(crate) mod rest;
pub(crate) mod returning;
pub(crate) mod returns;
