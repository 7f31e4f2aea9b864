//! `apus node server`: answers load.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use apus::net::cpu;
use apus::{Bytes, Links, Node, Request, Scheme, Socket};
use apus_load::{ResultFile, Row};

use super::verify::{self, Executed, VERIFIED};
use super::{BodyFormat, LinkArgs, Protocol, cp_node, pin};
use crate::bench::record;
use crate::failure::Misuse;
use crate::interrupt;
use crate::message::{Header, check, check_last};
use crate::output::{OutputArgs, different, say};
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
  apus node server --listen 0.0.0.0:20146
  apus node server --listen 10.0.0.1:20146 --ports 3 --port-threads 3 --seconds 60 --json server.json
  apus node server --listen 10.0.0.1:20146 --link both
  apus node server --listen 10.0.0.1:0 --link raw --body cp-node
  apus node server --protocol tcp --listen 10.0.0.1:0 --first-port 5000
  apus node server --listen 127.0.0.1:0 --fault loss=0.1,dup=0.05,reorder=0.05

Only this machine can call it unless --listen says otherwise; 0.0.0.0 is every address. Once it listens it prints one line with its
address, then one line of statistics a second. A request that is not as its format wants it, or wants a longer reply than a message may
be, is counted as wrong and gets a few bytes.

