//! The choice of a program's parameters by measurement: what to try next, from what was measured.
//!
//! irq-suspend is a bound, and follows the longest cycles of the program: the times between an `epoll_wait` that returned
//! events and the next call. gro-flush is searched for: a small one interrupts the program by its timer, and a large one lets
//! requests wait that find the program asleep. Both grow or shrink steadily with it, so a bracket is halved until it is narrow.
//! defer follows from gro-flush and the idle times.
//!
//! Nothing here measures, sleeps or sets anything.

use crate::netdev::NapiParameters;

/// What is wanted, and what may be spent for it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Goal {
    /// 99th percentile of the latency in nanoseconds, at most.
    pub p99_ns: u64,
    /// irq-suspend in nanoseconds, at most. It bounds how long others on the queue wait for a program that does not come back.
    pub irq_suspend_max_ns: u64,
    /// Interrupts per second of the timer while the program is idle, at most.
    pub idle_timers_max: f64,
}

impl Goal {
    /// A 99th percentile, with irq-suspend up to 50 ms and up to 5,000 timer interrupts per second of an idle program.
    #[must_use]
    pub fn p99_ns(p99_ns: u64) -> Self {
        Self { p99_ns, irq_suspend_max_ns: 50_000_000, idle_timers_max: 5_000.0 }
    }
}

/// What was measured in a period with the same parameters. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, serde::Serialize)]
pub struct Sample {
    /// How long it was measured.
    pub seconds: f64,
    /// Cycles: times from an `epoll_wait` that returned events until the next call.
    pub cycles: u64,
    /// Events that the calls returned.
    pub events: u64,
    /// The median of the time of a cycle.
    pub cycle_p50_ns: u64,
    /// The 99th percentile of it.
    pub cycle_p99_ns: u64,
    /// The 99.9th percentile of it.
    pub cycle_p99_9_ns: u64,
    /// 95th percentile of the time of a cycle for each of its events.
    pub event_p95_ns: u64,
    /// Cycles in which the timer of a NAPI instance interrupted the program's CPU.
    pub interrupted: u64,
    /// Suspensions that ended because the program did not come back.
    pub overruns: u64,
    /// How often the program slept.
    pub idles: u64,
    /// The median of how long.
    pub idle_p50_ns: u64,
    /// 99th percentile of the time from the poll that found packets until the sleeping program had its events.
    pub wake_p99_ns: u64,
    /// CPU time of the program.
    pub busy_ns: u64,
    /// Time of all CPUs in softirqs.
    pub softirq_ns: u64,
    /// Expiries of NAPI timers.
    pub expiries: u64,
    /// The 99th percentile of the latency as a client sees it, if one was asked.
    pub client_p99_ns: Option<u64>,
    /// Records that the kernel could not keep, without which the sample is not complete.
    pub lost: u64,
}

impl Sample {
    /// Share of the cycles that a timer interrupted.
    #[must_use]
    pub fn interference(&self) -> f64 {
        ratio(self.interrupted, self.cycles)
    }

    /// CPU time of program and softirqs for each event.
    #[must_use]
    pub fn busy_per_event_ns(&self) -> f64 {
        ratio(self.busy_ns + self.softirq_ns, self.events)
    }

    /// The 99th percentile that the target is about. Without a client it is what the server can see: a request waits for the
    /// timer if the program sleeps, then for the program to wake up, and then at most for a cycle.
    #[must_use]
    pub fn p99_ns(&self, parameters: &NapiParameters) -> u64 {
        let wait =
            if self.idles > 0 { parameters.gro_flush_timeout_ns + self.wake_p99_ns } else { 0 };
        self.client_p99_ns.unwrap_or(wait + self.cycle_p99_ns)
    }
}

/// What to do after a period.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Measure with these parameters.
    Next(NapiParameters),
    /// These are the result.
    Settled {
        /// The parameters.
        parameters: NapiParameters,
        /// Whether the target was met with them.
        is_met: bool,
    },
}

/// A verdict and its reason, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// What to do.
    pub verdict: Verdict,
    /// Why.
    pub reason: String,
}

