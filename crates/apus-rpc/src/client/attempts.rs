//! The decision what follows a failed attempt of a call.

use std::time::Duration;

use crate::client::backoff::Backoff;
use crate::client::failure::Repetition;
use crate::client::retry::RetryPolicy;
use crate::client::throttle::Throttle;
use crate::client::tried::Tried;
use crate::code::Code;
use crate::status::{Execution, Status};

/// The attempts of a call up to now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attempts {
    pub(crate) tried: Tried,
    /// Attempts that a policy has repeated.
    pub(crate) repeated: u32,
    /// Whether an attempt that has failed or was given up may have been executed.
    pub(crate) may_have_executed: bool,
    /// Pauses since the last one that a server has named.
    pauses: u32,
    /// Whether a server wants no repetition.
    is_pushed_back: bool,
}

/// What follows a failed attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// The call has failed.
    End,
    /// Another attempt at once, at another endpoint.
    Elsewhere,
    /// Another attempt after this time.
    After(Duration),
}

/// The facts beside the status on which the decision depends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailureFacts<'a> {
    /// Whether there are endpoints at which the call was not tried.
    pub(crate) has_untried: bool,
    pub(crate) waits_for_ready: bool,
    /// The policy of the method, if it may be executed more than once.
    pub(crate) policy: Option<RetryPolicy>,
    /// The policy of calls that were not executed.
    pub(crate) not_executed: Option<RetryPolicy>,
    pub(crate) throttle: &'a Throttle,
    /// Time until the deadline.
    pub(crate) remaining: Option<Duration>,
    pub(crate) random: u64,
}

/// The server's word about another attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pushback {
    Never,
    After(Duration),
}

/// Name of the trailer with a [`Pushback`] in milliseconds.
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Longest pause that a server may name. A longer one counts as this.
const PUSHBACK_MAX: Duration = Duration::from_secs(60);

impl Pushback {
    fn of(status: &Status) -> Option<Self> {
        let text = status.metadata().get(PUSHBACK)?;
        // A negative number, and a text that is no number, mean that the call is not to be repeated.
        let pause = |ms| Self::After(Duration::from_millis(ms).min(PUSHBACK_MAX));
        Some(text.parse().map_or(Self::Never, pause))
    }
}

impl Attempts {
    /// Whether no attempt has ended yet.
    pub(crate) fn is_first(&self) -> bool {
        self.tried == Tried::default() && self.pauses == 0
    }

    /// The status of a call whose last attempt has failed with this one.
    pub(crate) fn status_of_call(&self, status: Status) -> Status {
        if self.may_have_executed { status.with_execution(Execution::Possible) } else { status }
    }

    /// Whether a failure ends its call whatever the other facts are, as an error of the application without a policy does.
    pub(crate) fn is_last(status: &Status, policy: Option<RetryPolicy>) -> bool {
        let may_repeat = policy.is_some_and(|policy| policy.covers(status.code()));
        !may_repeat && Repetition::of(status) == Repetition::No && Pushback::of(status).is_none()
    }

    /// A copy of an attempt has failed at the endpoint with this number, and the other copy goes on.
    pub(crate) fn copy_failed(&mut self, number: u32, status: &Status) {
        self.tried.add(number);
        self.may_have_executed |= status.may_have_executed();
        self.is_pushed_back |= Pushback::of(status) == Some(Pushback::Never);
    }

    /// The decision about a call whose last attempt has failed with this status.
    pub(crate) fn next(&mut self, status: &Status, facts: FailureFacts<'_>) -> Next {
        self.may_have_executed |= status.may_have_executed();
        let repetition = Repetition::of(status);
        let policy = facts.policy.filter(|policy| policy.covers(status.code()));
        let pushback = Pushback::of(status);
        let is_charged = repetition == Repetition::Charged
            || repetition == Repetition::No && policy.is_some()
            || pushback == Some(Pushback::Never);
        let has_tokens = if is_charged { facts.throttle.charge() } else { true };
        if self.is_pushed_back || pushback == Some(Pushback::Never) {
            return Next::End;
        }
        let was_not_executed = repetition != Repetition::No;
        if was_not_executed && has_tokens && facts.has_untried && !self.tried.is_full() {
            return Next::Elsewhere;
        }
        if was_not_executed && facts.waits_for_ready && status.code() == Code::Unavailable {
            return self.pause(Backoff::DEFAULT, None, facts);
        }
        let not_executed = facts.not_executed.filter(|_| was_not_executed);
        match policy.or(not_executed) {
            Some(policy) if has_tokens && self.repeated + 1 < policy.attempts => {
                let next = self.pause(policy.backoff, pushback, facts);
                self.repeated += u32::from(next != Next::End);
                next
            }
            _ => Next::End,
        }
    }

