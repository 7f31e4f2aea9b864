//! Whether AF_XDP sockets can be made, by which short packets leave with `link = xdp`.

use rustix::net::{AddressFamily, SocketType, socket};

use crate::finding::{Finding, Subject, Verdict};

const SUBJECT: Subject = Subject::AfXdp;

#[derive(Debug)]
pub(super) struct AfXdp {
    socket: Result<(), String>,
}

impl AfXdp {
    pub(super) fn gather() -> Self {
        let made = socket(AddressFamily::XDP, SocketType::RAW, None);
        Self { socket: made.map(drop).map_err(|error| error.to_string()) }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let found = match &self.socket {
            Ok(()) => "this process can make such a socket".to_owned(),
            Err(why) => format!("this process cannot make such a socket ({why})"),
        };
        let effect = match self.socket {
            Ok(()) => "sends short packets by AF_XDP with 'link = xdp'",
            Err(_) => "sends all packets by UDP, also with 'link = xdp', which needs CAP_NET_RAW",
        };
        // The default link uses none.
        let finding = Finding::new(SUBJECT, "socket", Verdict::Good, found);
        vec![finding.apus(effect).value("possible", self.socket.is_ok())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_link_does_not_depend_on_it() {
        for socket in [Ok(()), Err("EPERM".to_owned())] {
            assert_eq!((AfXdp { socket }).findings()[0].verdict, Verdict::Good);
        }
        assert_eq!(AfXdp::gather().findings().len(), 1);
    }
}
