//! Typed services: the parts that the attribute `service` generates code for.
//!
//! | file | contents |
//! |---|---|
//! | `method.rs` | the facts of a method that both sides have |
//! | `arguments.rs` | arguments as bytes, and back |
//! | `call.rs` | a call with a typed response |
//! | `stream_calls.rs`, `stream_methods.rs` | streams of requests and responses, in the client and in the server |
//! | `service.rs` | the methods of a service at a server |
//! | `describing.rs` | the schema of a running server |
//! | `blocking.rs` | threads for methods that block |

mod arguments;
mod blocking;
mod call;
mod describing;
mod method;
mod service;
mod stream_calls;
mod stream_methods;

pub use arguments::{ArgumentReader, ArgumentWriter};
pub use blocking::BlockingThreads;
pub use call::{TypedCall, TypedFuture};
pub use describing::describe;
pub use method::TypedMethod;
pub use service::{EncodedResponse, Service, add_method, respond};
pub use stream_calls::{
    DuplexCall, RequestStreamCall, ResponseStreamCall, TypedResponse, TypedSender,
};
pub use stream_methods::{
    add_stream_method, read_arguments, send_response, send_responses, typed_requests,
};
