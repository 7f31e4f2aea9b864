//! The program's epoll sets with carried members.
//!
//! A carried member stays in the kernel's set, which reports the end of the connection and bytes that come by TCP. In place of
//! the program's data, the kernel has a *tag* with the member's descriptor. While writes go through the ring, the kernel is not
//! asked whether the socket is writable: it always is. The side's bells are in the kernel's set too, so that one wait covers all
//! of them.
//!
//! A set that this library does not know, such as an inherited one, has no carried members. A connection that is added to such a
//! set returns to the kernel.
//!
//! | file | |
//! | [`table`] | the sets and their member lists |
//! | [`member`] | a member that is a connection |
//! | [`events`] | the kernel's events, and tags |
//! | [`attaching`] | the kernel's view of members |
//! | [`reporting`] | the events that a wait reports |
//! | [`nested`] | members that are sets, and sets in a `poll` |
//! | [`early`] | members that are not connected |
//! | [`shared`] | sets that a child of `fork` uses too |
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
