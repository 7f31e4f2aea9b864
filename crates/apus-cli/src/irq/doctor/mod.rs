//! `apus irq doctor`: what keeps suspension from acting for a program or on a device, and whether it acts.
//!
//! [`facts`] are gathered from the machine; the conditions of [`instances`] and [`program`] are pure functions of them, and
//! [`acting`] watches the kernel.

mod acting;
mod facts;
mod finding;
mod instances;
mod program;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;

use super::state::StateArgs;
use crate::output::{self, OutputFile};
use acting::Watched;
use facts::{Facts, Subject};
use finding::{Finding, Verdict};

/// Find out what keeps suspension from acting, and whether it acts
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Each condition has a line: ok, wrong or unknown, what was found, and a command that mends it. Nothing is changed. The \
commands are for this machine: read them before you type them. docs/irq.md explains every condition.

The kernel's watchdog timers and polls are watched for a second, which takes root (CAP_PERFMON and CAP_SYSLOG); so look while the \
program is under load. Without that right, the rest is looked at all the same. Programs of other users take CAP_SYS_PTRACE.

The exit status is 0 if nothing is wrong, and 1 if something is.

Examples:
  sudo apus irq doctor 4711
  sudo apus irq doctor $(pidof -s memcached) --watch 10
  sudo apus irq doctor eth0
  apus irq doctor 4711 --json doctor.json
  sudo nsenter -t 4711 -n apus irq doctor 4711"
)]
pub(crate) struct Args {
    /// Process of a program, whose children are looked at as well; or a network device
    #[arg(value_name = "PID|DEV")]
    subject: String,
    /// How long the kernel is watched, in seconds, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    watch: Duration,
    /// Write the findings as JSON to FILE; - is standard output, which then has no text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    state: StateArgs,
}

/// What `--json` writes.
#[derive(Debug, Serialize)]
struct Report<'a> {
    schema: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a str>,
    findings: &'a [Finding],
    watch: &'a Watched,
}

const SCHEMA: &str = "apus-irq-doctor/1";

/// Looks, watches and shows.
///
/// # Errors
/// When there is no such process or device, a file cannot be written, or something is wrong.
pub(crate) fn run(args: &Args) -> Result<()> {
    let file = args.json.as_deref().map(OutputFile::open).transpose()?;
    // Without a directory, nothing is known about values that were set before.
    let state = args.state.open().ok();
    let mut facts = match args.subject.parse() {
        Ok(pid) => Facts::of_program(pid, state.as_ref())?,
        Err(_) => Facts::of_device(&args.subject, state.as_ref())?,
    };
    let watched = Watched::watch(&mut facts, args.watch);
    let mut findings = instances::before(&facts);
    findings.extend(program::findings(&facts));
    findings.extend(instances::findings(&facts));
    findings.extend(acting::findings(&facts, &watched));
    let (pid, program, device) = match &facts.subject {
        Subject::Program { pid, name } => (Some(*pid), Some(name.as_str()), None),
        Subject::Device(name) => (None, None, Some(name.as_str())),
    };
    if args.json.as_deref() != Some(Path::new("-")) {
        let head = match &facts.subject {
            Subject::Program { pid, name } => format!("{name} (pid {pid})\n\n"),
            Subject::Device(name) => format!("{name}\n\n"),
        };
        output::print(&(head + &finding::text(&findings)))?;
    }
    if let Some(file) = file {
        let findings = &findings;
        let report = Report { schema: SCHEMA, pid, program, device, findings, watch: &watched };
        file.write(&(serde_json::to_string_pretty(&report)? + "\n"))?;
    }
    let wrong = findings.iter().filter(|it| it.verdict == Verdict::Wrong);
    let wrong: Vec<_> = wrong.map(|it| it.condition).collect();
    if !wrong.is_empty() {
        bail!("{} of {} conditions are wrong: {}", wrong.len(), findings.len(), wrong.join("; "));
    }
    Ok(())
}

/// Reads a time that the kernel is watched.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok();
    let allowed = seconds.filter(|it| (0.1..=3600.0).contains(it));
    allowed.map(Duration::from_secs_f64).ok_or_else(|| "expected 0.1 to 3600".to_owned())
}
