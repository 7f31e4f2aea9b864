//! IRQ suspension of the Linux kernel, for programs that are not made for it.
//!
//! While an application is busy with events, the kernel (6.13 and newer) can leave the interrupts of a receive queue masked:
//! the application polls the queue itself each time it calls `epoll_wait`. That takes parameters in two places, and this
//! crate reads and sets both:
//!
//! | part | |
//! |---|---|
//! | [`napis`], [`queues`], [`set`] | the parameters of a device's NAPI instances (netlink family `netdev`) |
//! | [`Device`], [`Slot`] | NAPI instances by names that last while their numbers change |
//! | [`LinkEvents`] | events when a device is made, deleted, or goes up or down (`rtnetlink`) |
//! | [`features`], [`set_feature`] | the device's offloads, some of which are necessary for a NAPI instance (family `ethtool`) |
//! | [`EpollParameters`], [`incoming_napi`] | the parameters of an epoll set; the NAPI instance that a socket's packets come by |
//! | [`Program`], [`ProcessId`] | the epoll sets of other processes, by duplicates of their descriptors |
//! | [`Socket`], [`waits()`] | the sockets of other processes, and the calls that their threads wait in |
//! | [`users()`], [`users_besides`], [`refuse_shared`] | the programs that receive packets by given NAPI instances |
//! | [`groups`], [`Group`], [`Spread`] | connections go to the listener of the queue that they come by |
//! | [`Mode`] | parameters that belong together, by the names of the kernel's IRQ suspension series |
//! | [`Cycles`], [`Tuner`] | the times of a program between two waits; the choice of parameters from measurements |
//! | [`Tuning`], [`receiving_slots`] | the steps of that choice: set, measure, decide; the instances that a program receives packets from |
//! | [`StateDirectory`] | changes, and files with the values before them |
//! | [`Session`], [`guardian`] | the values that a process sets while it runs; the process that restores them after a kill |
//! | [`NapiChange`], [`restore`] | values of a device that last until they are restored by hand; the restoration of everything |
//! | [`keeper`] | the process that sets a device again when its values are lost |
//! | [`Steering`], [`ProcessTree`] | the listeners of a program while they come and go; the processes of a program that was started |
//! | [`ProgramUser`] | the user as whom a program runs |
//! | [`Watch`], [`busy_poll_packets`] | the kernel's work: timers, polls, softirqs, and packets taken by busy polling |
//!
//! Nothing here runs by itself, except the thread of a [`Watch`]. A [`Session`] and a [`keeper`] start the process that their
//! caller names, and change values only when they are called. A session passes notices to a function of its caller and prints
//! nothing. Reading NAPI instances needs no privilege; setting one requires `CAP_NET_ADMIN` in the initial user namespace. A process
//! can reach the epoll sets of another process if it may trace that process.

#![deny(unsafe_code)]

mod change;
mod cycles;
mod device;
mod directory;
mod epoll;
mod error;
mod links;
mod mode;
mod netdev;
mod netlink;
mod offload;
mod perf;
mod program;
mod running;
mod socket;
mod state;
mod steering;
mod tally;
mod tracing;
mod tune;
mod users;
mod waiting;
mod watch;

pub use change::NapiChange;
pub use cycles::Cycles;
pub use device::{Device, Slot, Target};
pub use epoll::{EpollParameters, incoming_napi};
pub use error::Error;
pub use links::LinkEvents;
pub use mode::{Mode, UnknownMode};
pub use netdev::{
    Napi, NapiParameters, Queue, THREADED_BUSY_POLL, napis, napis_can_be_set, queues, set,
};
pub use offload::{Features, features, set_feature};
pub use program::{EpollSet, ProcessId, Program, processes};
pub use running::{
    Done, Notice, Period, ProcessTree, ProgramUser, Restored, Session, Steering, Tuning,
    TuningStep, adopt_orphans, guardian, keeper, receiving_slots, restore,
};
pub use socket::Socket;
pub use state::{Again, Changed, HeldDevice, HeldGroup, HeldProgram, StateDirectory};
pub use steering::{Descriptor, Group, Misfit, Spread, groups};
pub use tally::{NapiCounts, ThreadCounts, WatchCounts};
pub use tune::{Decision, Goal, Sample, Tuner, TuningAction};
pub use users::{NapiUser, refuse_shared, users, users_besides};
pub use waiting::{ThreadState, threads, waits};
pub use watch::{Watch, busy_poll_packets};
