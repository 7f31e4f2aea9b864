//! Channels whose endpoints come from a name server: a small one of the test, on loopback.

#![cfg(feature = "hickory")]

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;

use apus_rpc::{
    Balance, BoxError, Channel, Endpoint, EndpointStream, HickoryResolver, Resolve, Target,
};
use futures_lite::future::block_on;

use crate::cluster::{PORT, cluster, node};

const A: u16 = 1;
const SRV: u16 = 33;

/// The records of a name and a type: their data, and their time to live in seconds.
type Records = BTreeMap<(String, u16), (u32, Vec<Vec<u8>>)>;

/// A name server that answers over UDP.
struct NameServer {
    address: SocketAddr,
    records: Arc<Mutex<Records>>,
    /// The names that were asked for.
    asked: Arc<Mutex<Vec<(String, u16)>>>,
}

impl NameServer {
    fn new() -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        let address = socket.local_addr().expect("bound");
        let (records, asked) = (Arc::<Mutex<Records>>::default(), Arc::<Mutex<Vec<_>>>::default());
        let (known, noted) = (Arc::clone(&records), Arc::clone(&asked));
        thread::spawn(move || {
            let mut buffer = [0; 1500];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let (question, end) = question(&buffer[..length]);
                noted.lock().expect("no panic").push(question.clone());
                let answer = answer(&buffer[..end], known.lock().expect("no panic").get(&question));
                let _ = socket.send_to(&answer, from);
            }
        });
        Self { address, records, asked }
    }

    fn set(&self, name: &str, kind: u16, ttl: u32, data: Vec<Vec<u8>>) {
        let key = (name.to_owned(), kind);
        self.records.lock().expect("no panic").insert(key, (ttl, data));
    }

    fn remove(&self, name: &str, kind: u16) {
        self.records.lock().expect("no panic").remove(&(name.to_owned(), kind));
    }

    fn resolver(&self) -> HickoryResolver {
        HickoryResolver::with_servers(&[self.address]).expect("a resolver")
    }

    fn asked(&self, name: &str) -> usize {
        self.asked.lock().expect("no panic").iter().filter(|(asked, _)| asked == name).count()
    }
}

/// The name and the type in a query, and the end of its question.
fn question(query: &[u8]) -> ((String, u16), usize) {
    let (mut labels, mut at) = (Vec::new(), 12);
    while query[at] > 0 {
        let end = at + 1 + usize::from(query[at]);
        labels.push(String::from_utf8(query[at + 1..end].to_vec()).expect("ASCII"));
        at = end;
    }
    let kind = u16::from_be_bytes([query[at + 1], query[at + 2]]);
    ((labels.join(".").to_lowercase(), kind), at + 5)
}

/// A response with these records; without records, the name is not known.
fn answer(query: &[u8], records: Option<&(u32, Vec<Vec<u8>>)>) -> Vec<u8> {
    let (ttl, data) = records.map_or((0, &[][..]), |(ttl, data)| (*ttl, &data[..]));
    let count = u16::try_from(data.len()).expect("a few records");
    let code = if records.is_some() { 0 } else { 3 };
    // The id, a response that recursion is available for, one question.
    let mut answer = [&query[..2], &[0x81, 0x80 | code, 0, 1]].concat();
    answer.extend(count.to_be_bytes());
    answer.extend([0; 4]);
    answer.extend(&query[12..]);
    let kind = [query[query.len() - 4], query[query.len() - 3]];
    for data in data {
        // The name of the question, by its place.
        answer.extend([0xC0, 12]);
        answer.extend(kind);
        answer.extend([0, 1]);
        answer.extend(ttl.to_be_bytes());
        answer.extend(u16::try_from(data.len()).expect("short data").to_be_bytes());
        answer.extend(data);
    }
    answer
}

fn address(last: u8) -> Vec<u8> {
    vec![127, 0, 0, last]
}

fn service(priority: u16, weight: u16, port: u16, name: &str) -> Vec<u8> {
    let mut data: Vec<u8> =
        [priority, weight, port].iter().flat_map(|it| it.to_be_bytes()).collect();
    for label in name.split('.').filter(|label| !label.is_empty()) {
        data.push(u8::try_from(label.len()).expect("a short label"));
        data.extend(label.as_bytes());
    }
    data.push(0);
    data
}

/// The next list or error.
fn item(lists: &mut EndpointStream) -> Result<Vec<Endpoint>, BoxError> {
    block_on(poll_fn(|task| lists.as_mut().poll_next(task))).expect("the stream goes on")
}

