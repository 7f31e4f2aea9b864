//! The rate of a byte stream, beside TCP over loopback in the same run: `cargo run --release --example stream_rate`.
//!
//! One thread and node on each of the first two cores. `APUS_LINK=udp` keeps the stream from using shared memory. Prints the median
//! of the rounds, and the lowest and highest.

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use apus::net::cpu;
use apus::{Address, Config, Node, Stream, StreamListener};

/// Length of one write, in bytes.
const WRITE: usize = 64 << 10;
/// Length of a long stream in one round, in bytes.
const LENGTH: usize = 1 << 30;
/// Number of round trips of one round.
const TRIPS: usize = 50_000;
const ROUNDS: usize = 7;

fn main() -> Result<(), Box<dyn Error>> {
    cpu::pin_current_thread(0)?;
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse()?).apply_environment()?;
    let (send, receive) = mpsc::channel();
    let of_server = config.clone();
    thread::spawn(move || serve(&of_server, &send).expect("the server runs"));
    let (apus, tcp) = receive.recv()?;
    let node = Node::start(&config)?;
    let mut stream = Stream::connect(&node, apus)?;
    let mut socket = TcpStream::connect(tcp)?;
    socket.set_nodelay(true)?;
    let (mut rates, mut trips) = ([const { Vec::new() }; 2], [const { Vec::new() }; 2]);
    for _ in 0..=ROUNDS {
        rates[0].push(rate(&mut stream)?);
        rates[1].push(rate(&mut socket)?);
        trips[0].push(trip(&mut stream)?);
        trips[1].push(trip(&mut socket)?);
    }
    println!("route: {:?}", node.route(apus));
    for (index, name) in ["apus", "tcp"].into_iter().enumerate() {
        show(name, "64 KiB writes, Gb/s", &mut rates[index]);
        show(name, "100 B round trip, p50, µs", &mut trips[index]);
    }
    Ok(())
}

/// Serves one stream and one connection in turn.
fn serve(
    config: &Config,
    ready: &mpsc::Sender<(Address, std::net::SocketAddr)>,
) -> Result<(), Box<dyn Error>> {
    cpu::pin_current_thread(1)?;
    let node = Node::start(config)?;
    let listener = StreamListener::bind(&node, 4000)?;
    let tcp = TcpListener::bind("127.0.0.1:0")?;
    ready.send((listener.local_addr(), tcp.local_addr()?))?;
    let (mut stream, _) = listener.accept()?;
    let (mut socket, _) = tcp.accept()?;
    socket.set_nodelay(true)?;
    loop {
        take(&mut stream)?;
        take(&mut socket)?;
        answer(&mut stream)?;
        answer(&mut socket)?;
    }
}

/// Takes a long stream, and reports when the last byte has arrived.
fn take(stream: &mut (impl Read + Write)) -> io::Result<()> {
    let mut buffer = vec![0; WRITE];
    let mut left = LENGTH;
    while left > 0 {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left -= count;
    }
    stream.write_all(&[1])
}

fn answer(stream: &mut (impl Read + Write)) -> io::Result<()> {
    let mut buffer = [0; 100];
    for _ in 0..TRIPS {
        stream.read_exact(&mut buffer)?;
        stream.write_all(&buffer)?;
    }
    Ok(())
}

/// The rate of a long stream to the server, in Gb/s.
fn rate(stream: &mut (impl Read + Write)) -> io::Result<f64> {
    let buffer = vec![7; WRITE];
    let began = Instant::now();
    for _ in 0..LENGTH / WRITE {
        stream.write_all(&buffer)?;
    }
    stream.read_exact(&mut [0; 1])?;
    Ok(LENGTH as f64 * 8.0 / began.elapsed().as_secs_f64() / 1e9)
}

/// The median time of a round trip, in microseconds.
fn trip(stream: &mut (impl Read + Write)) -> io::Result<f64> {
    let mut times = Vec::with_capacity(TRIPS);
    for _ in 0..TRIPS {
        let began = Instant::now();
        stream.write_all(&[3; 100])?;
        stream.read_exact(&mut [0; 100])?;
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[TRIPS / 2])
}

fn show(name: &str, what: &str, figures: &mut Vec<f64>) {
    figures.remove(0); // The first round warms up.
    figures.sort_by(f64::total_cmp);
    let (low, high) = (figures[0], figures[ROUNDS - 1]);
    println!("{name:5} {what:26} {:8.1}  ({low:.1} to {high:.1})", figures[ROUNDS / 2]);
}
