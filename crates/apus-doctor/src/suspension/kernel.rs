//! The kernel's data about a program or a device. The findings are pure functions of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result};
use apus_irq::{
    Device, EpollSet, NapiParameters, NapiUser, ProcessId, Program, Slot, Socket, StateDirectory,
    ThreadState, features, napis_can_be_set, users,
};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nameindex;

/// The object of the inspection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProgramOrDevice {
    /// A program and its children.
    Program {
        /// PID of the process.
        pid: i32,
        /// Name of its first thread.
        name: String,
    },
    /// A network device, by its name.
    Device(String),
}

/// The kernel's data about a program or a device that matter to suspension.
#[derive(Debug)]
pub struct Suspension {
    pub(super) inspected: ProgramOrDevice,
    /// Whether this kernel can set single NAPI instances.
    pub(super) can_be_set: Result<bool, String>,
    /// Whether this process may set them: `CAP_NET_ADMIN` in the initial user namespace.
    pub(super) may_set: bool,
    /// Whether the program is in the network namespace of this process.
    pub(super) same_network: bool,
    /// The program and its children, or the programs that use the device.
    pub(super) programs: Vec<Process>,
    /// The reason why a program could not be read.
    pub(super) unreadable: Option<String>,
    /// All devices of this network namespace.
    pub(super) devices: Vec<Interface>,
    /// Programs with sockets, by the NAPI instances of interest.
    pub(super) users: Vec<NapiUser>,
    /// Number of processes that could not be read for this.
    pub(super) unreadable_users: usize,
    /// Whether this process runs as root.
    pub(super) is_root: bool,
}

/// A process.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) process: ProcessId,
    pub(super) epoll_sets: Vec<EpollSet>,
    pub(super) sockets: Vec<Socket>,
    pub(super) io_urings: usize,
    /// The observed waits of its threads.
    pub(super) waits: BTreeSet<(i32, ThreadState)>,
}

/// A device.
#[derive(Clone, Debug, Default)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) slots: Vec<Slot>,
    pub(super) addresses: Vec<IpAddr>,
    /// Whether it is a tun or tap device.
    pub(super) is_tun: bool,
    /// Whether it merges received packets; `None` if it does not report that.
    pub(super) gro: Option<bool>,
    /// The values that `apus irq` has set, by the name of the NAPI instance, and whether a process keeps them set.
    pub(super) kept: BTreeMap<String, NapiParameters>,
    pub(super) is_kept_by_process: bool,
}

impl Suspension {
    /// Reads the data about a process and its children.
    ///
    /// # Errors
    /// When there is no such process, or `/proc` cannot be read.
    pub fn of_program(pid: i32, state: Option<&StateDirectory>) -> Result<Self> {
        let program = Program::open(pid).with_context(|| format!("process {pid}"))?;
        let inspected = ProgramOrDevice::Program { pid, name: program.name().to_owned() };
        let mut suspension = Self::of_machine(inspected, state)?;
        suspension.same_network =
            namespace(pid).is_none_or(|other| Some(other) == namespace_of("self"));
        for (place, process) in program.id().with_descendants().into_iter().enumerate() {
            match Process::read(process) {
                Ok(read) => suspension.programs.push(read),
                Err(_) if place > 0 => {}
                Err(error) => suspension.unreadable = Some(error.to_string()),
            }
        }
        suspension.read_users()?;
        Ok(suspension)
    }

    /// Reads the data about a device and the programs that use it.
    ///
    /// # Errors
    /// When there is no such device, or `/proc` cannot be read.
    pub fn of_device(name: &str, state: Option<&StateDirectory>) -> Result<Self> {
        Device::named(name)?;
        let mut suspension = Self::of_machine(ProgramOrDevice::Device(name.to_owned()), state)?;
        suspension.read_users()?;
        let processes = suspension.users.iter().map(|user| user.process);
        suspension.programs = processes.filter_map(|it| Process::read(it).ok()).collect();
        Ok(suspension)
    }

    fn of_machine(inspected: ProgramOrDevice, state: Option<&StateDirectory>) -> Result<Self> {
        Ok(Self {
            inspected,
            can_be_set: napis_can_be_set().map_err(|error| error.to_string()),
            may_set: may_set(),
            same_network: true,
            programs: Vec::new(),
            unreadable: None,
            devices: devices(state)?,
            users: Vec::new(),
            unreadable_users: 0,
            is_root: nix::unistd::geteuid().is_root(),
        })
    }

