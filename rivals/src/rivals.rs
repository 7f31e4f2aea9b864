//! The table of rivals.

use apus_bench::transport::rival::{self, Rival};
use apus_load::ResultFile;

use crate::calls::Wait::{Poll, Sleep};
use crate::identity::ours;
use crate::socket::Kind::{Tcp, Unix};
use crate::{
    with_apus, with_apus_rpc, with_iceoryx2, with_quinn, with_s2n_quic, with_shmipc, with_tarpc,
    with_tonic, with_zeromq,
};

/// The rivals without certificates, in the order of tables.
static PLAIN: [Rival; 22] = [
    Rival {
        name: "tonic",
        about: "gRPC over TCP",
        version: env!("TONIC_VERSION"),
        spins: false,
        connect: |server| with_tonic::connect(Tcp, Sleep, None, server),
        bind: || with_tonic::bind(Tcp, Sleep, None),
    },
    Rival {
        name: "tonic-unix",
        about: "gRPC over a unix socket",
        version: env!("TONIC_VERSION"),
        spins: false,
        connect: |server| with_tonic::connect(Unix, Sleep, None, server),
        bind: || with_tonic::bind(Unix, Sleep, None),
    },
    Rival {
        name: "tonic-poll",
        about: "gRPC over TCP, both sides spinning",
        version: env!("TONIC_VERSION"),
        spins: true,
        connect: |server| with_tonic::connect(Tcp, Poll, None, server),
        bind: || with_tonic::bind(Tcp, Poll, None),
    },
    Rival {
        name: "tarpc",
        about: "Rust's RPC with bincode, over TCP",
        version: env!("TARPC_VERSION"),
        spins: false,
        connect: |server| with_tarpc::connect(Tcp, Sleep, None, server),
        bind: || with_tarpc::bind(Tcp, Sleep, None),
    },
    Rival {
        name: "tarpc-unix",
        about: "Rust's RPC with bincode, over a unix socket",
        version: env!("TARPC_VERSION"),
        spins: false,
        connect: |server| with_tarpc::connect(Unix, Sleep, None, server),
        bind: || with_tarpc::bind(Unix, Sleep, None),
    },
    Rival {
        name: "tarpc-poll",
        about: "Rust's RPC with bincode, over TCP, both sides spinning",
        version: env!("TARPC_VERSION"),
        spins: true,
        connect: |server| with_tarpc::connect(Tcp, Poll, None, server),
        bind: || with_tarpc::bind(Tcp, Poll, None),
    },
    Rival {
        name: "quinn",
        about: "QUIC, a stream for each call",
        version: env!("QUINN_VERSION"),
        spins: false,
        connect: |server| with_quinn::connect(Sleep, None, server),
        bind: || with_quinn::bind(Sleep, None),
    },
    Rival {
        name: "quinn-poll",
        about: "QUIC, a stream for each call, both sides spinning",
        version: env!("QUINN_VERSION"),
        spins: true,
        connect: |server| with_quinn::connect(Poll, None, server),
        bind: || with_quinn::bind(Poll, None),
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
        name: "shmipc",
        about: "Shared memory with a wake-up, a stream for each call",
        version: env!("SHMIPC_VERSION"),
        spins: false,
        connect: |server| with_shmipc::connect(Sleep, server),
        bind: || with_shmipc::bind(Sleep),
    },
    Rival {
        name: "shmipc-poll",
        about: "Shared memory, a stream for each call, both sides spinning",
        version: env!("SHMIPC_VERSION"),
        spins: true,
        connect: |server| with_shmipc::connect(Poll, server),
        bind: || with_shmipc::bind(Poll),
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
    Rival {
        name: "apus-rpc-shm",
        about: "A typed service of apus-rpc, through shared memory",
        version: env!("APUS_VERSION"),
        spins: false,
        connect: |server| with_apus_rpc::connect("auto", server),
        bind: || with_apus_rpc::bind("auto"),
    },
    Rival {
        name: "apus-rpc-udp",
        about: "A typed service of apus-rpc, over UDP",
        version: env!("APUS_VERSION"),
        spins: false,
        connect: |server| with_apus_rpc::connect("udp", server),
        bind: || with_apus_rpc::bind("udp"),
    },
    Rival {
        name: "apus-tonic-shm",
        about: "gRPC: tonic over Apus, through shared memory",
        version: env!("TONIC_VERSION"),
        spins: false,
        connect: |server| with_tonic::connect_over_apus("auto", server),
        bind: || with_tonic::bind_over_apus("auto"),
    },
    Rival {
        name: "apus-tonic-udp",
        about: "gRPC: tonic over Apus, over UDP",
        version: env!("TONIC_VERSION"),
        spins: false,
        connect: |server| with_tonic::connect_over_apus("udp", server),
        bind: || with_tonic::bind_over_apus("udp"),
    },
    Rival {
        name: "apus-tarpc-shm",
        about: "tarpc over Apus, through shared memory",
        version: env!("TARPC_VERSION"),
        spins: false,
        connect: |server| with_tarpc::connect_over_apus("auto", server),
        bind: || with_tarpc::bind_over_apus("auto"),
    },
    Rival {
        name: "apus-tarpc-udp",
        about: "tarpc over Apus, over UDP",
        version: env!("TARPC_VERSION"),
        spins: false,
        connect: |server| with_tarpc::connect_over_apus("udp", server),
        bind: || with_tarpc::bind_over_apus("udp"),
    },
];

/// The rivals with mutual TLS, in the order of tables: every side shows [`ours`] and verifies the other side's.
pub(crate) static SECURE: [Rival; 16] = [
    Rival {
        name: "tonic",
        about: "gRPC over TCP, with mutual TLS",
        version: env!("TONIC_VERSION"),
        spins: false,
        connect: |server| with_tonic::connect(Tcp, Sleep, Some(ours()?), server),
        bind: || with_tonic::bind(Tcp, Sleep, Some(ours()?)),
    },
    Rival {
        name: "tonic-poll",
        about: "gRPC over TCP, with mutual TLS, both sides spinning",
        version: env!("TONIC_VERSION"),
        spins: true,
        connect: |server| with_tonic::connect(Tcp, Poll, Some(ours()?), server),
        bind: || with_tonic::bind(Tcp, Poll, Some(ours()?)),
    },
    Rival {
        name: "tarpc",
        about: "Rust's RPC with bincode, over TCP with mutual TLS",
        version: env!("TARPC_VERSION"),
        spins: false,
        connect: |server| with_tarpc::connect(Tcp, Sleep, Some(ours()?), server),
        bind: || with_tarpc::bind(Tcp, Sleep, Some(ours()?)),
    },
    Rival {
        name: "tarpc-poll",
        about: "Rust's RPC with bincode, over TCP with mutual TLS, both sides spinning",
        version: env!("TARPC_VERSION"),
        spins: true,
        connect: |server| with_tarpc::connect(Tcp, Poll, Some(ours()?), server),
        bind: || with_tarpc::bind(Tcp, Poll, Some(ours()?)),
    },
    Rival {
        name: "quinn",
        about: "QUIC, a stream for each call, with mutual TLS",
        version: env!("QUINN_VERSION"),
        spins: false,
        connect: |server| with_quinn::connect(Sleep, Some(ours()?), server),
        bind: || with_quinn::bind(Sleep, Some(ours()?)),
    },
    Rival {
        name: "quinn-poll",
        about: "QUIC, a stream for each call, with mutual TLS, both sides spinning",
        version: env!("QUINN_VERSION"),
        spins: true,
        connect: |server| with_quinn::connect(Poll, Some(ours()?), server),
        bind: || with_quinn::bind(Poll, Some(ours()?)),
    },
    Rival {
        name: "s2n-quic",
        about: "QUIC of AWS, a stream for each call, with mutual TLS",
        version: env!("S2N_QUIC_VERSION"),
        spins: false,
        connect: |server| with_s2n_quic::connect(Sleep, ours()?, server),
        bind: || with_s2n_quic::bind(Sleep, ours()?),
    },
    Rival {
        name: "s2n-quic-poll",
        about: "QUIC of AWS, a stream for each call, with mutual TLS, both sides spinning",
        version: env!("S2N_QUIC_VERSION"),
        spins: true,
        connect: |server| with_s2n_quic::connect(Poll, ours()?, server),
        bind: || with_s2n_quic::bind(Poll, ours()?),
    },
    Rival {
        name: "apus-await-shm",
        about: "Apus with certificates, awaited in tokio, through shared memory",
        version: env!("APUS_VERSION"),
        spins: false,
        connect: |server| with_apus::connect("auto", server),
        bind: || with_apus::bind("auto"),
    },
    Rival {
        name: "apus-await-udp",
        about: "Apus sealed, awaited in tokio, over UDP",
        version: env!("APUS_VERSION"),
        spins: false,
        connect: |server| with_apus::connect("udp", server),
        bind: || with_apus::bind("udp"),
    },
    Rival {
        name: "apus-rpc-shm",
        about: "A typed service of apus-rpc, with certificates, through shared memory",
        version: env!("APUS_VERSION"),
        spins: false,
        connect: |server| with_apus_rpc::connect("auto", server),
        bind: || with_apus_rpc::bind("auto"),
    },
    Rival {
        name: "apus-rpc-udp",
        about: "A typed service of apus-rpc, with certificates, over UDP",
        version: env!("APUS_VERSION"),
        spins: false,
        connect: |server| with_apus_rpc::connect("udp", server),
        bind: || with_apus_rpc::bind("udp"),
    },
    Rival {
        name: "apus-tonic-shm",
        about: "gRPC: tonic over Apus, with certificates, through shared memory",
        version: env!("TONIC_VERSION"),
        spins: false,
        connect: |server| with_tonic::connect_over_apus("auto", server),
        bind: || with_tonic::bind_over_apus("auto"),
    },
    Rival {
        name: "apus-tonic-udp",
        about: "gRPC: tonic over Apus, with certificates, over UDP",
        version: env!("TONIC_VERSION"),
        spins: false,
        connect: |server| with_tonic::connect_over_apus("udp", server),
        bind: || with_tonic::bind_over_apus("udp"),
    },
    Rival {
        name: "apus-tarpc-shm",
        about: "tarpc over Apus, with certificates, through shared memory",
        version: env!("TARPC_VERSION"),
        spins: false,
        connect: |server| with_tarpc::connect_over_apus("auto", server),
        bind: || with_tarpc::bind_over_apus("auto"),
    },
    Rival {
        name: "apus-tarpc-udp",
        about: "tarpc over Apus, with certificates, over UDP",
        version: env!("TARPC_VERSION"),
        spins: false,
        connect: |server| with_tarpc::connect_over_apus("udp", server),
        bind: || with_tarpc::bind_over_apus("udp"),
    },
];

/// Rivals that are not measured, with the reason.
pub(crate) const SKIPPED: &str =
    "skipped: Aeron, whose clients for Rust need libclang and cmake (docs/rivals.md)";

/// Adds the rivals to the transports of the benchmarks: either those with mutual TLS or the others.
pub(crate) fn add(with_tls: bool) {
    rival::add(if with_tls { &SECURE } else { &PLAIN });
}

/// Notes in the rows of a run with certificates whether the sides showed and verified them. Kernel sockets and floors have none.
pub(crate) fn note_tls(result: &mut ResultFile) {
    for row in &mut result.rows {
        let name = row.transport();
        let has_tls = name.starts_with("apus-") || SECURE.iter().any(|rival| rival.name == name);
        row.put("tls", if has_tls { "mutual" } else { "none" });
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::thread;
    use std::time::Duration;

    use anyhow::Result;
    use apus_node::message::MessageHeader;
    use apus_node::transport::interface::{Client, Reply, Request, Server};

    use super::*;
    use crate::identity::Identity;

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

    /// Rivals that sleep before those that spin: servers run until the tests end, and spinning ones slow down the others. With TLS
    /// the spinning ones are left to `tests/program.rs`, where each has a process that ends.
    fn sleeping_first() -> impl Iterator<Item = &'static Rival> {
        let sleeping = PLAIN.iter().chain(&SECURE).filter(|it| !it.spins);
        sleeping.chain(PLAIN.iter().filter(|it| it.spins))
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

    type Connect = fn(&Identity, SocketAddr) -> Result<Box<dyn Client>>;
    type Bind = fn(&Identity) -> Result<Box<dyn Server>>;

    /// Each library with mutual TLS, once.
    const WITH_TLS: [(&str, Connect, Bind); 4] = [
        (
            "tonic",
            |it, server| with_tonic::connect(Tcp, Sleep, Some(it), server),
            |it| with_tonic::bind(Tcp, Sleep, Some(it)),
        ),
        (
            "tarpc",
            |it, server| with_tarpc::connect(Tcp, Sleep, Some(it), server),
            |it| with_tarpc::bind(Tcp, Sleep, Some(it)),
        ),
        (
            "quinn",
            |it, server| with_quinn::connect(Sleep, Some(it), server),
            |it| with_quinn::bind(Sleep, Some(it)),
        ),
        (
            "s2n-quic",
            |it, server| with_s2n_quic::connect(Sleep, it, server),
            |it| with_s2n_quic::bind(Sleep, it),
        ),
    ];

    #[test]
    fn each_side_refuses_a_certificate_of_another_authority() {
        ours().expect("a provider for tonic");
        let [known, stranger] = [(), ()].map(|()| Identity::made().expect("a certificate"));
        for (name, connect, bind) in WITH_TLS {
            let server = bind(&known).expect("a server");
            let address = server.address().parse().expect("an IP address");
            thread::spawn(move || server.run().map(drop).expect("it serves until the test ends"));
            let call = |roots: &Identity, shown: &Identity| {
                let Identity { chain, key, .. } = shown;
                let (chain, key) = (chain.clone(), key.clone());
                let client = Identity { roots: roots.roots.clone(), chain, key };
                let mut client = connect(&client, address)?;
                let request = Request { tag: 1, length: 100, reply: 0 };
                client.call(request, TIMEOUT, &mut Vec::new()).map(drop)
            };
            call(&known, &known).expect(name);
            assert!(call(&known, &stranger).is_err(), "{name}: the server accepts a stranger");
            assert!(call(&stranger, &known).is_err(), "{name}: the client accepts a stranger");
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
