//! The idle states of a CPU, and the control of its frequency.

use crate::files::{Files, number};
use crate::finding::{Finding, Subject, Verdict};

const SUBJECT: Subject = Subject::IdleStates;

#[derive(Debug)]
pub(super) struct IdleStates {
    /// Name of the driver, as `intel_idle`, `haltpoll`, `none`.
    driver: Option<String>,
    /// Idle states of the first CPU.
    states: Vec<IdleState>,
    /// Time that a virtual machine polls before it halts, in nanoseconds; `None` where it does not poll.
    halt_poll_ns: Option<u64>,
    governor: Option<String>,
    /// `active`, `passive` or `off`.
    intel_pstate: Option<String>,
}

#[derive(Clone, PartialEq, Debug)]
struct IdleState {
    /// Name of the directory, as `state2`.
    directory: String,
    name: String,
    /// Time to leave the state, in microseconds.
    latency_us: u64,
    disabled: bool,
}

impl IdleStates {
    pub(super) fn gather(files: &dyn Files) -> Self {
        let directories = files.names(&format!("{CPU}/cpu0/cpuidle"));
        let states = directories.into_iter().filter_map(|directory| {
            let path = |file: &str| format!("{CPU}/cpu0/cpuidle/{directory}/{file}");
            Some(IdleState {
                name: files.text(&path("name"))?,
                latency_us: number(files, &path("latency"))?,
                disabled: number(files, &path("disable")).is_some_and(|it| it != 0),
                directory,
            })
        });
        let driver = files.text(&format!("{CPU}/cpuidle/current_driver"));
        let halt_poll_ns = number(files, HALT_POLL);
        Self {
            states: states.collect(),
            halt_poll_ns: halt_poll_ns.filter(|_| driver.as_deref() == Some("haltpoll")),
            driver,
            governor: files.text(&format!("{CPU}/cpu0/cpufreq/scaling_governor")),
            intel_pstate: files.text(&format!("{CPU}/intel_pstate/status")),
        }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![states(self), governor(self)];
        findings.extend(self.halt_poll_ns.map(halt_polling));
        findings
    }
}

fn states(idle_states: &IdleStates) -> Finding {
    let name = "idle states";
    let apus = "sleeps only when polling does not pay; a packet then waits until the CPU leaves its idle state";
    let used: Vec<&IdleState> = idle_states.states.iter().filter(|state| !state.disabled).collect();
    let Some(deepest) = used.iter().max_by_key(|state| state.latency_us) else {
        let driver = idle_states.driver.as_deref().unwrap_or("none");
        let found = format!("the kernel selects no idle state (driver {driver}); a hypervisor may");
        return Finding::new(SUBJECT, name, Verdict::Good, found).apus(apus);
    };
    let list: Vec<_> = used.iter().map(|it| format!("{} {} µs", it.name, it.latency_us)).collect();
    let driver = idle_states.driver.as_deref().unwrap_or("unknown");
    let found = format!("driver {driver}; exit latencies: {}", list.join(", "));
    let deep = used.iter().filter(|state| state.latency_us > LATENCY_GOOD_US);
    let files: Vec<_> =
        deep.map(|it| format!("{CPU}/cpu*/cpuidle/{}/disable", it.directory)).collect();
    Finding::new(SUBJECT, name, Verdict::good_if(files.is_empty()), found)
        .apus(apus)
        .change(
            format!("echo 1 | sudo tee {} # costs power", files.join(" ")),
            format!(
                "up to {} µs less for a message that wakes a sleeping thread",
                deepest.latency_us
            ),
        )
        .value("latency_us_max", deepest.latency_us)
}

fn governor(idle_states: &IdleStates) -> Finding {
    let name = "frequency";
    let Some(governor) = &idle_states.governor else {
        let found = "the kernel does not set the frequency (no cpufreq); the firmware or the hypervisor does";
        return Finding::new(SUBJECT, name, Verdict::Good, found);
    };
    let pstate = idle_states.intel_pstate.as_ref();
    let pstate = pstate.map_or_else(String::new, |status| format!(", intel_pstate {status}"));
    let slow = matches!(governor.as_str(), "powersave" | "ondemand" | "conservative");
    Finding::new(SUBJECT, name, Verdict::good_if(!slow), format!("governor {governor}{pstate}"))
        .apus("a polling thread keeps its CPU at its highest frequency; a sleeping thread does not")
        .change(
            format!("echo performance | sudo tee {CPU}/cpu*/cpufreq/scaling_governor"),
            "latency that does not depend on the load of the last milliseconds; not measured here",
        )
        .value("governor", governor.as_str())
}

fn halt_polling(nanoseconds: u64) -> Finding {
    let found = match nanoseconds {
        0 => "off: an idle virtual CPU halts at once and returns to the hypervisor".to_owned(),
        ns => format!("an idle virtual CPU polls for {} µs before it halts", ns / 1_000),
    };
    Finding::new(SUBJECT, "halt polling", Verdict::good_if(nanoseconds > 0), found)
        .apus("each wake-up of a thread on a halted CPU needs the hypervisor")
        .change(
            format!("echo 200000 | sudo tee {HALT_POLL} # costs CPU time of the host"),
            "shorter wake-ups after sleeps of less than 200 µs; not measured here",
        )
        .value("halt_poll_ns", nanoseconds)
}

const CPU: &str = "/sys/devices/system/cpu";

const HALT_POLL: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";

/// About the cost of any wake-up.
const LATENCY_GOOD_US: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::FakeFiles;

    #[test]
    fn deep_states_are_to_be_disabled() {
        let files = FakeFiles(&[
            ("/sys/devices/system/cpu/cpuidle/current_driver", "intel_idle\n"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state0/name", "POLL\n"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state0/latency", "0\n"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state1/name", "C1\n"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state1/latency", "2\n"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state2/name", "C6\n"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state2/latency", "133\n"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state2/disable", "0\n"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state3/name", "C8\n"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state3/latency", "900\n"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state3/disable", "1\n"),
            ("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
            ("/sys/devices/system/cpu/intel_pstate/status", "active\n"),
        ]);
        let [states, frequency] = IdleStates::gather(&files).findings().try_into().unwrap();
        assert_eq!(
            states.found,
            "driver intel_idle; exit latencies: POLL 0 µs, C1 2 µs, C6 133 µs"
        );
        let change = states.change.unwrap();
        assert!(change.contains("cpu*/cpuidle/state2/disable #"), "{change}");
        assert_eq!(frequency.found, "governor powersave, intel_pstate active");
        assert_eq!(frequency.verdict, Verdict::CouldBeBetter);
    }

    #[test]
    fn a_virtual_machine_may_poll_before_it_halts() {
        let files = FakeFiles(&[
            ("/sys/devices/system/cpu/cpuidle/current_driver", "haltpoll\n"),
            ("/sys/module/haltpoll/parameters/guest_halt_poll_ns", "0\n"),
        ]);
        let [states, frequency, polling] =
            IdleStates::gather(&files).findings().try_into().unwrap();
        assert_eq!([states.verdict, frequency.verdict], [Verdict::Good; 2]);
        assert!(polling.change.unwrap().starts_with("echo 200000 | sudo tee /sys/module/haltpoll"));
    }
}
