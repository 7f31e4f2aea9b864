//! `apus irq doctor`: obstacles to suspension for a program or on a device, and whether it acts.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use apus_doctor::Report;
use apus_doctor::suspension::{ProgramOrDevice, Suspension};

use super::state::StateArgs;
use crate::doctor;
use crate::output::OutputFile;

/// Find out what keeps suspension from acting, and whether it acts
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Each line has a verdict (good, could be better, bad, not known), the finding, and a command that changes it. The \
doctor changes nothing itself. The commands are for this machine: read them before you run them. docs/irq.md explains every line.

The doctor watches the kernel's watchdog timers and polls for a second, so run it while the program is under load. This part needs \
root (CAP_PERFMON and CAP_SYSLOG) and is omitted without it. Programs of other users need CAP_SYS_PTRACE.

The exit status is 1 if a verdict is bad, and 0 otherwise.

Examples:
  sudo apus irq doctor 4711
  sudo apus irq doctor $(pidof -s memcached) --watch 10
  sudo apus irq doctor eth0
  apus irq doctor 4711 --json doctor.json
  sudo nsenter -t 4711 -n apus irq doctor 4711"
)]
pub(crate) struct Args {
    /// Process of a program, examined with its children; or a network device
    #[arg(value_name = "PID|DEV")]
    subject: String,
    /// Time to watch the kernel, in seconds, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    watch: Duration,
    /// Write the findings as JSON to FILE; - is standard output, which then has no text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    state: StateArgs,
}

/// Inspects, watches and prints the findings.
///
/// # Errors
/// When there is no such process or device, a file cannot be written, or a finding is bad.
pub(crate) fn run(args: &Args) -> Result<()> {
    let file = args.json.as_deref().map(OutputFile::open).transpose()?;
    // Without a directory, the values that were set before are not known.
    let state = args.state.open().ok();
    let started = SystemTime::now();
    let mut suspension = match args.subject.parse() {
        Ok(pid) => Suspension::of_program(pid, state.as_ref())?,
        Err(_) => Suspension::of_device(&args.subject, state.as_ref())?,
    };
    let watched = suspension.watch(args.watch);
    let findings = suspension.findings(&watched);
    let inspected = suspension.inspected().clone();
    let heading = match &inspected {
        ProgramOrDevice::Program { pid, name } => format!("{name} (pid {pid})"),
        ProgramOrDevice::Device(name) => name.clone(),
    };
    doctor::conclude(&Report::new(inspected, started, findings, Some(watched)), &heading, file)
}

/// Parses the time of the watch.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok();
    let allowed = seconds.filter(|it| (0.1..=3600.0).contains(it));
    allowed.map(Duration::from_secs_f64).ok_or_else(|| "expected 0.1 to 3600".to_owned())
}
