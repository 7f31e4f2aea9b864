//! The cost of idle neighbours: the time of a call to one of 1,000 nodes of this host that share memory with the caller, the time
//! of a call to the same node by a caller without other neighbours, and the memory of the 1,000 pairs.
//!
//! The servers are nodes of a second process, each with a thread that answers. The two callers are nodes of this process, which
//! take turns, so that both figures come from the same time and the same server. Memory is the proportional set size of both
//! processes, which counts shared pages once, and is read when the pairs have been idle for two seconds.
//!
//! ```sh
//! ulimit -n 20000
//! cargo run --release -p apus-bench --example many_neighbours          # 1,000 nodes, a quarter of a minute
//! cargo run --release -p apus-bench --example many_neighbours -- 100
//! ```

use std::env;
use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Lines, stdin};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use apus::net::cpu;
use apus::{Address, Bytes, Client, Config, Links, Node, Request, Route};

/// Number of calls of a caller before the other one has its turn.
const CALLS: usize = 20_000;
/// Number of turns of each caller.
const ROUNDS: usize = 15;
const BODY: Bytes = Bytes::from_static(&[7; 100]);
const PORT: u16 = 4000;
/// Time of rest before the memory is read; longer than a pair keeps memory for long messages.
const IDLE: Duration = Duration::from_secs(2);

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments[..] {
        [role, peers] if role == "serve" => serve(peers.parse()?),
        [peers] => measure(peers.parse()?),
        _ => measure(1_000),
    }
}

fn measure(peers: usize) -> Outcome<()> {
    let (servers, addresses) = Servers::start(peers)?;
    let (one_node, node) = (start_node(Links::Auto)?, start_node(Links::Auto)?);
    let (few, many) = (one_node.client()?, node.client()?);
    let called = addresses[0];
    for client in [&few, &many] {
        meet(client, called)?;
        p50(client, called)?; // Neither is the first to call.
    }
    // Each server has answered a call before, so that the memory for its first call does not count.
    let stranger = start_node(Links::Udp)?.client()?;
    for &address in &addresses {
        stranger.call(address, BODY).wait()?;
    }
    thread::sleep(IDLE);
    let before = servers.memory()?;
    let begun = Instant::now();
    addresses[1..].iter().try_for_each(|&address| meet(&many, address))?;
    let met = begun.elapsed();
    let shares_memory = |address: &&Address| node.route(**address) == Route::Memory;
    let pairs = addresses.iter().filter(shares_memory).count();
    thread::sleep(IDLE);
    let memory = servers.memory()?.since(before);
    println!("{pairs} nodes share memory with the caller, after {met:.2?}");
    let each = memory.all / addresses[1..].len() as u64;
    println!(
        "idle: {} more pairs take {} KiB of both processes, {each} KiB each; {} KiB of all is shared",
        addresses[1..].len(),
        memory.all,
        memory.shared
    );
    cpu::pin_current_thread(0)?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push([p50(&few, called)?, p50(&many, called)?]);
    }
    let [one, all] = [0, 1].map(|caller| median(rounds.iter().map(|round| round[caller])));
    let ratio = median(rounds.iter().map(|[one, all]| all.as_nanos() * 1_000 / one.as_nanos()));
    println!(
        "call of {} B, p50: {one:?} with one neighbour, {all:?} with {pairs}; the median of the ratios is {}.{:03}",
        BODY.len(),
        ratio / 1_000,
        ratio % 1_000
    );
    Ok(())
}

fn start_node(link: Links) -> Outcome<Node> {
    let mut config = Config::new();
    config.apply_environment()?.listen("127.0.0.1:0".parse()?).link(link);
    Ok(Node::start(&config)?)
}

/// Shares memory with a node.
fn meet(client: &Client, address: Address) -> Outcome<()> {
    client.connect(address).wait()?;
    client.call(address, BODY).wait()?;
    Ok(())
}

/// The median time of calls, one at a time.
fn p50(client: &Client, address: Address) -> Outcome<Duration> {
    let mut times = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let begun = Instant::now();
        client.call(address, BODY).wait()?;
        times.push(begun.elapsed());
    }
    Ok(median(times))
}

fn median<T: Ord + Copy>(values: impl IntoIterator<Item = T>) -> T {
    let mut values: Vec<T> = values.into_iter().collect();
    values.sort_unstable();
    values[values.len() / 2]
}

/// The process of the servers.
struct Servers {
    process: Child,
    /// Kept open: the process ends with its input.
    _output: Lines<BufReader<ChildStdout>>,
}

impl Servers {
    fn start(peers: usize) -> Outcome<(Self, Vec<Address>)> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["serve", &peers.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let mut output = BufReader::new(process.stdout.take().ok_or("no output")?).lines();
        let mut addresses = Vec::with_capacity(peers);
        for line in output.by_ref().take(peers) {
            addresses.push(Address::new(line?.parse()?, PORT));
        }
        if addresses.len() < peers.max(2) {
            return Err("not all servers have started: two or more are needed, and 'ulimit -n 20000' for 1,000".into());
        }
        Ok((Self { process, _output: output }, addresses))
    }

    /// The memory of this process and of the servers' process.
    fn memory(&self) -> Outcome<Memory> {
        let [ours, theirs] = [std::process::id(), self.process.id()].map(Memory::of);
        let (ours, theirs) = (ours?, theirs?);
        Ok(Memory { all: ours.all + theirs.all, shared: ours.shared + theirs.shared })
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Memory of processes, in KiB.
#[derive(Clone, Copy)]
struct Memory {
    all: u64,
    /// The part of it that is shared by descriptors.
    shared: u64,
}

impl Memory {
    fn of(process: u32) -> Outcome<Self> {
        let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
        let field = |name: &str| -> Outcome<u64> {
            let value = text.lines().find_map(|line| line.strip_prefix(name));
            Ok(value.ok_or(name)?.trim().trim_end_matches(" kB").parse()?)
        };
        Ok(Self { all: field("Pss:")?, shared: field("Pss_Shmem:")? })
    }

    fn since(self, before: Self) -> Self {
        let Self { all, shared } = self;
        Self { all: all.saturating_sub(before.all), shared: shared.saturating_sub(before.shared) }
    }
}

/// Runs many nodes until the input ends.
fn serve(peers: usize) -> Outcome<()> {
    let mut nodes = Vec::with_capacity(peers);
    for number in 0..peers {
        let node = start_node(Links::Auto)?;
        let service = node.bind(PORT)?;
        thread::Builder::new().stack_size(64 << 10).spawn(move || {
            if number == 0 {
                let _ = cpu::pin_current_thread(1); // Some machines have one core only.
            }
            service.serve(|mut request: Request| {
                let body = request.take_body();
                let _ = request.reply(body); // The caller may have ended.
            });
        })?;
        println!("{}", node.local_addr());
        nodes.push(node);
    }
    stdin().lines().for_each(drop);
    Ok(())
}