    /// An attempt after a pause, unless the deadline is before its end.
    fn pause(
        &mut self,
        backoff: Backoff,
        pushback: Option<Pushback>,
        facts: FailureFacts<'_>,
    ) -> Next {
        let pause = match pushback {
            Some(Pushback::After(pause)) => {
                self.pauses = 0;
                pause
            }
            _ => {
                let pause = backoff.pause(self.pauses, facts.random);
                self.pauses = self.pauses.saturating_add(1);
                pause
            }
        };
        if facts.remaining.is_some_and(|remaining| remaining <= pause) {
            return Next::End;
        }
        self.tried.keep_last();
        Next::After(pause)
    }
}

#[cfg(test)]
mod tests {
    use apus::CallError;

    use super::*;
    use crate::client::retry::Retry;
    use crate::metadata::Metadata;

    /// Half of the range, which is the mean of a pause.
    const MEAN: u64 = 1 << 63;

    fn facts(throttle: &Throttle) -> FailureFacts<'_> {
        FailureFacts {
            has_untried: false,
            waits_for_ready: false,
            policy: None,
            not_executed: None,
            throttle,
            remaining: None,
            random: MEAN,
        }
    }

    fn throttle() -> Throttle {
        Throttle::new(Retry::new().tokens)
    }

    fn unavailable(executed: Execution) -> Status {
        Status::new(Code::Unavailable, "").with_execution(executed)
    }

    fn pushed_back(text: &str) -> Status {
        let mut metadata = Metadata::new();
        metadata.append(PUSHBACK, text).expect("a pair");
        unavailable(Execution::Possible).with_metadata(metadata)
    }

    fn ms(number: u64) -> Next {
        Next::After(Duration::from_millis(number))
    }

    #[test]
    fn a_call_that_was_not_executed_goes_to_each_endpoint_once() {
        let throttle = throttle();
        let mut attempts = Attempts::default();
        let status = Status::from(CallError::NoSuchPort);
        for number in 0..8 {
            let facts = FailureFacts { has_untried: true, ..facts(&throttle) };
            assert_eq!(attempts.next(&status, facts), Next::Elsewhere);
            attempts.tried.add(number);
        }
        let facts = FailureFacts { has_untried: true, ..facts(&throttle) };
        assert_eq!(attempts.next(&status, facts), Next::End, "a bound on endpoints");
        assert!(throttle.allows(), "nothing was charged");
    }

    #[test]
    fn overloaded_servers_are_not_asked_by_turns() {
        let throttle = throttle();
        let refused = Status::new(Code::ResourceExhausted, "").with_execution(Execution::None);
        let next = || {
            let facts = FailureFacts { has_untried: true, ..facts(&throttle) };
            Attempts::default().next(&refused, facts)
        };
        let nexts: Vec<_> = (0..6).map(|_| next()).collect();
        assert_eq!(nexts.iter().filter(|next| **next == Next::Elsewhere).count(), 4);
        // A drain is in order, however many calls see it.
        let facts = FailureFacts { has_untried: true, ..facts(&throttle) };
        let drains = unavailable(Execution::NoneByDraining);
        assert_eq!(Attempts::default().next(&drains, facts), Next::Elsewhere);
    }

    #[test]
    fn a_policy_repeats_with_pauses_up_to_its_attempts() {
        let throttle = throttle();
        let policy = Some(RetryPolicy::new().attempts(4));
        let mut attempts = Attempts::default();
        let mut next = |status: &Status| {
            attempts.next(status, FailureFacts { has_untried: true, policy, ..facts(&throttle) })
        };
        let failed = unavailable(Execution::Possible);
        assert_eq!([next(&failed), next(&failed), next(&failed)], [ms(50), ms(80), ms(128)]);
        assert_eq!(next(&failed), Next::End);
        assert_eq!(attempts.repeated, 3);
        // The last attempt was not executed, and earlier ones may have been.
        let refused = unavailable(Execution::None);
        assert!(!refused.may_have_executed());
        assert!(attempts.status_of_call(refused).may_have_executed());
        let other = Status::new(Code::NotFound, "");
        assert!(Attempts::is_last(&other, policy) && Attempts::is_last(&failed, None));
        assert!(!Attempts::is_last(&failed, policy) && !Attempts::is_last(&pushed_back("1"), None));
        assert!(!Attempts::is_last(&unavailable(Execution::None), None));
        let facts = FailureFacts { policy, ..facts(&throttle) };
        assert_eq!(Attempts::default().next(&other, facts), Next::End);
    }

    #[test]
    fn without_a_policy_nothing_that_may_have_executed_is_repeated() {
        let throttle = throttle();
        for status in [unavailable(Execution::Possible), CallError::MayHaveExecuted.into()] {
            let facts = FailureFacts {
                has_untried: true,
                waits_for_ready: true,
                not_executed: Some(RetryPolicy::new()),
                ..facts(&throttle)
            };
            assert_eq!(Attempts::default().next(&status, facts), Next::End);
        }
        assert!(throttle.allows());
    }

    #[test]
    fn the_same_endpoint_is_tried_again_after_a_pause_if_the_policy_says_so() {
        let throttle = throttle();
        let status = Status::from(CallError::NoSuchPort);
        let mut attempts = Attempts::default();
        attempts.tried.add(1);
        assert_eq!(attempts.next(&status, facts(&throttle)), Next::End);
        let not_executed = Some(RetryPolicy::new());
        let facts = FailureFacts { not_executed, ..facts(&throttle) };
        assert_eq!(
            [attempts.next(&status, facts), attempts.next(&status, facts)],
            [ms(50), ms(80)]
        );
        assert_eq!(attempts.next(&status, facts), Next::End);
    }

    #[test]
    fn waiting_has_no_bound_but_the_deadline() {
        let throttle = throttle();
        let status = Status::from(CallError::NoSuchPort);
        let mut attempts = Attempts::default();
        let mut facts = FailureFacts { waits_for_ready: true, ..facts(&throttle) };
        for _ in 0..100 {
            assert!(matches!(attempts.next(&status, facts), Next::After(_)));
        }
        facts.remaining = Some(Duration::from_secs(1));
        assert_eq!(attempts.next(&status, facts), Next::End, "the pause is as long");
        assert_eq!(attempts.repeated, 0);
    }

    #[test]
    fn a_server_says_when_and_whether() {
        let throttle = throttle();
        let policy = Some(RetryPolicy::new().attempts(5));
        let facts = FailureFacts { policy, ..facts(&throttle) };
        let mut attempts = Attempts::default();
        assert_eq!(attempts.next(&unavailable(Execution::Possible), facts), ms(50));
        assert_eq!(attempts.next(&pushed_back("7"), facts), ms(7));
        assert_eq!(attempts.next(&unavailable(Execution::Possible), facts), ms(50), "anew");
        for text in ["-1", "x", ""] {
            let throttle = self::throttle();
            let facts = FailureFacts { throttle: &throttle, ..facts };
            assert_eq!(Attempts::default().next(&pushed_back(text), facts), Next::End, "{text}");
        }
    }

    #[test]
    fn a_pause_that_a_server_wants_is_a_minute_at_most() {
        let throttle = throttle();
        let facts = FailureFacts { policy: Some(RetryPolicy::new()), ..facts(&throttle) };
        let next = |text| Attempts::default().next(&pushed_back(text), facts);
        assert_eq!([next("60000"), next("60001")], [ms(60_000); 2]);
        assert_eq!(next("18446744073709551615"), ms(60_000));
        assert_eq!(next("18446744073709551616"), Next::End, "no number");
    }

    #[test]
    fn a_server_that_wants_no_repetition_gets_none_at_another_endpoint_either() {
        for execution in [Execution::None, Execution::NoneByDraining] {
            let throttle = throttle();
            let status = pushed_back("-1").with_execution(execution);
            let facts = FailureFacts {
                has_untried: true,
                waits_for_ready: true,
                policy: Some(RetryPolicy::new()),
                not_executed: Some(RetryPolicy::new()),
                ..facts(&throttle)
            };
            assert_eq!(Attempts::default().next(&status, facts), Next::End);
            let mut attempts = Attempts::default();
            attempts.copy_failed(1, &status);
            assert_eq!(attempts.next(&CallError::NoSuchPort.into(), facts), Next::End);
        }
    }

    #[test]
    fn the_throttle_ends_repetition() {
        let throttle = throttle();
        let facts = FailureFacts { policy: Some(RetryPolicy::new()), ..facts(&throttle) };
        let next = || Attempts::default().next(&unavailable(Execution::Possible), facts);
        let nexts: Vec<_> = (0..8).map(|_| next()).collect();
        assert_eq!(nexts[..4], [ms(50); 4]);
        assert_eq!(nexts[4..], [Next::End; 4]);
        for _ in 0..60 {
            throttle.succeed();
        }
        assert_eq!(next(), ms(50));
    }
}
