//! Options of streams.

use std::time::Duration;

/// Options of a stream, or of all streams that a listener accepts. Setters return the options, so that they can be chained.
///
/// ```no_run
/// # fn example(node: &apus::Node, to: apus::Address) -> std::io::Result<()> {
/// use apus::{Stream, StreamOptions};
///
/// let stream = Stream::connect_with(node, to, StreamOptions::new().window(4 << 20))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamOptions {
    pub(crate) window: u64,
    pub(crate) lost_after: Duration,
    pub(crate) backlog: usize,
}

impl StreamOptions {
    /// The defaults: a window of 1 MiB, a peer that is lost after 30 s, a backlog of 128 streams.
    #[must_use]
    pub const fn new() -> Self {
        Self { window: 1 << 20, lost_after: Duration::from_secs(30), backlog: 128 }
    }

    /// Bytes that may wait in each direction at this end: received and not read, or written and not acknowledged. A stream uses at
    /// most twice as much memory. The window limits the rate on long paths: a stream carries at most one window in a round trip.
    /// Default 1 MiB; values outside 64 KiB to 1 GiB are moved to the nearest of these.
    pub const fn window(&mut self, bytes: usize) -> &mut Self {
        self.window = match bytes {
            ..WINDOW_MIN => WINDOW_MIN as u64,
            WINDOW_MIN..=WINDOW_MAX => bytes as u64,
            _ => WINDOW_MAX as u64,
        };
        self
    }

    /// Time for which a peer may be unreachable before the stream ends with an error. Default 30 s. Within this time, failed calls
    /// are repeated. The end of the peer's process ends the stream at once.
    pub const fn lost_after(&mut self, time: Duration) -> &mut Self {
        self.lost_after = time;
        self
    }

    /// For listeners: upper bound on streams that wait to be accepted. Further ones are refused. Default 128; 0 counts as 1.
    pub const fn backlog(&mut self, streams: usize) -> &mut Self {
        self.backlog = if streams == 0 { 1 } else { streams };
        self
    }
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// Window of a stream that waits to be accepted.
pub(crate) const WINDOW_MIN: usize = 64 << 10;

const WINDOW_MAX: usize = 1 << 30;