    fn read_users(&mut self) -> Result<()> {
        let ids: BTreeSet<u32> = self.slots().map(|(_, slot)| slot.napi.id).collect();
        if !ids.is_empty() {
            (self.users, self.unreadable_users) = users(&ids).context("/proc")?;
        }
        Ok(())
    }

    /// The NAPI instances of interest with their devices: those of the program's packets, or those of the device.
    pub(super) fn slots(&self) -> impl Iterator<Item = (&Interface, &Slot)> {
        let ids = self.socket_ids();
        let all = self.devices.iter().flat_map(|it| it.slots.iter().map(move |slot| (it, slot)));
        all.filter(move |(device, slot)| match &self.inspected {
            ProgramOrDevice::Program { .. } => ids.contains(&slot.napi.id),
            ProgramOrDevice::Device(name) => device.name == *name,
        })
    }

    /// The NAPI instances of the packets of the programs.
    pub(super) fn socket_ids(&self) -> BTreeSet<u32> {
        self.sockets().filter_map(|socket| socket.napi).collect()
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.programs.iter().flat_map(|program| &program.sockets)
    }

    /// The epoll sets that watch sockets. Sets of a device's programs that watch none of its sockets are left out.
    pub(super) fn epoll_sets(&self) -> impl Iterator<Item = (&Process, &EpollSet)> {
        let of_device = match self.inspected {
            ProgramOrDevice::Program { .. } => None,
            ProgramOrDevice::Device(_) => {
                Some(self.slots().map(|(_, slot)| slot.napi.id).collect::<BTreeSet<u32>>())
            }
        };
        let all =
            self.programs.iter().flat_map(|it| it.epoll_sets.iter().map(move |set| (it, set)));
        all.filter(move |(_, set)| match &of_device {
            None => set.sockets > 0,
            Some(ids) => set.napis.keys().any(|id| ids.contains(id)),
        })
    }

    /// The command that gives suspension to the program for its devices, or to a program of the device.
    pub(super) fn attach(&self) -> String {
        let mut devices: BTreeSet<&str> = self.slots().map(|(it, _)| it.name.as_str()).collect();
        if devices.is_empty() {
            // The device of the addresses at which the program listens, as far as they are known.
            let local: BTreeSet<IpAddr> =
                self.sockets().filter_map(|it| Some(it.local?.ip().to_canonical())).collect();
            let with_napi = self.devices.iter().filter(|it| !it.slots.is_empty());
            let of_program =
                with_napi.filter(|it| it.addresses.iter().any(|ip| local.contains(ip)));
            devices.extend(of_program.map(|it| it.name.as_str()));
        }
        if devices.is_empty() {
            devices.insert("DEV");
        }
        let devices = devices.into_iter().collect::<Vec<_>>().join(" ");
        let pid = match self.inspected {
            ProgramOrDevice::Program { pid, .. } => Some(pid),
            ProgramOrDevice::Device(_) => self.programs.first().map(|it| it.process.pid),
        };
        let pid = pid.map_or_else(|| "PID".to_owned(), |pid| pid.to_string());
        format!("sudo apus irq attach {pid} --mode suspend:20 {devices}")
    }

    /// The command that inspects again as root; `None` if this process is root, because the result would be the same.
    pub(super) fn as_root(&self) -> Option<String> {
        (!self.is_root).then(|| self.again())
    }

    /// The command that inspects again.
    pub(super) fn again(&self) -> String {
        match &self.inspected {
            ProgramOrDevice::Program { pid, .. } => format!("sudo apus irq doctor {pid}"),
            ProgramOrDevice::Device(name) => format!("sudo apus irq doctor {name}"),
        }
    }
}

impl Process {
    fn read(process: ProcessId) -> io::Result<Self> {
        let program = Program::open(process.pid)?;
        Ok(Self {
            process,
            epoll_sets: program.epoll_sets()?,
            sockets: program.sockets()?,
            io_urings: program.io_urings()?,
            waits: BTreeSet::new(),
        })
    }
}

