//! The network interface under inspection.

use std::net::IpAddr;

use anyhow::Result;
use apus_load::misuse::Misuse;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{if_nameindex, if_nametoindex};
use procfs::net::RouteEntries;

use crate::files::{Files, number, parsed};

/// The kernel's data about an interface.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) index: Option<u32>,
    pub(super) mtu: Option<u64>,
    /// Rate that the driver reports, in Mb/s.
    pub(super) mbps: Option<u64>,
    /// `up`, `down`, `unknown` …
    pub(super) state: String,
    pub(super) driver: Option<String>,
    /// The device that the driver serves, as `virtio2` or `0000:00:03.0`; `None` for an interface without one.
    pub(super) bus_name: Option<String>,
}

impl Device {
    pub(super) fn read(files: &dyn Files, name: &str) -> Self {
        let path = |file: &str| format!("/sys/class/net/{name}/{file}");
        Self {
            name: name.to_owned(),
            index: if_nametoindex(name).ok(),
            mtu: number(files, &path("mtu")),
            // Virtual interfaces report nothing, or -1.
            mbps: number(files, &path("speed")).filter(|&mbps| mbps > 0),
            state: files.text(&path("operstate")).unwrap_or_default(),
            driver: files.target(&path("device/driver")),
            bus_name: files.target(&path("device")),
        }
    }

    pub(super) fn is_loopback(&self) -> bool {
        self.name == "lo"
    }
}

/// The named interface. Without a name, the one with the address at which nodes listen, the one of the default route, the first
/// that is up, or loopback.
///
/// # Errors
/// When there is no interface of that name.
pub(super) fn choose(
    files: &dyn Files,
    names: &[String],
    asked: Option<&str>,
    listen: IpAddr,
) -> Result<String> {
    if let Some(asked) = asked {
        if names.iter().any(|name| name == asked) {
            return Ok(asked.to_owned());
        }
        let known = names.join(", ");
        let why =
            format!("'--device {asked}': no such network interface; this machine has {known}");
        return Err(Misuse(why).into());
    }
    let chosen = with_address(listen).or_else(|| of_default_route(files)).or_else(|| {
        let mut others = names.iter().filter(|name| *name != "lo");
        others
            .find(|name| {
                files.text(&format!("/sys/class/net/{name}/operstate")).as_deref() == Some("up")
            })
            .cloned()
    });
    Ok(chosen.unwrap_or_else(|| "lo".to_owned()))
}

/// The names of all interfaces of this network namespace. `/sys` may show another namespace.
pub(super) fn names() -> Vec<String> {
    let Ok(interfaces) = if_nameindex() else { return Vec::new() };
    let names = interfaces.iter().filter_map(|it| it.name().to_str().ok().map(str::to_owned));
    names.collect()
}

/// The interface that has an address.
pub(super) fn with_address(ip: IpAddr) -> Option<String> {
    if ip.is_unspecified() {
        return None;
    }
    let has = |storage: &nix::sys::socket::SockaddrStorage| {
        let v4 = storage.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
        v4.or_else(|| storage.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip()))) == Some(ip)
    };
    let mut interfaces = getifaddrs().ok()?;
    let found = interfaces.find(|interface| interface.address.as_ref().is_some_and(has))?;
    Some(found.interface_name)
}

fn of_default_route(files: &dyn Files) -> Option<String> {
    let routes: RouteEntries = parsed(files, "/proc/net/route")?;
    let default = routes.0.into_iter().filter(|it| it.mask.is_unspecified());
    default.min_by_key(|route| route.metrics).map(|route| route.iface)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::files::FakeFiles;

    const ROUTES: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth1\t00000000\t0100000A\t0003\t0\t0\t200\t00000000\t0\t0\t0
eth0\t00000000\t010011AC\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth1\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0
";
    const FILES: FakeFiles = FakeFiles(&[
        ("/proc/net/route", ROUTES),
        ("/sys/class/net/eth0/mtu", "1400\n"),
        ("/sys/class/net/eth0/speed", "-1\n"),
        ("/sys/class/net/eth0/operstate", "up\n"),
        ("/sys/class/net/eth0/device", "../../../virtio2"),
        ("/sys/class/net/eth0/device/driver", "../../../../bus/virtio/drivers/virtio_net"),
        ("/sys/class/net/eth1/operstate", "up\n"),
        ("/sys/class/net/lo/mtu", "65536\n"),
    ]);
    const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

    #[test]
    fn the_best_default_route_names_the_interface() {
        let names = ["eth0", "eth1", "lo"].map(str::to_owned);
        let chosen = |files: &FakeFiles, asked, ip| choose(files, &names, asked, ip);
        assert_eq!(chosen(&FILES, None, ANY).unwrap(), "eth0");
        assert_eq!(chosen(&FILES, Some("eth1"), ANY).unwrap(), "eth1");
        assert_eq!(chosen(&FILES, None, IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap(), "lo");
        assert_eq!(chosen(&FakeFiles(&[]), None, ANY).unwrap(), "lo");
        let error = chosen(&FILES, Some("eth9"), ANY).unwrap_err();
        assert!(error.is::<Misuse>());
        let text = error.to_string();
        assert!(text.contains("--device eth9") && text.contains("eth0, eth1, lo"), "{text}");
    }

    #[test]
    fn an_interface_is_read() {
        let device = Device::read(&FILES, "eth0");
        assert_eq!((device.mtu, device.mbps), (Some(1_400), None));
        assert_eq!(device.driver.as_deref(), Some("virtio_net"));
        assert_eq!(device.bus_name.as_deref(), Some("virtio2"));
        assert!(Device::read(&FILES, "lo").is_loopback());
    }
}
