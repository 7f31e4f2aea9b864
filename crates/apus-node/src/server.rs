//! `apus node server`: answers load.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Error, Result, ensure};
use apus::net::cpu;
use apus::{Bytes, Links, Node, Port, Request, Scheme};
use apus_load::{ResultFile, Row};

use super::TICK;
use super::link::{BodyFormat, LinkOptions, Protocol};
use crate::arguments;
use crate::cp_node;
use crate::message::{MessageHeader, check, check_last};
use crate::traffic::{Counts, Traffic};
use crate::transport::interface::Server;
use crate::transport::over_apus::reply_to;
use crate::transport::tcp_epoll::EpollServer;
use crate::verify::{self, Executed, VERIFIED};
use apus_load::misuse::Misuse;
use apus_load::stop;

/// The highest Homa port of a server; higher ports are for clients.
const HOMA_PORT_MAX: u32 = 32_767;

/// Time in which a stopping server finishes its responses.
const DRAIN: Duration = Duration::from_millis(500);

/// Configuration of the server.
#[derive(Clone, Debug, clap::Args)]
pub struct ServerConfig {
    /// How the node reaches the network
    #[command(flatten)]
    pub link: LinkOptions,
    /// IP address and UDP port of the node; TCP uses only the IP address
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:20146")]
    pub listen: SocketAddr,
    /// First port; with --protocol tcp, 0 lets the system choose
    #[arg(long, value_name = "PORT", default_value_t = 4000)]
    pub first_port: u16,
    /// Number of ports, from the first on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub ports: u16,
    /// Threads that serve each port
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub port_threads: u16,
    /// CPU to which all threads are pinned
    #[arg(long, value_name = "CPU")]
    pub pin: Option<usize>,
    /// Seconds until the end; 0 runs until Ctrl-C or SIGTERM
    #[arg(long, value_name = "S", allow_negative_numbers = true, default_value_t = 0.0, value_parser = arguments::seconds_or_endless)]
    pub seconds: f64,
}

