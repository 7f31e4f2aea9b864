//! Which failed calls of a channel are repeated, and how.

use std::collections::HashMap;
use std::time::Duration;

use crate::client::backoff::Backoff;
use crate::client::hedge::Hedge;
use crate::code::Code;
use crate::envelope::MethodPath;

/// The largest number of attempts of a call that a [`RetryPolicy`] allows, as in gRPC.
pub(crate) const ATTEMPTS_MAX: u32 = 5;

/// The failed calls of a channel that are sent again. For [`ChannelBuilder::retry`](crate::ChannelBuilder::retry).
///
/// A request that was not executed always goes to another endpoint at once, if there is one. This adds attempts after a pause:
///
/// ```
/// use std::time::Duration;
/// use apus_rpc::{Code, Retry, RetryPolicy};
///
/// let policy = RetryPolicy::new().attempts(4).codes([Code::Unavailable, Code::Aborted]);
/// let retry = Retry::safe().method("/shop.Calc/Add", policy);
/// ```
///
/// | a failed call | is repeated with |
/// |---|---|
/// | that was not executed | [`Retry::safe`] |
/// | marked [idempotent](crate::UnaryCall::idempotent) or `#[idempotent]` | [`Retry::safe`] or [`Retry::idempotent`] |
/// | of a method that may be executed twice | [`Retry::method`], [`Retry::service`] or a service config |
///
/// The server may say in `grpc-retry-pushback-ms` after how many milliseconds a call is to be repeated, at most 60,000, where a
/// larger number counts as that; or with a negative number that it is not to be repeated at all, nor sent to another endpoint.
/// The server gets the number of attempts before in `grpc-previous-rpc-attempts`. A call ends at its deadline; a pause that would
/// pass it is not begun.
#[derive(Clone, PartialEq, Debug)]
pub struct Retry {
    pub(crate) not_executed: Option<RetryPolicy>,
    pub(crate) idempotent: Option<RetryPolicy>,
    /// By path, by path without the name of the method (`/shop.Calc/`), and by the empty text for all others.
    pub(crate) methods: HashMap<String, MethodConfig>,
    pub(crate) tokens: Tokens,
}

/// Attempts of a call and the pauses between them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RetryPolicy {
    pub(crate) attempts: u32,
    pub(crate) backoff: Backoff,
    /// A bit for each code.
    codes: u32,
}

/// The settings of a method.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct MethodConfig {
    pub(crate) retry: Option<RetryPolicy>,
    pub(crate) hedge: Option<Hedge>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) waits_for_ready: Option<bool>,
}

/// The limits of a [`Throttle`](crate::client::throttle::Throttle).
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Tokens {
    pub(crate) max: f64,
    pub(crate) ratio: f64,
}

impl Tokens {
    const DEFAULT: Self = Self { max: 10.0, ratio: 0.1 };
}

impl Default for Retry {
    fn default() -> Self {
        Self::new()
    }
}

impl Retry {
    /// Repeats nothing after a pause. The default of a channel.
    #[must_use]
    pub fn new() -> Self {
        let tokens = Tokens::DEFAULT;
        Self { not_executed: None, idempotent: None, methods: HashMap::new(), tokens }
    }

    /// Repeats calls that may be repeated whatever the method does, because they were not executed, and calls that are marked
    /// [idempotent](crate::UnaryCall::idempotent), with [`RetryPolicy::new`].
    #[must_use]
    pub fn safe() -> Self {
        let policy = Some(RetryPolicy::new());
        Self { not_executed: policy, idempotent: policy, ..Self::new() }
    }

    /// The policy of calls that are marked [idempotent](crate::UnaryCall::idempotent).
    #[must_use]
    pub fn idempotent(mut self, policy: RetryPolicy) -> Self {
        self.idempotent = Some(policy);
        self
    }

    /// The policy of a method that may be executed more than once, by its path: `/SERVICE/METHOD`.
    #[must_use]
    pub fn method(mut self, path: &str, policy: RetryPolicy) -> Self {
        self.methods.entry(path.to_owned()).or_default().retry = Some(policy);
        self
    }

    /// The policy of all methods of a service, except those that [`method`](Self::method) names. Each of them may be executed
    /// more than once.
    #[must_use]
    pub fn service(mut self, name: &str, policy: RetryPolicy) -> Self {
        self.methods.entry(format!("/{name}/")).or_default().retry = Some(policy);
        self
    }

