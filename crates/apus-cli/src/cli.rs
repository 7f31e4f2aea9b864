//! The tree of subcommands.

use std::io::stdout;

use anyhow::Result;
use apus_bench::roles;
use apus_lab::agent;
use clap::{CommandFactory, Parser, Subcommand};

use crate::bench::{self, Bench};
use crate::capture::{self, CaptureCommand};
use crate::cluster::{self, Cluster};
use crate::irq::{self, Irq};
use crate::lab::{self, Lab};
use crate::node::{self, NodeCommand};
use crate::sim::{self, Sim};
use crate::trace::{self, Trace};
use crate::{
    carrier, completions, daemon, demo, dev_certs, doctor, man, report, run, settings, stat, top,
};

/// Homa for user space: short messages stay fast beside long ones, on a stock Linux kernel
#[derive(Debug, Parser)]
#[command(
    name = "apus",
    version = version(),
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Start with `apus demo`. Every command has --help with examples.

Exit status:
    0  done
    1  failed or stopped, or a check FAILS
    2  wrong use
    3  measured but refused, because the machine or the load generator was too busy
  126  apus run, apus irq run: the program or its library is not usable
  127  apus run, apus irq run: the program was not found

Otherwise apus run and apus irq run end with the exit status of the program."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The version, with the commit if it was given to the build.
fn version() -> &'static str {
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    match option_env!("APUS_COMMIT") {
        Some(commit) => format!("{VERSION} (commit {commit})").leak(),
        None => VERSION,
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Args),
    #[command(subcommand, arg_required_else_help = true)]
    Bench(Bench),
    #[command(subcommand, arg_required_else_help = true)]
    Node(NodeCommand),
    #[command(subcommand, arg_required_else_help = true)]
    Lab(Lab),
    #[command(subcommand, arg_required_else_help = true)]
    Cluster(Cluster),
    #[command(subcommand, arg_required_else_help = true)]
    Sim(Sim),
    #[command(subcommand, arg_required_else_help = true)]
    Trace(Trace),
    Daemon(daemon::Args),
    Run(run::Args),
    Carrier(carrier::Args),
    Stat(stat::Args),
    Top(top::Args),
    Doctor(doctor::Args),
    #[command(subcommand, arg_required_else_help = true)]
    Irq(Irq),
    #[command(subcommand, arg_required_else_help = true)]
    Capture(CaptureCommand),
    Report(report::Args),
    DevCerts(dev_certs::Args),
    Settings(settings::Args),
    Completions(completions::Args),
    Man(man::Args),
    /// Serve as the other process of a benchmark
    #[command(hide = true, name = apus_bench::peer::COMMAND)]
    BenchPeer {
        /// Role of the process
        role: String,
        /// Options of the role, in JSON
        options: String,
    },
    /// Measure the emulated network of `apus demo`; write the result as JSON
    #[command(hide = true, name = demo::LAB_COMMAND)]
    DemoLab {
        /// Length of a run between two processes; all other times are multiples of it
        seconds: f64,
        /// Rate of the emulated links
        link_mbps: f64,
    },
    /// Serve and generate load as one host of a lab, controlled over standard input and output
    #[command(hide = true, name = apus_lab::emulated::AGENT_COMMAND)]
    LabAgent,
}

/// Runs the subcommand chosen.
///
/// # Errors
/// As the subcommand does.
pub(crate) fn run(cli: Cli) -> Result<()> {
    trace::check_variables()?;
    match cli.command {
        Command::Demo(args) => demo::run(&args),
        Command::Bench(bench) => bench::run(&bench),
        Command::Node(node) => node::run(&node),
        Command::Lab(lab) => lab::run(&lab),
        Command::Cluster(cluster) => cluster::run(&cluster),
        Command::Sim(sim) => sim::run(&sim),
        Command::Trace(trace) => trace::run(&trace),
        Command::Daemon(args) => daemon::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Carrier(args) => carrier::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Irq(irq) => irq::run(&irq),
        Command::Capture(command) => capture::run(&command),
        Command::Report(args) => report::run(&args),
        Command::DevCerts(args) => dev_certs::run(&args),
        Command::Settings(args) => settings::run(&args),
        Command::Completions(args) => completions::run(&args, Cli::command()),
        Command::Man(args) => man::run(&args, Cli::command()),
        Command::BenchPeer { role, options } => roles::serve(&role, &options, &mut stdout()),
        Command::DemoLab { seconds, link_mbps } => demo::lab(seconds, link_mbps),
        Command::LabAgent => agent::run(&mut stdout()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn json_is_a_file_everywhere() {
        fn check(command: &clap::Command, path: &str) {
            for argument in command.get_arguments().filter(|it| it.get_long() == Some("json")) {
                let names: Vec<&str> =
                    argument.get_value_names().into_iter().flatten().map(|name| &**name).collect();
                assert_eq!(names, ["FILE"], "--json of `{path}` takes a file, or -");
            }
            for sub in command.get_subcommands() {
                check(sub, &format!("{path} {}", sub.get_name()));
            }
        }
        let mut command = Cli::command();
        command.build();
        check(&command, "apus");
    }

    #[test]
    fn every_visible_command_has_an_example() {
        fn check(command: &clap::Command) {
            for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
                let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(
                    sub.has_subcommands() || help.contains("Example"),
                    "`{}` shows no example",
                    sub.get_name()
                );
                check(sub);
            }
        }
        check(&Cli::command());
    }
}
