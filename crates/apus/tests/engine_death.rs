//! An engine and the processes that use it: one of them is killed.

mod pair;
mod program;

use std::net::SocketAddr;
use std::sync::mpsc;

use apus::{Address, Call, CallError, Client, Config, Delivery, Node, OpenError};
use nix::sys::signal::Signal;
use pair::engine::{Directory, Engine, attached};
use pair::{PORT, echo, serve, wait_until};
use program::{HOLD, Program, patient, play_role};

#[test]
#[ignore = "it is a process of other tests"]
fn role() {
    play_role();
}

fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn deliveries() -> [Delivery; 3] {
    [Delivery::default(), "base".parse().unwrap(), "napibusy".parse().unwrap()]
}

/// Makes calls of all lengths that are not answered.
fn hold(client: &Client, to: Address) -> Vec<Call> {
    let lengths = [4, 4_000, 100_000, 1 << 20, 2_000_000, 20_000_000];
    let body = |length| [HOLD.as_bytes(), &vec![b'x'; length]].concat();
    lengths.into_iter().map(|length| client.call(to, body(length)).start().unwrap()).collect()
}

#[test]
fn what_a_killed_server_had_of_its_engine_is_given_back() {
    for (delivery, link) in deliveries().into_iter().zip(["udp", "auto", "udp"]) {
        let directory = Directory::new();
        let mut config = patient(anywhere());
        let engine = Engine::start(&directory.socket(), config.delivery(delivery));
        let alone = Node::start(config.set("link", link).unwrap()).unwrap();
        let process = Node::start(attached(&directory.socket()).delivery(delivery)).unwrap();
        let to = Address::new(engine.shared.local_addr(), PORT);
        for _ in 0..3 {
            let mut server = Program::start(&format!("server {}", directory.socket().display()));
            assert_eq!(server.line(), to.host.to_string());
            let ports = [&alone, &process].map(|node| node.client().unwrap());
            let calls: Vec<_> = ports.iter().flat_map(|port| hold(port, to)).collect();
            wait_until("some requests have come", || server.report().held > 4);
            let held = server.report().held;
            server.kill();
            let errors = calls.into_iter().map(|call| call.wait().unwrap_err());
            let executed = errors.filter(|error| error.may_have_executed()).count() as u64;
            assert!(executed >= held, "{delivery}: {executed} of {held}");
            wait_until("the engine has nothing of it", || {
                let processes = engine.shared.processes();
                processes.len() == 1 && (processes[0].calls, processes[0].held_bytes) == (0, 0)
            });
            drop(process.bind(PORT).unwrap());
            wait_until("the port is free", || engine.shared.processes()[0].ports != [PORT]);
        }
    }
}

#[test]
fn what_a_killed_client_had_of_its_engine_is_given_back() {
    let directory = Directory::new();
    let engine = Engine::start(&directory.socket(), &patient(anywhere()));
    let alone = Node::start(&patient(anywhere())).unwrap();
    let process = Node::start(&attached(&directory.socket())).unwrap();
    for node in [&process, &alone] {
        let service = node.bind(PORT).unwrap();
        for _ in 0..3 {
            let path = directory.socket();
            let mut client =
                Program::start(&format!("client {} {}", node.local_addr(), path.display()));
            assert_eq!(client.line(), "connected");
            assert_eq!(client.ask(&format!("{} 10", HOLD.repeat(500_000))), "started");
            assert_eq!(client.ask("hold 50"), "started");
            let mut held: Vec<_> = (0..51).map(|_| service.recv().unwrap()).collect();
            client.kill();
            wait_until(&format!("the requests at {} are given up", node.local_addr()), || {
                held.extend(service.try_recv());
                held.iter().all(|request| request.is_cancelled())
            });
            wait_until("the engine has nothing of it", || {
                let processes = engine.shared.processes();
                processes.len() == 1 && processes[0].held_bytes == 0
            });
        }
    }
}

