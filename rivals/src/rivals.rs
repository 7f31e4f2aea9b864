//! The table of rivals.

use apus_bench::transport::rival::{self, Rival};

use crate::calls::Wait::{Poll, Sleep};
use crate::socket::Kind::{Tcp, Unix};
use crate::{with_apus, with_iceoryx2, with_quinn, with_tarpc, with_tonic, with_zeromq};

/// All rivals, in the order of tables.
pub(crate) static RIVALS: [Rival; 14] = [
    Rival {
        name: "tonic",
        about: "gRPC over TCP",
        version: env!("TONIC_VERSION"),
        spins: false,
        connect: |server| with_tonic::connect(Tcp, Sleep, server),
        bind: || with_tonic::bind(Tcp, Sleep),
    },
    Rival {
        name: "tonic-unix",
        about: "gRPC over a unix socket",
        version: env!("TONIC_VERSION"),
        spins: false,
        connect: |server| with_tonic::connect(Unix, Sleep, server),
        bind: || with_tonic::bind(Unix, Sleep),
    },
    Rival {
        name: "tonic-poll",
        about: "gRPC over TCP, both sides spinning",
        version: env!("TONIC_VERSION"),
        spins: true,
        connect: |server| with_tonic::connect(Tcp, Poll, server),
        bind: || with_tonic::bind(Tcp, Poll),
    },
    Rival {
        name: "tarpc",
        about: "Rust's RPC with bincode, over TCP",
        version: env!("TARPC_VERSION"),
        spins: false,
        connect: |server| with_tarpc::connect(Tcp, Sleep, server),
        bind: || with_tarpc::bind(Tcp, Sleep),
    },
    Rival {
        name: "tarpc-unix",
        about: "Rust's RPC with bincode, over a unix socket",
        version: env!("TARPC_VERSION"),
        spins: false,
        connect: |server| with_tarpc::connect(Unix, Sleep, server),
        bind: || with_tarpc::bind(Unix, Sleep),
    },
    Rival {
        name: "tarpc-poll",
        about: "Rust's RPC with bincode, over TCP, both sides spinning",
        version: env!("TARPC_VERSION"),
        spins: true,
        connect: |server| with_tarpc::connect(Tcp, Poll, server),
        bind: || with_tarpc::bind(Tcp, Poll),
    },
    Rival {
        name: "quinn",
        about: "QUIC, a stream for each call",
        version: env!("QUINN_VERSION"),
        spins: false,
        connect: |server| with_quinn::connect(Sleep, server),
        bind: || with_quinn::bind(Sleep),
    },
    Rival {
        name: "quinn-poll",
        about: "QUIC, a stream for each call, both sides spinning",
        version: env!("QUINN_VERSION"),
        spins: true,
        connect: |server| with_quinn::connect(Poll, server),
        bind: || with_quinn::bind(Poll),
    },
    Rival {
        name: "zeromq",
        about: "ZeroMQ's DEALER and ROUTER over TCP",
        version: env!("ZEROMQ_VERSION"),
        spins: false,
        connect: |server| with_zeromq::connect(Tcp, Sleep, server),
        bind: || with_zeromq::bind(Tcp, Sleep),
    },
    Rival {
        name: "zeromq-unix",
        about: "ZeroMQ's DEALER and ROUTER over a unix socket",
        version: env!("ZEROMQ_VERSION"),
        spins: false,
        connect: |server| with_zeromq::connect(Unix, Sleep, server),
        bind: || with_zeromq::bind(Unix, Sleep),
    },
    Rival {
        name: "zeromq-unix-poll",
        about: "ZeroMQ's DEALER and ROUTER over a unix socket, both sides spinning",
        version: env!("ZEROMQ_VERSION"),
        spins: true,
        connect: |server| with_zeromq::connect(Unix, Poll, server),
        bind: || with_zeromq::bind(Unix, Poll),
    },
    Rival {
        name: "iceoryx2-poll",
        about: "Shared memory, both sides spinning",
        version: env!("ICEORYX2_VERSION"),
        spins: true,
        connect: with_iceoryx2::connect,
        bind: with_iceoryx2::bind,
    },
    Rival {
        name: "apus-await-shm",
        about: "Apus awaited in tokio, through shared memory",
        version: env!("APUS_VERSION"),
        spins: false,
        connect: |server| with_apus::connect("auto", server),
        bind: || with_apus::bind("auto"),
    },
    Rival {
        name: "apus-await-udp",
        about: "Apus awaited in tokio, over UDP",
        version: env!("APUS_VERSION"),
        spins: false,
        connect: |server| with_apus::connect("udp", server),
        bind: || with_apus::bind("udp"),
    },
];

