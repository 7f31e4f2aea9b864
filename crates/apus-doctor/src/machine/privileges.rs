//! The privileges that some parts of Apus need: raw sockets, network settings, namespaces.

use apus_lab::privilege;
use procfs::process::Status;
use socket2::{Domain, Protocol, Socket, Type};

use crate::files::{Files, parsed};
use crate::finding::{Finding, Subject, Verdict};

const SUBJECT: Subject = Subject::Privileges;

#[derive(Debug)]
pub(super) struct Privileges {
    /// Whether a socket of IP protocol 146 can be made.
    raw: Result<(), String>,
    /// Effective capabilities, as bits.
    capabilities: Option<u64>,
    /// The reason why a lab cannot be made; `None` if it can.
    lab_obstacle: Option<String>,
    /// Whether the kernel module of Homa is loaded.
    module: bool,
}

impl Privileges {
    pub(super) fn gather(files: &dyn Files) -> Self {
        let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(HOMA)));
        let status: Option<Status> = parsed(files, "/proc/self/status");
        Self {
            raw: raw.map(drop).map_err(|error| error.to_string()),
            capabilities: status.map(|it| it.capeff),
            lab_obstacle: privilege::obstacle(),
            module: module(files),
        }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        vec![raw(self), network(self), namespaces(self)]
    }
}

fn module(files: &dyn Files) -> bool {
    let modules = files.text("/proc/modules").unwrap_or_default();
    modules.lines().any(|line| line.split(' ').next() == Some("homa"))
}

fn raw(privileges: &Privileges) -> Finding {
    let name = "IP protocol 146";
    if privileges.module {
        return Finding::new(SUBJECT, name, Verdict::CouldBeBetter, "the Homa module is loaded")
            .apus("cannot use a raw link beside the module, because both would receive every packet of the protocol; UDP works \
                   beside it (docs/linux-homa.md)")
            .change("sudo rmmod homa # only if a node needs a raw link", "calls between this node and hosts with the module");
    }
    let (verdict, found) = match &privileges.raw {
        Ok(()) => (Verdict::Good, "this process may open a raw socket".to_owned()),
        Err(why) => {
            (Verdict::CouldBeBetter, format!("this process may not open a raw socket ({why})"))
        }
    };
    Finding::new(SUBJECT, name, verdict, found)
        .apus("needs one only for calls to hosts with the Homa module (setting link); everything else works without privilege")
        .change(
            "sudo setcap cap_net_raw+ep \"$(command -v apus)\"",
            "calls to and from hosts with the Homa module (docs/linux-homa.md)",
        )
        .value("allowed", privileges.raw.is_ok())
}

fn network(privileges: &Privileges) -> Finding {
    let name = "CAP_NET_ADMIN";
    let Some(capabilities) = privileges.capabilities else {
        return Finding::not_known(SUBJECT, name, "/proc/self/status does not show it");
    };
    let has = capabilities >> CAP_NET_ADMIN & 1 == 1;
    let found = if has { "this process has it" } else { "this process does not have it" };
    // The capability improves only the sizes of buffers, which have their own finding.
    Finding::new(SUBJECT, name, Verdict::Good, found)
        .apus("does not need it; with it, a node gets the requested socket buffers regardless of net.core.rmem_max")
        .value("has", has)
}

fn namespaces(privileges: &Privileges) -> Finding {
    let (verdict, found) = match &privileges.lab_obstacle {
        None => (Verdict::Good, "this process can create network namespaces with links".to_owned()),
        Some(why) => (Verdict::CouldBeBetter, why.clone()),
    };
    Finding::new(SUBJECT, "namespaces", verdict, found)
        .apus("needs them for `apus lab`, and for the network of `apus demo`, which is simulated without them")
        .change(
            "sudo sysctl -w user.max_user_namespaces=10000 # on Ubuntu also kernel.apparmor_restrict_unprivileged_userns=0; or run \
             the command with sudo",
            "an emulated cluster on this machine (docs/lab.md)",
        )
        .value("possible", privileges.lab_obstacle.is_none())
}

/// The protocol number of Homa.
const HOMA: i32 = 146;

/// From `capabilities(7)`.
const CAP_NET_ADMIN: u32 = 12;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::FakeFiles;

    fn privileges() -> Privileges {
        let (raw, lab_obstacle) = (Err("EPERM".to_owned()), Some("cannot be made".to_owned()));
        Privileges { raw, capabilities: Some(0x1000), lab_obstacle, module: false }
    }

    #[test]
    fn what_is_missing_has_its_command() {
        let [raw, network, namespaces] = privileges().findings().try_into().unwrap();
        assert!(raw.change.unwrap().starts_with("sudo setcap cap_net_raw+ep"));
        assert_eq!(
            (network.verdict, network.found.as_str()),
            (Verdict::Good, "this process has it")
        );
        assert_eq!(namespaces.verdict, Verdict::CouldBeBetter);
    }

    #[test]
    fn the_module_is_found() {
        let modules = "nf_tables 1 0 - Live 0x0\nhoma 229376 0 - Live 0xffffffffc0a00000 (OE)\n";
        let leaked: &'static [_] =
            Box::leak(Box::new([("/proc/modules", &*modules.to_owned().leak())]));
        assert!(module(&FakeFiles(leaked)));
        assert!(!module(&FakeFiles(&[("/proc/modules", "homa_not 1 0 - Live 0x0\n")])));
        assert!(
            raw(&Privileges { module: true, ..privileges() }).found.contains("module is loaded")
        );
    }
}
