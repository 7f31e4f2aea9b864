//! The program's epoll sets, as far as their members are carried.
//!
//! A member that is carried stays in the kernel's set, which tells of the end of the connection and of bytes by TCP. Instead of the
//! program's data the kernel has a *tag* with the member's descriptor. While bytes go through the ring, the kernel is not asked whether
//! the socket is writable: it always is. The side's bells are in the kernel's set as well, so that one wake-up ends the sleep there.
//!
//! A set that this library does not know, such as one that was inherited, has no carried members: a connection that comes into one
//! returns to the kernel.
//!
//! | file | |
//! |---|---|
//! | [`table`] | the sets and the lists of their members |
//! | [`member`] | a member that is a connection |
//! | [`events`] | events of the kernel, and tags |
//! | [`attaching`] | what the kernel is told of members |
//! | [`reporting`] | what a wait reports |
//! | [`nested`] | members that are sets, and sets that are waited for by `poll` |
//! | [`early`] | members that are not connected yet |
//! | [`shared`] | sets that a child of `fork` uses as well |
//! | [`giving_up`] | sets whose members return to the kernel |
//! | [`control`] | `epoll_ctl` |
//! | [`waiting`] | `epoll_wait` |

pub(crate) mod attaching;
pub(crate) mod control;
pub(crate) mod early;
pub(crate) mod events;
pub(crate) mod giving_up;
pub(crate) mod member;
pub(crate) mod nested;
pub(crate) mod reporting;
pub(crate) mod shared;
pub(crate) mod table;
pub(crate) mod waiting;