/// The state of a choice: parameters, and between which values of gro-flush the result is.
#[derive(Clone, Debug)]
pub struct Tuner {
    goal: Goal,
    parameters: NapiParameters,
    /// The largest gro-flush with which the target was met and the timer interrupted too much.
    below_ns: Option<u64>,
    /// The smallest one with which the target was missed.
    above_ns: Option<u64>,
    /// The smallest irq-suspend that is not known to be overrun.
    suspend_floor_ns: u64,
    best: Option<Best>,
    /// Periods in a row in which too little happened.
    quiet: u32,
    /// Periods since gro-flush was found, in which the other parameters follow.
    since_found: Option<u32>,
    /// It was found, and is searched for once more.
    is_again: bool,
}

#[derive(Clone, Copy, Debug)]
struct Best {
    parameters: NapiParameters,
    is_met: bool,
    p99_ns: u64,
    busy_per_event_ns: f64,
}

/// Where the search for gro-flush goes, and why.
struct Search {
    /// The next value; `None` if the best one is found.
    next_ns: Option<u64>,
    why: String,
}

impl Tuner {
    /// Begins with gro-flush 20 µs and irq-suspend 20 ms, as `suspend:20`, but with a defer of 1.
    #[must_use]
    pub fn new(goal: Goal) -> Self {
        let parameters = NapiParameters {
            threaded: None,
            defer_hard_irqs: 1,
            gro_flush_timeout_ns: GRO_FLUSH_FIRST_NS,
            irq_suspend_timeout_ns: SUSPEND_FIRST_NS.min(goal.irq_suspend_max_ns),
        };
        Self {
            goal,
            parameters,
            below_ns: None,
            above_ns: None,
            suspend_floor_ns: SUSPEND_MIN_NS,
            best: None,
            quiet: 0,
            since_found: None,
            is_again: false,
        }
    }

    /// The parameters to measure with.
    #[must_use]
    pub fn parameters(&self) -> NapiParameters {
        self.parameters
    }

    /// The best parameters that were measured, and whether the target was met with them; `None` if no period told anything.
    /// irq-suspend is a bound without an effect on what was measured, so it is what all periods say.
    #[must_use]
    pub fn best(&self) -> Option<(NapiParameters, bool)> {
        self.best.map(|Best { parameters, is_met, .. }| {
            let shortest_ns = 2 * parameters.gro_flush_timeout_ns;
            let irq_suspend_timeout_ns = self.parameters.irq_suspend_timeout_ns.max(shortest_ns);
            (NapiParameters { irq_suspend_timeout_ns, ..parameters }, is_met)
        })
    }

    /// Takes what was measured with the [`parameters`](Self::parameters).
    pub fn step(&mut self, sample: &Sample) -> Step {
        if sample.cycles < CYCLES_MIN {
            return self.step_without_cycles(sample.cycles);
        }
        self.quiet = 0;
        self.note(sample);
        let (mut next, mut reasons) = (self.parameters, Vec::new());
        if let Some((suspend_ns, why)) = self.suspend(sample) {
            next.irq_suspend_timeout_ns = suspend_ns;
            reasons.push(why);
        }
        if self.is_found(sample) {
            self.since_found = self.since_found.map(|periods| periods + 1);
        } else {
            let Search { next_ns, why } = self.search(sample);
            reasons.push(why);
            self.since_found = next_ns.is_none().then_some(0);
            let best = self.best().map_or(self.parameters, |(parameters, _)| parameters);
            next.gro_flush_timeout_ns = next_ns.unwrap_or(best.gro_flush_timeout_ns);
        }
        // A suspension is longer than the short timer, by which the two are told apart.
        next.irq_suspend_timeout_ns =
            next.irq_suspend_timeout_ns.max(2 * next.gro_flush_timeout_ns);
        if let Some((defer, why)) = self.defer(sample, next.gro_flush_timeout_ns) {
            next.defer_hard_irqs = defer;
            reasons.push(why);
        }
        let is_over = self.since_found.is_some_and(|periods| periods >= FOLLOWING_PERIODS);
        if is_over || (self.since_found.is_some() && next == self.parameters) {
            self.parameters.irq_suspend_timeout_ns = next.irq_suspend_timeout_ns;
            return self.settle(reasons);
        }
        self.parameters = next;
        Step { verdict: Verdict::Next(next), reason: reasons.join("; ") }
    }