#[test]
fn a_port_of_a_killed_process_is_free_at_once() {
    let directory = Directory::new();
    let _engine = Engine::start(&directory.socket(), &patient(anywhere()));
    let process = Node::start(&attached(&directory.socket())).unwrap();
    for _ in 0..10 {
        let mut server = Program::start(&format!("server {}", directory.socket().display()));
        assert_eq!(server.line(), process.local_addr().to_string());
        assert_eq!(process.bind(PORT).unwrap_err(), OpenError::PortInUse(PORT));
        server.kill();
        drop(process.bind(PORT).unwrap());
    }
}

fn start_engine(directory: &Directory, listen: SocketAddr) -> (Program, SocketAddr) {
    let engine = Program::start(&format!("engine {listen} {}", directory.socket().display()));
    let address = engine.line().parse().unwrap();
    (engine, address)
}

#[test]
fn calls_that_a_killed_engine_has_not_got_were_not_executed() {
    let directory = Directory::new();
    let (mut engine, address) = start_engine(&directory, anywhere());
    let mut config = attached(&directory.socket());
    let node = Node::start(config.delivery(Delivery::fullbusy())).unwrap();
    let client = node.client().unwrap();
    engine.signal(Signal::SIGSTOP);
    let body = vec![b'x'; 1 << 20];
    let start = |_| client.call(Address::new(address, PORT), body.clone()).start().unwrap();
    let calls: Vec<_> = (0..24).map(start).collect();
    engine.kill();
    let errors: Vec<_> = calls.into_iter().map(|call| call.wait().unwrap_err()).collect();
    let unsent = errors.iter().filter(|&error| *error == CallError::NotSent).count();
    let ended = errors.iter().filter(|&error| *error == CallError::EngineEnded).count();
    // The memory of a pair has room for eight of these messages.
    assert!(unsent >= 16 && unsent + ended == 24, "{unsent} not sent, {ended} may have executed");
    assert!(!CallError::NotSent.may_have_executed() && CallError::EngineEnded.may_have_executed());
}

#[test]
fn nodes_outlive_an_engine_that_is_killed() {
    for delivery in deliveries() {
        let directory = Directory::new();
        let (mut engine, address) = start_engine(&directory, anywhere());
        let mut config: Config = attached(&directory.socket());
        let [client, server] = [(); 2].map(|()| Node::start(config.delivery(delivery)).unwrap());
        let mut config = patient(anywhere());
        let alone = Node::start(config.delivery(delivery)).unwrap();
        let [near, far] = [&server, &alone].map(|node| Address::new(node.local_addr(), PORT));
        let services = [&server, &alone].map(|node| node.bind(PORT).unwrap());
        let (sender, holding) = mpsc::channel();
        let serving = [0, 1].map(|number| {
            let sender = sender.clone();
            serve(&services[number], move |request| {
                match request.body().starts_with(HOLD.as_bytes()) {
                    true => sender.send((number, request)).unwrap(),
                    false => echo(request),
                }
            })
        });
        let port = client.client().unwrap();
        for _ in 0..3 {
            let calls = [hold(&port, near), hold(&port, far)];
            let mut held: Vec<_> = (0..4).map(|_| holding.recv().unwrap()).collect();
            engine.kill();
            let mut ended = 0;
            for call in calls.into_iter().flatten() {
                match call.wait().unwrap_err() {
                    CallError::EngineEnded => ended += 1,
                    // The engine had received only a part of a long request.
                    error => assert_eq!(error, CallError::NotSent, "{delivery}"),
                }
            }
            assert!(ended >= held.len(), "{delivery}: {ended}");
            assert_eq!(port.call(near, "nobody").wait().unwrap_err(), CallError::NoEngine);
            wait_until("the requests are given up", || {
                held.extend(holding.try_iter());
                // A node with its own engine detects the end by the silence.
                held.iter().all(|(number, request)| *number == 1 || request.is_cancelled())
            });
            engine = start_engine(&directory, address).0;
            wait_until("both are attached again", || match port.call(near, "again").wait() {
                Ok(answer) => answer == "again",
                Err(error) => {
                    assert!(
                        matches!(error, CallError::NoEngine | CallError::NoSuchPort),
                        "{error}"
                    );
                    false
                }
            });
            assert_eq!(port.call(far, "again").wait().unwrap(), "again");
        }
        services.iter().for_each(|service| service.shutdown());
        serving.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
