//! A call carries the identity of its distributed trace to the server, on every path.

use crate::pair;
use crate::pair::engine::{Directory, Engine, attached};
use crate::pair::{Pair, pair_with};
use apus::{Address, CallOptions, Config, Flush, Links, Node, Port, TraceContext};

/// Lengths around the limits of a packet, of a short message in memory, and of a message in parts.
const LENGTHS: [usize; 7] = [1, 1_380, 1_416, 4_072, 4_073, 100_000, 3_000_000];

fn context(number: u8) -> TraceContext {
    TraceContext::new([number; 16], [0xCD; 8], TraceContext::SAMPLED).unwrap()
}

/// Makes calls of every length with a trace context, and one without, all under way at once.
fn assert_traces_arrive(client_node: &Node, service: &Port, to: Address) {
    let client = client_node.client().unwrap();
    let mut calls = Vec::new();
    for (number, length) in (1..).zip(LENGTHS) {
        let options = CallOptions::new().trace_context(context(number));
        calls.push(client.call(to, vec![number; length]).options(options).start().unwrap());
    }
    calls.push(client.call(to, vec![0; 10]).start().unwrap());
    for _ in 0..calls.len() {
        let request = service.recv().unwrap();
        let number = request.body()[0];
        assert_eq!(request.trace_context(), (number > 0).then(|| context(number)), "{number}");
        request.reply("traced").unwrap();
    }
    for call in calls {
        assert_eq!(call.wait().unwrap(), "traced");
    }
}

#[test]
fn a_request_has_its_trace_context() {
    for link in [Links::Auto, Links::Udp] {
        let pair = pair_with(|config| {
            config.link(link);
        });
        let Pair { client_node, service, address, .. } = &pair;
        assert_traces_arrive(client_node, service, *address);
    }
}

#[test]
fn a_call_by_a_queue_has_its_trace_context() {
    let Pair { client_node, service, address, .. } = &pair_with(|_| {});
    let client = client_node.client().unwrap();
    let options = CallOptions::new().trace_context(context(9));
    client.send_with(*address, "queued", 5, Flush::Now, options).unwrap();
    let request = service.recv().unwrap();
    assert_eq!(request.trace_context(), Some(context(9)));
    request.reply("traced").unwrap();
    assert_eq!(client.recv().unwrap().cookie, 5);
}

#[test]
fn a_shared_engine_passes_trace_contexts_on() {
    let directory = Directory::new();
    let mut local = Config::new();
    local.listen("127.0.0.1:0".parse().unwrap());
    let _engine = Engine::start(&directory.socket(), &local);
    let [one, other] = [(); 2].map(|()| Node::start(&attached(&directory.socket())).unwrap());
    let alone = Node::start(&local).unwrap();
    let port = pair::PORT;
    let services = [&one, &alone].map(|node| node.bind(port).unwrap());
    let [of_one, of_alone] = [&one, &alone].map(|node| Address::new(node.local_addr(), port));
    assert_traces_arrive(&other, &services[0], of_one);
    assert_traces_arrive(&one, &services[1], of_alone);
    assert_traces_arrive(&alone, &services[0], of_one);
}
