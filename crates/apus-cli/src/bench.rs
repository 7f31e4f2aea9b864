//! `apus bench`: the benchmarks of [`apus_bench`].

use anyhow::Result;
use apus_bench::{delivery, handoffs, irq, mix, rate, rtt, scale, sockets, stream};
use apus_load::ResultFile;
use apus_load::misuse::Misuse;
use apus_load::progress::Progress;

use crate::failure;
use crate::output::{OutputArgs, print};
use crate::run;

/// Measure Apus beside TCP, unix sockets and floors on this machine
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Bench {
    /// Round-trip time of a short call, one at a time
    #[command(after_help = "Examples:
  apus bench rtt
  apus bench rtt --transports raw-shm,apus-shm,apus-udp,unix-block,tcp-poll
  apus bench rtt --size 1kB --runs 9 --json rtt.json")]
    Rtt(Args<rtt::PingPong>),
    /// Short calls per second, and the CPU time of each
    #[command(after_help = "Examples:
  apus bench rate
  apus bench rate --outstanding 64,256,1024 --transports tcp-epoll,apus-shm,apus-udp
  apus bench rate --json - | jq '.rows[] | {transport, calls_per_s}'")]
    Rate(Args<rate::CallRate>),
    /// Throughput of long messages
    #[command(after_help = "Examples:
  apus bench stream
  apus bench stream --size 1MB --outstanding 8 --transports raw-udp,apus-udp,apus-shm
  apus bench stream --echo --html stream.html")]
    Stream(Args<stream::StreamThroughput>),
    /// Latency of short calls among long ones
    #[command(after_help = "Examples:
  apus bench mix
  apus bench mix --gbps 4 --transports tcp-epoll,apus-shm
  apus bench mix --workload w3 --echo --html mix.html")]
    Mix(Args<mix::MessageMix>),
    /// Packet delivery: latency and CPU time of a key-value server against load
    #[command(after_help = "Examples:
  apus bench delivery --json delivery.json --html delivery.html
  apus bench delivery --cases base,suspend20,fullbusy --loads 20,MAX --runs 3
  apus bench delivery --cases suspend20 --loads 20 --threads 2,8
  apus bench delivery --cases base,suspend20 --ipq --loads 20 --runs 1")]
    Delivery(Args<delivery::ExperimentDesign>),
    /// The kernel's IRQ suspension: latency and CPU time of any server under each delivery mode
    #[command(
        long_about = "Repeats the experiment of the kernel's IRQ suspension series with any server that speaks memcached's \
protocols or RESP: each case at each load, with interleaved runs. The report has the table of the series, and compares the ratios \
of its cover letter with the measured ones.

With device = \"veth\", the command creates two network namespaces with a veth pair between them, runs the server in one and the \
load generator in the other, and removes both at the end, also after Ctrl-C. With a NIC, the server runs on this host and agents \
on other hosts generate the load; the command restores the values of the NIC at the end, otherwise `apus irq restore` does. Both \
need root.

If more than 1 % of the queries of a run are sent more than 50 µs late, the run measures the generator and not the server. It is \
repeated up to three times, then left out, and the exit status is 3.",
        after_help = "Examples:
  sudo apus bench irq plans/irq-memcached.toml --json irq.json --html irq.html
  sudo apus bench irq plans/irq-memcached.toml --cases base,suspend20,fullbusy --loads 20,MAX --runs 3
  sudo apus bench irq plans/irq-redis.toml --runs 1 --seconds 0.5
  sudo apus bench irq plans/irq-memcached.toml --cases base,suspend20 --runs 1 --instructions
  apus report docs/measurements/irq-letter.json    # the table of the cover letter"
    )]
    Irq(Args<irq::PlanArgs>),
    /// Wake-ups per message, with one call at a time
    #[command(after_help = "Examples:
  apus bench handoffs
  apus bench handoffs --cases base,suspend20 --gap 300 --calls 10000
  apus bench handoffs --json - | jq '.rows[] | {testcase, server_handoffs_per_message}'")]
    Handoffs(Args<handoffs::HandoffCost>),
    /// CPU time of a call against held calls and against peers
    #[command(after_help = "Examples:
  apus bench scale
  apus bench scale --held 10,100000 --peers 1 --runs 5
  apus bench scale --json scale.json")]
    Scale(Args<scale::Scalability>),
    /// An ordinary sockets program plain, under `apus run`, and over unix sockets
    #[command(
        long_about = "Measures an ordinary program with blocking sockets: netperf's TCP_RR (round trips) and TCP_STREAM (a stream \
in one direction), for messages of each size. Interleaved runs use kernel TCP, unix stream sockets, and `apus run`. Round trips \
are also measured over TCP with non-blocking sockets (tcp-spin), and over shared memory without sockets as the floor (raw-shm).