/// The next list: addresses and weights.
fn next(lists: &mut EndpointStream) -> Vec<(String, u32)> {
    let list = item(lists).expect("found");
    list.iter().map(|it| (it.address().to_string(), it.weight())).collect()
}

#[test]
fn addresses_are_looked_up_again_when_their_time_is_over() {
    let server = NameServer::new();
    server.set("calc.test", A, 1, vec![address(1), address(2)]);
    let mut lists = server.resolver().watch(&Target::new("dns:calc.test.:4000@7"));
    let both = [("127.0.0.1:4000@7".to_owned(), 1), ("127.0.0.2:4000@7".to_owned(), 1)];
    let mut found = next(&mut lists);
    found.sort();
    assert_eq!(found, both);
    server.set("calc.test", A, 3600, vec![address(3)]);
    while next(&mut lists) != [("127.0.0.3:4000@7".to_owned(), 1)] {}
    assert!(server.asked("calc.test") >= 2);
    // A watch that is dropped ends its task.
    drop(lists);
}

#[test]
fn a_service_has_the_records_of_the_lowest_priority() {
    let server = NameServer::new();
    server.set("a.svc.test", A, 60, vec![address(1)]);
    server.set("b.svc.test", A, 60, vec![address(2)]);
    let records = vec![
        service(1, 3, 5001, "a.svc.test"),
        service(1, 0, 5002, "b.svc.test"),
        service(2, 1, 5003, "a.svc.test"),
    ];
    server.set("_calc._udp.svc.test", SRV, 60, records);
    let mut lists = server.resolver().watch(&Target::new("srv:_calc._udp.svc.test.:4000"));
    let mut found = next(&mut lists);
    found.sort();
    let expected = [("127.0.0.1:4000@5001".to_owned(), 3), ("127.0.0.2:4000@5002".to_owned(), 1)];
    assert_eq!(found, expected);
}

#[test]
fn a_host_of_a_service_that_is_not_found_keeps_its_addresses() {
    let server = NameServer::new();
    server.set("a.svc.test", A, 1, vec![address(1)]);
    server.set("b.svc.test", A, 1, vec![address(2)]);
    let records = vec![service(1, 1, 5001, "a.svc.test"), service(1, 1, 5002, "b.svc.test")];
    server.set("_calc._udp.svc.test", SRV, 1, records);
    let mut lists = server.resolver().watch(&Target::new("srv:_calc._udp.svc.test.:4000"));
    let mut next = || {
        let mut found = next(&mut lists);
        found.sort();
        found
    };
    let list = |hosts: [&str; 2]| hosts.map(|host| (host.to_owned(), 1));
    let before = list(["127.0.0.1:4000@5001", "127.0.0.2:4000@5002"]);
    let after = list(["127.0.0.2:4000@5002", "127.0.0.3:4000@5001"]);
    assert_eq!(next(), before);
    server.remove("b.svc.test", A);
    server.set("a.svc.test", A, 1, vec![address(3)]);
    loop {
        let found = next();
        if found == after {
            break;
        }
        assert_eq!(found, before);
    }
}

#[test]
fn a_service_without_servers_is_an_error() {
    let server = NameServer::new();
    server.set("_none._udp.svc.test", SRV, 60, vec![service(0, 0, 0, "")]);
    for target in ["srv:_none._udp.svc.test.:4000", "srv:_other._udp.svc.test.:4000", "srv:_a"] {
        let mut lists = server.resolver().watch(&Target::new(target));
        item(&mut lists).expect_err(target);
    }
    let channel = Channel::builder("srv:_none._udp.svc.test.:4000").node(&node());
    let error = channel.resolver(server.resolver()).build().expect_err("no servers");
    assert!(error.to_string().contains("_none._udp"), "{error}");
    assert!(HickoryResolver::with_servers(&[]).is_err());
}

#[test]
fn a_channel_calls_the_servers_of_a_service() {
    let (server, members) = (NameServer::new(), cluster(2));
    server.set("here.test", A, 60, vec![address(1)]);
    let ports = members.iter().map(|member| member.address().host.port());
    let records = ports.map(|port| service(0, 1, port, "here.test")).collect();
    server.set("_calc._udp.svc.test", SRV, 60, records);
    let channel = Channel::builder(&format!("srv:_calc._udp.svc.test.:{PORT}")).node(&node());
    let channel = channel.resolver(server.resolver()).balance(Balance::RoundRobin);
    let channel = channel.build().expect("a channel");
    for _ in 0..4 {
        channel.unary("/a.B/Count", "").wait().expect("a response");
    }
    assert!(members.iter().all(|member| member.calls() == 2));
}