    fn settle(&self, mut reasons: Vec<String>) -> Step {
        let (parameters, is_met) = self.best().unwrap_or((self.parameters, false));
        if reasons.is_empty() {
            reasons.push("nothing is left to change".to_owned());
        }
        Step { verdict: Verdict::Settled { parameters, is_met }, reason: reasons.join("; ") }
    }

    fn step_without_cycles(&mut self, cycles: u64) -> Step {
        self.quiet += 1;
        let reason = format!("only {cycles} cycles, of which {CYCLES_MIN} are needed");
        if self.quiet < QUIET_PERIODS_MAX {
            return Step { verdict: Verdict::Next(self.parameters), reason: reason + ": again" };
        }
        self.settle(vec![reason])
    }

    /// Keeps what was measured if it is the best so far: the target met, and little CPU time for an event.
    fn note(&mut self, sample: &Sample) {
        let p99_ns = sample.p99_ns(&self.parameters);
        let new = Best {
            parameters: self.parameters,
            is_met: p99_ns <= self.goal.p99_ns,
            p99_ns,
            busy_per_event_ns: sample.busy_per_event_ns(),
        };
        let is_better = self.best.is_none_or(|best| match (new.is_met, best.is_met) {
            (true, true) => new.busy_per_event_ns <= best.busy_per_event_ns * CHEAPER,
            (false, false) => new.p99_ns < best.p99_ns,
            (is_met, _) => is_met,
        });
        if is_better {
            self.best = Some(new);
        }
    }

    /// The next irq-suspend, if it is another one.
    fn suspend(&mut self, sample: &Sample) -> Option<(u64, String)> {
        let (now_ns, max_ns) =
            (self.parameters.irq_suspend_timeout_ns, self.goal.irq_suspend_max_ns);
        if sample.overruns > 0 {
            let (count, ms) = (sample.overruns, millis(now_ns));
            if now_ns >= max_ns {
                return Some((
                    now_ns,
                    format!("{count} cycles longer than irq-suspend {ms} ms, which may not grow"),
                ));
            }
            let next_ns = (2 * now_ns).min(max_ns);
            self.suspend_floor_ns = next_ns;
            return Some((
                next_ns,
                format!("{count} cycles longer than irq-suspend {ms} ms: doubled"),
            ));
        }
        let floor_ns = self.suspend_floor_ns.min(max_ns);
        let wanted_ns = (2 * sample.cycle_p99_9_ns).clamp(floor_ns, max_ns);
        // A little more or less has no effect.
        if 4 * wanted_ns < 5 * now_ns && 2 * wanted_ns > now_ns {
            return None;
        }
        let (from, to, p99_9) = (millis(now_ns), millis(wanted_ns), micros(sample.cycle_p99_9_ns));
        Some((
            wanted_ns,
            format!("p99.9 of the cycles is {p99_9} us: irq-suspend {from} to {to} ms"),
        ))
    }

    /// Whether gro-flush is found. It is searched for once more if the timer interrupts much more since then, as with another
    /// defer.
    fn is_found(&mut self, sample: &Sample) -> bool {
        let is_met = sample.p99_ns(&self.parameters) <= self.goal.p99_ns;
        let interrupts = is_met && sample.interference() > 2.0 * INTERFERENCE_MAX;
        match self.since_found {
            Some(_) if interrupts && !self.is_again => {
                self.is_again = true;
                false
            }
            found => found.is_some(),
        }
    }