fn devices(state: Option<&StateDirectory>) -> Result<Vec<Interface>> {
    // An unreadable directory counts as empty.
    let held = state.and_then(|state| state.devices().ok()).unwrap_or_default();
    let addresses: Vec<_> = getifaddrs().map(Iterator::collect).unwrap_or_default();
    let mut devices = Vec::new();
    for interface in &if_nameindex().context("network devices")? {
        let name = interface.name().to_string_lossy().into_owned();
        let Ok(device) = Device::named(&name) else { continue };
        let of_device = addresses.iter().filter(|it| it.interface_name == name);
        let ip = |storage: nix::sys::socket::SockaddrStorage| -> Option<IpAddr> {
            let v4 = storage.as_sockaddr_in().map(|it| IpAddr::from(it.ip()));
            v4.or_else(|| storage.as_sockaddr_in6().map(|it| IpAddr::from(it.ip())))
        };
        let held = held.iter().find(|held| held.device == device);
        let kept =
            held.map(|it| it.slots.iter().map(|(slot, it)| (slot.clone(), it.set)).collect());
        devices.push(Interface {
            slots: device.slots().unwrap_or_default(),
            addresses: of_device.filter_map(|it| it.address.and_then(ip)).collect(),
            is_tun: fs::exists(format!("/sys/class/net/{name}/tun_flags")).unwrap_or(false),
            gro: features(&name).ok().map(|it| it.active.contains("rx-gro")),
            kept: kept.unwrap_or_default(),
            is_kept_by_process: held.and_then(|it| it.owner).is_some_and(|it| it.runs()),
            name,
        });
    }
    Ok(devices)
}

fn may_set() -> bool {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = capabilities.and_then(|it| u64::from_str_radix(it.trim(), 16).ok()).unwrap_or(0);
    let user = fs::metadata("/proc/self/ns/user").map(|it| it.ino());
    bits >> CAP_NET_ADMIN & 1 == 1 && user.is_ok_and(|user| user == FIRST_USER_NAMESPACE)
}

fn namespace(pid: i32) -> Option<u64> {
    namespace_of(&pid.to_string())
}

fn namespace_of(process: &str) -> Option<u64> {
    fs::metadata(format!("/proc/{process}/ns/net")).ok().map(|it| it.ino())
}

/// From `capabilities(7)`.
const CAP_NET_ADMIN: u32 = 12;

/// `PROC_USER_INIT_INO` of linux/proc_ns.h.
const FIRST_USER_NAMESPACE: u64 = 0xeffffffd;

/// The data of a program without any obstacle, which tests change.
#[cfg(test)]
pub(super) mod made {
    use apus_irq::{EpollParameters, Napi};

    use super::*;

    pub(in super::super) const ID: u32 = 513;

    pub(in super::super) fn socket() -> Socket {
        Socket {
            fd: 9,
            is_stream: true,
            listens: false,
            local: Some("10.0.0.1:80".parse().unwrap()),
            peer: Some("10.0.0.2:4711".parse().unwrap()),
            napi: Some(ID),
            busy_poll_usecs: 0,
        }
    }

    pub(in super::super) fn set() -> EpollSet {
        let parameters =
            EpollParameters { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true };
        EpollSet { fd: 5, parameters, members: 2, sockets: 1, napis: [(ID, 1)].into(), unknown: 0 }
    }

    pub(in super::super) fn slot() -> Slot {
        let napi = Napi {
            id: ID,
            defer_hard_irqs: 100,
            gro_flush_timeout_ns: 20_000,
            irq_suspend_timeout_ns: Some(20_000_000),
            threaded: Some(0),
            ..Napi::default()
        };
        Slot { name: "rx-0".to_owned(), queues: vec!["rx-0".to_owned()], napi }
    }

    pub(in super::super) fn suspension() -> Suspension {
        let process = ProcessId { pid: 7, started: 1 };
        let device = Interface {
            name: "eth0".to_owned(),
            slots: vec![slot()],
            addresses: vec!["10.0.0.1".parse().unwrap()],
            gro: Some(true),
            ..Interface::default()
        };
        Suspension {
            inspected: ProgramOrDevice::Program { pid: 7, name: "server".to_owned() },
            can_be_set: Ok(true),
            may_set: true,
            same_network: true,
            programs: vec![Process {
                process,
                epoll_sets: vec![set()],
                sockets: vec![socket()],
                io_urings: 0,
                waits: [(7, ThreadState::Epoll(5))].into(),
            }],
            unreadable: None,
            devices: vec![device],
            users: vec![NapiUser {
                process,
                name: "server".to_owned(),
                sockets: [(ID, [9].into())].into(),
            }],
            unreadable_users: 0,
            is_root: false,
        }
    }
}
