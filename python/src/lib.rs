//! Apus for Python: the module `apus._native`. The package around it is in `../apus`, and the book describes it (docs/python.md).
//!
//! | file | contents |
//! |---|---|
//! | `node.rs`, `client.rs`, `port.rs`, `message.rs` | the classes of threads |
//! | `waiting.rs`, `blocking.rs` | waits without the GIL, in which Ctrl-C works: for functions and for futures |
//! | `bodies.rs` | objects with a buffer as bodies |
//! | `errors.rs` | exceptions |
//! | `reactor.rs`, `wakes.rs`, `aio.rs` | nodes in an event loop of asyncio |
//! | `rpc.rs`, `rpc/` | gRPC |
//!
//! No thread of Apus takes the global interpreter lock (GIL): threads of the engine put what Python has to do on lists.

mod aio;
mod blocking;
mod bodies;
mod client;
mod errors;
mod message;
mod node;
mod port;
mod reactor;
mod rpc;
mod waiting;
mod wakes;

use pyo3::prelude::*;

/// The native part of the package `apus`.
#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<node::PyNode>()?;
    module.add_class::<node::Address>()?;
    module.add_class::<client::Client>()?;
    module.add_class::<client::Response>()?;
    module.add_class::<port::Port>()?;
    module.add_class::<port::Request>()?;
    module.add_class::<message::Message>()?;
    module.add_class::<reactor::Reactor>()?;
    module.add_class::<aio::AsyncClient>()?;
    module.add_class::<aio::AsyncPort>()?;
    module.add_class::<rpc::channel::RpcChannel>()?;
    module.add_class::<rpc::client_call::RpcCall>()?;
    module.add_class::<rpc::ends::RpcEnds>()?;
    module.add_class::<rpc::server::RpcServer>()?;
    module.add_class::<rpc::server::AsyncRpcServer>()?;
    module.add_class::<rpc::server_call::RpcServerCall>()?;
    module.add_function(wrap_pyfunction!(aio::close_node, module)?)?;
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(node::resolve, module)?)?;
    Ok(())
}
