//! The expiry of certificates: the gauges that show it, and the warnings before it. The caller has the clock.

use std::time::Duration;

use apus_seal::Identity;

use crate::observe::stats::IdentityGauges;

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// A certificate that expires within this number of days is warned of once a day.
const DAILY_BELOW: u32 = 3;

/// The domain of the certificates of `apus dev-certs`.
const DEVELOPMENT: &str = "dev.apus.invalid";

/// Returns the gauges of a node with this certificate, at a time since 1970, and with peers whose certificates expire at these times.
pub(super) fn gauges(
    now: Duration,
    own: Option<&Identity>,
    peers: impl Iterator<Item = Duration>,
) -> IdentityGauges {
    let mut gauges = IdentityGauges {
        certificate_expires_s: own.map(|own| own.not_after.saturating_sub(now).as_secs()),
        certificate_life_s: own.map(|own| life(own).as_secs()),
        ..IdentityGauges::default()
    };
    peers.for_each(|not_after| note_peer(&mut gauges, now, not_after));
    gauges
}

/// Notes a peer whose certificate expires at this time.
pub(super) fn note_peer(gauges: &mut IdentityGauges, now: Duration, not_after: Duration) {
    let expires = Some(not_after.saturating_sub(now).as_secs());
    gauges
        .add(&IdentityGauges { peer_certificate_expires_s: expires, ..IdentityGauges::default() });
}

fn life(identity: &Identity) -> Duration {
    identity.not_after.saturating_sub(identity.not_before)
}

/// Returns whether a certificate is one for tests, of `apus dev-certs`.
pub(super) fn is_for_development(identity: &Identity) -> bool {
    let is_below = |name: &str| {
        name.strip_suffix(DEVELOPMENT).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let dns_names = identity.dns_names.iter().map(|name| name.as_str());
    dns_names.chain(identity.name.trust_domain()).any(is_below)
}

/// The warnings before a certificate expires that were given already.
#[derive(Default)]
pub(super) struct ExpiryWarnings {
    /// The end of the certificate that they were about.
    not_after: Duration,
    /// The rest of its life at which the last one was due.
    last: Option<Duration>,
}

impl ExpiryWarnings {
    /// Returns the rest of the certificate's life if a warning is due: once each below a third and a tenth of its life and when it has
    /// expired, and once for each of the last three days if these are less than a third of its life. Several warnings that are
    /// due are one.
    pub(super) fn take(&mut self, now: Duration, identity: &Identity) -> Option<Duration> {
        if self.not_after != identity.not_after {
            *self = Self { not_after: identity.not_after, last: None };
        }
        let left = identity.not_after.saturating_sub(now);
        let third = life(identity) / 3;
        let parts = [third, life(identity) / 10].into_iter();
        let days = (0..=DAILY_BELOW).map(|days| DAY * days).filter(|days| *days <= third);
        let due = parts.chain(days).filter(|at| left <= *at).min()?;
        if self.last.is_some_and(|last| last <= due) {
            return None;
        }
        self.last = Some(due);
        Some(left)
    }
}

#[cfg(test)]
mod tests {
    use apus_seal::Name;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);
    const START: Duration = Duration::from_secs(1_800_000_000);

    fn identity(life: Duration, name: &str, dns_names: &[&str]) -> Identity {
        let names = dns_names.iter().map(|name| Name::dns(name).unwrap());
        let mut identity = Identity::named(Name::parse(name).unwrap());
        identity.dns_names = names.collect();
        (identity.not_before, identity.not_after) = (START, START + life);
        identity
    }

    /// Returns the hours since the start at which warnings are due, and the hours that are left then.
    fn warnings(life: Duration) -> Vec<(u64, u64)> {
        let identity = identity(life, "kv.example.org", &[]);
        let mut warnings = ExpiryWarnings::default();
        let hours = 0..=(life.as_secs() / 3_600 + 100);
        let due = hours.filter_map(|hour| {
            let now = START + HOUR * u32::try_from(hour).unwrap();
            Some((hour, warnings.take(now, &identity)?.as_secs() / 3_600))
        });
        due.collect()
    }

    #[test]
    fn a_certificate_of_90_days_is_warned_of_at_30_9_3_2_and_1_days_and_when_it_has_expired() {
        let day = 24;
        let expected = [30, 9, 3, 2, 1, 0].map(|left| ((90 - left) * day, left * day));
        assert_eq!(warnings(90 * DAY), expected);
    }

    #[test]
    fn the_days_of_a_short_certificate_are_none_to_warn_of() {
        assert_eq!(warnings(30 * HOUR), [(20, 10), (27, 3), (30, 0)]);
        assert_eq!(warnings(7 * DAY), [(112, 56), (120, 48), (144, 24), (152, 16), (168, 0)]);
    }

    #[test]
    fn a_certificate_that_is_found_late_is_warned_of_once_and_a_new_one_again() {
        let old = identity(90 * DAY, "kv.example.org", &[]);
        let mut warnings = ExpiryWarnings::default();
        let now = START + 88 * DAY;
        assert_eq!(warnings.take(now, &old), Some(2 * DAY));
        assert_eq!(warnings.take(now + HOUR, &old), None);
        let new = identity(180 * DAY, "kv.example.org", &[]);
        assert_eq!(warnings.take(now, &new), None);
        assert_eq!(warnings.take(START + 179 * DAY, &new), Some(DAY));
    }

    #[test]
    fn gauges_have_the_own_certificate_and_the_first_of_the_peers_to_expire() {
        let own = identity(10 * DAY, "kv.example.org", &[]);
        let now = START + DAY;
        let peers = [START + 5 * DAY, START + 3 * DAY, START + 4 * DAY];
        let shown = gauges(now, Some(&own), peers.into_iter());
        assert_eq!(shown.certificate_expires_s, Some(9 * DAY.as_secs()));
        assert_eq!(shown.certificate_life_s, Some(10 * DAY.as_secs()));
        assert_eq!(shown.peer_certificate_expires_s, Some(2 * DAY.as_secs()));
        let expired = gauges(START + 11 * DAY, Some(&own), std::iter::empty());
        assert_eq!(expired.certificate_expires_s, Some(0));
        assert_eq!(expired.peer_certificate_expires_s, None);
    }

    #[test]
    fn certificates_for_tests_are_known_by_their_domain() {
        let is = |name, dns_names| is_for_development(&identity(DAY, name, dns_names));
        assert!(is("spiffe://dev.apus.invalid/kv", &[]));
        assert!(is("kv.dev.apus.invalid", &["kv.dev.apus.invalid"]));
        assert!(is("spiffe://example.org/kv", &["kv.dev.apus.invalid"]));
        assert!(!is("spiffe://example.org/dev.apus.invalid", &["kv.example.org"]));
        assert!(!is("mydev.apus.invalid", &["mydev.apus.invalid"]));
    }
}