/// Rivals that are not measured, with the reason.
pub(crate) const SKIPPED: &str =
    "skipped: Aeron, whose clients for Rust need libclang and cmake (docs/rivals.md)";

/// Adds the rivals to the transports of the benchmarks.
pub(crate) fn add() {
    rival::add(&RIVALS);
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use apus_node::message::MessageHeader;
    use apus_node::transport::interface::{Client, Reply, Request};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// Lengths of a message without a body, of a short and of a long one.
    const LENGTHS: [u32; 3] = [MessageHeader::LEN as u32, 100, 500_000];

    /// Reply options: as long as the request, and short.
    const REPLIES: [u32; 2] = [0, 100];

    fn requests() -> impl Iterator<Item = Request> {
        let both = LENGTHS.into_iter().flat_map(|length| REPLIES.map(|reply| (length, reply)));
        (1..).zip(both).map(|(tag, (length, reply))| Request { tag, length, reply })
    }

    fn expected(request: Request) -> Reply {
        let Request { tag, length, reply } = request;
        let reply = if reply == 0 { length } else { reply };
        Reply { tag, length: reply, request_length: length }
    }

    /// Rivals that sleep before those that spin: servers run until the tests end, and spinning ones slow down the others.
    fn sleeping_first() -> impl Iterator<Item = &'static Rival> {
        RIVALS.iter().filter(|it| !it.spins).chain(RIVALS.iter().filter(|it| it.spins))
    }

    fn client_of(rival: &Rival) -> Box<dyn Client> {
        let server = (rival.bind)().expect("a server");
        let address = server.address().parse().expect("an IP address");
        thread::spawn(move || server.run().map(drop).expect("it serves until the test ends"));
        (rival.connect)(address).expect("a client")
    }

    #[test]
    fn every_rival_answers_calls_of_all_lengths() {
        for rival in sleeping_first() {
            let mut client = client_of(rival);
            for request in requests() {
                let reply = client.call(request, TIMEOUT, &mut Vec::new());
                assert_eq!(reply.expect(rival.name), expected(request), "{}", rival.name);
            }
        }
    }

    #[test]
    fn every_rival_answers_many_calls_at_a_time() {
        for rival in sleeping_first() {
            let mut client = client_of(rival);
            let requests: Vec<Request> = LENGTHS
                .iter()
                .cycle()
                .zip(1..=100)
                .map(|(&length, tag)| Request { tag, length, reply: REPLIES[tag as usize % 2] })
                .collect();
            for request in &requests {
                client.send(0, *request).expect(rival.name);
            }
            let mut ended = Vec::new();
            while ended.len() < requests.len() {
                let before = ended.len();
                client.receive(TIMEOUT, &mut ended).expect(rival.name);
                assert!(ended.len() > before, "{}: no reply", rival.name);
            }
            let mut replies: Vec<Reply> =
                ended.into_iter().map(|ended| ended.expect(rival.name)).collect();
            replies.sort_by_key(|reply| reply.tag);
            let expected: Vec<Reply> = requests.into_iter().map(expected).collect();
            assert_eq!(replies, expected, "{}", rival.name);
        }
    }
}
