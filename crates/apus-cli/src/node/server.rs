//! `apus node server`: answers load.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use apus::net::cpu;
use apus::{Links, Node, Request, Scheme, Socket};
use apus_load::{ResultFile, Row};

use super::verify::{self, Executed, VERIFIED};
use super::{LinkArgs, Protocol, stop_on_signal, stopped};
use crate::bench::record;
use crate::failure::Misuse;
use crate::message::Header;
use crate::output::{OutputArgs, say};
use crate::traffic::{Counts, Traffic};
use crate::transport::Server;
use crate::transport::apus_udp::reply_to;
use crate::transport::tcp_epoll::EpollServer;

/// Highest Homa port a server can have; those above are for clients.
const HOMA_PORT_MAX: u32 = 32_767;

/// How long a server that stops lets responses on their way end.
const DRAIN: Duration = Duration::from_millis(500);

/// Answer requests until Ctrl-C
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus node server
  apus node server --ports 3 --port-threads 3 --seconds 60 --json server.json
  apus node server --link both
  apus node server --protocol tcp --listen 10.0.0.1:0 --first-port 5000
  apus node server --listen 127.0.0.1:0 --fault loss=0.1,dup=0.05,reorder=0.05

Once it listens it prints one line with its address, then one line of statistics a second.

--link raw answers hosts with the Linux Homa module (IP protocol 146). It needs CAP_NET_RAW ('setcap cap_net_raw+ep' on the
program) and a host without the module, which gets every packet of the protocol too; --link udp runs beside the module.
Messages have 1,000,000 bytes at most there. Clients that run the stripped module need APUS_CONFIRM_PEERS=false.")]
pub(crate) struct Args {
    #[command(flatten)]
    link: LinkArgs,
    /// IP address and UDP port of the node; TCP uses only the IP address
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:20146")]
    listen: SocketAddr,
    /// First port to serve; 0 with --protocol tcp lets the system choose
    #[arg(long, value_name = "PORT", default_value_t = 4000)]
    first_port: u16,
    /// How many ports to serve, from the first on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    ports: u16,
    /// Threads that serve each port
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    port_threads: u16,
    /// CPU to stay on, all threads
    #[arg(long, value_name = "CPU")]
    pin: Option<usize>,
    /// Stop after so many seconds; 0: at Ctrl-C or SIGTERM
    #[arg(long, value_name = "S", allow_negative_numbers = true, default_value_t = 0.0, value_parser = super::parse_seconds)]
    seconds: f64,
    #[command(flatten)]
    output: OutputArgs,
}

/// Serves and shows.
///
/// # Errors
/// When an address or port is busy, not ours or not allowed.
pub(super) fn run(args: &Args) -> Result<()> {
    args.link.check()?;
    check_ports(args)?;
    if let Some(cpu) = args.pin {
        cpu::pin_current_thread(cpu).with_context(|| format!("'--pin {cpu}'"))?;
    }
    let stop = stop_on_signal()?;
    args.output.deliver(&record(|result| match args.link.protocol {
        Protocol::Apus => serve_apus(args, &stop, result),
        Protocol::Tcp => serve_tcp(args, &stop, result),
    })?)
}

fn check_ports(args: &Args) -> Result<()> {
    let (first, ports) = (args.first_port, args.ports);
    let allowed = match args.link.protocol {
        Protocol::Apus => 1..=HOMA_PORT_MAX,
        Protocol::Tcp => 0..=u16::MAX.into(),
    };
    let last = u32::from(first) + u32::from(ports) - 1;
    if !allowed.contains(&first.into()) || !allowed.contains(&last) {
        let (low, high) = allowed.into_inner();
        let given = format!("'--first-port {first}' with '--ports {ports}'");
        return Err(Misuse(format!("{given}: ports must be between {low} and {high}")).into());
    }
    Ok(())
}

fn serve_apus(args: &Args, stop: &AtomicBool, result: &mut ResultFile) -> Result<()> {
    let node = args.link.start(args.listen)?;
    let traffic = Traffic::default();
    let executed = Executed::default();
    let ports = args.first_port..=args.first_port + (args.ports - 1);
    let sockets = ports.map(|port| Ok(node.bind(port)?)).collect::<Result<Vec<Socket>>>()?;
    announce(
        args,
        &format!("{} ports {}", places(args, &node), port_range(args.first_port, args.ports)),
    )?;
    let served = thread::scope(|scope| {
        for socket in &sockets {
            for _ in 0..args.port_threads {
                scope.spawn(|| socket.serve(|request| traffic.add(answer(request, &executed))));
            }
        }
        let served = watch(args, stop, &traffic);
        // What cannot end in time is the clients' loss; they were asked to stop first.
        let _ = node.close(DRAIN);
        served
    })?;
    report(args, &traffic, served, result);
    Ok(())
}

