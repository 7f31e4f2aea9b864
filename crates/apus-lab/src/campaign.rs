//! Measures the settings of a plan in turn, in a lab or on a real cluster.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use apus_load::progress::Progress;
use apus_load::record::{command_line, read_kept, record};
use apus_load::stop::{self, Stopped};
use apus_load::{Latency, Machine, ResultFile, Workload};
use apus_node::message::MessageHeader;

use crate::agent::{ArrivalProcess, Assignment, Load, SILENCE, Transport};
use crate::agents::Agents;
use crate::figures;
use crate::ideal::{Ideal, Wire};
use crate::kernel::Processors;
use crate::plan::{Contender, LoadLevel, Pattern, Setting};
use crate::queues::Queues;
use crate::rival::TcpRival;
use crate::trial::{Idle, Trial};

/// Upper bound on outstanding calls of each host in an open loop.
const OPEN_MAX: u32 = 5_000;

/// Outstanding calls of each host at `load = "max"`.
const CLOSED: u32 = 8;

/// Number of lengths measured on the idle network, one from the middle of each decile of the messages.
const LENGTHS: u32 = 10;

/// Length of the smallest call. Its time on the idle network is the base of all ideal times.
const SMALLEST: u32 = MessageHeader::LEN as u32;

/// One sample of the processors in this many also samples the queues, which takes five milliseconds of a processor.
const QUEUES_EVERY: u32 = 3;

/// Duration of a trial of TCP's connections, as a share of the run.
const CHOICE_SHARE: f64 = 0.5;

/// Upper bound on that duration, in seconds.
const CHOICE_MAX_S: f64 = 20.0;

/// The hosts and links of a campaign.
pub(crate) trait Testbed {
    /// Creates the setting's hosts and links. Returns the hosts' addresses.
    ///
    /// # Errors
    /// If the testbed cannot provide them.
    fn prepare(&mut self, setting: &Setting) -> Result<Vec<IpAddr>>;

    /// Sets the lower bound on TCP's retransmission timeout on all hosts; the kernel's without one.
    ///
    /// # Errors
    /// If it cannot be set.
    fn set_rto_min(&mut self, ms: Option<u32>) -> Result<()>;

    /// The command that runs `apus lab-host` on a host.
    fn command(&self, place: usize) -> Command;

    /// The host's own processor, if it has one.
    fn processor(&self, place: usize) -> Option<usize>;

    /// The switch's current queues, if they are visible.
    ///
    /// # Errors
    /// If they should be visible and are not.
    fn queues(&self) -> Result<Option<Queues>>;

    /// Whether all hosts share this machine's processors, which then may limit them.
    fn shares_processors(&self) -> bool;
}

/// A campaign: a testbed and the directory of its results.
pub(crate) struct Campaign<'a, T> {
    testbed: T,
    /// Number of trials so far.
    trials: u16,
    progress: &'a dyn Progress,
    /// Directory with a result for each setting. Existing results are not measured again.
    dir: Option<PathBuf>,
}

impl<'a, T: Testbed> Campaign<'a, T> {
    /// A campaign on a testbed. `dir` keeps a result for each setting.
    pub(crate) fn new(testbed: T, dir: Option<PathBuf>, progress: &'a dyn Progress) -> Self {
        Self { testbed, trials: 0, progress, dir }
    }

    /// Measures all settings. Returns their results as one.
    ///
    /// # Errors
    /// If a host or link fails or a file cannot be written. After a signal, the result has the figures measured so far and a
    /// warning.
    pub(crate) fn run(&mut self, settings: &[Setting]) -> Result<ResultFile> {
        let all_steps: usize = settings.iter().map(steps).sum();
        self.progress.lengthen(all_steps as u64);
        if let Some(dir) = &self.dir {
            std::fs::create_dir_all(dir)
                .with_context(|| format!("cannot create `{}`", dir.display()))?;
        }
        let mut parts = Vec::new();
        for (setting, (path, kept)) in settings.iter().zip(self.kept(settings.len())?) {
            let part = match kept {
                Some(part) => {
                    (0..steps(setting)).for_each(|_| self.progress.done());
                    part
                }
                None => self.measure(setting, path.as_deref())?,
            };
            parts.push(part);
            if stop::requested() {
                break;
            }
        }
        // Each part had its own watch over the machine.
        let mut whole = ResultFile::new(&command_line(), Machine::here());
        for part in parts {
            part.warnings.into_iter().for_each(|warning| whole.warn(warning));
            whole.rows.extend(part.rows);
            whole.series.extend(part.series);
        }
        Ok(whole)
    }

