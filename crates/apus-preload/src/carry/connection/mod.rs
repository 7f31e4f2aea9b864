//! One carried connection of this process: its two ends in shared memory, and its local state.
//!
//! | file | |
//! |---|---|
//! | [`slots`] | carried connections and candidates, by descriptor |
//! | [`side`] | one end in shared memory: sends and receives without waiting |
//! | [`words`] | the words of an end that its peer reads |
//! | [`readable`] | whether a read finds enough bytes |
//! | [`gathering`] | reads of a stream that wait briefly for more bytes |
//! | [`holders`] | the processes that have the connection |
//! | [`blocking`] | options of the socket that change calls |
//! | [`copying`] | copies between the program and a ring |
//! | [`aside`] | bytes of a signal handler that interrupts a write |
//! | [`last_words`] | the end of a connection between hosts |

pub(crate) mod aside;
pub(crate) mod blocking;
pub(crate) mod copying;
pub(crate) mod gathering;
pub(crate) mod holders;
pub(crate) mod last_words;
pub(crate) mod readable;
pub(crate) mod side;
pub(crate) mod slots;
pub(crate) mod words;
