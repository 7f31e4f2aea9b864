//! A veth pair on which packets come by a NAPI instance.
//!
//! The receiver needs GRO and the sender no TSO, or local TCP traffic bypasses the NAPI instance.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, id};
use std::thread;

use apus_irq::{Device, set_feature};
use nix::sched::{CloneFlags, setns};

use crate::skipped::skipped;

/// All kinds of TSO, with any of which a sender of veth goes past the NAPI instance.
const TSO: [&str; 4] = [
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
];

/// Two network namespaces with a veth pair between them, gone with the test.
pub(crate) struct Pair {
    /// The namespaces of the sender and the receiver.
    names: [String; 2],
    /// The name of the device in both, which no other process has.
    pub(crate) device: String,
}

fn ip(arguments: &str) -> bool {
    let output = Command::new("ip").args(arguments.split_whitespace()).output();
    output.is_ok_and(|output| output.status.success())
}

impl Pair {
    /// A pair of this name, or why there is none.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let names = ["sender", "receiver"].map(|end| format!("apus-{name}-{end}-{}", id()));
        let pair = Self { names, device: format!("wire{}", id()) };
        let ([sender, receiver], device) = (&pair.names, &pair.device);
        let made = ip(&format!("netns add {sender}"))
            && ip(&format!("netns add {receiver}"))
            && ip(&format!(
                "link add {device} netns {sender} type veth peer name {device} netns {receiver}"
            ));
        if !made {
            skipped("no network namespaces");
            return None;
        }
        for (number, name) in pair.names.iter().enumerate() {
            assert!(ip(&format!("-n {name} addr add 10.89.0.{}/24 dev {device}", number + 1)));
            assert!(ip(&format!("-n {name} link set {device} up")));
        }
        for feature in TSO {
            pair.inside(0, || set_feature(device, feature, false)).expect("veth has TSO");
        }
        pair.inside(1, || set_feature(device, "rx-gro", true)).expect("veth has GRO");
        Some(pair)
    }

    /// Runs something on a thread in the namespace of the sender (0) or the receiver (1).
    pub(crate) fn inside<T: Send>(&self, place: usize, what: impl FnOnce() -> T + Send) -> T {
        let run = || {
            let namespace =
                File::open(format!("/run/netns/{}", self.names[place])).expect("it was made");
            setns(&namespace, CloneFlags::CLONE_NEWNET).expect("who made it may enter it");
            what()
        };
        thread::scope(|scope| scope.spawn(run).join().expect("it does not panic"))
    }

    /// The receiver's NAPI instance.
    pub(crate) fn napi(&self) -> u32 {
        let device = || Device::named(&self.device).expect("it was made");
        self.inside(1, || device().slots().expect("it is up")[0].napi.id)
    }

    /// A connection: the ends of the sender and of the receiver. A socket keeps its namespace.
    pub(crate) fn connect(&self) -> (TcpStream, TcpStream) {
        let listener = self.inside(1, || TcpListener::bind("10.89.0.2:0")).expect("it is up");
        let address = listener.local_addr().expect("it is bound");
        let sender = self.inside(0, || TcpStream::connect(address)).expect("it listens");
        let receiver = listener.accept().expect("it has connected").0;
        sender.set_nodelay(true).expect("TCP has it");
        receiver.set_nonblocking(true).expect("sockets have it");
        (sender, receiver)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&format!("netns del {name}"));
        }
    }
}
