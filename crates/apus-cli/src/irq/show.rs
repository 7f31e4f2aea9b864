//! `apus irq show`: NAPI instances of a device, the CPUs of its packets, and the epoll sets of programs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use apus_irq::{Device, Mode, Napi, Slot, THREADED_BUSY_POLL};
use apus_load::report::{Style, Table};
use nix::net::if_::if_nameindex;
use serde::Serialize;

use super::preset::{self, Preset};
use super::programs::Programs;
use crate::output;

/// Show NAPI instances with their parameters, interrupts, and the epoll sets of programs
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "A NAPI instance is the receive context of a queue. Suspension needs defer of at least 1, gro-flush above 0, \
irq-suspend above 0, and prefer on the epoll set of the program. docs/irq.md explains them.

Examples:
  apus irq show
  apus irq show eth0
  apus irq show --pid 4711
  apus irq show eth0 --json -
  apus irq show --presets"
)]
pub(crate) struct Args {
    /// Device to show [default: all]
    #[arg(value_name = "DEV")]
    device: Option<String>,
    /// Show only the epoll sets of this process, and no devices unless one is given
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// List the saved presets instead
    #[arg(long, conflicts_with_all = ["device", "pid"])]
    presets: bool,
    /// Write as JSON to FILE; - is standard output, which then has no table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct PresetShown {
    name: String,
    #[serde(flatten)]
    preset: Option<Preset>,
    /// The reason why it cannot be read.
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct ShowResult {
    schema: &'static str,
    devices: Vec<DeviceShown>,
    #[serde(flatten)]
    programs: Programs,
}

#[derive(Debug, Serialize)]
struct DeviceShown {
    device: String,
    napis: Vec<Slot>,
    queues: Vec<QueueShown>,
    /// The objects that could not be read, with the reasons.
    unreadable: Vec<String>,
    interrupts: Vec<Interrupt>,
}

/// The CPUs that the packets of a queue go to, as masks of the kernel; `None` where the kernel does not report them.
#[derive(Debug, Serialize)]
struct QueueShown {
    queue: String,
    rps_cpus: Option<String>,
    rps_flow_cnt: Option<String>,
    xps_cpus: Option<String>,
}

/// An interrupt of one of the NAPI instances.
#[derive(Debug, Serialize)]
struct Interrupt {
    irq: u32,
    affinity: Option<String>,
    /// Number of interrupts since the boot, by CPU in the order of /proc/interrupts.
    counts: Vec<u64>,
}

/// Prints the requested data.
///
/// # Errors
/// When there is no such device or process, or a file cannot be written.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.presets {
        return show_presets(args.json.as_deref());
    }
    let names = match (&args.device, args.pid) {
        (Some(device), _) => vec![device.clone()],
        (None, Some(_)) => Vec::new(),
        (None, None) => all_devices()?,
    };
    let devices = names.iter().map(|name| DeviceShown::read(name)).collect::<Result<_>>()?;
    let programs = Programs::read(args.pid)?;
    let shown = ShowResult { schema: "apus-irq/1", devices, programs };
    if let Some(path) = &args.json {
        output::write_json(path, &shown)?;
    }
    if args.json.as_deref() == Some(Path::new("-")) {
        return Ok(());
    }
    let style = Style::for_stdout();
    let mut text = String::new();
    for device in &shown.devices {
        text += &device.text(style);
        text.push('\n');
    }
    output::print(&(text + &shown.programs.text(style)))
}

fn show_presets(json: Option<&Path>) -> Result<()> {
    let shown: Vec<PresetShown> = preset::all()?
        .into_iter()
        .map(|(name, preset)| match preset {
            Ok(preset) => PresetShown { name, preset: Some(preset), error: None },
            Err(error) => PresetShown { name, preset: None, error: Some(error) },
        })
        .collect();
    if let Some(path) = json {
        output::write_json(path, &shown)?;
    }
    if json == Some(Path::new("-")) {
        return Ok(());
    }
    let line = |it: &PresetShown| match (&it.preset, &it.error) {
        (Some(preset), _) => {
            format!("{}: {} ({})\n", it.name, Mode::own(preset.napi, preset.epoll), preset.made)
        }
        (None, error) => format!("{}: {}\n", it.name, error.as_deref().unwrap_or_default()),
    };
    let text: String = shown.iter().map(line).collect();
    output::print(if text.is_empty() { "No preset.\n" } else { &text })
}

fn all_devices() -> Result<Vec<String>> {
    let interfaces = if_nameindex().context("network devices")?;
    Ok(interfaces.iter().map(|it| it.name().to_string_lossy().into_owned()).collect())
}

