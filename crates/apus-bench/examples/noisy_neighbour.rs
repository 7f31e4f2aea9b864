//! The delay that a process of another user causes to the calls of this one to a server that shares memory with both. Run as root.
//!
//! | the other process | action |
//! |---|---|
//! | `flood` | keeps the given number of calls of 100 B outstanding |
//! | `long` | keeps the given number of calls of 1 MB outstanding |
//! | `hold` | does the same and is then stopped, so that it reads no response and its memory stays full |
//!
//! The calls of this process go one at a time, before the other process begins and while it runs. Beside times, the output has the
//! number of requests of the other process that the server has answered between two of ours. One server answers at once; another
//! one computes for 20 µs for each request of the other process. On two cores, three busy threads delay each other with the first
//! server; with the second, the other process mostly waits.
//!
//! The engine takes at most 64 messages of a neighbour before it looks at the next one, and the service takes requests of its peers
//! in turns (`tests/crowd.rs`, docs/delivery.md). A call waits for the request in service, for one of the other process, and for a
//! core: two of the three processes share one.
//!
//! ```sh
//! cargo run --release -p apus-bench --example noisy_neighbour     # half a minute
//! ```

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader, stdin};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use apus::net::cpu;
use apus::{Address, Client, Config, Flush, Node, Request, Route};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const PORT: u16 = 4000;
/// The uid of `nobody`, whose messages are copied before they are read.
const USER: u32 = 65_534;
/// The body of the measured calls; the answer has the number of other calls that the server has answered.
const OURS: &[u8] = b"ours";
/// Time for which calls are measured.
const TIME: Duration = Duration::from_secs(1);
/// The other process: name, bytes of its requests, calls outstanding, and whether it is stopped.
const OTHERS: [(&str, usize, usize, bool); 6] = [
    ("flood", 100, 1, false),
    ("flood", 100, 16, false),
    ("flood", 100, 256, false),
    ("flood", 100, 4_096, false),
    ("long", 1_000_000, 16, false),
    ("hold", 1_000_000, 64, true),
];

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments[..] {
        [role, micros] if role == "serve" => serve(Duration::from_micros(micros.parse()?)),
        [server, length, window] => crowd(server.parse()?, length.parse()?, window.parse()?),
        _ => ["0", "20"].into_iter().try_for_each(measure),
    }
}

fn measure(micros: &str) -> Outcome<()> {
    let _ = cpu::pin_current_thread(0);
    let server = Program::start(&["serve", micros], None)?;
    let address = Address::new(server.line.parse()?, PORT);
    let node = start_node()?;
    let client = node.client()?;
    client.connect(address).wait()?;
    assert_eq!(node.route(address), Route::Memory);
    let name = format!("others take {micros} µs each");
    println!(
        "{name:28} {:>10} {:>10} {:>10} {:>16}",
        "p50 µs", "p99 µs", "max µs", "others per call"
    );
    for (name, length, window, stops) in OTHERS {
        calls(&client, address)?.print("alone");
        let arguments = [address.host.to_string(), length.to_string(), window.to_string()];
        let other = Program::start(&arguments.each_ref().map(String::as_str), Some(USER))?;
        if stops {
            kill(Pid::from_raw(other.process.id().cast_signed()), Signal::SIGSTOP)?;
        }
        calls(&client, address)?.print(&format!("beside {name} {length} B × {window}"));
    }
    Ok(())
}

/// The times of calls in ascending order, and the number of calls of other processes that were answered meanwhile.
struct Measured {
    times: Vec<Duration>,
    others: u64,
}

impl Measured {
    fn print(&self, name: &str) {
        let calls = self.times.len();
        let at = |rank: usize| self.times[rank.min(calls - 1)].as_secs_f64() * 1e6;
        let (p50, p99, max) = (at(calls / 2), at(calls * 99 / 100), at(calls));
        let share = self.others as f64 / calls as f64;
        println!("{name:28} {p50:10.2} {p99:10.1} {max:10.0} {share:16.2}");
    }
}

fn calls(client: &Client, address: Address) -> Outcome<Measured> {
    let answered = || -> Outcome<u64> {
        let answer = client.call(address, OURS).wait()?;
        Ok(u64::from_le_bytes(answer[..].try_into()?))
    };
    let (first, start) = (answered()?, Instant::now());
    let (mut times, mut last) = (Vec::new(), first);
    while start.elapsed() < TIME {
        let begun = Instant::now();
        last = answered()?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    Ok(Measured { times, others: last - first })
}

fn start_node() -> Outcome<Node> {
    let mut config = Config::new();
    config.apply_environment()?.listen("127.0.0.1:0".parse()?);
    Ok(Node::start(&config)?)
}

/// Another process, and its first line. It ends with its input.
struct Program {
    process: Child,
    line: String,
}

impl Program {
    fn start(arguments: &[&str], user: Option<u32>) -> Outcome<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        let mut process = command.spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        Ok(Self { process, line: line.trim_end().to_owned() })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Answers requests. An answer to one of ours has the number of the others, each of which takes some time.
fn serve(takes: Duration) -> Outcome<()> {
    let node = start_node()?;
    let service = node.bind(PORT)?;
    println!("{}", node.local_addr());
    thread::spawn(move || {
        let _ = cpu::pin_current_thread(1);
        let mut others = 0u64;
        service.serve(|mut request: Request| {
            let body = request.take_body();
            let answer = match &body[..] {
                OURS => others.to_le_bytes().to_vec().into(),
                _ => {
                    let begun = Instant::now();
                    while begun.elapsed() < takes {
                        std::hint::spin_loop();
                    }
                    others += 1;
                    body
                }
            };
            let _ = request.reply(answer); // Its client may have been killed.
        });
    });
    stdin().lines().for_each(drop);
    Ok(())
}

/// Keeps calls outstanding until it is killed.
fn crowd(server: SocketAddr, length: usize, window: usize) -> Outcome<()> {
    // With two cores, it shares one with the process that measures.
    let _ = cpu::pin_current_thread(2).or_else(|_| cpu::pin_current_thread(0));
    let node = start_node()?;
    let client = node.client()?;
    let address = Address::new(server, PORT);
    client.connect(address).wait()?;
    let body = apus::Bytes::from(vec![7; length]);
    for call in 0..window {
        client.send(address, body.clone(), call as u64, Flush::Now)?;
    }
    println!("begun");
    loop {
        client.recv()?;
        client.send(address, body.clone(), 0, Flush::Now)?;
    }
}
