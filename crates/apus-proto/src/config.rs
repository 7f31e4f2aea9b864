//! Settings of the protocol.

use std::time::Duration;

use apus_wire::MAX_LINUX_MESSAGE;

use crate::link::{FULL_PACKET, LinkRate};
use crate::time::nanos;

#[macro_use]
mod setting;
#[macro_use]
mod table;

pub use setting::{Number, Setting, SettingError, Unit};

protocol_settings! { define_settings! {
    /// Settings of an [`Endpoint`](crate::Endpoint). The defaults suit a datacenter network. Numbers that depend on the peer
    /// (delay, rate, unscheduled bytes, grant window) are measured; their settings are the initial values and the bounds of the
    /// measurement. On a link below 2.7 Gb/s, some settings follow its rate unless they are set (rule `link-1`).
    ///
    /// A setter ignores a value outside the range; [`check`](Self::check) reports it.
    pub struct Config {
        cutoffs: Option<[u32; 8]> = None,
        keep_payload: bool = true,
        /// The link's rate; `None` while it is unknown.
        link: Option<LinkRate> = None,
    }
} }

/// Assumed rate of a link that does not report its rate, in 10^6 bit/s.
pub(crate) const LINK_MBPS: u64 = Config::setting("link_mbps").default;

/// Assumed payload of a full packet before the first one arrives, in bytes: Ethernet's.
pub(crate) const PACKET_PAYLOAD: u32 = 1_500;

/// Assumed round trip of an unmeasured network, without the time of the packets themselves.
const ROUND_TRIP: Duration = Duration::from_micros(100);
/// Number of full packets whose time a round trip includes: DATA on the links of both hosts, and one packet ahead of the GRANT on
/// each.
const ROUND_TRIP_PACKETS: u64 = 4;
/// Number of unscheduled parts of messages expected at a time.
const INCOMING: u64 = 10;

impl Config {
    /// Every setting, in the order of the documentation, except the list [`cutoffs`](Self::cutoffs).
    pub const SETTINGS: &'static [Setting] = Self::TABLE;

    /// Sets the setting with this [`name`](Setting::name). Unlike a setter, it reports a value outside the range at once, with no
    /// setting changed.
    ///
    /// # Errors
    ///
    /// [`SettingError`] if the value is outside the range.
    ///
    /// # Panics
    ///
    /// If no setting has this name.
    pub fn set(&mut self, name: &str, value: u64) -> Result<&mut Self, SettingError> {
        self.set_number(name, value)
    }

    /// Returns the setting with this [`name`](Setting::name).
    ///
    /// # Panics
    ///
    /// If no setting has this name.
    #[must_use]
    pub const fn setting(name: &str) -> &'static Setting {
        let mut at = 0;
        while !is_equal(Self::TABLE[at].name, name) {
            at += 1;
        }
        &Self::TABLE[at]
    }

    /// Checks the values that were set. [`Endpoint::new`](crate::Endpoint::new) requires success.
    ///
    /// # Errors
    ///
    /// The first value outside its range, or an `unscheduled_max` that was set to less than `unscheduled`.
    pub fn check(&self) -> Result<(), SettingError> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        if self.is_set("unscheduled_max")
            && self.is_set("unscheduled")
            && self.unscheduled_max < self.unscheduled
        {
            let [value, least] = [self.unscheduled_max, self.unscheduled]
                .map(|bytes| Self::setting("unscheduled").show(bytes.into()));
            let allowed = format!("at least 'unscheduled' ({least})");
            return Err(SettingError::new("unscheduled_max", value, allowed));
        }
        Ok(())
    }

    /// Returns the rate of the link, if it was set.
    pub(crate) fn link_mbps_set(&self) -> Option<u64> {
        (self.is_set("link_mbps") && self.link_mbps > 0).then_some(self.link_mbps)
    }

    /// Sets the priority cutoffs for messages to this node (`unsched_cutoffs`), which apply until enough traffic has arrived to
    /// compute them: `cutoffs[i]` is the length of the longest message whose unscheduled packets use level `i` or a higher one.
    /// Default: the module's, as far as they fit the levels used. For a node whose traffic is known beforehand.
    pub fn cutoffs(&mut self, cutoffs: [u32; 8]) -> &mut Self {
        self.cutoffs = Some(cutoffs);
        self
    }

    /// Adapts the settings that follow the link, and were not set, to a link of this rate.
    pub(crate) fn follow_link(&mut self, link_mbps: u64) {
        //= docs/protocol.md#link-1
        let link = LinkRate::from_mbps(link_mbps);
        let round_trip = link.bytes_in(ROUND_TRIP) + ROUND_TRIP_PACKETS * u64::from(PACKET_PAYLOAD);
        let usual = Self::default();
        let least =
            |bytes: u64, most: u32| u32::try_from(bytes).map_or(most, |bytes| bytes.min(most));
        let begun = least(round_trip, usual.unscheduled);
        let all = INCOMING * u64::from(begun);
        if !self.is_set("unscheduled") {
            self.unscheduled = begun;
        }
        if !self.is_set("unscheduled_max") {
            self.unscheduled_max = least(all, usual.unscheduled_max);
        }
        if !self.is_set("max_incoming") {
            self.max_incoming = all;
        }
        if !self.is_set("pacing_backlog") {
            //= docs/protocol.md#pace-1
            self.pacing_backlog = usual.pacing_backlog.max(link.time_of(FULL_PACKET));
        }
        if !self.is_set("resend_min") {
            //= docs/protocol.md#loss-2
            let granted = link.time_of(self.max_incoming).min(self.peer_timeout / 4);
            self.resend_min = usual.resend_min.max(granted);
        }
        self.link = Some(link);
    }

    /// Adapts the budgets that were not set to the memory of the process's control group, `bytes`: half of it for all messages, a
    /// quarter for one socket and an eighth for one peer, and at most the defaults.
    pub fn follow_memory(&mut self, bytes: u64) {
        let usual = Self::default();
        let part = |most: u64, part: u64| most.min((bytes / part).max(BUDGET_MIN));
        if !self.is_set("total_budget") {
            self.total_budget = part(usual.total_budget, 2);
        }
        if !self.is_set("socket_budget") {
            self.socket_budget = part(usual.socket_budget, 4);
        }
        if !self.is_set("peer_budget") {
            self.peer_budget = part(usual.peer_budget, 8);
        }
    }

    /// Returns the longest silence before the next probe of a peer: a quarter of the silence that makes the peer lost.
    #[inline]
    pub(crate) fn rto_max(&self) -> Duration {
        Duration::from_nanos((nanos(self.peer_timeout) / 4).max(nanos(self.resend_min)))
    }

    /// Returns the time in which a sender must send some of a message that is not to be slow (rule `hostile-11`).
    #[inline]
    pub(crate) fn slow_interval(&self) -> Duration {
        self.peer_timeout / 4
    }

    /// Returns the limit for messages, in bytes.
    #[must_use]
    pub fn message_limit(&self) -> u32 {
        self.message_max
    }

    /// Returns the Linux module's limit for messages, in bytes.
    #[must_use]
    pub const fn linux_message_limit() -> u32 {
        MAX_LINUX_MESSAGE
    }
}

