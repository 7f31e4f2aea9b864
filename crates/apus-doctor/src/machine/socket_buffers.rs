//! Socket buffers: the sizes that a node requests and gets, and the limits of the kernel.

use apus::Capabilities;

use crate::files::{Files, number};
use crate::finding::{Finding, Subject, Verdict};

const SUBJECT: Subject = Subject::SocketBuffers;

#[derive(Clone, Debug)]
pub(super) struct SocketBuffers {
    rmem_max: Option<u64>,
    wmem_max: Option<u64>,
    /// Bytes of payload that a link with the settings of the environment got; `None` if it could not be opened.
    receive: Option<Buffer>,
    send: Option<Buffer>,
}

#[derive(Clone, Copy, Debug)]
struct Buffer {
    wanted: u64,
    granted: u64,
}

impl SocketBuffers {
    /// `send_wanted` is the setting `send_buffer`, in bytes.
    pub(super) fn gather(
        files: &dyn Files,
        link: &Result<Capabilities, String>,
        send_wanted: u64,
    ) -> Self {
        // The kernel doubles the granted size, for its own bookkeeping.
        let buffer = |wanted, granted: usize| Buffer { wanted, granted: granted as u64 / 2 };
        let link = link.as_ref().ok();
        Self {
            rmem_max: number(files, "/proc/sys/net/core/rmem_max"),
            wmem_max: number(files, "/proc/sys/net/core/wmem_max"),
            receive: link.map(|it| buffer(it.receive_buffer_wanted as u64, it.receive_buffer)),
            send: link.map(|it| buffer(send_wanted, it.send_buffer)),
        }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        vec![
            finding("receive buffer", "rmem_max", self.rmem_max, self.receive)
                .apus("keeps granted bytes within the receive buffer (setting receive_buffer)"),
            finding("send buffer", "wmem_max", self.wmem_max, self.send)
                .apus("drops a packet if the send buffer is full, and retransmits it later (setting send_buffer)"),
        ]
    }
}

fn finding(name: &'static str, limit: &str, max: Option<u64>, buffer: Option<Buffer>) -> Finding {
    let Some(Buffer { wanted, granted }) = buffer else {
        return Finding::not_known(SUBJECT, name, "no link could be opened");
    };
    let limit_size = max.map_or_else(|| "not known".to_owned(), mib);
    let mut found = format!(
        "a node requests {} and gets {}; net.core.{limit} is {limit_size}",
        mib(wanted),
        mib(granted)
    );
    // The limit does not apply to a process with CAP_NET_ADMIN, but to others.
    let others = max.filter(|&max| max < granted.min(wanted));
    if let Some(max) = others {
        found += &format!(", so a process without CAP_NET_ADMIN gets {}", mib(max));
    }
    let enough = granted >= wanted && others.is_none();
    let verdict = match granted {
        granted if granted < BAD => Verdict::Bad,
        _ => Verdict::good_if(enough),
    };
    Finding::new(SUBJECT, name, verdict, found)
        .change(
            format!(
                "sudo sysctl -w net.core.{limit}={wanted} # permanently: in /etc/sysctl.d/90-apus.conf"
            ),
            format!(
                "the kernel queues bursts of up to {} instead of dropping or delaying them",
                mib(wanted)
            ),
        )
        .value("wanted_bytes", wanted)
        .value("granted_bytes", granted)
        .value("limit_bytes", max)
}

fn mib(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        bytes => format!("{:.0} KiB", bytes as f64 / 1024.0),
    }
}

/// A buffer below this size has no room for one message of 64 KiB and its bookkeeping.
const BAD: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::FakeFiles;

    const FILES: FakeFiles = FakeFiles(&[
        ("/proc/sys/net/core/rmem_max", "212992\n"),
        ("/proc/sys/net/core/wmem_max", "4194304\n"),
    ]);

    fn socket_buffers(receive: usize) -> SocketBuffers {
        let mut link = Capabilities::default();
        link.receive_buffer_wanted = 8 << 20;
        link.receive_buffer = 2 * receive;
        link.send_buffer = 8 << 20;
        SocketBuffers::gather(&FILES, &Ok(link), 4 << 20)
    }

    #[test]
    fn a_limit_below_what_is_wanted_could_be_better() {
        let [receive, send] = socket_buffers(212_992).findings().try_into().unwrap();
        assert_eq!((receive.verdict, send.verdict), (Verdict::CouldBeBetter, Verdict::Good));
        assert!(receive.found.contains("requests 8.0 MiB and gets 208 KiB"), "{}", receive.found);
        let change = receive.change.unwrap();
        assert!(change.starts_with("sudo sysctl -w net.core.rmem_max=8388608 "), "{change}");
        assert_eq!(send.change, None);
    }

    #[test]
    fn privilege_hides_the_limit_from_the_process_only() {
        let receive = socket_buffers(8 << 20).findings().remove(0);
        assert_eq!(receive.verdict, Verdict::CouldBeBetter);
        assert!(receive.found.contains("without CAP_NET_ADMIN gets 208 KiB"), "{}", receive.found);
    }

    #[test]
    fn what_is_not_known_is_said() {
        let socket_buffers = SocketBuffers::gather(&FakeFiles(&[]), &Err("in use".to_owned()), 1);
        assert!(socket_buffers.findings().iter().all(|it| it.verdict == Verdict::NotKnown));
        assert_eq!(self::socket_buffers(1_000).findings()[0].verdict, Verdict::Bad);
    }
}