impl DeviceShown {
    fn read(name: &str) -> Result<Self> {
        let mut unreadable = Vec::new();
        let slots = Device::named(name)?.slots();
        let napis = slots.unwrap_or_else(|error| {
            unreadable.push(error.to_string());
            Vec::new()
        });
        let directory = format!("/sys/class/net/{name}/queues");
        let mut queues = Vec::new();
        match fs::read_dir(&directory) {
            Err(error) => unreadable.push(format!("{directory}: {error}")),
            Ok(entries) => {
                let names = entries.filter_map(|it| it.ok()?.file_name().into_string().ok());
                queues.extend(names.map(|queue| QueueShown::read(&directory, queue)));
                queues.sort_by_key(|it| (it.queue.len(), it.queue.clone()));
            }
        }
        let irqs = napis.iter().filter_map(|slot| slot.napi.irq);
        let table = fs::read_to_string("/proc/interrupts");
        if let Err(error) = &table {
            unreadable.push(format!("/proc/interrupts: {error}"));
        }
        let table = table.unwrap_or_default();
        let interrupts = irqs.map(|irq| Interrupt::read(irq, &table)).collect();
        Ok(Self { device: name.to_owned(), napis, queues, unreadable, interrupts })
    }

    fn text(&self, style: Style) -> String {
        let mut text = if self.napis.is_empty() {
            format!("{}: no NAPI instance\n", self.device)
        } else {
            self.table(style)
        };
        for it in &self.interrupts {
            let counts = it.counts.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
            let affinity = it.affinity.as_deref().unwrap_or("not known");
            text += &format!("irq {}: CPUs {affinity}; interrupts per CPU: {counts}\n", it.irq);
        }
        for it in &self.queues {
            let parts =
                [("RPS", &it.rps_cpus), ("RFS flows", &it.rps_flow_cnt), ("XPS", &it.xps_cpus)];
            let set = parts.into_iter().filter_map(|(name, value)| {
                let value = value.as_deref()?;
                let is_set = value.chars().any(|digit| !matches!(digit, '0' | ','));
                is_set.then(|| format!("{name} {value}"))
            });
            let set = set.collect::<Vec<_>>().join(", ");
            if !set.is_empty() {
                text += &format!("{}: {set}\n", it.queue);
            }
        }
        for why in &self.unreadable {
            text += &format!("not read: {why}\n");
        }
        text
    }

    fn table(&self, style: Style) -> String {
        let heads = [
            ("NAPI", false),
            ("id", true),
            ("irq", true),
            ("thread", true),
            ("defer", true),
            ("gro-flush us", true),
            ("irq-suspend us", true),
            ("queues", false),
        ];
        let number = |value: Option<u32>| value.map_or_else(|| "-".to_owned(), |it| it.to_string());
        let thread = |napi: &Napi| match napi.threaded {
            Some(THREADED_BUSY_POLL) => format!("{} busy", number(napi.pid)),
            _ => number(napi.pid),
        };
        let line = |slot: &Slot| {
            let napi = &slot.napi;
            let suspend = napi.irq_suspend_timeout_ns.map_or_else(|| "-".to_owned(), microseconds);
            vec![
                slot.name.clone(),
                napi.id.to_string(),
                number(napi.irq),
                thread(napi),
                napi.defer_hard_irqs.to_string(),
                microseconds(napi.gro_flush_timeout_ns),
                suspend,
                slot.queues.join(" "),
            ]
        };
        Table::of_texts(&self.device, "", &heads, self.napis.iter().map(line)).text(style)
    }
}

impl QueueShown {
    fn read(directory: &str, queue: String) -> Self {
        let file = |name: &str| trimmed(&format!("{directory}/{queue}/{name}"));
        Self {
            rps_cpus: file("rps_cpus"),
            rps_flow_cnt: file("rps_flow_cnt"),
            xps_cpus: file("xps_cpus"),
            queue,
        }
    }
}

impl Interrupt {
    fn read(irq: u32, table: &str) -> Self {
        let row = table.lines().find_map(|row| row.trim_start().strip_prefix(&format!("{irq}:")));
        let counts = row.unwrap_or_default().split_whitespace().map_while(|it| it.parse().ok());
        let cpus = table.lines().next().unwrap_or_default().split_whitespace().count();
        let affinity = trimmed(&format!("/proc/irq/{irq}/smp_affinity_list"));
        Self { irq, affinity, counts: counts.take(cpus).collect() }
    }
}

fn trimmed(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim_end().to_owned())
}

fn microseconds(ns: u64) -> String {
    let text = format!("{:.3}", ns as f64 / 1_000.0);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_cpus() {
        let table =
            "           CPU0       CPU1\n 24:   1   2  PCI-MSI 512-edge 5 virtio0\n124:  7 8 x\n";
        assert_eq!(Interrupt::read(24, table).counts, [1, 2]);
        assert_eq!(Interrupt::read(124, table).counts, [7, 8]);
        assert!(Interrupt::read(4, table).counts.is_empty());
    }

    #[test]
    fn times_are_shown_without_zeros_at_the_end() {
        assert_eq!([0, 1, 20_000, 1_500].map(microseconds), ["0", "0.001", "20", "1.5"]);
    }
}
