//! Instructions in user space and allocations of a call of 100 bytes, both ends together, under valgrind: of the core alone, of
//! the library over UDP on loopback, with one call outstanding and with 256 (batch), and of the library through shared memory
//! (memory), with one and with 64. The batch is also sent to a server with 2 and with 8 shards (one engine per core): a call takes
//! the same number of instructions there, because shards share no state that calls change. A call of a typed service (rpc) is
//! counted beside a call of the library that is awaited in the same way (awaited).
//!
//! The clock of the nodes runs 64 times slower there (`slow_clock.c`), because valgrind makes every turn so long that the next one
//! comes after a pause. A turn after a pause looks at both UDP sockets and at the counters of epoll, which took 740 of the 8,890
//! instructions of a call through memory.
//!
//! A number that differs by more than 2 % from `docs/measurements/instructions.json` fails, until the new one is recorded. The
//! numbers hold for the compiler, valgrind, C library and CPU features of the record; with others the check is skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::callgrind::{Invocation, allocations, instructions};
use crate::counted_programs;
use crate::program::{is_installed, output, read, run, target};

const RECORD: &str = "docs/measurements/instructions.json";

/// The library that slows the clock.
const SLOW_CLOCK: &str = "xtask/src/slow_clock.c";

/// The features of a CPU by which programs and the C library choose code.
const FEATURES: [&str; 10] =
    ["sse4_2", "avx", "avx2", "bmi1", "bmi2", "fma", "erms", "fsrm", "movbe", "popcnt"];

/// The part of a recorded number by which a new one may differ.
const TOLERANCE: f64 = 0.02;

/// How far a recorded number may be from the measured one: the record has two decimals.
const ROUNDING: f64 = 0.005;

/// The same for allocations a call: a batch allocates for all its calls, and the sizes of batches vary by one call in fifty.
const ALLOCATIONS: f64 = 0.02;

/// Calls that are counted.
struct Counted {
    /// The beginning of the names of its two numbers.
    name: &'static str,
    /// The setting `link` of the nodes.
    link: &'static str,
    example: &'static str,
    argument: &'static str,
    /// Number of the server's shards or `together`, if it is given.
    option: Option<&'static str>,
    /// Numbers of calls of two runs. Their difference has no instructions of the start and the end.
    calls: [u64; 2],
}

const COUNTED: [Counted; 12] = [
    counted("core", "udp", "core_cost", "count", [6_400, 38_400]),
    counted("library", "udp", "call_cost", "1", [2_000, 12_000]),
    counted("batch", "udp", "call_cost", "256", [2_560, 25_600]),
    counted("batch_2_shards", "udp", "call_cost", "256", [2_560, 25_600]).with("2"),
    counted("batch_8_shards", "udp", "call_cost", "256", [2_560, 25_600]).with("8"),
    counted("memory", "auto", "call_cost", "1", [2_000, 12_000]),
    counted("memory_batch", "auto", "call_cost", "64", [2_560, 25_600]),
    counted("batch_together", "udp", "call_cost", "256", [2_560, 25_600]).with("together"),
    counted("memory_together", "auto", "call_cost", "64", [2_560, 25_600]).with("together"),
    counted("awaited", "auto", "rpc_cost", "apus", [1_000, 5_000]),
    counted("rpc", "auto", "rpc_cost", "typed", [1_000, 5_000]),
    counted("rpc_udp", "udp", "rpc_cost", "typed", [1_000, 5_000]),
];

const fn counted(
    name: &'static str,
    link: &'static str,
    example: &'static str,
    argument: &'static str,
    calls: [u64; 2],
) -> Counted {
    Counted { name, link, example, argument, option: None, calls }
}

/// A number of the record, and its value.
type Measured = (String, f64);

/// Compares the numbers with the record.
pub(crate) fn compare() -> Result<()> {
    if is_skipped() {
        return Ok(());
    }
    let (record, environment) = (Record::parse(&read(RECORD)?)?, environment()?);
    if environment != record.environment {
        let recorded = record.environment;
        println!(
            "skipped: instructions of a call: here is {environment}; the record is for {recorded}"
        );
        return Ok(());
    }
    let mut differ = false;
    let measured = measure()?;
    run(&mut Command::new(format!("{}/release/call_rate", target())))?;
    for (name, ratio) in beyond_one_shard(&measured) {
        println!("{name}: {ratio:.3} of batch");
        if is_off(ratio, 1.0, ROUNDING) {
            eprintln!("{name}: shards change the cost of a call by more than 2 %");
            differ = true;
        }
    }
    for (name, value) in measured {
        let was = record.values.get(&name).with_context(|| format!("{RECORD} has no {name}"))?;
        println!("{name}: {value:.2} a call, {was:.2} recorded");
        if is_off(value, *was, slack_of(&name)) {
            eprintln!(
                "{name}: more than 2 % off; mend it, or run cargo xtask instructions --record REASON"
            );
            differ = true;
        }
    }
    if differ {
        bail!("instructions of a call differ from the record");
    }
    Ok(())
}