For each connection, kernel_pct in the result is the share of the bytes that the kernel's TCP carried. The command fails if the \
library did not carry the connection of the program under `apus run`.",
        after_help = "Examples:
  apus bench sockets
  apus bench sockets --only rr --sizes 1,1kB,64kB
  apus bench sockets --pin same --only rr --sizes 1kB --runs 9
  apus bench sockets --json sockets.json --html sockets.html"
    )]
    Sockets(Args<sockets::SocketComparison>),
    /// Latency of a memcached or Redis server against load: open loop, from the intended start
    #[command(
        long_about = "Generates a load for a server that speaks memcached's text or binary protocol, or RESP (Redis, Valkey), and \
measures its latency. Queries are due at random times, independent of earlier queries (open loop). Latency counts from the time at \
which a query was due, including its wait for a connection. If more than 1 % of the queries of a run are sent more than 50 µs \
late, the run measures the generator and not the server: it is refused, and the exit status is 3.

Each query uses the connection with the fewest outstanding queries. The command first sets the keys, which are the numbers from 0 \
in the length of --key-size, and overwrites existing values.",
        after_help = "Examples:
  apus bench memcached 10.0.0.1:11211
  apus bench memcached 10.0.0.1:11211 --qps 50000 --connections 64 --depth 1
  apus bench memcached 10.0.0.1:11211 --scan 10000:100000:10000 --html scan.html
  apus bench memcached 10.0.0.1:11211 --protocol binary --qps 20000 --arrival fb-ia --threads 2
  apus bench memcached 10.0.0.1:6379 --protocol resp --qps 20000 --value-size 1kB --update 0.1
  apus bench memcached unix:/run/memcached.sock --qps 20000 --no-load"
    )]
    Memcached(Args<apus_memcached::GeneratorConfig>),
    /// Take part in the load of `apus bench memcached --agents` on another host
    #[command(after_help = "Examples:
  apus bench memcached-agent --listen 10.0.0.2:7000
  apus bench memcached 10.0.0.1:11211 --qps 400000 --agents 10.0.0.2:7000,10.0.0.3:7000

Any host that reaches an agent can make it load any server: use it in trusted networks only.")]
    MemcachedAgent(apus_memcached::AgentOptions),
}

/// The arguments of all benchmarks, and the destinations of their results.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args<Options: clap::Args> {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the benchmark chosen.
///
/// # Errors
/// When the measurement fails or a file cannot be written.
pub(crate) fn run(bench: &Bench) -> Result<()> {
    match bench {
        Bench::Rtt(args) => args.run(rtt::measure),
        Bench::Rate(args) => args.run(rate::measure),
        Bench::Stream(args) => args.run(stream::measure),
        Bench::Mix(args) => args.run(mix::measure),
        Bench::Delivery(args) => args.run(delivery::measure),
        Bench::Irq(args) => {
            failure::note(&args.options.estimate().map_err(of_a_plan)?);
            args.run(|options, progress, result| {
                irq::measure(options, run::preload_by_name, progress, result)
            })
        }
        Bench::Handoffs(args) => args.run(handoffs::measure),
        Bench::Scale(args) => args.run(scale::measure),
        Bench::Sockets(args) => args.run(|options, progress, result| {
            sockets::measure(options, run::preload, progress, result)
        }),
        Bench::Memcached(args) => args.run(apus_memcached::measure),
        Bench::MemcachedAgent(options) => {
            apus_memcached::serve_agent(options, &mut |line| print(&format!("{line}\n")))
        }
    }
}

/// A plan that is no TOML, or has a key or value that is not allowed, is wrong use.
fn of_a_plan(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<toml::de::Error>() {
        Some(_) => Misuse(failure::message(&error)).into(),
        None => error,
    }
}

impl<Options: clap::Args> Args<Options> {
    /// Measures and shows.
    fn run(
        &self,
        measure: fn(&Options, &dyn Progress, &mut ResultFile) -> Result<()>,
    ) -> Result<()> {
        self.output.measure(|progress, result| measure(&self.options, progress, result))
    }
}