    /// Path and kept result of each setting. All results are read before the first measurement.
    fn kept(&self, settings: usize) -> Result<Vec<(Option<PathBuf>, Option<ResultFile>)>> {
        let result = |number: usize| {
            let path = self.dir.as_ref().map(|dir| dir.join(format!("{number:03}.json")));
            let kept = path.as_deref().filter(|path| path.exists()).map(read_kept).transpose()?;
            Ok((path, kept))
        };
        (0..settings).map(result).collect()
    }

    fn measure(&mut self, setting: &Setting, path: Option<&Path>) -> Result<ResultFile> {
        let part = record(|result| self.one(setting, result))?;
        // A result that was cut short is not kept.
        if let Some(path) = path.filter(|_| !stop::requested()) {
            part.write(path)?;
        }
        Ok(part)
    }

    /// Measures one setting with all repetitions and transports.
    fn one(&mut self, setting: &Setting, result: &mut ResultFile) -> Result<()> {
        let hosts = self.testbed.prepare(setting)?;
        self.progress.begin(&format!("{}: idle network", setting.name()));
        let idle = self.idle(setting, &hosts, result)?;
        self.progress.done();
        if setting.load == LoadLevel::Unloaded {
            figures::unloaded(setting, &idle, result);
            return Ok(());
        }
        let mut rival = None;
        let mut trials = Vec::new();
        for run in 0..setting.repetitions {
            for &contender in &setting.transports {
                if contender != Contender::Apus && rival.is_none() {
                    rival = Some(self.choose(setting, &hosts, result)?);
                }
                self.progress.begin(&format!("{}: {}", setting.name(), contender.title()));
                let transports = transports_of(setting, contender, rival.as_ref());
                let assignments =
                    assign(setting, &hosts, &transports, setting.seed + u64::from(run))?;
                let trial = self.trial(&assignments)?;
                figures::summarize(setting, &transports, run + 1, &trial, &idle.ideal, result)?;
                trials.push((transports, trial));
                self.progress.done();
            }
        }
        figures::compare(setting, &trials, &idle, result)
    }

    /// Starts the hosts of the next trial.
    fn agents(&mut self, assignments: &[Assignment]) -> Result<Agents> {
        let loads = assignments.iter().flat_map(|assignment| &assignment.loads);
        let rto_min = loads.filter_map(|load| load.transport.rto_min_ms()).next();
        self.testbed.set_rto_min(rto_min)?;
        self.trials = (self.trials + 1) % 1000;
        let trial = self.trials;
        let of_trial: Vec<Assignment> = assignments
            .iter()
            .map(|assignment| Assignment { trial, ..assignment.clone() })
            .collect();
        let testbed = &self.testbed;
        Agents::start(&of_trial, |place| (testbed.command(place), testbed.processor(place)))
    }

    /// Runs all hosts once.
    fn trial(&mut self, assignments: &[Assignment]) -> Result<Trial> {
        let Assignment { warmup_s, seconds, drain_s, .. } = assignments[0];
        let mut agents = self.agents(assignments)?;
        let counts = |at: f64| (warmup_s..warmup_s + seconds).contains(&at);
        let before = self.testbed.queues()?;
        let mut held = Vec::new();
        let (mut first, mut last) = (None::<Processors>, None::<Processors>);
        let (mut looks, mut full) = (0_u32, 0_u32);
        let reports = agents.go(warmup_s + seconds + drain_s, |at| {
            if !counts(at) {
                return Ok(());
            }
            looks += 1;
            if self.testbed.shares_processors() {
                let now = Processors::now()?;
                full += u32::from(last.is_some_and(|last| now.busy_since(last) > 0.98));
                first.get_or_insert(now);
                last = Some(now);
            }
            if looks % QUEUES_EVERY == 0 {
                held.extend(self.testbed.queues()?.iter().flat_map(Queues::held_by_port));
            }
            Ok(())
        })?;
        if stop::requested() {
            return Err(Stopped.into());
        }
        let after = self.testbed.queues()?;
        let seen = before.zip(after);
        Ok(Trial {
            reports,
            busy: first.zip(last).map(|(first, last)| last.busy_since(first)),
            full: first.is_some().then(|| f64::from(full) / f64::from(looks)),
            held,
            dropped: seen.as_ref().map(|(before, after)| after.dropped_since(before)),
            by_class: seen.as_ref().map(|(before, after)| after.sent_by_class_since(before)),
        })
    }