/// Records the present numbers.
pub(crate) fn record(reason: &str) -> Result<()> {
    if is_skipped() {
        return Ok(());
    }
    let (record, environment) = (Record::parse(&read(RECORD)?)?, environment()?);
    let change = Change {
        date: output(Command::new("date").arg("+%F"))?,
        after: output(Command::new("git").args(["rev-parse", "--short", "HEAD"]))?,
        reason: reason.to_owned(),
    };
    let text = record.with(&environment, &measure()?, &change);
    std::fs::write(RECORD, &text).context(RECORD)?;
    print!("{text}");
    Ok(())
}

/// Returns whether the check cannot run on this machine, and says so.
fn is_skipped() -> bool {
    let missing = !is_installed("valgrind");
    if missing {
        println!("skipped: instructions of a call: valgrind is not installed");
    }
    missing
}

fn is_off(value: f64, recorded: f64, slack: f64) -> bool {
    (value - recorded).abs() > TOLERANCE * recorded + slack
}

/// Returns by how much a number may differ beside the tolerance.
fn slack_of(name: &str) -> f64 {
    if name.ends_with("_allocations") { ALLOCATIONS } else { ROUNDING }
}

/// Returns the instructions of calls to several shards, divided by those of calls to one.
fn beyond_one_shard(measured: &[Measured]) -> Vec<(String, f64)> {
    let instructions = |name: &str| {
        let name = format!("{name}_instructions");
        measured.iter().find(|(measured, _)| *measured == name).map(|(_, value)| *value)
    };
    let sharded = COUNTED.iter().filter(|counted| counted.name.ends_with("shards"));
    let ratio = |counted: &Counted| {
        Some((counted.name.to_owned(), instructions(counted.name)? / instructions("batch")?))
    };
    sharded.filter_map(ratio).collect()
}

fn measure() -> Result<Vec<Measured>> {
    counted_programs::build()?;
    let clock = slow_clock()?;
    let mut measured = Vec::new();
    for counted in &COUNTED {
        let Counted { name, .. } = counted;
        let a_call = |count| counted.a_call(&clock, count);
        measured.push((format!("{name}_instructions"), a_call(instructions)?));
        measured.push((format!("{name}_allocations"), a_call(allocations)?));
    }
    Ok(measured)
}

/// Builds the library that slows the clock. Returns its path.
fn slow_clock() -> Result<String> {
    let library = format!("{}/slow_clock.so", target());
    run(Command::new("cc").args(["-O2", "-shared", "-fPIC", "-o", &library, SLOW_CLOCK]))?;
    let library = std::fs::canonicalize(&library).context(library)?;
    Ok(library.to_string_lossy().into_owned())
}

impl Counted {
    const fn with(self, option: &'static str) -> Self {
        Self { option: Some(option), ..self }
    }