    /// Bounds the attempts while many calls fail, as gRPC does (proposal A6): a failure that could be repeated takes a token, a
    /// success gives `ratio` of one, and calls are repeated only while more than half of `max` tokens are left. Default 10
    /// tokens, ratio 0.1. Values are limited to 1 to 1,000, and 0.001 to `max`; for NaN the default holds.
    #[must_use]
    pub fn throttle(mut self, max: f64, ratio: f64) -> Self {
        let number = |value: f64, default| if value.is_nan() { default } else { value };
        let max = number(max, Tokens::DEFAULT.max).clamp(1.0, 1_000.0);
        let ratio = number(ratio, Tokens::DEFAULT.ratio).clamp(0.001, max);
        self.tokens = Tokens { max, ratio };
        self
    }

    /// The settings of a method.
    pub(crate) fn of(&self, path: &MethodPath) -> MethodConfig {
        if self.methods.is_empty() {
            return MethodConfig::default();
        }
        let path = path.as_str();
        let service = path.rfind('/').map_or(path, |slash| &path[..=slash]);
        let found = [path, service, ""].into_iter().find_map(|name| self.methods.get(name));
        found.copied().unwrap_or_default()
    }

    /// Whether a method may have a [`MethodConfig::hedge`].
    pub(crate) fn hedges(&self) -> bool {
        self.methods.values().any(|method| method.hedge.is_some())
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::new()
    }
}

impl RetryPolicy {
    /// Three attempts, for [`Code::Unavailable`], with pauses of 50 ms, 80 ms and so on.
    #[must_use]
    pub const fn new() -> Self {
        Self { attempts: 3, backoff: Backoff::DEFAULT, codes: 1 << Code::Unavailable as u32 }
    }

    /// Number of attempts, with the first one: 1 to 5, other values are limited. Requests that were not executed and go to
    /// another endpoint at once do not count. Default 3.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.clamp(1, ATTEMPTS_MAX);
        self
    }

    /// The codes after which a call is repeated. Default [`Code::Unavailable`].
    #[must_use]
    pub fn codes(mut self, codes: impl IntoIterator<Item = Code>) -> Self {
        self.codes = codes.into_iter().fold(0, |codes, code| codes | 1 << code as u32);
        self
    }

    /// The pauses: the first one, the factor by which each next one is longer, and the longest one. Each is up to 20 % longer or
    /// shorter at random. Default 50 ms, 1.6, 1 s.
    #[must_use]
    pub fn backoff(mut self, first: Duration, factor: f64, longest: Duration) -> Self {
        self.backoff = Backoff { first, factor: factor.max(0.0), longest };
        self
    }

    pub(crate) fn covers(&self, code: Code) -> bool {
        self.codes & 1 << code as u32 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_policy_holds() {
        let policy = |attempts| RetryPolicy::new().attempts(attempts);
        let retry = Retry::new().method("/a.B/C", policy(2)).service("a.B", policy(4));
        let attempts = |path: &'static str| {
            let path = MethodPath::new(path).expect("a path");
            retry.of(&path).retry.map(|policy| policy.attempts)
        };
        assert_eq!(attempts("/a.B/C"), Some(2));
        assert_eq!(attempts("/a.B/D"), Some(4));
        assert_eq!(attempts("/a.BB/C"), None);
        assert_eq!(policy(9).attempts, 5);
    }

    #[test]
    fn a_throttle_has_numbers_in_their_ranges() {
        let tokens = |max, ratio| Retry::new().throttle(max, ratio).tokens;
        assert_eq!(tokens(f64::NAN, f64::NAN), Retry::new().tokens);
        assert_eq!(tokens(f64::INFINITY, 0.0), Tokens { max: 1_000.0, ratio: 0.001 });
        assert_eq!(tokens(-1.0, f64::INFINITY), Tokens { max: 1.0, ratio: 1.0 });
    }

    #[test]
    fn a_policy_covers_its_codes() {
        let policy = RetryPolicy::new().codes([Code::Aborted, Code::Internal]);
        assert!(policy.covers(Code::Aborted) && policy.covers(Code::Internal));
        assert!(!policy.covers(Code::Unavailable) && RetryPolicy::new().covers(Code::Unavailable));
    }
}
