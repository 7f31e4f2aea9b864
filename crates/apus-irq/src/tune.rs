//! The choice of a program's parameters by measurement: the next parameters to try, from a sample.
//!
//! irq-suspend is a bound, and follows the longest cycles of the program: the times between an `epoll_wait` that returned events
//! and the next call. gro-flush is searched for: with a small value the timer interrupts the program, with a large one requests
//! that find the program asleep wait long. Both effects are monotonic, so a bracket is halved until it is narrow. defer follows
//! from gro-flush and the idle times.
//!
//! Nothing here measures, sleeps or sets parameters.

use crate::netdev::NapiParameters;

/// The target, and the limits on its cost.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Goal {
    /// Upper bound on the 99th percentile of the latency, in nanoseconds.
    pub p99_ns: u64,
    /// Upper bound on irq-suspend, in nanoseconds. It limits how long other users of the queue wait for a program that does not
    /// come back.
    pub irq_suspend_max_ns: u64,
    /// Upper bound on the timer's interrupts per second while the program is idle.
    pub idle_timers_max: f64,
}

impl Goal {
    /// A goal for the 99th percentile, with irq-suspend up to 50 ms and up to 5,000 timer interrupts per second of an idle program.
    #[must_use]
    pub fn p99_ns(p99_ns: u64) -> Self {
        Self { p99_ns, irq_suspend_max_ns: 50_000_000, idle_timers_max: 5_000.0 }
    }
}

/// The measurements of a period with the same parameters. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, serde::Serialize)]
pub struct Sample {
    /// Length of the period.
    pub seconds: f64,
    /// Cycles: times from an `epoll_wait` that returned events until the next call.
    pub cycles: u64,
    /// Events that the calls returned.
    pub events: u64,
    /// The median of the time of a cycle.
    pub cycle_p50_ns: u64,
    /// The 99th percentile of the time of a cycle.
    pub cycle_p99_ns: u64,
    /// The 99.9th percentile of the time of a cycle.
    pub cycle_p99_9_ns: u64,
    /// 95th percentile of the time of a cycle divided by its events.
    pub event_p95_ns: u64,
    /// Cycles in which the timer of a NAPI instance interrupted the program's CPU.
    pub interrupted: u64,
    /// Suspensions that ended because the program did not come back.
    pub overruns: u64,
    /// Number of times that the program slept.
    pub idles: u64,
    /// The median of the time of a sleep.
    pub idle_p50_ns: u64,
    /// 99th percentile of the time from the poll that found packets until the sleeping program had its events.
    pub wake_p99_ns: u64,
    /// CPU time of the program.
    pub busy_ns: u64,
    /// Time of all CPUs in softirqs.
    pub softirq_ns: u64,
    /// Expiries of NAPI timers.
    pub expiries: u64,
    /// The 99th percentile of the latency as a client measures it, if there is one.
    pub client_p99_ns: Option<u64>,
    /// Number of records that the kernel dropped. The sample is complete if it is 0.
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

    /// The 99th percentile that the target applies to. Without a client it is an estimate from the server: a request waits for the
    /// timer if the program sleeps, then for the program to wake up, and then at most for a cycle.
    #[must_use]
    pub fn p99_ns(&self, parameters: &NapiParameters) -> u64 {
        let wait =
            if self.idles > 0 { parameters.gro_flush_timeout_ns + self.wake_p99_ns } else { 0 };
        self.client_p99_ns.unwrap_or(wait + self.cycle_p99_ns)
    }
}

/// The action after a period.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TuningAction {
    /// Measure with these parameters next.
    Next(NapiParameters),
    /// End with these parameters.
    Settled {
        /// The parameters.
        parameters: NapiParameters,
        /// Whether they meet the target.
        is_met: bool,
    },
}

/// An action and its reason, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// The action.
    pub action: TuningAction,
    /// The reason for it.
    pub reason: String,
}

/// The state of a choice: the parameters, and the bracket of gro-flush that contains the result.
#[derive(Clone, Debug)]
pub struct Tuner {
    goal: Goal,
    parameters: NapiParameters,
    /// The largest gro-flush that met the target while the timer interrupted too much.
    below_ns: Option<u64>,
    /// The smallest gro-flush that missed the target.
    above_ns: Option<u64>,
    /// The smallest irq-suspend without a known overrun.
    suspend_floor_ns: u64,
    best: Option<Best>,
    /// Number of periods in a row with too few cycles.
    quiet: u32,
    /// Number of periods since gro-flush was found, while the other parameters follow; `None` before.
    since_found: Option<u32>,
    /// Whether gro-flush was found once and is searched for again.
    is_again: bool,
}

#[derive(Clone, Copy, Debug)]
struct Best {
    parameters: NapiParameters,
    is_met: bool,
    p99_ns: u64,
    busy_per_event_ns: f64,
}