    /// Returns the number of instructions or allocations of a call, by the clock of this library.
    fn a_call(&self, clock: &str, count: fn(&Invocation<'_>) -> Result<u64>) -> Result<f64> {
        let program = format!("{}/release/{}", target(), self.example);
        let total = |calls: u64| {
            let calls = calls.to_string();
            let arguments = [self.argument, &calls].into_iter().chain(self.option);
            count(&Invocation {
                program: &program,
                arguments: &arguments.collect::<Vec<_>>(),
                // Counters are shown by time, which passes slowly under valgrind.
                variables: &[
                    ("APUS_LINK", self.link),
                    ("APUS_METRICS", "off"),
                    ("LD_PRELOAD", clock),
                ],
            })
        };
        let [fewer, more] = self.calls;
        Ok((total(more)? as f64 - total(fewer)? as f64) / (more - fewer) as f64)
    }
}

/// Returns everything on which the numbers depend beside the code.
fn environment() -> Result<String> {
    let [rustc, valgrind] =
        ["rustc", "valgrind"].map(|it| output(Command::new(it).arg("--version")));
    let libc = output(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
    let features = features(&read("/proc/cpuinfo")?);
    Ok(format!("{}, {}, {libc}, CPU {features}", rustc?, valgrind?))
}

/// Returns those of [`FEATURES`] that the first CPU has, in order.
fn features(cpuinfo: &str) -> String {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let present: BTreeSet<&str> =
        flags.split_whitespace().filter(|flag| FEATURES.contains(flag)).collect();
    present.into_iter().collect::<Vec<_>>().join(" ")
}

/// The recorded numbers.
#[derive(Debug)]
struct Record {
    environment: String,
    values: BTreeMap<String, f64>,
    /// The numbers of each change, as lines of JSON without commas between them.
    changes: Vec<String>,
}

struct Change {
    date: String,
    after: String,
    reason: String,
}

impl Record {
    fn parse(text: &str) -> Result<Self> {
        let record: Value = serde_json::from_str(text).context(RECORD)?;
        let record = record.as_object().context(RECORD)?;
        let environment = record.get("environment").and_then(Value::as_str);
        let values =
            record.iter().filter_map(|(name, value)| Some((name.clone(), value.as_f64()?)));
        // The lines stay as they were written.
        let changes = text.lines().map(str::trim).filter(|line| line.starts_with("{\""));
        Ok(Self {
            environment: environment
                .with_context(|| format!("{RECORD} has no environment"))?
                .to_owned(),
            values: values.collect(),
            changes: changes.map(|line| line.trim_end_matches(',').to_owned()).collect(),
        })
    }

    /// Returns the text of the record with new numbers.
    fn with(&self, environment: &str, measured: &[Measured], change: &Change) -> String {
        let json = |text: &str| Value::from(text).to_string();
        let numbers: Vec<String> =
            measured.iter().map(|(name, value)| format!("\"{name}\": {value:.2}")).collect();
        let Change { date, after, reason } = change;
        let last = format!(
            "{{\"date\": \"{date}\", \"after\": \"{after}\", {}, \"reason\": {}}}",
            numbers.join(", "),
            json(reason)
        );
        let changes: Vec<&str> =
            self.changes.iter().map(String::as_str).chain([last.as_str()]).collect();
        format!(
            "{{\n  \"command\": \"cargo xtask instructions --record REASON\",\n  \"environment\": {},\n  {},\n  \
             \"changes\": [\n    {}\n  ]\n}}\n",
            json(environment),
            numbers.join(",\n  "),
            changes.join(",\n    ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{
  "command": "cargo xtask instructions --record REASON",
  "environment": "rustc 1.0, CPU avx",
  "core_instructions": 6542.75,
  "core_allocations": 2.00,
  "changes": [
    {"date": "2026-01-01", "after": "abc", "core_instructions": 6500.00, "reason": "first, \"fast\""},
    {"date": "2026-01-02", "after": "abd",  "core_instructions": 6542.75, "reason": "second"}
  ]
}
"#;

    #[test]
    fn a_record_keeps_its_changes_as_they_are() {
        let record = Record::parse(TEXT).unwrap();
        assert_eq!(record.environment, "rustc 1.0, CPU avx");
        let expected = [("core_allocations", 2.0), ("core_instructions", 6542.75)];
        assert_eq!(record.values, expected.map(|(name, value)| (name.to_owned(), value)).into());
        let measured = [("core_instructions", 6000.0), ("core_allocations", 2.5)];
        let measured = measured.map(|(name, value)| (name.to_owned(), value));
        let [date, after, reason] = ["2026-01-03", "abe", "a \"third\""].map(str::to_owned);
        let text = record.with("rustc 2.0", &measured, &Change { date, after, reason });
        let change = r#"    {"date": "2026-01-03", "after": "abe", "core_instructions": 6000.00, "core_allocations": 2.50, "reason": "a \"third\""}"#;
        let expected = TEXT
            .replace("rustc 1.0, CPU avx", "rustc 2.0")
            .replace(
                "\"core_instructions\": 6542.75,\n  \"core_al",
                "\"core_instructions\": 6000.00,\n  \"core_al",
            )
            .replace("\"core_allocations\": 2.00", "\"core_allocations\": 2.50")
            .replace("\"second\"}", &format!("\"second\"}},\n{change}"));
        assert_eq!(text, expected);
    }

    #[test]
    fn the_record_of_this_repository_has_every_number() {
        let record =
            Record::parse(include_str!("../../docs/measurements/instructions.json")).unwrap();
        for Counted { name, .. } in &COUNTED {
            for number in ["instructions", "allocations"] {
                assert!(record.values.contains_key(&format!("{name}_{number}")), "{name}");
            }
        }
        assert!(!record.changes.is_empty());
        for change in &record.changes {
            assert!(serde_json::from_str::<Value>(change).is_ok(), "{change}");
        }
    }

    #[test]
    fn two_percent_are_within_the_tolerance() {
        let is_off = |value, recorded| is_off(value, recorded, ROUNDING);
        assert!(!is_off(102.0, 100.0) && !is_off(98.0, 100.0));
        assert!(!is_off(0.0, 0.0) && !is_off(0.004, 0.0));
        assert!(is_off(102.1, 100.0) && is_off(97.9, 100.0) && is_off(0.01, 0.0));
    }

    #[test]
    fn one_allocation_in_fifty_calls_is_within_the_tolerance() {
        let is_off = |value, recorded| is_off(value, recorded, slack_of("batch_allocations"));
        assert!(!is_off(0.01, 0.0) && !is_off(0.21, 0.20) && !is_off(0.19, 0.20));
        assert!(is_off(0.03, 0.0) && is_off(0.23, 0.20));
        assert_eq!(slack_of("batch_instructions"), ROUNDING);
    }

    #[test]
    fn a_feature_is_a_whole_word() {
        let cpuinfo = "processor\t: 0\nflags\t\t: fpu avx512f bmi2 avx xavx bmi2\nflags\t\t: fma\n";
        assert_eq!(features(cpuinfo), "avx bmi2");
    }
}