--link raw answers hosts with the Linux Homa module (IP protocol 146). It needs CAP_NET_RAW ('setcap cap_net_raw+ep' on the
program) and a host without the module, which gets every packet of the protocol too; --link udp runs beside the module.
Messages have 1,000,000 bytes at most there. Clients that run the stripped module need APUS_CONFIRM_PEERS=false.")]
pub(crate) struct Args {
    #[command(flatten)]
    link: LinkArgs,
    /// IP address and UDP port of the node; TCP uses only the IP address
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:20146")]
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
    pin(args.pin)?;
    let [json, html] = args.output.paths();
    different(&[json, html, ("--capture", args.link.capture.as_deref())])?;
    let output = args.output.open()?;
    interrupt::handle()?;
    output.deliver(&record(|result| match args.link.protocol {
        Protocol::Apus => serve_apus(args, result),
        Protocol::Tcp => serve_tcp(args, result),
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

fn serve_apus(args: &Args, result: &mut ResultFile) -> Result<()> {
    let mut config = args.link.config(args.listen)?;
    let service = Service {
        body: args.link.body,
        reply_max: config.message_limit(),
        executed: Executed::default(),
    };
    let node = args.link.start_with(&mut config)?;
    let traffic = Traffic::default();
    let ports = args.first_port..=args.first_port + (args.ports - 1);
    let sockets = ports.map(|port| Ok(node.bind(port)?)).collect::<Result<Vec<Socket>>>()?;
    announce(
        args,
        &format!("{} ports {}", places(args, &node), port_range(args.first_port, args.ports)),
    )?;
    let served = thread::scope(|scope| {
        for socket in &sockets {
            for _ in 0..args.port_threads {
                scope.spawn(|| socket.serve(|request| traffic.add(service.answer(request))));
            }
        }
        let served = watch(args, &traffic);
        // What cannot end in time is the clients' loss; they were asked to stop first.
        let _ = node.close(DRAIN);
        served
    })?;
    report(args, &traffic, served, result);
    Ok(())
}

/// How requests are answered.
struct Service {
    body: BodyFormat,
    /// Bytes of the longest reply.
    reply_max: u32,
    executed: Executed,
}

impl Service {
    /// Answers one request and says what it was.
    fn answer(&self, mut request: Request) -> Counts {
        let body = request.take_body();
        let mut counts = Counts { requests: 1, in_bytes: body.len() as u64, ..Counts::default() };
        let reply = match self.body {
            BodyFormat::Apus => self.reply(&body, &mut counts),
            BodyFormat::CpNode => cp_node::response(&body),
        };
        let reply = reply.unwrap_or_else(|| {
            counts.wrong = 1;
            self.refusal(&body)
        });
        counts.out_bytes = reply.len() as u64;
        // Fails when the client has gone, which is the client's affair.
        let _ = request.reply(reply);
        counts
    }

    /// The reply to a request of ours; `None` when it is none. Nothing is built before the request was checked.
    fn reply(&self, body: &Bytes, counts: &mut Counts) -> Option<Bytes> {
        let header = Header::from_bytes(body)?;
        let reply = header.answer(body.len() as u32);
        if reply.length > self.reply_max {
            return None;
        }
        if header.tag & VERIFIED == 0 {
            return is_pattern(body, reply.length).then(|| reply_to(body.clone()));
        }
        if !verify::is_right(header, body) {
            return None;
        }
        counts.executed_twice = u64::from(!self.executed.note(header.tag));
        Some(verify::build(reply, reply.length as usize).into())
    }

    /// The reply to what is no request: a header that says so where there is one to answer, otherwise what came.
    fn refusal(&self, body: &Bytes) -> Bytes {
        match (self.body, Header::from_bytes(body)) {
            (BodyFormat::CpNode, _) => cp_node::refusal(),
            // The client expects the length of its request where there is 0, and then knows.
            (BodyFormat::Apus, Some(header)) => {
                let refusal =
                    Header { length: Header::LEN as u32, other_length: 0, tag: header.tag };
                refusal.to_bytes().to_vec().into()
            }
            (BodyFormat::Apus, None) => body.clone(),
        }
    }
}

/// Whether a request follows the pattern: its end, as everywhere; all of it before more is sent than was received.
fn is_pattern(body: &[u8], reply: u32) -> bool {
    let rest = &body[Header::LEN..];
    if reply as usize > body.len() {
        check(rest, Header::LEN)
    } else {
        check_last(rest, body.len()).is_ok()
    }
}

fn serve_tcp(args: &Args, result: &mut ResultFile) -> Result<()> {
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
    let served = watch(args, &traffic)?;
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
        _ => format!("{} and {native}", node.local_addr()),
    }
}

fn announce(args: &Args, what: &str) -> Result<()> {
    say(&args.output, &format!("serving {what}"))
}

/// Prints statistics once a second until it is time to stop; returns how long it took.
fn watch(args: &Args, traffic: &Traffic) -> Result<Duration> {
    let start = Instant::now();
    let end = (args.seconds > 0.0).then(|| start + Duration::from_secs_f64(args.seconds));
    let (mut before, mut shown) = (Counts::default(), start);
    while !interrupt::requested() && end.is_none_or(|end| Instant::now() < end) {
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
        result.warn(format!("{} requests were none or had a wrong byte", counts.wrong));
    }
    if counts.executed_twice > 0 {
        result.warn(format!("{} requests were executed twice", counts.executed_twice));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::build;

    fn service(body: BodyFormat) -> Service {
        Service { body, reply_max: 1 << 20, executed: Executed::default() }
    }

    fn reply(body: Vec<u8>) -> Option<Bytes> {
        service(BodyFormat::Apus).reply(&body.into(), &mut Counts::default())
    }

    #[test]
    fn nothing_longer_than_a_message_is_built() {
        let header = |other_length| Header { tag: 1, length: 0, other_length };
        assert_eq!(reply(build(header(1 << 20), 100)).unwrap().len(), 1 << 20);
        for tag in [1, VERIFIED] {
            let header = Header { tag, ..header(u32::MAX) };
            assert_eq!(reply(verify::build(header, 100)), None);
            assert_eq!(reply(build(header, 100)), None);
        }
    }

    #[test]
    fn a_request_with_a_wrong_byte_gets_less_than_it_is() {
        for tag in [1, VERIFIED | 1] {
            let header = Header { tag, length: 0, other_length: 5000 };
            let good = if tag == 1 { build(header, 400) } else { verify::build(header, 400) };
            assert_eq!(reply(good.clone()).unwrap().len(), 5000);
            for place in [16, 200, 399] {
                let mut wrong = good.clone();
                wrong[place] ^= 1;
                assert_eq!(reply(wrong), None, "{tag}: {place}");
            }
            let refusal = service(BodyFormat::Apus).refusal(&good.into());
            assert_eq!(Header::from_bytes(&refusal).unwrap().other_length, 0);
            assert_eq!(refusal.len(), Header::LEN);
        }
        assert_eq!(reply(vec![7; 15]), None);
        assert_eq!(service(BodyFormat::Apus).refusal(&vec![7; 15].into()).len(), 15);
    }

    #[test]
    fn a_second_execution_is_counted_only_of_what_is_right() {
        let service = service(BodyFormat::Apus);
        let header = Header { tag: VERIFIED | 1, length: 0, other_length: 0 };
        let (good, mut wrong) = (verify::build(header, 100), verify::build(header, 100));
        wrong[50] ^= 1;
        let twice = |body: Vec<u8>| {
            let mut counts = Counts::default();
            service.reply(&body.into(), &mut counts);
            counts.executed_twice
        };
        assert_eq!(
            [twice(wrong.clone()), twice(good.clone()), twice(wrong), twice(good)],
            [0, 0, 0, 1]
        );
    }
}
