//! The tests of services, as one program. Those of what a process has once, such as signals, are programs of their own.

mod cluster;
mod health_frames;
mod pair;

mod cancellation;
mod codecs;
mod drain;
mod early;
mod endpoints;
mod envelope;
mod health;
mod hedge;
mod hickory;
mod hostile;
mod in_memory;
mod nested;
mod retry;
mod rules;
mod schema;
mod stream_buffers;
mod streams;
mod tokio;
mod tower;
mod typed;
mod typed_streams;
mod unary;
