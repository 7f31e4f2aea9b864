//! When a client may begin a handshake (rule seal-4).

use std::time::Duration;

use crate::handshake::failure::HandshakeError;

const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The least time between a success and the next handshake of a path that is known.
const SPACING: Duration = Duration::from_secs(60);

//= docs/protocol.md#seal-4
/// The handshakes of one path, as its client sees them: one at a time, with pauses that grow with each failure.
#[derive(Clone, Debug, Default)]
pub struct Attempts {
    is_under_way: bool,
    /// Whether a handshake of the peer has made the path since the one under way began.
    is_made_by_peer: bool,
    failures: u32,
    earliest: Duration,
    error: Option<HandshakeError>,
}

/// The reason for which a handshake is begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// There is no path: a call waits for the first contact, or the peer does not know the path any more.
    NoPath,
    /// The path is known, and is refreshed or in doubt.
    KnownPath,
}

impl Attempts {
    /// Begins a handshake if the limits allow one now, and returns whether they do.
    pub fn begin(&mut self, now: Duration, need: Need) -> bool {
        let may_begin = self.earliest(need).is_some_and(|earliest| earliest <= now);
        self.is_under_way |= may_begin;
        self.is_made_by_peer &= !may_begin;
        may_begin
    }

    /// Notes that the handshake under way came to nothing through no fault of the server, for instance because the server was
    /// restarted. The next one may begin at once.
    pub fn withdrawn(&mut self) {
        self.is_under_way = false;
    }

    /// Notes the success of the handshake under way.
    pub fn succeeded(&mut self, now: Duration) {
        *self = Self { earliest: now + SPACING, ..Self::default() };
    }

    /// Notes that a handshake of the peer has made the path, so that no earlier failure delays the next handshake. One under way goes
    /// on. If it fails, that is because the two have crossed, and delays none either.
    pub fn made_by_peer(&mut self) {
        let is_under_way = self.is_under_way;
        *self = Self { is_under_way, is_made_by_peer: is_under_way, ..Self::default() };
    }

