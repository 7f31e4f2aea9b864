//! The hosts that a node without a certificate calls.

use std::io::ErrorKind;

use crate::pair::{needs_plain, pair, shares_engine};
use apus::{Address, CallError, Config, Delivery, Node, Stream};

//= docs/protocol.md#seal-17
#[test]
fn a_node_without_a_certificate_calls_its_own_machine_only() {
    if needs_plain("it is about nodes without certificates") {
        return;
    }
    let pair = pair(Delivery::suspend());
    let client = pair.client_node.client().unwrap();
    if !shares_engine() {
        assert_eq!(pair.client_node.stats().identity.insecure, None);
    }
    let far: Address = "203.0.113.9:4000".parse().unwrap();
    let error = client.call(far, "?").wait().unwrap_err();
    assert_eq!(error, CallError::NoIdentity);
    assert!(!error.may_have_executed());
    if !shares_engine() {
        let connected = client.connect(far).wait();
        assert_eq!(connected, Err(CallError::NoIdentity));
    }
    let refused = Stream::connect(&pair.client_node, far).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");
}

#[test]
fn a_node_that_speaks_plain_with_everybody_says_so_in_its_state() {
    let mut config = Config::new();
    config.listen(([127, 0, 0, 1], 0).into()).insecure(true);
    let node = Node::start(&config).unwrap();
    assert_eq!(node.stats().identity.insecure, Some(1));
}
