//! One run: threads with their connections, and the sum of their results.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use apus_net::cpu;

use super::config::GeneratorConfig;
use super::connections::Connections;
use super::generator::{self, Edge, OfferedLoad, Starts};
use super::outcome::Outcome;
use super::records::Records;
use super::server::ServerAddress;

/// Number of connections that set the records.
const LOADING_CONNECTIONS: u32 = 4;

/// Upper bound on outstanding requests on each of these connections.
const LOADING_DEPTH: u32 = 64;

/// Sets every record once.
///
/// # Errors
/// The errors of [`generator::load`], and if the server cannot be reached.
pub(super) fn load(
    server: &ServerAddress,
    options: &GeneratorConfig,
    records: &Arc<Records>,
) -> Result<()> {
    let protocol = options.protocol;
    let mut connections =
        Connections::open(server, protocol, LOADING_CONNECTIONS, LOADING_DEPTH, records)?;
    generator::load(&mut connections)
}

/// A load whose connections are open.
pub(super) struct Ready {
    threads: Vec<(Connections, OfferedLoad, Option<usize>)>,
}

impl Ready {
    /// Opens the connections of a load of `qps` queries per second; 0 is a closed loop. `seed` is the seed of times and keys.
    ///
    /// # Errors
    /// If the kernel or the server refuses.
    pub(super) fn new(
        server: &ServerAddress,
        options: &GeneratorConfig,
        records: &Arc<Records>,
        qps: f64,
        seed: u64,
    ) -> Result<Self> {
        let threads = options.threads;
        let starts = if qps > 0.0 {
            Starts::Open { arrival: options.arrival, qps: qps / f64::from(threads) }
        } else {
            Starts::Closed
        };
        let thread = |thread: u32| {
            let count =
                options.connections / threads + u32::from(thread < options.connections % threads);
            let mut connections =
                Connections::open(server, options.protocol, count, options.depth, records)?;
            if options.stamps {
                connections.stamp()?;
            }
            let offer = OfferedLoad {
                starts,
                update: options.update,
                warm_up: Duration::from_secs_f64(options.warmup),
                duration: Duration::from_secs_f64(options.seconds),
                seed: seed.wrapping_mul(1000).wrapping_add(thread.into()),
                wait: options.wait,
                yields: is_crowded(options),
            };
            let pins = &options.pin;
            let cpu = (!pins.is_empty()).then(|| pins[thread as usize % pins.len()]);
            Ok((connections, offer, cpu))
        };
        Ok(Self { threads: (0..threads).map(thread).collect::<Result<_>>()? })
    }

    /// Offers the load from now on.
    ///
    /// # Errors
    /// The errors of [`generator::offer`], and if the kernel refuses a thread or a CPU.
    pub(super) fn run(self) -> Result<Outcome> {
        self.run_with(&|_| Ok(()))
    }

    /// Offers the load. The first thread calls `edge` at both ends of the counted time.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run) and of `edge`.
    pub(super) fn run_with(self, edge: &(dyn Fn(Edge) -> Result<()> + Sync)) -> Result<Outcome> {
        let start = Instant::now();
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for (place, (mut connections, offer, cpu)) in self.threads.into_iter().enumerate() {
                let work = move || {
                    if let Some(cpu) = cpu {
                        cpu::pin_current_thread(cpu)
                            .with_context(|| format!("cannot stay on CPU {cpu}"))?;
                    }
                    generator::offer(&mut connections, &offer, start, |at| match place {
                        0 => edge(at),
                        _ => Ok(()),
                    })
                };
                let thread = thread::Builder::new().name("load".to_owned());
                threads.push(thread.spawn_scoped(scope, work).context("cannot start a thread")?);
            }
            let mut whole = Outcome::default();
            for thread in threads {
                let part = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                whole.merge(part?);
            }
            Ok(whole)
        })
    }
}

/// Whether spinning threads leave no CPU of this process for other work.
pub(super) fn is_crowded(options: &GeneratorConfig) -> bool {
    options.threads as usize >= cpu::allowed().len()
}