    /// Measures calls on the idle network with both transports.
    fn idle(
        &mut self,
        setting: &Setting,
        hosts: &[IpAddr],
        result: &mut ResultFile,
    ) -> Result<Idle> {
        let wire = Wire { mtu: setting.mtu, link_mbps: setting.link_mbps };
        let mut idle = Idle { ideal: Ideal { wire, base_us: f64::INFINITY }, medians: Vec::new() };
        for contender in [Contender::Apus, Contender::Tcp] {
            let measured = match self.idle_of(contender, setting, hosts) {
                Err(error) if is_silence(&error) && !stop::requested() => {
                    let (setting_name, title) = (setting.name(), contender.title());
                    result.warn(format!(
                        "{setting_name}, {title}: repeating the measurement of the idle network, because a host was silent: \
                         {error:#}"
                    ));
                    self.idle_of(contender, setting, hosts)
                }
                measured => measured,
            };
            let (base_us, medians) =
                measured.with_context(|| format!("{}, idle network", contender.title()))?;
            idle.ideal.base_us = idle.ideal.base_us.min(base_us);
            idle.medians.push((contender, medians));
        }
        Ok(idle)
    }

    /// Measures calls of one transport: the smallest call in µs, and the medians by length.
    fn idle_of(
        &mut self,
        contender: Contender,
        setting: &Setting,
        hosts: &[IpAddr],
    ) -> Result<(f64, Vec<(u32, f64)>)> {
        let all = setting.tcp_rivals()?;
        let transports = transports_of(setting, contender, all.first());
        let (transport, reply) = (&transports[0], setting.reply()?);
        let base = self.unloaded(hosts, transport, &[SMALLEST], 100, reply)?;
        let (short, long): (Vec<u32>, Vec<u32>) = lengths(&setting.workload()?, setting.longest()?)
            .into_iter()
            .partition(|length| *length < 20_000);
        let mut medians = self.unloaded(hosts, transport, &short, 40, reply)?;
        medians.extend(self.unloaded(hosts, transport, &long, 4, reply)?);
        Ok((base[0].1, medians))
    }

    /// The median time of calls of these lengths, one at a time, in µs.
    fn unloaded(
        &mut self,
        hosts: &[IpAddr],
        transport: &Transport,
        lengths: &[u32],
        samples: u32,
        reply: u32,
    ) -> Result<Vec<(u32, f64)>> {
        if lengths.is_empty() {
            return Ok(Vec::new());
        }
        let load = |place: usize| Load {
            transport: transport.clone(),
            workload: "100".to_owned(),
            longest: 100,
            reply,
            targets: if place == 0 { (1..hosts.len()).collect() } else { Vec::new() },
            arrivals: ArrivalProcess::Unloaded { samples, lengths: lengths.to_vec() },
            seed: 0,
        };
        let assignments: Vec<Assignment> = (0..hosts.len())
            .map(|place| Assignment {
                place,
                trial: 0,
                hosts: hosts.to_vec(),
                loads: vec![load(place)],
                warmup_s: 0.0,
                seconds: 0.0,
                drain_s: 0.0,
            })
            .collect();
        let mut agents = self.agents(&assignments)?;
        let reports = agents.go(0.0, |_| Ok(()))?;
        let calls = &reports[0].loads[0].calls;
        let median = |length: &u32| {
            let mut latency = Latency::new();
            calls
                .iter()
                .filter(|call| call.0 == *length)
                .for_each(|call| latency.record_ns(call.1));
            (*length, latency.p(50.0))
        };
        Ok(lengths.iter().map(median).collect())
    }

