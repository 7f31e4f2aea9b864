//! The signal that ends a server, in a process of its own: each file of tests is one.

mod pair;

use std::thread;

use apus_rpc::{Bytes, Server, shutdown_signal};
use futures_lite::future::block_on;
use signal_hook::consts::SIGTERM;
use signal_hook::low_level::raise;

use pair::{PORT, node};

#[test]
fn a_signal_ends_a_server_and_later_waits() {
    let node = node();
    let server = Server::builder(&node).route("/a.B/Echo", |_, body: Bytes| async { Ok(body) });
    let serving = server.serve(PORT, shutdown_signal().expect("a thread"));
    let server = thread::spawn(move || serving.wait());
    raise(SIGTERM).expect("a signal");
    let drained = server.join().expect("no panic").expect("the port was opened");
    assert_eq!((drained.finished, drained.cancelled), (0, 0));
    block_on(shutdown_signal().expect("the same thread"));
}
