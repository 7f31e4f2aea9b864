//! Bodies that run code when they are dropped.

use std::time::Duration;

use crate::pair::{Pair, pair, serve_echo};
use apus::{Address, Bytes, CallError, Client, Delivery};

/// A body whose destructor closes a client of the same node.
struct Owner(Option<Client>);

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
        let Pair { client_node, service, address, .. } = pair(delivery);
        let serving = serve_echo(&service);
        let client = client_node.client().unwrap();
        let body = || Bytes::from_owner(Owner(Some(client_node.client().unwrap())));
        assert_eq!(client.call(address, body()).wait().unwrap(), "a body", "{delivery}");
        // Bodies of a call that is refused, given up, or closed with the node.
        let nowhere = Address::new("0.0.0.0:1".parse().unwrap(), 1);
        let refused = client.call(nowhere, body()).start().map(drop);
        assert_eq!(refused, Err(CallError::UnspecifiedAddress(nowhere)), "{delivery}");
        drop(client.call(address, body()).start().unwrap());
        client.shutdown();
        assert_eq!(
            client.call(address, body()).wait().unwrap_err(),
            CallError::Closed,
            "{delivery}"
        );
        let other = client_node.client().unwrap();
        let held = other.call(address, body()).start().unwrap();
        client_node.close(Duration::ZERO).ok();
        drop(held);
        service.shutdown();
        serving.join().unwrap();
    }
}
