//! The progress of a call that failed.

use std::fmt;
use std::time::Duration;

use crate::error::Awaited;

/// The progress of a call that failed by silence or by its deadline: the progress of its messages, its awaited input, and the time
/// of the peer's last packet. [`Display`](fmt::Display) formats it in a line.
///
/// In a call within the host, bytes count as sent once they are in the memory shared with the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CallStory {
    /// The lower half of the call's id, by which `apus trace explain` finds it.
    pub id: u32,
    /// The awaited input.
    pub waited_for: Awaited,
    /// Length of the request, in bytes.
    pub request: u32,
    /// Bytes of the request that were sent at least once.
    pub sent: u32,
    /// Bytes of the request that the peer had allowed: without a grant, and by grants.
    pub granted: u32,
    /// Length of the response, in bytes; `None` if nothing of it was received.
    pub response: Option<u32>,
    /// Bytes of the response that were received.
    pub received: u32,
    /// Time from the last packet of the peer, about any call, to the failure. `None` without any packet.
    pub peer_silent_for: Option<Duration>,
    /// Number of unanswered probes about the call.
    pub probes_unanswered: u32,
}

impl CallStory {
    /// Returns whether the server may have the request: some of it was sent.
    #[must_use]
    pub const fn began(&self) -> bool {
        self.sent > 0
    }

    /// Returns whether the server may have executed the request: all of it was sent.
    #[must_use]
    pub const fn may_have_executed(&self) -> bool {
        !matches!(self.waited_for, Awaited::Token) && self.sent >= self.request
    }
}

impl fmt::Display for CallStory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, waited_for, request, sent, granted, received, .. } = self;
        write!(f, "RPC {id} waited for {waited_for}; ")?;
        match (*sent, *granted) {
            (0, _) => write!(f, "nothing of {request} bytes was sent")?,
            (sent, _) if sent == *request => write!(f, "all {request} bytes were sent")?,
            (sent, granted) => {
                write!(f, "{sent} of {request} bytes were sent, {granted} were allowed")?;
            }
        }
        match self.response {
            None => write!(f, ", nothing was received; ")?,
            Some(response) => write!(f, ", {received} of {response} were received; ")?,
        }
        match self.peer_silent_for {
            None => write!(f, "no packet of the peer was received"),
            Some(silent) => {
                let silent =
                    Duration::from_micros(silent.as_micros().try_into().unwrap_or(u64::MAX));
                write!(f, "the peer's last packet arrived {silent:?} before")
            }
        }?;
        match self.probes_unanswered {
            0 => Ok(()),
            1 => write!(f, ", 1 probe is unanswered"),
            probes => write!(f, ", {probes} probes are unanswered"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_story_is_a_line() {
        let mut story = CallStory {
            id: 6,
            waited_for: Awaited::Grant,
            request: 500_000,
            sent: 10_000,
            granted: 20_000,
            response: None,
            received: 0,
            peer_silent_for: Some(Duration::from_nanos(8_100_999)),
            probes_unanswered: 2,
        };
        assert_eq!(
            story.to_string(),
            "RPC 6 waited for a grant to send the rest of the request; 10000 of 500000 bytes were sent, 20000 were allowed, nothing was \
             received; the peer's last packet arrived 8.1ms before, 2 probes are unanswered"
        );
        (story.waited_for, story.sent, story.peer_silent_for) = (Awaited::Token, 0, None);
        assert_eq!(
            story.to_string(),
            "RPC 6 waited for the first packet of the peer; nothing of 500000 bytes was sent, nothing was received; no packet of \
             the peer was received, 2 probes are unanswered"
        );
        (story.sent, story.response, story.received) = (500_000, Some(9_000), 3_000);
        (story.waited_for, story.probes_unanswered) = (Awaited::RestOfResponse, 0);
        assert_eq!(
            story.to_string(),
            "RPC 6 waited for the rest of the response; all 500000 bytes were sent, 3000 of 9000 were received; no packet of the \
             peer was received"
        );
    }
}
