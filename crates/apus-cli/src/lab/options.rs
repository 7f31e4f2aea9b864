//! Arguments that override settings of a plan.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use apus_lab::plan::{self, Contender, LINK_MBPS_MAX, LoadLevel, Pattern, Setting};
use apus_load::misuse::Misuse;
use apus_node::arguments;

use crate::failure;
use crate::output::OutputArgs;

/// Overrides of settings of the plan, for all its measurements.
#[derive(Clone, Debug, clap::Args)]
struct SettingOverrides {
    /// Rate of each link, both ways [default: 50]
    #[arg(long, value_name = "MBPS", allow_negative_numbers = true, value_parser = arguments::number::<f64>(format!("Mb/s, in the lab from 1 to {LINK_MBPS_MAX}")))]
    link_mbps: Option<f64>,
    /// Transports to measure, one after the other [default: apus,tcp]
    #[arg(long, value_name = "TRANSPORT,…", value_delimiter = ',')]
    transports: Option<Vec<Contender>>,
    /// Lengths of requests: w1 to w5, a size, mix, or weight:size,… [default: w4]
    #[arg(long, value_name = "WORKLOAD")]
    workload: Option<String>,
    /// Pattern of the calls between hosts [default: all-to-all]
    #[arg(long, value_name = "PATTERN")]
    pattern: Option<Pattern>,
    /// Share of each link that messages fill; or max, or unloaded [default: 0.8]
    #[arg(long, value_name = "LOAD", value_parser = str::parse::<LoadLevel>)]
    load: Option<LoadLevel>,
    /// Priorities that Apus uses, 1 to 8 [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    priorities: Option<u8>,
    /// Packet delivery of Apus: base, defer:20 (µs), napibusy, fullbusy, suspend or suspend:20, with parameters like ,budget=32 [default: suspend]
    #[arg(long, value_name = "MODE")]
    delivery: Option<String>,
    /// Receive buffer of Apus; a stock machine gives 212992; `apus settings receive_buffer` shows the default
    #[arg(long, value_name = "BYTES", value_parser = arguments::buffer)]
    receive_buffer: Option<u32>,
    /// Append the packets of Apus to FILE for Wireshark, which takes time; in a cluster, to FILE on each host
    #[arg(long, value_name = "FILE.pcapng")]
    capture: Option<PathBuf>,
    /// TCP connections for each pair of hosts; the best number is used [default: 1,2,4,8]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = arguments::number::<usize>("connections from 1 to 64"))]
    connections: Option<Vec<usize>>,
    /// Congestion control of TCP [default: the system's]
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Seconds in which counted calls start [default: 30]
    #[arg(long, value_name = "S", allow_negative_numbers = true, value_parser = arguments::number::<f64>("seconds from 0.1 to 100000"))]
    seconds: Option<f64>,
    /// Repetitions of all measurements [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: Option<u32>,
}

/// Arguments of `lab run` and `cluster run` beside the hosts.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CampaignArgs {
    /// A plan in TOML; see docs/lab.md
    #[arg(value_name = "PLAN.toml")]
    plan: Option<PathBuf>,
    #[command(flatten)]
    options: SettingOverrides,
    /// Keep the result of each measurement in DIR, and skip measurements with a result in DIR
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

impl CampaignArgs {
    /// Empties the file of `--capture`, to which the hosts of a lab append.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn empty_capture(&self) -> Result<()> {
        let Some(file) = &self.options.capture else { return Ok(()) };
        let cannot = || format!("cannot write capture file '{}'", file.display());
        std::fs::File::create(file).map(drop).with_context(cannot)
    }

    /// The settings of the plan, or of no plan, with these options and this number of hosts.
    ///
    /// # Errors
    /// When the plan cannot be read or a value is not allowed.
    pub(crate) fn settings(&self, hosts: Option<usize>) -> Result<Vec<Setting>> {
        let plan = self.plan.as_ref();
        let text = match plan {
            Some(path) => std::fs::read_to_string(path)
                .with_context(|| format!("cannot read plan `{}`", path.display()))?,
            None => String::new(),
        };
        let named = |error: anyhow::Error| match plan {
            Some(path) => {
                Misuse(format!("plan `{}`: {}", path.display(), failure::message(&error)))
            }
            None => Misuse(failure::message(&error)),
        };
        let settings = plan::settings(&text).map_err(named)?;
        let capture = self.options.capture.as_ref().map(std::path::absolute).transpose();
        let capture = capture.context("cannot find the path of --capture")?;
        let capture = capture.map(|file| text_of(&file)).transpose()?;
        let changed = settings.into_iter().map(|setting| {
            let hosts = hosts.unwrap_or(setting.hosts);
            let mut changed = self.options.applied_to(Setting { hosts, ..setting });
            if let Some(file) = &capture {
                changed.apus.insert("capture".to_owned(), file.clone().into());
            }
            changed.check().map_err(named)?;
            Ok(changed)
        });
        changed.collect()
    }
}

/// A path as a value of a plan.
fn text_of(path: &Path) -> Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        Misuse(format!("'--capture {}': the path is not UTF-8", path.display())).into()
    })
}

impl SettingOverrides {
    fn applied_to(&self, mut setting: Setting) -> Setting {
        fn put<T: Clone>(place: &mut T, value: &Option<T>) {
            if let Some(value) = value {
                place.clone_from(value);
            }
        }
        put(&mut setting.link_mbps, &self.link_mbps);
        setting.names_link_mbps |= self.link_mbps.is_some();
        put(&mut setting.transports, &self.transports);
        put(&mut setting.workload, &self.workload);
        put(&mut setting.pattern, &self.pattern);
        put(&mut setting.load, &self.load);
        put(&mut setting.priorities, &self.priorities);
        put(&mut setting.delivery, &self.delivery);
        put(&mut setting.connections, &self.connections);
        put(&mut setting.seconds, &self.seconds);
        put(&mut setting.repetitions, &self.repetitions);
        if let Some(bytes) = self.receive_buffer {
            setting.apus.insert("receive_buffer".to_owned(), i64::from(bytes).into());
        }
        setting.congestion = self.congestion.clone().or(setting.congestion);
        setting
    }
}
