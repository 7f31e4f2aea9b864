//! `apus cluster`: the plans of the lab on real hosts, led over ssh.
//!
//! The hosts run the same `apus lab-host` as those of the lab, started by the ssh program, whose configuration (keys,
//! jumps, users) people have already. Queues of real switches are not seen from here, all else is the same.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Subcommand;

use crate::failure::Misuse;
use crate::interrupt;
use crate::lab::campaign::{Campaign, Venue};
use crate::lab::plan::Setting;
use crate::lab::queues::Queues;
use crate::lab::run::Options;
use crate::output::OutputArgs;

/// Measure on real hosts over ssh
#[derive(Debug, Subcommand)]
pub(crate) enum Cluster {
    Run(Box<Args>),
}

/// Carry out a plan of the lab on real hosts
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus cluster run --hosts hosts.txt --link-mbps 25000 plans/lab-vs-tcp.toml --dir results/vs-tcp
  apus cluster run --hosts hosts.txt --link-mbps 25000 --workload w4 --load 0.5
  apus cluster run --hosts hosts.txt --link-mbps 1000 --program /opt/apus/bin/apus --ssh='-F ssh_config' --workload 100

The hosts file has a line for each host: where ssh finds it, and its IP address towards the others:
  node1.example.com 10.0.1.1
  root@node2        10.0.1.2
The same version of apus must be there, and the UDP ports from 20146 and the TCP ports from 5000 on be free. Links, queues and the MTU are
what they are; link_mbps and mtu of the plan say so. Every ssh must get along without a password.")]
pub(crate) struct Args {
    /// The hosts, one a line
    #[arg(long, value_name = "FILE")]
    hosts: PathBuf,
    /// A plan in TOML; see docs/lab.md
    #[arg(value_name = "PLAN.toml")]
    plan: Option<PathBuf>,
    /// How `apus` is called there
    #[arg(long, value_name = "PATH", default_value = "apus")]
    program: String,
    /// Arguments for ssh, separated by spaces
    #[arg(long, value_name = "ARGS", default_value = "", allow_hyphen_values = true)]
    ssh: String,
    #[command(flatten)]
    options: Options,
    /// Keep a result for each setting in DIR, and do not measure those again that are there
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the subcommand chosen.
///
/// # Errors
/// As the subcommand does.
pub(crate) fn run(cluster: &Cluster) -> Result<()> {
    let Cluster::Run(args) = cluster;
    let text = std::fs::read_to_string(&args.hosts)
        .with_context(|| format!("cannot read hosts file `{}`", args.hosts.display()))?;
    let hosts = parse(&text)
        .map_err(|error| Misuse(format!("hosts file `{}`: {error:#}", args.hosts.display())))?;
    let settings = args.options.settings(args.plan.as_ref(), Some(hosts.len()))?;
    if settings.iter().any(|setting| !setting.names_link_mbps) {
        let why = "the rate of the hosts' links in Mb/s, which load and ideal times follow";
        return Err(
            Misuse(format!("'--link-mbps', or link_mbps in the plan, is missing: {why}")).into()
        );
    }
    let output = args.output.open()?;
    let stop = interrupt::handle()?;
    let ssh = args.ssh.split_whitespace().map(str::to_owned).collect();
    let venue = Remote { hosts, program: args.program.clone(), ssh };
    let result = Campaign { venue, stop, trials: 0, dir: args.dir.clone() }.run(&settings)?;
    output.deliver(&result)
}

/// A real host.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Host {
    /// For ssh.
    destination: String,
    /// Towards the other hosts.
    address: IpAddr,
}

/// Reads a hosts file; empty lines and what follows `#` are left out.
fn parse(text: &str) -> Result<Vec<Host>> {
    let mut hosts = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        let [destination, address] = words[..] else {
            ensure!(
                words.is_empty(),
                "line {number}: expected where ssh finds the host, and its IP address"
            );
            continue;
        };
        ensure!(!destination.starts_with('-'), "line {number}: `{destination}` is no host");
        let address = address
            .parse()
            .with_context(|| format!("line {number}: `{address}` is no IP address"))?;
        hosts.push(Host { destination: destination.to_owned(), address });
    }
    ensure!(hosts.len() >= 2, "{} hosts: at least 2 are needed", hosts.len());
    Ok(hosts)
}

/// Hosts reached by ssh.
struct Remote {
    hosts: Vec<Host>,
    program: String,
    ssh: Vec<String>,
}

impl Venue for Remote {
    fn prepare(&mut self, _: &Setting) -> Result<Vec<IpAddr>> {
        Ok(self.hosts.iter().map(|host| host.address).collect())
    }

    fn command(&self, place: usize) -> Command {
        let mut command = Command::new("ssh");
        command.args(["-o", "BatchMode=yes", "-o", "ServerAliveInterval=10"]).args(&self.ssh);
        command.args([&self.hosts[place].destination, &self.program, "lab-host"]);
        command
    }

    fn queues(&self) -> Result<Option<Queues>> {
        Ok(None)
    }

    fn processor(&self, _: usize) -> Option<usize> {
        None
    }

    fn shares_processors(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hosts_file_has_a_host_a_line() {
        let hosts =
            parse("# ours\nnode1 10.0.0.1\n\nroot@node2   10.0.0.2 # the new one\n").unwrap();
        assert_eq!(
            hosts[1],
            Host { destination: "root@node2".into(), address: [10, 0, 0, 2].into() }
        );
        for (text, words) in [
            ("node1 10.0.0.1", "1 hosts: at least 2"),
            ("node1", "line 1: expected"),
            ("\nnode1 x", "line 2: `x` is no IP address"),
            ("-oProxyCommand=x 10.0.0.1", "is no host"),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(words), "{error}");
        }
    }
}
