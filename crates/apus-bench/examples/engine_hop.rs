//! The cost of the path to a shared engine and back: calls of 100 bytes that the engine itself refuses, because their port is not
//! served.
//!
//! The process and the engine, which is a process of its own, are pinned to the first two CPUs. Their threads poll without a pause.
//! Then the engine's delivery is `base`, so that its CPU time is the time of its work.
//!
//! ```sh
//! cargo run --release --example engine_hop
//! ```

use std::env;
use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use apus::net::cpu;
use apus::{
    Address, Bytes, CallError, Client, Config, Delivery, EngineAccess, EngineAt, Flush, Node,
    SharedEngine,
};

const CALLS: usize = 200_000;
const OUTSTANDING: usize = 64;
const NOBODY: u16 = 4000;
const BODY: Bytes = Bytes::from_static(&[7; 100]);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [socket, delivery] = &arguments[..] {
        return be_engine(Path::new(socket), delivery.parse()?);
    }
    cpu::pin_current_thread(0)?;
    let (engine, client, to) = start("fullbusy")?;
    let mut times = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let begun = Instant::now();
        assert_eq!(client.call(to, BODY).wait(), Err(CallError::NoSuchPort));
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    println!("one at a time: p50 {:?}, p99 {:?}", times[CALLS / 2], times[CALLS * 99 / 100]);
    drop((client, engine));
    // An engine that sleeps when it is idle uses no time for polling.
    let (engine, client, to) = start("base")?;
    let (begun, used) = (Instant::now(), cpu_time(engine.id())?);
    many(&client, to)?;
    let (took, used) = (begun.elapsed(), cpu_time(engine.id())? - used);
    let calls = f64::from(u32::try_from(CALLS)?);
    println!(
        "{OUTSTANDING} at a time: {:.0} calls per second, {:.0} ns of the engine's CPU time each",
        calls / took.as_secs_f64(),
        used.as_secs_f64() * 1e9 / calls
    );
    Ok(())
}

/// An engine, a client that uses it, and an address that the engine refuses.
fn start(delivery: &str) -> Result<(Engine, Client, Address), Box<dyn Error>> {
    let socket = env::temp_dir().join(format!("apus-hop-{}-{delivery}", std::process::id()));
    let mut command = Command::new(env::current_exe()?);
    command.arg(&socket).arg(delivery).stdout(Stdio::piped());
    let mut engine = Engine { process: command.spawn()?, socket };
    let mut line = String::new();
    let output = engine.process.stdout.take().ok_or("no output")?;
    BufReader::new(output).read_line(&mut line)?;
    let to = Address::new(line.trim_end().parse()?, NOBODY);
    let mut config = Config::new();
    config.engine(EngineAt::Socket(engine.socket.clone())).delivery(Delivery::fullbusy());
    Ok((engine, Node::start(&config)?.client()?, to))
}

struct Engine {
    process: Child,
    socket: PathBuf,
}

impl Engine {
    fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_file(&self.socket);
    }
}

/// Keeps [`OUTSTANDING`] calls under way.
fn many(client: &Client, to: Address) -> Result<(), Box<dyn Error>> {
    for _ in 0..CALLS / OUTSTANDING {
        for n in 0..OUTSTANDING {
            let flush = if n + 1 == OUTSTANDING { Flush::Now } else { Flush::Later };
            client.send(to, BODY, 0, flush)?;
        }
        for _ in 0..OUTSTANDING {
            assert_eq!(client.recv()?.result, Err(CallError::NoSuchPort));
        }
    }
    Ok(())
}

fn cpu_time(process: u32) -> Result<Duration, Box<dyn Error>> {
    let mut nanos = 0;
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        nanos += text.split_whitespace().next().ok_or("no time")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanos))
}

fn be_engine(socket: &Path, delivery: Delivery) -> Result<(), Box<dyn Error>> {
    cpu::pin_current_thread(1)?;
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse()?).delivery(delivery);
    let engine = SharedEngine::start(&config, &EngineAccess::new(socket))?;
    println!("{}", engine.local_addr());
    engine.run();
    Ok(())
}
