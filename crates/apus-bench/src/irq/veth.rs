//! Two network namespaces with a veth pair between them, set so that TCP passes a NAPI instance of the second.

use std::fs::{self, File};
use std::process::{self, Command};
use std::thread;

use anyhow::{Context, Result, ensure};
use apus_irq::set_feature;
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

use apus_load::misuse::Misuse;

/// The server's address.
pub(super) const ADDRESS: &str = "10.90.0.2";

/// Prefix of the names of these namespaces. The PID of their creator follows.
const PREFIX: &str = "apus-bench-irq-";

/// Directory of `ip netns`.
const NAMESPACES: &str = "/run/netns";

/// All kinds of TSO. With any of them, a veth sender bypasses the NAPI instance.
const TSO: [&str; 4] = [
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
];

/// An end of the pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum VethEnd {
    Client,
    Server,
}

/// Name of the device in both namespaces. It is unique among all namespaces, so that tracepoints distinguish it.
pub(super) fn device() -> String {
    format!("irq{}", process::id())
}

/// The pair, which is removed on drop.
#[derive(Debug)]
pub(super) struct Veth(());

impl Veth {
    /// Creates the pair with this many queues in both directions. Removes pairs of killed processes.
    ///
    /// # Errors
    /// [`Misuse`] for a user other than root; if `ip` is missing or fails.
    pub(super) fn new(queues: u32) -> Result<Self> {
        if !geteuid().is_root() {
            let why = "'bench irq' with device = \"veth\" creates network namespaces and sets NAPI instances, which needs root: \
                       use sudo";
            return Err(Misuse(why.to_owned()).into());
        }
        remove_stale()?;
        let veth = Self(());
        let [client, server] = [VethEnd::Client, VethEnd::Server].map(name);
        let device = device();
        let of = format!("numtxqueues {queues} numrxqueues {queues}");
        ip(&format!("netns add {client}"))?;
        ip(&format!("netns add {server}"))?;
        ip(&format!(
            "link add {device} netns {client} {of} type veth peer name {device} netns {server} {of}"
        ))?;
        for (name, address) in [(&client, "10.90.0.1"), (&server, ADDRESS)] {
            ip(&format!("-n {name} addr add {address}/24 dev {device}"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} link set {device} up"))?;
        }
        let set = |feature, on| {
            set_feature(&device, feature, on).with_context(|| format!("{feature} of a veth"))
        };
        veth.inside(VethEnd::Client, || TSO.iter().try_for_each(|feature| set(feature, false)))??;
        veth.inside(VethEnd::Server, || set("rx-gro", true))??;
        Ok(veth)
    }

    /// Gives each of the server's NAPI instances a thread.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn make_threaded(&self) -> Result<()> {
        // `ip netns exec` shows the devices of the namespace in /sys.
        let write = format!("echo 1 > /sys/class/net/{}/threaded", device());
        let mut command = Command::new("ip");
        run(command.args(["netns", "exec", &name(VethEnd::Server), "sh", "-c", &write]))
    }

    /// Runs `work` on a thread in the namespace of a side. Threads and processes that it starts are in it as well.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn inside<T: Send>(
        &self,
        side: VethEnd,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T> {
        let name = name(side);
        let enter = || {
            let namespace = File::open(format!("{NAMESPACES}/{name}"))?;
            setns(namespace, CloneFlags::CLONE_NEWNET).map_err(std::io::Error::from)
        };
        let enter_and_work = || {
            enter().with_context(|| format!("network namespace {name}"))?;
            Ok(work())
        };
        thread::scope(|scope| {
            let thread = scope.spawn(enter_and_work);
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        for side in [VethEnd::Client, VethEnd::Server] {
            // A pair that was not created cannot be removed. The next command removes any remains.
            let _ = ip(&format!("netns del {}", name(side)));
        }
    }
}

fn name(side: VethEnd) -> String {
    let side = match side {
        VethEnd::Client => "client",
        VethEnd::Server => "server",
    };
    format!("{PREFIX}{}-{side}", process::id())
}

/// PID of the creator of a namespace with this name.
fn maker(name: &str) -> Option<i32> {
    let (number, side) = name.strip_prefix(PREFIX)?.split_once('-')?;
    ["client", "server"].contains(&side).then(|| number.parse().ok())?
}

/// Removes namespaces of killed processes, and kills the servers in them.
fn remove_stale() -> Result<()> {
    for entry in fs::read_dir(NAMESPACES).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let Some(maker) = maker(&name) else { continue };
        if kill(Pid::from_raw(maker), None::<Signal>).is_ok() {
            continue;
        }
        let pids = Command::new("ip").args(["netns", "pids", &name]).output();
        let pids = pids.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        for pid in pids.unwrap_or_default().split_whitespace() {
            if let Ok(pid) = pid.parse() {
                // It may have exited already.
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        ip(&format!("netns del {name}"))?;
    }
    Ok(())
}

fn ip(arguments: &str) -> Result<()> {
    run(Command::new("ip").args(arguments.split_whitespace()))
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output();
    let output = output.context("cannot run `ip`: it comes in the package `iproute2`")?;
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`ip {}`: {}", words.join(" "), error.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_names_its_process() {
        assert_eq!(maker(&name(VethEnd::Server)), Some(process::id() as i32));
        for other in ["apus-bench-irq-12", "apus-bench-irq-x-client", "apus-bench-irq-1-router"] {
            assert_eq!(maker(other), None, "{other}");
        }
    }
}
