//! A campaign on real hosts, controlled over ssh.
//!
//! The hosts run the same agents as the lab's hosts, started by the ssh program with the user's configuration (keys, jumps,
//! users). The queues of real switches are not visible; everything else is the same.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use apus_load::ResultFile;
use apus_load::misuse::Misuse;
use apus_load::progress::Progress;

use crate::campaign::{Campaign, Testbed};
use crate::emulated::AGENT_COMMAND;
use crate::plan::Setting;
use crate::queues::Queues;

/// Measures all settings on the hosts. `dir` keeps a result for each setting; existing results are not measured again.
///
/// # Errors
/// If a host cannot be reached or a file cannot be written.
pub fn run(
    cluster: Cluster,
    settings: &[Setting],
    dir: Option<PathBuf>,
    progress: &dyn Progress,
) -> Result<ResultFile> {
    check(settings)?;
    Campaign::new(cluster, dir, progress).run(settings)
}

/// Checks that the settings change nothing on the hosts.
///
/// # Errors
/// [`Misuse`] with the key of the plan, its value and the remedy.
fn check(settings: &[Setting]) -> Result<()> {
    match settings.iter().flat_map(|setting| &setting.tcp).find_map(|set_up| set_up.rto_min_ms) {
        None => Ok(()),
        Some(ms) => Err(Misuse(format!(
            "rto_min_ms = {ms}: a cluster's hosts are not changed; set it on each of them (`ip route change … rto_min {ms}ms`), and \
             leave it out of the plan"
        ))
        .into()),
    }
}

/// A real host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Destination for ssh.
    pub destination: String,
    /// Address for the other hosts.
    pub address: IpAddr,
}

/// Parses a hosts file: one line per host, with its ssh destination and its IP address. Text after `#` is ignored.
///
/// # Errors
/// If a line is wrong, with the line, or if there are fewer than two hosts.
pub fn parse(text: &str) -> Result<Vec<Host>> {
    let mut hosts = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        let [destination, address] = words[..] else {
            ensure!(
                words.is_empty(),
                "line {number}: expected the name of a host for ssh, and its IP address"
            );
            continue;
        };
        ensure!(!destination.starts_with('-'), "line {number}: `{destination}` is not a host name");
        let address = address
            .parse()
            .with_context(|| format!("line {number}: `{address}` is not an IP address"))?;
        hosts.push(Host { destination: destination.to_owned(), address });
    }
    ensure!(hosts.len() >= 2, "{} hosts: at least 2 are needed", hosts.len());
    Ok(hosts)
}

/// Hosts reached over ssh.
pub struct Cluster {
    /// All hosts.
    pub hosts: Vec<Host>,
    /// The command of `apus` on the hosts.
    pub program: String,
    /// Arguments for ssh.
    pub ssh: Vec<String>,
    /// Whether nodes speak plain with each other. Otherwise their hosts' environment names certificates (`APUS_TLS_CERT`, …).
    pub insecure: bool,
}

impl Testbed for Cluster {
    fn prepare(&mut self, _: &Setting) -> Result<Vec<IpAddr>> {
        Ok(self.hosts.iter().map(|host| host.address).collect())
    }

    /// Hosts are not changed; [`check`] has refused plans that need it.
    fn set_rto_min(&mut self, _: Option<u32>) -> Result<()> {
        Ok(())
    }

    fn command(&self, place: usize) -> Command {
        let mut command = Command::new("ssh");
        command.args(["-o", "BatchMode=yes", "-o", "ServerAliveInterval=10"]).args(&self.ssh);
        command.arg(&self.hosts[place].destination);
        if self.insecure {
            command.args(["env", "APUS_INSECURE=true"]);
        }
        command.args([&self.program, AGENT_COMMAND]);
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
    fn a_plan_that_changes_hosts_is_refused_before_any_measurement() {
        let of = |plan: &str| check(&crate::plan::settings(plan).unwrap());
        assert!(of("[[tcp]]\ncongestion = 'bbr'").is_ok());
        let error = of("[[tcp]]\n[[tcp]]\nrto_min_ms = 5").unwrap_err().to_string();
        assert!(error.starts_with("rto_min_ms = 5: a cluster's hosts are not changed"), "{error}");
    }

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
            ("\nnode1 x", "line 2: `x` is not an IP address"),
            ("-oProxyCommand=x 10.0.0.1", "is not a host"),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(words), "{error}");
        }
    }
}