/// The next step of the search for gro-flush, and its reason.
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

    /// The parameters for the next measurement.
    #[must_use]
    pub fn parameters(&self) -> NapiParameters {
        self.parameters
    }

    /// The best measured parameters, and whether they met the target; `None` if no period had enough cycles. irq-suspend is a bound
    /// that does not affect the measurements, so it comes from all periods.
    #[must_use]
    pub fn best(&self) -> Option<(NapiParameters, bool)> {
        self.best.map(|Best { parameters, is_met, .. }| {
            let shortest_ns = 2 * parameters.gro_flush_timeout_ns;
            let irq_suspend_timeout_ns = self.parameters.irq_suspend_timeout_ns.max(shortest_ns);
            (NapiParameters { irq_suspend_timeout_ns, ..parameters }, is_met)
        })
    }

    /// Evaluates a measurement with the [`parameters`](Self::parameters).
    pub fn step(&mut self, sample: &Sample) -> Decision {
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
        // A suspension must be longer than the short timer, because the two are distinguished by their length.
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
        Decision { action: TuningAction::Next(next), reason: reasons.join("; ") }
    }

    fn settle(&self, mut reasons: Vec<String>) -> Decision {
        let (parameters, is_met) = self.best().unwrap_or((self.parameters, false));
        if reasons.is_empty() {
            reasons.push("no change remains to try".to_owned());
        }
        Decision {
            action: TuningAction::Settled { parameters, is_met },
            reason: reasons.join("; "),
        }
    }

    fn step_without_cycles(&mut self, cycles: u64) -> Decision {
        self.quiet += 1;
        let reason = format!("only {cycles} cycles, but {CYCLES_MIN} are needed");
        if self.quiet < QUIET_PERIODS_MAX {
            return Decision {
                action: TuningAction::Next(self.parameters),
                reason: reason + ": again",
            };
        }
        self.settle(vec![reason])
    }

    /// Keeps a measurement if it is the best so far: the target met with little CPU time for an event.
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

    /// The next irq-suspend, if it changes.
    fn suspend(&mut self, sample: &Sample) -> Option<(u64, String)> {
        let (now_ns, max_ns) =
            (self.parameters.irq_suspend_timeout_ns, self.goal.irq_suspend_max_ns);
        if sample.overruns > 0 {
            let (count, ms) = (sample.overruns, millis(now_ns));
            if now_ns >= max_ns {
                return Some((
                    now_ns,
                    format!("{count} cycles exceeded irq-suspend {ms} ms, which is at its limit"),
                ));
            }
            let next_ns = (2 * now_ns).min(max_ns);
            self.suspend_floor_ns = next_ns;
            return Some((
                next_ns,
                format!("{count} cycles exceeded irq-suspend {ms} ms: doubled"),
            ));
        }
        let floor_ns = self.suspend_floor_ns.min(max_ns);
        let wanted_ns = (2 * sample.cycle_p99_9_ns).clamp(floor_ns, max_ns);
        // A small change has no effect.
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

    /// The next step of the search for gro-flush.
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
                    Some((_, true)) => format!("{missed}: the search for gro-flush ends"),
                    _ => format!(
                        "{missed}, and a smaller gro-flush has no effect, because the timer alone costs that much"
                    ),
                };
                Search { next_ns: None, why }
            } else {
                Search { next_ns: Some(next_ns), why: format!("{missed}: gro-flush down") }
            };
        }
        if share <= INTERFERENCE_MAX {
            let why = format!(
                "p99 {p99} us meets {target} us, and the timer interrupts {percent:.1} % of the cycles"
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

    /// The next defer, if it changes: the timer bridges a usual idle time, unless that takes too many interrupts.
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

/// Lower bound on gro-flush. With a shorter time the timer would interrupt a single request, or do little else than expire.
fn gro_flush_floor_ns(sample: &Sample) -> u64 {
    let timer_ns = ratio(sample.softirq_ns, sample.expiries) as u64;
    sample.event_p95_ns.max(3 * timer_ns.min(TIMER_COST_MAX_NS)).max(GRO_FLUSH_MIN_NS)
}

/// The geometric mean, which halves a bracket whose ends may be far apart.
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

/// Upper bound on the cost of a softirq of the timer. A longer time includes other work.
const TIMER_COST_MAX_NS: u64 = 20_000;

const DEFER_MAX: u64 = 1_000;

/// Upper bound on the share of the cycles that the timer interrupts.
const INTERFERENCE_MAX: f64 = 0.01;

/// Factor up to which the CPU time for an event counts as unchanged.
const CHEAPER: f64 = 1.02;

/// Lower bound on the cycles of a useful period.
const CYCLES_MIN: u64 = 100;

/// Upper bound on useless periods in a row, after which the search ends.
const QUIET_PERIODS_MAX: u32 = 3;

/// Number of periods in which irq-suspend and defer follow once gro-flush is found.
const FOLLOWING_PERIODS: u32 = 2;

#[cfg(test)]
mod tests;
