//! Bodies that run code when they are dropped.

mod pair;

use std::time::Duration;

use apus::{Address, Bytes, CallError, CallOptions, Delivery, Socket};
use pair::{Pair, pair, serve_echo};

/// A body whose destructor closes a socket of the same node.
struct Owner(Option<Socket>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        b"a body"
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}

#[test]
fn a_body_may_use_its_node_when_it_is_dropped() {
    for delivery in Delivery::ALL {
        let Pair { client, service, address, .. } = pair(delivery);
        let serving = serve_echo(&service);
        let socket = client.socket().unwrap();
        let body = || Bytes::from_owner(Owner(Some(client.socket().unwrap())));
        assert_eq!(socket.call(address, body()).unwrap(), "a body", "{delivery}");
        // Refused, given up, or closed with the node.
        let nowhere = Address::new("0.0.0.0:1".parse().unwrap(), 1);
        let refused = socket.start(nowhere, body(), CallOptions::new()).map(drop);
        assert_eq!(refused, Err(CallError::UnspecifiedAddress(nowhere)), "{delivery}");
        drop(socket.start(address, body(), CallOptions::new()).unwrap());
        socket.shutdown();
        assert_eq!(socket.call(address, body()).unwrap_err(), CallError::Closed, "{delivery}");
        let other = client.socket().unwrap();
        let held = other.start(address, body(), CallOptions::new()).unwrap();
        client.close(Duration::ZERO).ok();
        drop(held);
        service.shutdown();
        serving.join().unwrap();
    }
}
