//! Busy polling by the kernel. Apus does not use it: it polls in user space.

use socket2::{Domain, Socket, Type};

use crate::files::{Files, number};
use crate::finding::{Finding, Subject, Verdict};

const SUBJECT: Subject = Subject::BusyPolling;

#[derive(Debug)]
pub(super) struct BusyPolling {
    /// `net.core.busy_poll` and `net.core.busy_read`, in microseconds.
    busy_poll: Option<u64>,
    busy_read: Option<u64>,
    /// Whether a socket accepts `SO_BUSY_POLL`.
    socket: Result<(), String>,
    /// Whether epoll sets have parameters of their own.
    epoll: Result<bool, String>,
}

impl BusyPolling {
    pub(super) fn gather(files: &dyn Files) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None);
        let socket = socket.and_then(|socket| socket.set_busy_poll(MICROS));
        Self {
            busy_poll: number(files, "/proc/sys/net/core/busy_poll"),
            busy_read: number(files, "/proc/sys/net/core/busy_read"),
            socket: socket.map_err(|error| error.to_string()),
            epoll: apus::net::epoll::has_busy_poll_parameters().map_err(|error| error.to_string()),
        }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        vec![sysctls(self), socket(self), epoll(self)]
    }
}

fn sysctls(busy_polling: &BusyPolling) -> Finding {
    let name = "sysctls";
    let (Some(poll), Some(read)) = (busy_polling.busy_poll, busy_polling.busy_read) else {
        return Finding::not_known(
            SUBJECT,
            name,
            "this network namespace has no net.core.busy_poll",
        );
    };
    let found = format!("net.core.busy_poll is {poll} µs, net.core.busy_read {read} µs");
    Finding::new(SUBJECT, name, Verdict::good_if(poll == 0 && read == 0), found)
        .apus("polls in user space while polling pays (setting delivery), and then sleeps; with busy_poll the kernel polls again \
               in each sleep")
        .change(
            "sudo sysctl -w net.core.busy_poll=0 net.core.busy_read=0",
            "a thread that polled without success uses no further CPU time; not measured here",
        )
        .value("busy_poll_us", poll)
        .value("busy_read_us", read)
}

fn socket(busy_polling: &BusyPolling) -> Finding {
    let found = match &busy_polling.socket {
        Ok(()) => "a socket of this process accepts SO_BUSY_POLL".to_owned(),
        Err(why) => format!("a socket of this process does not accept SO_BUSY_POLL ({why})"),
    };
    // Apus never needs it.
    Finding::new(SUBJECT, "SO_BUSY_POLL", Verdict::Good, found)
        .apus("does not set it, because it affects blocking receives only, and Apus has none")
        .value("allowed", busy_polling.socket.is_ok())
}

fn epoll(busy_polling: &BusyPolling) -> Finding {
    let name = "epoll parameters";
    let has = match &busy_polling.epoll {
        Ok(has) => *has,
        Err(why) => return Finding::not_known(SUBJECT, name, why.clone()),
    };
    let found = match has {
        true => "epoll sets have busy polling parameters (EPIOCSPARAMS)",
        false => "epoll sets have no busy polling parameters (EPIOCSPARAMS needs Linux 6.9)",
    };
    Finding::new(SUBJECT, name, Verdict::Good, found)
        .apus("does not set them, because it sleeps in ppoll. Programs that use epoll can set them for IRQ suspension")
        .value("has", has)
}

/// The value in the kernel's documentation.
const MICROS: u32 = 50;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::FakeFiles;

    #[test]
    fn kernel_polling_is_said_to_be_double() {
        let files = FakeFiles(&[
            ("/proc/sys/net/core/busy_poll", "50\n"),
            ("/proc/sys/net/core/busy_read", "0\n"),
        ]);
        let busy_polling = BusyPolling::gather(&files);
        let sysctls = busy_polling.findings().remove(0);
        assert_eq!(sysctls.verdict, Verdict::CouldBeBetter);
        assert!(sysctls.found.contains("busy_poll is 50 µs"), "{}", sysctls.found);
        let busy_polling = BusyPolling {
            busy_poll: Some(0),
            epoll: Err("no descriptor".to_owned()),
            ..busy_polling
        };
        assert_eq!(super::sysctls(&busy_polling).verdict, Verdict::Good);
        assert_eq!(epoll(&busy_polling).verdict, Verdict::NotKnown);
    }
}
