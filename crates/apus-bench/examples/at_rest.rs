//! The cost of an idle node, the memory that it keeps after many calls, and its errors about a dead peer.
//!
//! `cargo run --release -p apus-bench --example at_rest` takes a quarter of a minute, on loopback.

use std::error::Error;
use std::net::UdpSocket;
use std::time::{Duration, Instant};
use std::{fs, thread};

use apus::net::cpu;
use apus::{Address, Client, Config, Flush, Node};

const IDLE: Duration = Duration::from_secs(5);
const OUTSTANDING: u64 = 256;
const DEAD_CALLS: u64 = 10_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse()?);
    let (server, client_node) = (Node::start(&config)?, Node::start(&config)?);
    let service = server.bind(4000)?;
    let at = Address::new(server.local_addr(), service.number());
    thread::spawn(move || {
        service.serve(|mut request| {
            let body = request.take_body();
            let _ = request.reply(body);
        });
    });
    let client = client_node.client()?;

    client.call(at, "hello").wait()?;
    thread::sleep(Duration::from_secs(1));
    let before = cpu::process_time();
    thread::sleep(IDLE);
    let used = (cpu::process_time() - before).as_secs_f64() / IDLE.as_secs_f64();
    println!("idle: two nodes, one with a thread that waits: {:.3} % of a core", 100.0 * used);

    let mut done = 0;
    for goal in [100_000, 1_000_000, 5_000_000] {
        call_until(&client, at, &mut done, goal)?;
        println!("memory: both nodes after {goal} calls: {}", resident()?);
    }
    dead_peer(&client)
}

/// Makes calls with 100 B, every hundredth with 20 kB, until `goal` of them are done.
fn call_until(
    client: &Client,
    at: Address,
    done: &mut u64,
    goal: u64,
) -> Result<(), Box<dyn Error>> {
    let mut sent = *done;
    let mut batch = Vec::new();
    while *done < goal {
        while sent < goal && sent - *done < OUTSTANDING {
            sent += 1;
            let length = if sent.is_multiple_of(100) { 20_000 } else { 100 };
            client.send(at, vec![1; length], sent, Flush::Later)?;
        }
        *done += client.recv_many(&mut batch, OUTSTANDING as usize, None)? as u64;
        for response in batch.drain(..) {
            response.result?;
        }
    }
    Ok(())
}

/// Calls a peer that never answers.
fn dead_peer(client: &Client) -> Result<(), Box<dyn Error>> {
    let silent = UdpSocket::bind("127.0.0.1:0")?;
    let at = Address::new(silent.local_addr()?, 4000);
    let start = Instant::now();
    for call in 0..DEAD_CALLS {
        client.send(at, vec![1; 100 + (call % 50) as usize * 1_000], call, Flush::Later)?;
    }
    let mut first = None;
    for ended in 1..=DEAD_CALLS {
        let Err(error) = client.recv()?.result else {
            return Err("a dead peer answered".into());
        };
        let first = *first.get_or_insert_with(|| start.elapsed());
        if ended == DEAD_CALLS {
            let last = start.elapsed();
            println!(
                "dead peer: {DEAD_CALLS} calls failed after {first:.2?} to {last:.2?}: {error}"
            );
        }
    }
    Ok(())
}

/// Resident memory of this process, as the kernel reports it.
fn resident() -> Result<String, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    Ok(line.ok_or("the kernel does not say")?.trim().to_owned())
}
