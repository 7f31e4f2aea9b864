//! The tests of the library, as one program. Programs of their own are those that start other processes or watch their own: its
//! descriptors, memory, limits, processor time.

mod pair;

mod asynchronous;
mod backlog;
mod bodies;
mod broken;
mod byte_stream;
mod byte_stream_faults;
mod byte_stream_hostile;
mod byte_stream_tokio;
mod call;
mod caller;
mod certificate_state;
mod computing;
mod configuration;
mod ending;
mod event_loop;
mod faults;
mod handoffs;
mod key_log;
mod memory;
mod own_service;
mod panics;
mod plain_peers;
mod receive;
mod room;
mod start;
mod stream;
mod together;
mod tower;
mod trace_context;
mod unwanted;
