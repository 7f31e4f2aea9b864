//! The process that sent a request, as the kernel reports it.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::pair::{pair, pair_with, shares_engine};
use apus::{Config, Delivery, Links};

#[test]
fn a_service_knows_which_process_of_its_host_has_called() {
    let pair = pair(Delivery::suspend());
    let client = pair.client_node.client().unwrap();
    let call = client.call(pair.address, "who?").start().unwrap();
    let request = pair.service.recv().unwrap();
    let own = fs::metadata("/proc/self").unwrap();
    let mut config = Config::new();
    config.apply_environment().unwrap();
    if shares_engine() || !config.shares_memory() {
        assert_eq!(request.caller(), None, "the request has not come through memory of its caller");
    } else {
        let caller = request.caller().unwrap();
        assert_eq!(caller.pid, std::process::id().cast_signed());
        assert_eq!(caller.uid, own.uid());
        let namespace = fs::metadata("/proc/self/ns/user").unwrap().ino();
        assert!(caller.user_namespace.is_none_or(|it| it == namespace), "{caller:?}");
    }
    request.reply("known").unwrap();
    call.wait().unwrap();
}

#[test]
fn a_request_over_the_network_has_no_caller() {
    let pair = pair_with(|config: &mut Config| {
        config.link(Links::Udp);
    });
    let client = pair.client_node.client().unwrap();
    let call = client.call(pair.address, "who?").start().unwrap();
    let request = pair.service.recv().unwrap();
    assert_eq!(request.caller(), None);
    request.reply("nobody").unwrap();
    call.wait().unwrap();
}