/// Lower bound on a budget that follows from the memory, in bytes.
const BUDGET_MIN: u64 = 1 << 20;

const fn is_equal(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bound_is_taken_and_what_lies_beyond_is_an_error() {
        for setting in Config::SETTINGS {
            let mut config = Config::default();
            for number in [setting.low, setting.high, setting.default] {
                config.set_number(setting.name, number).unwrap();
            }
            for number in
                [setting.low.checked_sub(1), setting.high.checked_add(1)].into_iter().flatten()
            {
                let error = config.set_number(setting.name, number).unwrap_err();
                assert_eq!((error.name, error.allowed), (setting.name, setting.allowed()));
            }
            assert_eq!(config.check(), Ok(()), "{} was never given to a setter", setting.name);
        }
    }

    #[test]
    fn budgets_that_are_not_set_fit_into_the_memory() {
        let of = |bytes: u64, set: bool| {
            let mut config = Config::default();
            if set {
                config.total_budget(300 << 20);
            }
            config.follow_memory(bytes);
            [config.total_budget, config.socket_budget, config.peer_budget].map(|it| it >> 20)
        };
        assert_eq!(of(64 << 30, false), [1_024, 512, 128]);
        assert_eq!(of(512 << 20, false), [256, 128, 64]);
        assert_eq!(of(512 << 20, true), [300, 128, 64]);
        assert_eq!(of(0, false), [1, 1, 1]);
    }

    #[test]
    fn setters_keep_the_first_error() {
        let mut config = Config::default();
        config.priorities(9).overcommitment(0).priorities(3);
        config.peer_timeout(Duration::MAX);
        let error = config.check().unwrap_err();
        assert_eq!(error.to_string(), "priorities = 9: expected a number from 1 to 8");
        assert_eq!(
            (config.priorities, config.overcommitment),
            (3, 8),
            "an invalid value changes nothing"
        );
    }

    #[test]
    fn the_bound_of_unscheduled_bytes_is_not_below_their_start() {
        let mut config = Config::default();
        config.unscheduled(300_000);
        assert_eq!(config.check(), Ok(()), "the default of the bound follows");
        let error = config.unscheduled_max(200_000).check().unwrap_err();
        assert_eq!(
            error.to_string(),
            "unscheduled_max = 200,000 B: expected at least 'unscheduled' (300,000 B)"
        );
    }

    #[test]
    fn a_slow_link_lowers_what_was_not_set() {
        let mut config = Config::default();
        config.max_incoming(50_000).follow_link(100);
        assert_eq!((config.unscheduled, config.unscheduled_max), (7_250, 72_500));
        assert_eq!(config.max_incoming, 50_000);
        config.follow_link(10_000);
        assert_eq!((config.unscheduled, config.unscheduled_max), (40_000, 256 << 10));
    }
}
