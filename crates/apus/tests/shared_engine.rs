//! Nodes that use the engine of another process.

mod pair;

use std::thread;
use std::time::Duration;

use apus::{
    Address, CallError, Config, Delivery, EngineAccess, Node, OpenError, Route, SharedEngine,
    StartError,
};
use pair::engine::{Directory, Engine, attached};
use pair::{FAULT_AFTER, PORT, call_with_deadline, pattern, serve, serve_echo, wait_until};

fn local() -> Config {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse().unwrap());
    config
}

fn deliveries() -> [Delivery; 4] {
    ["suspend", "base", "defer:100", "napibusy"].map(|text| text.parse().unwrap())
}

const LENGTHS: [usize; 6] = [1, 100, 4_072, 4_073, 100_000, 3_000_000];

#[test]
fn processes_of_one_engine_call_each_other() {
    for delivery in deliveries() {
        let directory = Directory::new();
        let engine = Engine::start(&directory.socket(), local().delivery(delivery));
        let mut config = attached(&directory.socket());
        let server = Node::start(config.delivery(delivery)).unwrap();
        let client = Node::start(config.delivery(delivery)).unwrap();
        assert_eq!(server.local_addr(), engine.shared.local_addr());
        let service = server.bind(PORT).unwrap();
        let serving = serve_echo(&service);
        let to = Address::new(client.local_addr(), PORT);
        assert_eq!(client.route(to), Route::Engine);
        let port = client.client().unwrap();
        port.connect(to).wait().unwrap();
        for length in LENGTHS {
            let body = pattern(length as u64, length);
            assert_eq!(port.call(to, body.clone()).wait().unwrap(), body, "{delivery}");
        }
        let processes = engine.shared.processes();
        assert_eq!(processes.iter().map(|it| it.counters.calls).sum::<u64>(), LENGTHS.len() as u64);
        assert_eq!(engine.shared.stats().link.packets_sent, 0, "nothing goes over the network");
        drop((service, port));
        [client, server].into_iter().for_each(|node| node.close(FAULT_AFTER).unwrap());
        serving.join().unwrap();
    }
}

