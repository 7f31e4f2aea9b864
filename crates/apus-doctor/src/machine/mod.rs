//! The abilities of this machine that matter to Apus, their use by Apus, and the changes that would help.
//!
//! Each subject has a file, with a type for the machine's data about it. `gather` reads the data, and `findings` is a pure function
//! of them.
//!
//! | file | contents |
//! |---|---|
//! | `clock`, `idle_states`, `processors`, `wake_ups`, `cpu_list` | processors and time |
//! | `dev_shm`, `encryption`, `limits`, `privileges`, `processes`, `other_load` | this process and its host |
//! | `interface`, `interrupts`, `socket_buffers`, `udp_offloads` | the way of a packet |
//! | `af_xdp` | the privilege for the XDP link |
//! | `busy_polling`, `irq_suspension` | features of the kernel that Apus does not use itself |

mod af_xdp;
mod busy_polling;
mod clock;
mod cpu_list;
mod dev_shm;
mod encryption;
mod idle_states;
mod interface;
mod interrupts;
mod irq_suspension;
mod limits;
mod other_load;
mod privileges;
mod processes;
mod processors;
mod socket_buffers;
mod udp_offloads;
mod wake_ups;

use std::env;
use std::path::Path;

use anyhow::Result;
use apus::net::{Link as _, cpu};
use apus::{Capabilities, Config, Links};
use apus_shm::CounterDirectory;

use crate::device::{self, Device};
use crate::files::{Files, Here};
use crate::finding::Finding;

/// The name of the interface to inspect: the requested one. Without a request, the one with the address at which nodes listen, the
/// one of the default route, the first that is up, or loopback.
///
/// # Errors
/// When there is no interface of the requested name.
pub fn interface(asked: Option<&str>, config: &Config) -> Result<String> {
    device::choose(&Here, &device::names(), asked, config.listen_address().ip())
}

/// The findings of all subjects, in their order. Takes about a second, and keeps two CPUs busy for a part of it.
///
/// `interface` is the interface to inspect, and `engine` the socket of a shared engine of this host.
pub fn findings(config: &Config, interface: &str, engine: &Path) -> Vec<Finding> {
    let files: &dyn Files = &Here;
    let device = &Device::read(files, interface);
    let link = link(config);
    let allowed = cpu::allowed();
    let counters = CounterDirectory::of_user();
    let release = files.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    // The load of other programs is watched before the doctor loads the machine.
    let other_load = other_load::OtherLoad::gather(files).findings();
    let subjects = [
        udp_offloads::UdpOffloads::gather(&link).findings(),
        socket_buffers::SocketBuffers::gather(files, &link, send_buffer()).findings(),
        interface::Interface::gather(device, env::var("APUS_LINK_MBPS").ok()).findings(),
        interrupts::Interrupts::gather(files, device, &allowed).findings(),
        busy_polling::BusyPolling::gather(files).findings(),
        af_xdp::AfXdp::gather().findings(),
        irq_suspension::IrqSuspension::gather(&release, device).findings(),
        clock::Clock::gather(files).findings(),
        wake_ups::WakeUps::gather(files, &allowed).findings(),
        idle_states::IdleStates::gather(files).findings(),
        processors::Processors::gather(files, &allowed).findings(),
        other_load,
        dev_shm::DevShm::gather().findings(),
        limits::Limits::gather().findings(),
        privileges::Privileges::gather(files).findings(),
        processes::Processes::gather(files, &counters, engine).findings(),
        encryption::Encryption::gather(files, |name| env::var(name).ok()).findings(),
    ];
    subjects.into_iter().flatten().collect()
}

/// The capabilities that a UDP link with the settings finds, on loopback and at any port, so that no node is in its way.
fn link(config: &Config) -> Result<Capabilities, String> {
    let mut config = config.clone();
    config.listen("127.0.0.1:0".parse().expect("it is an address"));
    config.link(Links::Udp).capture(None);
    let link = config.open_link().map_err(|error| error.to_string())?;
    Ok(link.capabilities().clone())
}

/// The setting `send_buffer`, in bytes.
fn send_buffer() -> u64 {
    let set = env::var("APUS_SEND_BUFFER").ok();
    let default = || Config::settings().find(|it| it.key == "send_buffer").map(|it| it.default);
    set.or_else(default).and_then(|it| apus::parse_size(&it).ok()).unwrap_or(0)
}