/// Answers one request and says what it was.
fn answer(mut request: Request, executed: &Executed) -> Counts {
    let body = request.take_body();
    let mut counts = Counts { requests: 1, in_bytes: body.len() as u64, ..Counts::default() };
    let header = Header::from_bytes(&body).filter(|header| header.tag & VERIFIED != 0);
    let reply = match header {
        Some(header) => {
            let mut reply = header.answer(body.len() as u32);
            if !verify::is_right(header, &body) {
                counts.wrong = 1;
                // The client, which expects the length of its request here, then knows.
                reply.other_length = 0;
            }
            counts.executed_twice = u64::from(!executed.note(header.tag));
            verify::build(reply, reply.length as usize).into()
        }
        None => reply_to(body),
    };
    counts.out_bytes = reply.len() as u64;
    // Fails when the client has gone, which is the client's affair.
    let _ = request.reply(reply);
    counts
}

fn serve_tcp(args: &Args, stop: &AtomicBool, result: &mut ResultFile) -> Result<()> {
    let traffic = Arc::new(Traffic::default());
    let mut addresses = Vec::new();
    for port in 0..args.ports {
        let port = if args.first_port == 0 { 0 } else { args.first_port + port };
        let address = SocketAddr::new(args.listen.ip(), port);
        let first = EpollServer::listen(address, Arc::clone(&traffic))?;
        addresses.push(first.address().to_string());
        for _ in 1..args.port_threads {
            first.share()?.spawn()?;
        }
        first.spawn()?;
    }
    announce(args, &addresses.join(" "))?;
    let served = watch(args, stop, &traffic)?;
    report(args, &traffic, served, result);
    Ok(())
}

fn port_range(first: u16, ports: u16) -> String {
    if ports == 1 { first.to_string() } else { format!("{first}-{}", first + (ports - 1)) }
}

/// Where the node is, by each of its links.
fn places(args: &Args, node: &Node) -> String {
    let native = match args.listen.ip() {
        IpAddr::V4(ip) => format!("{}{ip}", Scheme::HOMA),
        IpAddr::V6(ip) => format!("{}[{ip}]", Scheme::HOMA),
    };
    match args.link.link {
        Links::Udp => node.local_addr().to_string(),
        Links::Raw => native,
        Links::Both => format!("{} and {native}", node.local_addr()),
    }
}

fn announce(args: &Args, what: &str) -> Result<()> {
    say(&args.output, &format!("serving {what}"))
}

/// Prints statistics once a second until it is time to stop; returns how long it took.
fn watch(args: &Args, stop: &AtomicBool, traffic: &Traffic) -> Result<Duration> {
    let start = Instant::now();
    let end = (args.seconds > 0.0).then(|| start + Duration::from_secs_f64(args.seconds));
    let (mut before, mut shown) = (Counts::default(), start);
    while !stopped(stop) && end.is_none_or(|end| Instant::now() < end) {
        thread::sleep(super::TICK);
        if shown.elapsed() >= Duration::from_secs(1) {
            let now = traffic.counts();
            let interval = now.since(before);
            if interval.requests > 0 {
                say(&args.output, &interval.line(shown.elapsed().as_secs_f64()))?;
            }
            (before, shown) = (now, Instant::now());
        }
    }
    Ok(start.elapsed())
}

fn report(args: &Args, traffic: &Traffic, served: Duration, result: &mut ResultFile) {
    let counts = traffic.counts();
    let seconds = served.as_secs_f64();
    let gbps = |bytes: u64| bytes as f64 * 8.0 / 1e9 / seconds;
    let mut row = Row::new(args.link.transport()).set("bench", "node server");
    if args.link.protocol == Protocol::Apus {
        row.put("delivery", args.link.delivery.to_string());
    }
    result.rows.push(
        row.set("ports", u32::from(args.ports))
            .set("threads", u32::from(args.port_threads))
            .set("requests_per_s", counts.requests as f64 / seconds)
            .set("in_gbps", gbps(counts.in_bytes))
            .set("out_gbps", gbps(counts.out_bytes))
            .set("cpu_s", cpu::process_time().as_secs_f64())
            .set("elapsed_s", seconds)
            .set("requests", counts.requests)
            .set("wrong", counts.wrong)
            .set("executed_twice", counts.executed_twice),
    );
    if counts.wrong > 0 {
        result.warn(format!("{} requests had a wrong byte", counts.wrong));
    }
    if counts.executed_twice > 0 {
        result.warn(format!("{} requests were executed twice", counts.executed_twice));
    }
}
