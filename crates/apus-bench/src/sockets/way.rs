//! The transports of the program's bytes.

use strum::IntoStaticStr;

use super::connection::SocketType;
use super::program::Test;
use apus_node::message::MessageHeader;

/// The transport of the program's bytes. Its name is the `transport` of a result row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Way {
    /// Kernel TCP on the loopback interface, blocking calls
    Tcp,
    /// Kernel TCP, both sides calling recv in a loop; round trips only
    TcpSpin,
    /// A unix stream socket, blocking calls
    Unix,
    /// The program of tcp under `apus run`
    ApusRun,
    /// Shared memory without sockets, both sides spinning: the floor; round trips of at least 16 bytes only
    RawShm,
}

impl Way {
    /// The name in tables, results and arguments.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether both sides spin and so need a core each. The library under the program of `apus run` sleeps if both sides share a
    /// core.
    pub(super) fn spins(self) -> bool {
        matches!(self, Self::TcpSpin | Self::RawShm)
    }

    /// Whether it can be measured in a test with this size.
    pub(super) fn fits(self, test: Test, size: u32) -> bool {
        match self {
            Self::RawShm => test == Test::Rr && size >= MessageHeader::LEN as u32,
            Self::TcpSpin => test == Test::Rr,
            Self::Tcp | Self::Unix | Self::ApusRun => true,
        }
    }

    /// The sockets of the program; `None` for a transport without sockets.
    pub(super) fn sockets(self) -> Option<SocketType> {
        match self {
            Self::Tcp | Self::ApusRun => Some(SocketType::Tcp),
            Self::TcpSpin => Some(SocketType::TcpSpinning),
            Self::Unix => Some(SocketType::Unix),
            Self::RawShm => None,
        }
    }
}