    /// The best way to run TCP: the one with the lowest 99th percentile of short messages, or at `max` the one with the highest
    /// throughput.
    fn choose(
        &mut self,
        setting: &Setting,
        hosts: &[IpAddr],
        result: &mut ResultFile,
    ) -> Result<TcpRival> {
        let mut all = setting.tcp_rivals()?;
        if all.len() == 1 {
            return Ok(all.remove(0));
        }
        let seconds = (setting.seconds * CHOICE_SHARE).min(CHOICE_MAX_S);
        let shorter = Setting { seconds, ..setting.clone() };
        let mut best = (all[0].clone(), f64::INFINITY);
        for rival in all {
            self.progress.begin(&format!("{}: tcp, connections a pair: {rival}", setting.name()));
            let transports = transports_of(setting, Contender::Tcp, Some(&rival));
            let trial = self.trial(&assign(&shorter, hosts, &transports, setting.seed + 1000)?)?;
            let cost = figures::cost(&shorter, &trial);
            figures::note_choice(&shorter, &rival, &trial, result);
            if cost < best.1 {
                best = (rival, cost);
            }
            self.progress.done();
        }
        Ok(best.0)
    }
}

/// Number of progress steps of a setting.
fn steps(setting: &Setting) -> usize {
    if setting.load == LoadLevel::Unloaded {
        return 1;
    }
    let runs = setting.transports.len() * setting.repetitions as usize;
    let choice = match setting.tcp_rivals().map_or(1, |all| all.len()) {
        1 => 0,
        _ if setting.transports == [Contender::Apus] => 0,
        several => several,
    };
    1 + runs + choice
}

/// The transports of a contender. Kernel TCP needs a way to run it.
fn transports_of(
    setting: &Setting,
    contender: Contender,
    rival: Option<&TcpRival>,
) -> Vec<Transport> {
    let apus = || Transport::Apus {
        delivery: setting.delivery.clone(),
        settings: setting.apus_settings(),
    };
    let tcp = || Transport::Tcp(rival.expect("TCP was chosen before").clone());
    match contender {
        Contender::Apus => vec![apus()],
        Contender::Tcp => vec![tcp()],
        Contender::Both => vec![apus(), tcp()],
    }
}

/// The assignments of all hosts under a setting.
fn assign(
    setting: &Setting,
    hosts: &[IpAddr],
    transports: &[Transport],
    seed: u64,
) -> Result<Vec<Assignment>> {
    let shares: Vec<f64> = match transports {
        [_, _] => vec![setting.apus_share, 1.0 - setting.apus_share],
        _ => vec![1.0],
    };
    let load = |place: usize, number: usize| -> Result<Load> {
        let calls = setting.pattern == Pattern::AllToAll || place == 0;
        Ok(Load {
            transport: transports[number].clone(),
            workload: setting.workload.clone(),
            longest: setting.longest()?,
            reply: setting.reply()?,
            targets: (0..hosts.len()).filter(|target| calls && *target != place).collect(),
            arrivals: arrivals(setting, shares[number])?,
            // Every generator has its own seed, the same for every contender of a repetition.
            seed: seed << 16 | (place as u64) << 4 | number as u64,
        })
    };
    (0..hosts.len())
        .map(|place| {
            Ok(Assignment {
                place,
                trial: 0,
                hosts: hosts.to_vec(),
                loads: (0..transports.len())
                    .map(|number| load(place, number))
                    .collect::<Result<_>>()?,
                warmup_s: setting.warmup_s,
                seconds: setting.seconds,
                drain_s: setting.drain_s,
            })
        })
        .collect()
}

fn arrivals(setting: &Setting, share: f64) -> Result<ArrivalProcess> {
    Ok(match setting.load {
        LoadLevel::Share(load) => ArrivalProcess::Open {
            calls_per_s: calls_per_s(setting, load)? * share,
            outstanding: setting.outstanding.unwrap_or(OPEN_MAX),
        },
        LoadLevel::Max | LoadLevel::Unloaded => {
            ArrivalProcess::Closed { outstanding: setting.outstanding.unwrap_or(CLOSED) }
        }
    })
}