    /// Where the search for gro-flush goes.
    fn search(&mut self, sample: &Sample) -> Search {
        let now_ns = self.parameters.gro_flush_timeout_ns;
        let (p99_ns, target_ns) = (sample.p99_ns(&self.parameters), self.goal.p99_ns);
        let share = sample.interference();
        let (p99, target, percent) = (micros(p99_ns), micros(target_ns), share * 100.0);
        let is_narrow = |low_ns: u64, high_ns: u64| 4 * high_ns <= 5 * low_ns;
        if p99_ns > target_ns {
            self.above_ns = Some(now_ns.min(self.above_ns.unwrap_or(now_ns)));
            let floor_ns = gro_flush_floor_ns(sample);
            let missed = format!("p99 {p99} us misses {target} us");
            let next_ns = match self.below_ns {
                Some(below_ns) => middle(below_ns, now_ns),
                None => (now_ns / 2).max(floor_ns),
            };
            let least_ns = self.below_ns.unwrap_or(floor_ns);
            return if next_ns >= now_ns || is_narrow(least_ns, now_ns) {
                let why = match self.best() {
                    Some((_, true)) => format!("{missed}: gro-flush is found"),
                    _ => format!(
                        "{missed}, and a smaller gro-flush has no sense: the timer alone costs that much"
                    ),
                };
                Search { next_ns: None, why }
            } else {
                Search { next_ns: Some(next_ns), why: format!("{missed}: gro-flush down") }
            };
        }
        if share <= INTERFERENCE_MAX {
            let why = format!(
                "p99 {p99} us meets {target} us, the timer interrupts {percent:.1} % of the cycles"
            );
            return Search { next_ns: None, why };
        }
        self.below_ns = Some(now_ns.max(self.below_ns.unwrap_or(now_ns)));
        let next_ns = match self.above_ns {
            Some(above_ns) => middle(now_ns, above_ns),
            None => (2 * now_ns).min(GRO_FLUSH_MAX_NS),
        };
        let why = format!("the timer interrupts {percent:.1} % of the cycles");
        let most_ns = self.above_ns.unwrap_or(GRO_FLUSH_MAX_NS);
        if next_ns <= now_ns || is_narrow(now_ns, most_ns) {
            let why = format!("{why}, and a larger gro-flush misses the target");
            return Search { next_ns: None, why };
        }
        Search { next_ns: Some(next_ns), why: format!("{why}: gro-flush up") }
    }

    /// The next defer, if it is another one: the timer bridges a usual idle time, unless that takes too many interrupts.
    fn defer(&self, sample: &Sample, gro_flush_ns: u64) -> Option<(u32, String)> {
        if sample.idles == 0 {
            return None;
        }
        let bridging = sample.idle_p50_ns.div_ceil(gro_flush_ns);
        let allowed = self.goal.idle_timers_max * sample.seconds / sample.idles as f64;
        let wanted = bridging.min(allowed as u64).clamp(1, DEFER_MAX);
        let now = u64::from(self.parameters.defer_hard_irqs);
        if wanted < 2 * now && now < 2 * wanted {
            return None;
        }
        let why = format!("idle for {} us: defer {now} to {wanted}", micros(sample.idle_p50_ns));
        Some((u32::try_from(wanted).expect("DEFER_MAX is smaller"), why))
    }
}

/// A gro-flush below this has no sense: its timer would interrupt a single request, or do little else than expire.
fn gro_flush_floor_ns(sample: &Sample) -> u64 {
    let timer_ns = ratio(sample.softirq_ns, sample.expiries) as u64;
    sample.event_p95_ns.max(3 * timer_ns.min(TIMER_COST_MAX_NS)).max(GRO_FLUSH_MIN_NS)
}

/// The geometric mean, as halving a bracket of which the ends may be far apart.
fn middle(low_ns: u64, high_ns: u64) -> u64 {
    (low_ns as f64 * high_ns as f64).sqrt() as u64
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn micros(ns: u64) -> u64 {
    ns.div_ceil(1_000)
}

fn millis(ns: u64) -> f64 {
    (ns as f64 / 1e5).round() / 10.0
}

const GRO_FLUSH_FIRST_NS: u64 = 20_000;
const GRO_FLUSH_MIN_NS: u64 = 5_000;
const GRO_FLUSH_MAX_NS: u64 = 2_000_000;

const SUSPEND_FIRST_NS: u64 = 20_000_000;
const SUSPEND_MIN_NS: u64 = 1_000_000;

/// A softirq of the timer costs no more; what is more was other work.
const TIMER_COST_MAX_NS: u64 = 20_000;

const DEFER_MAX: u64 = 1_000;

/// Share of the cycles that the timer may interrupt.
const INTERFERENCE_MAX: f64 = 0.01;

/// CPU time for an event that counts as no more than before.
const CHEAPER: f64 = 1.02;

/// Cycles of a period that tells something.
const CYCLES_MIN: u64 = 100;

/// Periods in a row with fewer, after which it is given up.
const QUIET_PERIODS_MAX: u32 = 3;

/// Periods for irq-suspend and defer to follow once gro-flush is found.
const FOLLOWING_PERIODS: u32 = 2;

#[cfg(test)]
mod tests;