    /// Notes the failure of the handshake under way. The pause before the next one is 0.25 s at first and doubles up to 30 s,
    /// give or take a sixth by the random number, so that clients of one server do not come back together.
    pub fn failed(&mut self, now: Duration, error: HandshakeError, random: u32) {
        if self.is_made_by_peer {
            return self.withdrawn();
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16)).min(LONGEST_PAUSE);
        let jitter = f64::from(random) / f64::from(u32::MAX) - 0.5;
        self.is_under_way = false;
        self.failures = self.failures.saturating_add(1);
        self.earliest = now + pause.mul_f64(1.0 + jitter / 3.0);
        self.error = Some(error);
    }

    /// Returns the error with which calls fail at once until the next handshake begins. `None` if calls wait: no handshake has
    /// failed since the last success, or the server only had no room.
    #[must_use]
    pub fn error(&self, now: Duration) -> Option<&HandshakeError> {
        let is_pause = !self.is_under_way && now < self.earliest;
        self.error.as_ref().filter(|error| is_pause && !error.is_busy())
    }

    /// Returns the time from which [`Attempts::begin`] allows a handshake of this kind; `None` while one is under way.
    #[must_use]
    pub fn earliest(&self, need: Need) -> Option<Duration> {
        match need {
            _ if self.is_under_way => None,
            // A success does not delay the handshake of a path that is unknown by now.
            Need::NoPath if self.failures == 0 => Some(Duration::ZERO),
            _ => Some(self.earliest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::failure::Limit;

    const MIDDLE: u32 = u32::MAX / 2;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    //= docs/protocol.md#seal-4
    #[test]
    fn a_path_that_the_peer_has_made_waits_for_no_pause() {
        let mut attempts = Attempts::default();
        for second in [0, 1, 2] {
            assert!(attempts.begin(at(second * 1_000), Need::NoPath));
            attempts.failed(at(second * 1_000), HandshakeError::OutOfOrder, MIDDLE);
        }
        attempts.made_by_peer();
        assert_eq!(attempts.error(at(2_010)), None);
        assert!(attempts.begin(at(2_010), Need::NoPath));
        // A handshake of the peer crosses this one, which fails.
        attempts.made_by_peer();
        assert!(!attempts.begin(at(2_020), Need::NoPath), "one at a time");
        attempts.failed(at(2_030), HandshakeError::OutOfOrder, MIDDLE);
        assert!(attempts.begin(at(2_030), Need::NoPath));
        attempts.failed(at(2_040), HandshakeError::OutOfOrder, MIDDLE);
        assert!(
            !attempts.begin(at(2_289), Need::NoPath) && attempts.begin(at(2_291), Need::NoPath)
        );
    }

    //= docs/protocol.md#seal-4
    #[test]
    fn pauses_double_from_a_quarter_of_a_second_to_thirty_seconds() {
        let mut attempts = Attempts::default();
        let mut now = Duration::ZERO;
        for pause in [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
            assert!(attempts.begin(now, Need::NoPath));
            assert!(!attempts.begin(now, Need::NoPath), "one at a time");
            attempts.failed(now, HandshakeError::UnknownHandle, MIDDLE);
            let earliest = attempts.earliest(Need::NoPath).expect("none is under way");
            let difference = earliest.abs_diff(now + at(pause));
            assert!(difference < at(1), "{earliest:?} after {now:?}");
            assert!(!attempts.begin(earliest - at(1), Need::NoPath));
            assert_eq!(attempts.error(now), Some(&HandshakeError::UnknownHandle));
            now = earliest;
            assert_eq!(attempts.error(now), None);
        }
    }

    #[test]
    fn a_handshake_that_was_withdrawn_begins_again_at_once() {
        let mut attempts = Attempts::default();
        assert!(attempts.begin(at(0), Need::NoPath));
        attempts.withdrawn();
        assert!(attempts.begin(at(0), Need::NoPath));
        assert_eq!(attempts.error(at(0)), None);
    }

    //= docs/protocol.md#seal-4
    #[test]
    fn a_pause_varies_by_a_third() {
        let pause = |random| {
            let mut attempts = Attempts::default();
            attempts.failed(Duration::ZERO, HandshakeError::UnknownHandle, random);
            attempts.earliest(Need::NoPath).expect("none is under way")
        };
        assert_eq!(pause(0), Duration::from_secs_f64(0.25 * 5.0 / 6.0));
        assert_eq!(pause(u32::MAX), Duration::from_secs_f64(0.25 * 7.0 / 6.0));
    }

    //= docs/protocol.md#seal-4
    #[test]
    fn after_a_success_a_known_path_waits_a_minute_and_an_unknown_one_does_not() {
        let mut attempts = Attempts::default();
        assert!(attempts.begin(at(0), Need::NoPath));
        attempts.succeeded(at(10));
        assert_eq!(attempts.earliest(Need::KnownPath), Some(at(60_010)));
        assert!(!attempts.begin(at(60_009), Need::KnownPath));
        assert!(attempts.begin(at(11), Need::NoPath));
        attempts.succeeded(at(20));
        assert!(attempts.begin(at(60_020), Need::KnownPath));
    }

    //= docs/protocol.md#seal-4
    #[test]
    fn calls_wait_while_a_server_has_no_room() {
        let mut attempts = Attempts::default();
        attempts.failed(at(0), HandshakeError::Busy(Limit::Places), MIDDLE);
        assert_eq!(attempts.error(at(1)), None);
        assert!(!attempts.begin(at(1), Need::NoPath));
        attempts.failed(at(1), HandshakeError::UnknownHandle, MIDDLE);
        assert_eq!(attempts.error(at(2)), Some(&HandshakeError::UnknownHandle));
        attempts.succeeded(at(3));
        assert_eq!(attempts.error(at(4)), None);
    }
}
