//! Whether AF_XDP sockets can be made. Apus does not use them yet.

use rustix::net::{AddressFamily, SocketType, socket};

use super::finding::{Finding, Subject, Verdict};

const SUBJECT: Subject = Subject::AfXdp;

#[derive(Debug)]
pub(super) struct Facts {
    socket: Result<(), String>,
}

impl Facts {
    pub(super) fn gather() -> Self {
        let made = socket(AddressFamily::XDP, SocketType::RAW, None);
        Self { socket: made.map(drop).map_err(|error| error.to_string()) }
    }
}

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let found = match &facts.socket {
        Ok(()) => "this process can make such a socket".to_owned(),
        Err(why) => format!("this process cannot make such a socket ({why})"),
    };
    // Nothing gets better or worse by it.
    let finding = Finding::new(SUBJECT, "socket", Verdict::Good, found);
    vec![
        finding
            .apus("does not use AF_XDP yet: nothing depends on it")
            .value("possible", facts.socket.is_ok()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_depends_on_it() {
        for socket in [Ok(()), Err("EPERM".to_owned())] {
            assert_eq!(findings(&Facts { socket })[0].verdict, Verdict::Good);
        }
        assert_eq!(findings(&Facts::gather()).len(), 1);
    }
}
