use super::*;

/// A program and a machine, whose response to gro-flush is nearly linear.
#[derive(Clone, Copy)]
struct Simulated {
    /// Latency without any wait.
    base_ns: u64,
    /// The 99.9th percentile of the cycles.
    cycle_p99_9_ns: u64,
    idle_ns: u64,
    /// Error of a measurement, as a share.
    noise: f64,
}

const PROGRAM: Simulated =
    Simulated { base_ns: 60_000, cycle_p99_9_ns: 300_000, idle_ns: 150_000, noise: 0.0 };

impl Simulated {
    fn measure(self, parameters: &NapiParameters, random: &mut u64) -> Sample {
        let mut about = |value: f64| {
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let unit = (*random >> 33) as f64 / f64::from(1_u32 << 31) * 2.0 - 1.0;
            value * (1.0 + self.noise * unit)
        };
        let gro_flush_us = parameters.gro_flush_timeout_ns as f64 / 1e3;
        let interference = (1.0 / gro_flush_us).min(1.0);
        let p99_ns = about(self.base_ns as f64 + 550.0 * gro_flush_us);
        Sample {
            seconds: 1.0,
            cycles: 10_000,
            events: 40_000,
            cycle_p99_9_ns: about(self.cycle_p99_9_ns as f64) as u64,
            interrupted: (10_000.0 * about(interference)) as u64,
            overruns: u64::from(self.cycle_p99_9_ns > parameters.irq_suspend_timeout_ns),
            idles: 2_000,
            idle_p50_ns: about(self.idle_ns as f64) as u64,
            busy_ns: (about(0.5 + interference) * 1e9) as u64,
            client_p99_ns: Some(p99_ns as u64),
            ..Sample::default()
        }
    }

    /// The final parameters, whether the target is met, the number of steps, and the reasons.
    fn tune(self, p99_us: u64, seed: u64) -> (NapiParameters, bool, usize, String) {
        let mut tuner = Tuner::new(Goal::p99_ns(p99_us * 1_000));
        let (mut random, mut reasons) = (seed, String::new());
        for number in 1..=20 {
            let decision = tuner.step(&self.measure(&tuner.parameters(), &mut random));
            reasons += &format!("{number}: {}\n", decision.reason);
            if let TuningAction::Settled { parameters, is_met } = decision.action {
                return (parameters, is_met, number, reasons);
            }
        }
        panic!("not settled: {reasons}");
    }
}

#[test]
fn gro_flush_grows_until_the_timer_no_longer_interrupts() {
    let (found, is_met, steps, reasons) = PROGRAM.tune(200, 1);
    assert!(is_met && steps <= 8, "{steps}: {reasons}");
    assert!((100_000..=255_000).contains(&found.gro_flush_timeout_ns), "{found:?} {reasons}");
    assert_eq!(found.irq_suspend_timeout_ns, 1_000_000, "{reasons}");
    assert!(found.defer_hard_irqs <= 2, "{found:?}");
}

#[test]
fn a_narrow_target_bounds_gro_flush() {
    // 100 µs are met with a gro-flush up to 72 µs.
    let (found, is_met, steps, reasons) = PROGRAM.tune(100, 1);
    assert!(is_met && steps <= 8, "{steps}: {reasons}");
    assert!((50_000..=73_000).contains(&found.gro_flush_timeout_ns), "{found:?} {reasons}");
}

#[test]
fn noise_does_not_keep_it_from_an_end() {
    let noisy = Simulated { noise: 0.15, ..PROGRAM };
    for seed in 0..200 {
        let (found, is_met, steps, reasons) = noisy.tune(150, seed);
        assert!(is_met && steps <= 12, "{steps}: {reasons}");
        let gro_flush_ns = found.gro_flush_timeout_ns;
        assert!((20_000..=260_000).contains(&gro_flush_ns), "{gro_flush_ns} {reasons}");
    }
}

#[test]
fn a_target_that_cannot_be_met_is_reported() {
    let (found, is_met, steps, reasons) = PROGRAM.tune(50, 1);
    assert!(!is_met && steps <= 8, "{steps}: {reasons}");
    assert!(found.gro_flush_timeout_ns < 10_000, "the smallest one was the best: {found:?}");
    assert!(reasons.contains("misses 50 us, and a smaller"), "{reasons}");
}

#[test]
fn a_program_that_overruns_is_suspended_longer_up_to_the_bound() {
    let slow = Simulated { cycle_p99_9_ns: 30_000_000, ..PROGRAM };
    let (found, _, _, reasons) = slow.tune(200, 1);
    assert_eq!(found.irq_suspend_timeout_ns, 50_000_000, "{reasons}");
    assert!(reasons.contains("20 ms: doubled"), "{reasons}");
    let slower = Simulated { cycle_p99_9_ns: 80_000_000, ..PROGRAM };
    let (found, _, _, reasons) = slower.tune(200, 1);
    assert_eq!(found.irq_suspend_timeout_ns, 50_000_000, "{reasons}");
    assert!(reasons.contains("at its limit"), "{reasons}");
}

#[test]
fn defer_bridges_idle_times_within_the_budget_of_interrupts() {
    let sample = Sample {
        seconds: 1.0,
        cycles: 1_000,
        idles: 100,
        idle_p50_ns: 400_000,
        client_p99_ns: Some(1),
        ..Sample::default()
    };
    let defer = |sample: &Sample| {
        let mut tuner = Tuner::new(Goal::p99_ns(100_000));
        tuner.step(sample);
        tuner.parameters().defer_hard_irqs
    };
    assert_eq!(defer(&sample), 20, "400 us are 20 timers of 20 us");
    assert_eq!(defer(&Sample { idles: 1_000, ..sample }), 5, "5,000 timers for 1,000 idle times");
    assert_eq!(defer(&Sample { idles: 10_000, ..sample }), 1);
    assert_eq!(defer(&Sample { idles: 0, ..sample }), 1, "it is never idle");
}

#[test]
fn a_program_without_load_is_given_up() {
    let mut tuner = Tuner::new(Goal::p99_ns(100_000));
    let quiet = Sample { cycles: 3, ..Sample::default() };
    for _ in 0..2 {
        assert!(
            matches!(tuner.step(&quiet).action, TuningAction::Next(same) if same == tuner.parameters())
        );
    }
    let decision = tuner.step(&quiet);
    assert!(matches!(decision.action, TuningAction::Settled { is_met: false, .. }), "{decision:?}");
    assert!(decision.reason.contains("only 3 cycles"), "{decision:?}");
}

#[test]
fn without_a_client_the_wait_for_the_timer_counts() {
    let parameters = Tuner::new(Goal::p99_ns(1)).parameters();
    let sample = Sample { idles: 1, wake_p99_ns: 7_000, cycle_p99_ns: 3_000, ..Sample::default() };
    assert_eq!(sample.p99_ns(&parameters), 30_000);
    assert_eq!(Sample { idles: 0, ..sample }.p99_ns(&parameters), 3_000);
    assert_eq!(Sample { client_p99_ns: Some(5), ..sample }.p99_ns(&parameters), 5);
}
