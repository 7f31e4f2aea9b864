//! IRQ suspension of the Linux kernel, for programs that know nothing of it.
//!
//! While an application is busy with events, the kernel (6.13 and newer) can leave the interrupts of a receive queue masked:
//! the application polls the queue itself each time it calls `epoll_wait`. That takes parameters in two places, and this
//! crate reads and sets both:
//!
//! | part | |
//! |---|---|
//! | [`napis`], [`queues`], [`set`] | the parameters of a device's NAPI instances (netlink family `netdev`) |
//! | [`features`], [`set_feature`] | its offloads, without some of which there is no NAPI instance (family `ethtool`) |
//!
//! Nothing here runs by itself: no thread, no clock. Reading needs no privilege, setting a NAPI instance takes
//! `CAP_NET_ADMIN` in the first user namespace.

#![forbid(unsafe_code)]

mod netdev;
mod netlink;
mod offload;

pub use netdev::{Napi, NapiParameters, Queue, napis, napis_can_be_set, queues, set};
pub use offload::{Features, features, set_feature};
