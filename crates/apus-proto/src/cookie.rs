//! Numbers by which the application knows its calls.

/// Number by which the application knows a call. It returns with the events of the call, and is never sent to the peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cookie {
    /// The key of state that the application keeps for the call.
    Key(u64),
    /// A number without state: the result belongs to a queue of the socket.
    Queue(u64),
}

impl Default for Cookie {
    fn default() -> Self {
        Self::Key(0)
    }
}

impl Cookie {
    /// Returns the number.
    #[must_use]
    pub fn number(self) -> u64 {
        match self {
            Self::Key(number) | Self::Queue(number) => number,
        }
    }
}
