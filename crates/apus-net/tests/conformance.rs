//! The conformance suite on every link and every wrapper.

mod skipped;

use std::net::SocketAddr;

use apus_net::{CaptureLink, FaultLink, Faults, Link, UdpConfig, UdpLink, conformance};
use skipped::skipped;

const V4: &str = "127.0.0.1:0";
const V6: &str = "[::1]:0";

fn bind(addr: &str, config: &UdpConfig) -> UdpLink {
    UdpLink::bind(addr.parse::<SocketAddr>().unwrap(), config).unwrap()
}

fn run(addr: &str, config: &UdpConfig) {
    conformance::run(|| (bind(addr, config), bind(addr, config)));
}

fn has_v6() -> bool {
    let there = std::net::UdpSocket::bind(V6).is_ok();
    if !there {
        skipped("this machine has no ::1");
    }
    there
}

#[test]
fn udp_over_ipv4() {
    run(V4, &UdpConfig::default());
}

#[test]
fn udp_over_ipv6() {
    if has_v6() {
        run(V6, &UdpConfig::default());
    }
}

#[test]
fn udp_with_segments_as_on_a_network() {
    run(V4, UdpConfig::default().max_packet(1_472));
    if has_v6() {
        run(V6, UdpConfig::default().max_packet(1_452));
    }
}

#[test]
fn udp_with_everything_off() {
    let mut config = UdpConfig::default();
    run(V4, config.gso(false).gro(false).bundles(false).connected_sends(false));
    run(V4, config.max_packet(1_472));
}

#[test]
fn udp_with_one_side_of_the_offloads() {
    run(V4, UdpConfig::default().max_packet(1_472).gro(false));
    run(V4, UdpConfig::default().max_packet(1_472).gso(false));
}

#[test]
fn faults_that_do_nothing() {
    let make = || FaultLink::new(bind(V4, &UdpConfig::default()), Faults::default()).unwrap();
    conformance::run(|| (make(), make()));
}

#[test]
fn faults_that_lose_nothing() {
    let faults: Faults = "delay=20us,jitter=50us,reorder=0.1,seed=1".parse().unwrap();
    let make = || FaultLink::new(bind(V4, &UdpConfig::default()), faults).unwrap();
    conformance::run(|| (make(), make()));
}

#[test]
fn capture() {
    let make = || CaptureLink::new(bind(V4, &UdpConfig::default()), std::io::sink()).unwrap();
    conformance::run(|| (make(), make()));
}

#[test]
fn boxed_wrappers_around_wrappers() {
    let make = || -> Box<dyn Link> {
        let link: Box<dyn Link> = Box::new(bind(V4, &UdpConfig::default()));
        let link = FaultLink::new(link, Faults::default()).unwrap();
        Box::new(CaptureLink::new(link, std::io::sink()).unwrap())
    };
    conformance::run(|| (make(), make()));
}