impl ServerConfig {
    /// Refuses contradictory options.
    ///
    /// # Errors
    /// If options contradict each other: with the options and the allowed values.
    pub fn check(&self) -> Result<()> {
        self.link.check()?;
        let (first, ports) = (self.first_port, self.ports);
        let allowed = match self.link.protocol {
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
}

/// Serves until the time is over or a stop is requested, and adds the results to `result`. `say` gets a line with the addresses,
/// then a line of statistics every second.
///
/// # Errors
/// If an address or port is in use, not local or not allowed, or a server's thread ends.
pub fn run(
    options: &ServerConfig,
    result: &mut ResultFile,
    say: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<()> {
    match options.link.protocol {
        Protocol::Apus => serve_apus(options, result, say),
        Protocol::Tcp => serve_tcp(options, result, say),
    }
}

fn serve_apus(
    options: &ServerConfig,
    result: &mut ResultFile,
    say: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<()> {
    let mut config = options.link.config(options.listen)?;
    let answers = Answers {
        body: options.link.body,
        reply_max: config.message_limit(),
        executed: Executed::default(),
    };
    let node = options.link.start_with(&mut config)?;
    let traffic = Traffic::default();
    let ports = options.first_port..=options.first_port + (options.ports - 1);
    let services = ports.map(|port| Ok(node.bind(port)?)).collect::<Result<Vec<Port>>>()?;
    say(&format!(
        "serving {} ports {}",
        places(options, &node),
        port_range(options.first_port, options.ports)
    ))?;
    for file in apus::missing_files() {
        say(&format!("the server runs without {file}"))?;
    }
    let served = thread::scope(|scope| {
        for service in &services {
            for _ in 0..options.port_threads {
                scope.spawn(|| service.serve(|request| traffic.add(answers.answer(request))));
            }
        }
        let served = watch(options, &traffic, &[], say);
        // Responses that do not end in time are lost; clients should stop first.
        let _ = node.close(DRAIN);
        served
    })?;
    report(options, &traffic, served, result);
    Ok(())
}

/// The server's way of answering requests.
struct Answers {
    body: BodyFormat,
    /// Upper bound on bytes of a reply.
    reply_max: u32,
    executed: Executed,
}

impl Answers {
    /// Answers one request. Returns its counts.
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
        // Fails if the client is gone, which concerns only the client.
        let _ = request.reply(reply);
        counts
    }

    /// The reply to a request; `None` if it is malformed. No reply is built before the request is checked.
    fn reply(&self, body: &Bytes, counts: &mut Counts) -> Option<Bytes> {
        let header = MessageHeader::from_bytes(body)?;
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

    /// The reply to a malformed request: a header that marks a refusal if the request has a header, otherwise an echo.
    fn refusal(&self, body: &Bytes) -> Bytes {
        match (self.body, MessageHeader::from_bytes(body)) {
            (BodyFormat::CpNode, _) => cp_node::refusal(),
            // A length of 0 does not match the client's request, so the client detects the refusal.
            (BodyFormat::Apus, Some(header)) => {
                let refusal = MessageHeader {
                    length: MessageHeader::LEN as u32,
                    other_length: 0,
                    tag: header.tag,
                };
                refusal.to_bytes().to_vec().into()
            }
            (BodyFormat::Apus, None) => body.clone(),
        }
    }
}

/// Whether a request follows the pattern: its last byte, or every byte if the reply is longer than the request.
fn is_pattern(body: &[u8], reply: u32) -> bool {
    let rest = &body[MessageHeader::LEN..];
    if reply as usize > body.len() {
        check(rest, MessageHeader::LEN)
    } else {
        check_last(rest, body.len()).is_ok()
    }
}

fn serve_tcp(
    options: &ServerConfig,
    result: &mut ResultFile,
    say: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<()> {
    let traffic = Arc::new(Traffic::default());
    let (mut addresses, mut threads) = (Vec::new(), Vec::new());
    for port in 0..options.ports {
        let port = if options.first_port == 0 { 0 } else { options.first_port + port };
        let address = SocketAddr::new(options.listen.ip(), port);
        let first = EpollServer::listen(address, Arc::clone(&traffic))?;
        addresses.push(first.address());
        for _ in 1..options.port_threads {
            threads.push(first.share()?.spawn()?);
        }
        threads.push(first.spawn()?);
    }
    say(&format!("serving {}", addresses.join(" ")))?;
    let served = watch(options, &traffic, &threads, say)?;
    report(options, &traffic, served, result);
    Ok(())
}

fn port_range(first: u16, ports: u16) -> String {
    if ports == 1 { first.to_string() } else { format!("{first}-{}", first + (ports - 1)) }
}

/// The addresses of the node, on each of its links.
fn places(options: &ServerConfig, node: &Node) -> String {
    let native = match options.listen.ip() {
        IpAddr::V4(ip) => format!("{}{ip}", Scheme::HOMA),
        IpAddr::V6(ip) => format!("{}[{ip}]", Scheme::HOMA),
    };
    match options.link.link {
        Links::Auto | Links::Udp | Links::Xdp => node.local_addr().to_string(),
        Links::Raw => native,
        _ => format!("{} and {native}", node.local_addr()),
    }
}

/// Prints statistics once a second until the end of the run. Returns the elapsed time.
///
/// # Errors
/// If one of the threads has ended.
fn watch(
    options: &ServerConfig,
    traffic: &Traffic,
    threads: &[JoinHandle<Error>],
    say: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<Duration> {
    let start = Instant::now();
    let end = (options.seconds > 0.0).then(|| start + Duration::from_secs_f64(options.seconds));
    let (mut before, mut shown) = (Counts::default(), start);
    while !stop::requested() && end.is_none_or(|end| Instant::now() < end) {
        thread::sleep(TICK);
        ensure!(!threads.iter().any(JoinHandle::is_finished), "a server's thread ended");
        if shown.elapsed() >= Duration::from_secs(1) {
            let now = traffic.counts();
            let interval = now - before;
            if interval.requests > 0 {
                say(&interval.line(shown.elapsed().as_secs_f64()))?;
            }
            (before, shown) = (now, Instant::now());
        }
    }
    Ok(start.elapsed())
}

fn report(options: &ServerConfig, traffic: &Traffic, served: Duration, result: &mut ResultFile) {
    let counts = traffic.counts();
    let seconds = served.as_secs_f64();
    let gbps = |bytes: u64| bytes as f64 * 8.0 / 1e9 / seconds;
    let mut row = Row::new(options.link.transport()).set("bench", "node server");
    if options.link.protocol == Protocol::Apus {
        row.put("delivery", options.link.delivery.to_string());
    }
    result.rows.push(
        row.set("ports", u32::from(options.ports))
            .set("threads", u32::from(options.port_threads))
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
        result.warn(format!("{} requests were malformed or had a wrong byte", counts.wrong));
    }
    if counts.executed_twice > 0 {
        result.warn(format!("{} requests were executed twice", counts.executed_twice));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::build;

    fn answers(body: BodyFormat) -> Answers {
        Answers { body, reply_max: 1 << 20, executed: Executed::default() }
    }

    fn reply(body: Vec<u8>) -> Option<Bytes> {
        answers(BodyFormat::Apus).reply(&body.into(), &mut Counts::default())
    }

    #[test]
    fn nothing_longer_than_a_message_is_built() {
        let header = |other_length| MessageHeader { tag: 1, length: 0, other_length };
        assert_eq!(reply(build(header(1 << 20), 100)).unwrap().len(), 1 << 20);
        for tag in [1, VERIFIED] {
            let header = MessageHeader { tag, ..header(u32::MAX) };
            assert_eq!(reply(verify::build(header, 100)), None);
            assert_eq!(reply(build(header, 100)), None);
        }
    }

    #[test]
    fn a_request_with_a_wrong_byte_gets_less_than_it_is() {
        for tag in [1, VERIFIED | 1] {
            let header = MessageHeader { tag, length: 0, other_length: 5000 };
            let good = if tag == 1 { build(header, 400) } else { verify::build(header, 400) };
            assert_eq!(reply(good.clone()).unwrap().len(), 5000);
            for place in [16, 200, 399] {
                let mut wrong = good.clone();
                wrong[place] ^= 1;
                assert_eq!(reply(wrong), None, "{tag}: {place}");
            }
            let refusal = answers(BodyFormat::Apus).refusal(&good.into());
            assert_eq!(MessageHeader::from_bytes(&refusal).unwrap().other_length, 0);
            assert_eq!(refusal.len(), MessageHeader::LEN);
        }
        assert_eq!(reply(vec![7; 15]), None);
        assert_eq!(answers(BodyFormat::Apus).refusal(&vec![7; 15].into()).len(), 15);
    }

    #[test]
    fn a_second_execution_is_counted_only_of_what_is_right() {
        let answers = answers(BodyFormat::Apus);
        let header = MessageHeader { tag: VERIFIED | 1, length: 0, other_length: 0 };
        let (good, mut wrong) = (verify::build(header, 100), verify::build(header, 100));
        wrong[50] ^= 1;
        let twice = |body: Vec<u8>| {
            let mut counts = Counts::default();
            answers.reply(&body.into(), &mut counts);
            counts.executed_twice
        };
        assert_eq!(
            [twice(wrong.clone()), twice(good.clone()), twice(wrong), twice(good)],
            [0, 0, 0, 1]
        );
    }
}