#[test]
fn processes_of_an_engine_call_other_nodes_and_are_called() {
    for delivery in deliveries() {
        let directory = Directory::new();
        let engine = Engine::start(&directory.socket(), local().delivery(delivery));
        let process = Node::start(attached(&directory.socket()).delivery(delivery)).unwrap();
        let alone = Node::start(local().delivery(delivery)).unwrap();
        let services = [&process, &alone].map(|node| node.bind(PORT).unwrap());
        let serving = services.each_ref().map(serve_echo);
        for (from, to) in [(&process, &alone), (&alone, &process)] {
            let to = Address::new(to.local_addr(), PORT);
            let port = from.client().unwrap();
            for length in LENGTHS {
                let body = pattern(length as u64, length);
                assert_eq!(port.call(to, body.clone()).wait().unwrap(), body, "{delivery}");
            }
        }
        let counters = engine.shared.processes()[0].counters;
        assert_eq!((counters.calls, counters.requests), (6, 6));
        drop(services);
        [process, alone].into_iter().for_each(|node| node.close(FAULT_AFTER).unwrap());
        serving.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn a_request_names_its_caller() {
    let directory = Directory::new();
    let engine = Engine::start(&directory.socket(), &local());
    let process = Node::start(&attached(&directory.socket())).unwrap();
    let alone = Node::start(&local()).unwrap();
    let service = process.bind(PORT).unwrap();
    let to = Address::new(engine.shared.local_addr(), PORT);
    let port = alone.client().unwrap();
    let call = port.call(to, "who am I?").start().unwrap();
    let request = service.recv().unwrap();
    assert_eq!(request.from(), Address::new(alone.local_addr(), port.port()));
    request.reply("you").unwrap();
    assert_eq!(call.wait().unwrap(), "you");
}

#[test]
fn errors_are_those_of_any_call() {
    let directory = Directory::new();
    let engine = Engine::start(&directory.socket(), &local());
    let process = Node::start(&attached(&directory.socket())).unwrap();
    let alone = Node::start(&local()).unwrap();
    let port = process.client().unwrap();
    let nobody = Address::new(alone.local_addr(), PORT);
    assert_eq!(port.call(nobody, "x").wait().unwrap_err(), CallError::NoSuchPort);
    let nobody = Address::new(engine.shared.local_addr(), PORT);
    assert_eq!(port.call(nobody, "x").wait().unwrap_err(), CallError::NoSuchPort);
    let service = alone.bind(PORT).unwrap();
    let to = Address::new(alone.local_addr(), PORT);
    let (call, late) = call_with_deadline(&port, &service, to, Duration::from_millis(20));
    let error = call.wait().unwrap_err();
    assert!(matches!(error, CallError::Deadline { .. }), "{error}");
    wait_until("the request is cancelled", || late.is_cancelled());
    let call = port.call(to, "y").start().unwrap();
    let dropped = service.recv().unwrap();
    drop(call);
    wait_until("the request is cancelled", || dropped.is_cancelled());
    drop((late, dropped));
    let serving = serve(&service, |_| panic!("on purpose"));
    assert_eq!(port.call(to, "z").wait().unwrap_err(), CallError::HandlerPanicked);
    wait_until("nothing is under way", || engine.shared.processes()[0].calls == 0);
    assert_eq!(engine.shared.processes()[0].held_bytes, 0);
    drop(service);
    alone.close(FAULT_AFTER).unwrap();
    serving.join().unwrap();
}

#[test]
fn a_long_call_may_be_given_up_while_it_is_sent() {
    let directory = Directory::new();
    let engine = Engine::start(&directory.socket(), &local());
    let [client, server] = [(); 2].map(|()| Node::start(&attached(&directory.socket())).unwrap());
    let service = server.bind(PORT).unwrap();
    let serving = serve_echo(&service);
    let to = Address::new(server.local_addr(), PORT);
    let port = client.client().unwrap();
    for _ in 0..20 {
        drop(port.call(to, pattern(1, 20_000_000)).start().unwrap());
        assert_eq!(port.call(to, "next").wait().unwrap(), "next");
    }
    wait_until("nothing is left", || {
        engine.shared.processes().iter().all(|it| (it.calls, it.held_bytes) == (0, 0))
    });
    service.shutdown();
    serving.join().unwrap();
}

#[test]
fn a_process_learns_that_its_request_was_given_up() {
    let directory = Directory::new();
    let engine = Engine::start(&directory.socket(), &local());
    let process = Node::start(&attached(&directory.socket())).unwrap();
    let service = process.bind(PORT).unwrap();
    let to = Address::new(engine.shared.local_addr(), PORT);
    for link in ["udp", "auto"] {
        let alone = Node::start(local().set("link", link).unwrap()).unwrap();
        let port = alone.client().unwrap();
        port.connect(to).wait().unwrap();
        let call = port.call(to, "x").start().unwrap();
        let given_up = service.recv().unwrap();
        drop(call);
        wait_until("the request is cancelled", || given_up.is_cancelled());
        let (call, late) = call_with_deadline(&port, &service, to, Duration::from_millis(20));
        assert!(call.wait().is_err());
        wait_until("the request is cancelled", || late.is_cancelled());
        let call = port.call(to, "x").start().unwrap();
        let lost = service.recv().unwrap();
        drop((call, port, alone));
        wait_until("the request is cancelled", || lost.is_cancelled());
    }
}

#[test]
fn messages_beyond_the_budget_of_a_process_end_nobody() {
    let directory = Directory::new();
    let mut access = EngineAccess::new(&directory.socket());
    let _engine = Engine::with(access.process_budget(1 << 20), &local());
    let [client, server] = [(); 2].map(|()| Node::start(&attached(&directory.socket())).unwrap());
    let alone = Node::start(&local()).unwrap();
    let services = [&server, &alone].map(|node| node.bind(PORT).unwrap());
    let serving = services.each_ref().map(|service| {
        serve(service, |request| {
            let length: usize = str::from_utf8(request.body()).map_or(1, |it| it.parse().unwrap());
            let _ = request.reply(vec![b'x'; length]);
        })
    });
    for (from, to) in [(&client, &server), (&client, &alone), (&alone, &server)] {
        let (port, to) = (from.client().unwrap(), Address::new(to.local_addr(), PORT));
        for length in [300_000, 3_000_000, 5_000_000] {
            let calls: Vec<_> =
                (0..50).map(|_| port.call(to, length.to_string()).start().unwrap()).collect();
            for answer in calls.into_iter().map(|call| call.wait()) {
                let error = answer.err().filter(|error| *error == CallError::EngineEnded);
                assert_eq!(error, None, "{length}");
            }
        }
        assert_eq!(port.call(to, "100000").wait().unwrap().len(), 100_000);
        let _ = port.call(to, vec![0xff; 6_000_000]).wait();
        assert_eq!(port.call(to, "100000").wait().unwrap().len(), 100_000);
    }
    services.iter().for_each(|service| service.shutdown());
    serving.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn bursts_of_long_and_short_calls_end() {
    let directory = Directory::new();
    let _engine = Engine::start(&directory.socket(), &local());
    let mut config = attached(&directory.socket());
    // After a quarter of that time, the engine checks whether a process that was not woken lives.
    config.peer_timeout(4 * 2 * FAULT_AFTER);
    let [client, server] = [(); 2].map(|()| Node::start(&config).unwrap());
    let service = server.bind(PORT).unwrap();
    let serving = serve_echo(&service);
    let to = Address::new(server.local_addr(), PORT);
    let port = client.client().unwrap();
    thread::scope(|scope| {
        for thread in 0..4 {
            let port = &port;
            scope.spawn(move || {
                for burst in 0..300 {
                    let length = |call: usize| 1 << ((burst * 7 + call * 5 + thread) % 22);
                    let calls =
                        (0..6).map(|call| port.call(to, vec![b'x'; length(call)]).start().unwrap());
                    let calls: Vec<_> = calls.collect();
                    calls.into_iter().for_each(|call| drop(call.wait().unwrap()));
                }
            });
        }
    });
    service.shutdown();
    serving.join().unwrap();
}

#[test]
fn a_port_is_of_one_process_and_free_when_that_ends() {
    let directory = Directory::new();
    let mut access = EngineAccess::new(&directory.socket());
    let engine = Engine::with(access.ports(1..=99, &[u32::MAX]), &local());
    let [first, second] = [(); 2].map(|()| Node::start(&attached(&directory.socket())).unwrap());
    let service = first.bind(PORT).unwrap();
    assert_eq!(second.bind(PORT).unwrap_err(), OpenError::PortInUse(PORT));
    assert_eq!(second.bind(99).unwrap_err(), OpenError::PortForbidden(99));
    assert_eq!(second.bind(40_000).unwrap_err(), OpenError::PortOutOfRange(40_000));
    drop(service);
    wait_until("the port is free", || second.bind(PORT).is_ok());
    let service = second.bind(PORT).unwrap();
    drop((second, service));
    wait_until("the process is gone", || engine.shared.processes().len() == 1);
    drop(first.bind(PORT).unwrap());
}

#[test]
fn nodes_attach_again_when_the_engine_is_replaced() {
    let directory = Directory::new();
    let mut config = local();
    let engine = Engine::start(&directory.socket(), &config);
    config.listen(engine.shared.local_addr());
    let [server, client] = [(); 2].map(|()| Node::start(&attached(&directory.socket())).unwrap());
    let service = server.bind(PORT).unwrap();
    let to = Address::new(engine.shared.local_addr(), PORT);
    let port = client.client().unwrap();
    let call = port.call(to, "held").start().unwrap();
    let held = service.recv().unwrap();
    drop(engine);
    assert_eq!(call.wait().unwrap_err(), CallError::EngineEnded);
    assert_eq!(port.call(to, "nobody").wait().unwrap_err(), CallError::NoEngine);
    assert_eq!(client.bind(5).unwrap_err(), OpenError::NoEngine);
    wait_until("the request is given up", || held.is_cancelled());
    let serving = serve_echo(&service);
    let _engine = Engine::start(&directory.socket(), &config);
    wait_until("both are attached again", || match port.call(to, "again").wait() {
        Ok(answer) => answer == "again",
        Err(error) => {
            assert!(matches!(error, CallError::NoEngine | CallError::NoSuchPort), "{error}");
            false
        }
    });
    drop(service);
    server.close(FAULT_AFTER).unwrap();
    serving.join().unwrap();
}

#[test]
fn what_is_wrong_is_said() {
    let directory = Directory::new();
    let error = Node::start(&attached(&directory.socket())).unwrap_err().to_string();
    let path = directory.socket().display().to_string();
    assert!(error.contains(&path) && error.contains("No such file"), "{error}");
    let _engine = Engine::start(&directory.socket(), &local());
    let access = EngineAccess::new(&directory.socket());
    let error = SharedEngine::start(&local(), &access).unwrap_err();
    assert!(matches!(error, StartError::Engine { .. }), "{error}");
    let error = SharedEngine::start(local().shards(2), &access).unwrap_err().to_string();
    assert!(error.contains("shards") && error.contains('1'), "{error}");
    let error = SharedEngine::start(&attached(&directory.socket()), &access).unwrap_err();
    assert!(error.to_string().contains("own"), "{error}");
}

#[test]
fn an_engine_at_all_addresses_notifies_processes_of_calls_that_are_given_up() {
    let directory = Directory::new();
    let mut config = Config::new();
    let engine = Engine::start(&directory.socket(), config.listen("0.0.0.0:0".parse().unwrap()));
    let [client, server] = [(); 2].map(|()| Node::start(&attached(&directory.socket())).unwrap());
    let service = server.bind(PORT).unwrap();
    let host = ([127, 0, 0, 1], engine.shared.local_addr().port()).into();
    let port = client.client().unwrap();
    let call = port.call(Address::new(host, PORT), "request").start().unwrap();
    let request = service.recv().unwrap();
    assert_eq!(request.from().host, host);
    drop(call);
    wait_until("the request is cancelled", || request.is_cancelled());
    assert_eq!(engine.shared.stats().link.packets_sent, 0, "nothing goes over the network");
}