/// Calls per second of each caller at which messages and their packets' headers fill the share `load` of the busiest direction of a
/// link.
///
/// # Errors
/// If a size of the setting is wrong.
pub(crate) fn calls_per_s(setting: &Setting, load: f64) -> Result<f64> {
    let wire = Wire { mtu: setting.mtu, link_mbps: setting.link_mbps };
    let (workload, longest, reply) = (setting.workload()?, setting.longest()?, setting.reply()?);
    let request = mean_wire(&workload, longest, wire);
    let response = if reply == 0 { request } else { f64::from(wire.bytes(reply)) };
    let bytes_per_s = setting.link_mbps * 1e6 / 8.0 * load;
    Ok(match setting.pattern {
        // Each link carries, in each direction, a host's requests and as many responses to other hosts.
        Pattern::AllToAll => bytes_per_s / (request + response),
        Pattern::Incast => bytes_per_s / request.max(response),
    })
}

/// The mean length of a request on the wire.
fn mean_wire(workload: &Workload, longest: u32, wire: Wire) -> f64 {
    const STEPS: u32 = 100_000;
    let length = |step: u32| {
        let at = (f64::from(step) + 0.5) / f64::from(STEPS);
        (workload.quantile(at).round() as u32).clamp(SMALLEST, longest.max(SMALLEST))
    };
    (0..STEPS).map(|step| f64::from(wire.bytes(length(step)))).sum::<f64>() / f64::from(STEPS)
}

/// A length from the middle of each decile of a workload's messages, and the longest.
fn lengths(workload: &Workload, longest: u32) -> Vec<u32> {
    let middles = (0..LENGTHS).map(|decile| (f64::from(decile) + 0.5) / f64::from(LENGTHS));
    workload.lengths_at(middles, SMALLEST..=longest)
}

/// Whether a call had no reply. The error is another process's, as text.
fn is_silence(error: &anyhow::Error) -> bool {
    format!("{error:#}").contains(SILENCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_of_an_agent_is_distinguished_from_other_errors() {
        let silence = anyhow::anyhow!("{SILENCE} 100 bytes on an idle network within 2s");
        assert!(is_silence(&silence.context("h3 failed")));
        assert!(!is_silence(&anyhow::anyhow!("h3 fell silent")));
    }

    #[test]
    fn requests_and_replies_together_make_the_load() {
        let setting = Setting { workload: "1416".to_owned(), ..Setting::default() };
        // 5 MB/s of full packets, half of them replies.
        let calls = calls_per_s(&setting, 0.8).unwrap();
        assert!((calls - 5e6 / (2.0 * 1514.0)).abs() < 0.1, "{calls}");
        let incast =
            Setting { pattern: Pattern::Incast, reply: Some("14160".to_owned()), ..setting };
        let calls = calls_per_s(&incast, 0.8).unwrap();
        assert!((calls - 5e6 / 15140.0).abs() < 0.1, "{calls}");
    }

    #[test]
    fn in_an_incast_one_host_calls_all_others() {
        let setting = Setting { hosts: 3, pattern: Pattern::Incast, ..Setting::default() };
        let hosts: Vec<IpAddr> = (1..4).map(|host| IpAddr::from([10, 0, 0, host])).collect();
        let transports =
            transports_of(&setting, Contender::Both, setting.tcp_rivals().unwrap().first());
        let assignments = assign(&setting, &hosts, &transports, 1).unwrap();
        let targets: Vec<_> = assignments.iter().map(|a| a.loads[0].targets.clone()).collect();
        assert_eq!(targets, [vec![1, 2], vec![], vec![]]);
        assert_eq!(assignments[0].loads.len(), 2);
    }

    #[test]
    fn every_generator_has_random_numbers_of_its_own() {
        let setting = Setting::default();
        let hosts: Vec<IpAddr> = (1..11).map(|host| IpAddr::from([10, 0, 0, host])).collect();
        let transports =
            transports_of(&setting, Contender::Both, setting.tcp_rivals().unwrap().first());
        let mut seeds: Vec<u64> = [1, 2]
            .iter()
            .flat_map(|seed| assign(&setting, &hosts, &transports, *seed).unwrap())
            .flat_map(|assignment| assignment.loads.into_iter().map(|load| load.seed))
            .collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 40);
    }

    #[test]
    fn lengths_of_a_workload_are_thinned_and_cut() {
        assert_eq!(lengths(&Workload::Fixed(100), 1_000_000), [100]);
        let w5 = lengths(&Workload::W5, 1_000_000);
        assert!(w5.ends_with(&[1_000_000]) && w5.len() > 5, "{w5:?}");
    }
}
