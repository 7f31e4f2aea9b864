//! Every setting: its key, what is allowed, and where it goes.

use std::time::Duration;

use apus_net::SHARDS_MAX;

use super::{Config, ConfigError};
use crate::delivery::DeliveryError;
use crate::links::Links;

pub(super) struct Setting {
    pub(super) key: &'static str,
    kind: Kind,
}

/// How a value is read and what is allowed.
enum Kind {
    Bytes(u64, u64, fn(&mut Config, u64)),
    Count(u64, u64, fn(&mut Config, u64)),
    Time(Duration, Duration, fn(&mut Config, Duration)),
    Switch(fn(&mut Config, bool)),
    /// A parser whose error says what is allowed.
    Text(fn(&mut Config, &str) -> Result<(), String>),
}

impl Setting {
    /// `name` is the key as the user wrote it, for the error.
    pub(super) fn apply(
        &self,
        config: &mut Config,
        name: &str,
        value: &str,
    ) -> Result<(), ConfigError> {
        self.read(config, value.trim()).map_err(|allowed| ConfigError::Value {
            key: name.to_owned(),
            value: value.to_owned(),
            allowed,
        })
    }

    /// The error is what is allowed.
    fn read(&self, config: &mut Config, text: &str) -> Result<(), String> {
        match &self.kind {
            Kind::Bytes(low, high, set) => in_range(bytes(text), low, high)
                .map(|v| set(config, v))
                .ok_or_else(|| format!("{low} to {high} bytes, or a size like 64 KiB")),
            Kind::Count(low, high, set) => in_range(text.parse().ok(), low, high)
                .map(|v| set(config, v))
                .ok_or_else(|| format!("a number from {low} to {high}")),
            Kind::Time(low, high, set) => in_range(time(text), low, high)
                .map(|v| set(config, v))
                .ok_or_else(|| format!("a time like 20 ms, from {low:?} to {high:?}")),
            Kind::Switch(set) => {
                text.parse().map(|v| set(config, v)).map_err(|_| "true or false".to_owned())
            }
            Kind::Text(set) => set(config, text),
        }
    }
}

fn in_range<T: PartialOrd>(value: Option<T>, low: &T, high: &T) -> Option<T> {
    value.filter(|value| low <= value && value <= high)
}

/// A number and a unit, with or without space between them.
fn quantity(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..digits].parse().ok()?, text[digits..].trim_start()))
}

fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = quantity(text)?;
    let unit: u64 = match unit {
        "" | "B" => 1,
        "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(unit)
}

pub(crate) fn time(text: &str) -> Option<Duration> {
    let (number, unit) = quantity(text)?;
    match unit {
        "ns" => Some(Duration::from_nanos(number)),
        "us" | "µs" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the range of a setting fits its type")]
fn small(value: u64) -> u32 {
    value as u32
}

const fn setting(key: &'static str, kind: Kind) -> Setting {
    Setting { key, kind }
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
const US_100: Duration = Duration::from_micros(100);
const MS_10: Duration = Duration::from_millis(10);
const S_10: Duration = Duration::from_secs(10);
const HOUR: Duration = Duration::from_secs(3600);

/// The ranges of the protocol's settings are those of [`apus_proto::Config`], which brings values
/// outside them to the nearer end; here they are errors.
pub(super) static SETTINGS: &[Setting] = &[
    setting(
        "listen",
        Kind::Text(|c, text| {
            let allowed = "IP:PORT, like 0.0.0.0:20146 or [::]:0";
            c.listen = text.parse().map_err(|_| allowed.to_owned())?;
            Ok(())
        }),
    ),
    setting(
        "link",
        Kind::Text(|c, text| {
            c.links = text.parse().map_err(|_| Links::EXPECTED.to_owned())?;
            Ok(())
        }),
    ),
    setting(
        "delivery",
        Kind::Text(|c, text| {
            c.delivery =
                text.parse().map_err(|error: DeliveryError| error.expected().to_owned())?;
            Ok(())
        }),
    ),
    setting(
        "shards",
        Kind::Count(1, SHARDS_MAX as u64, |c, v| {
            c.shards(small(v) as usize);
        }),
    ),
    setting(
        "receive_buffer",
        Kind::Bytes(4096, GIB, |c, v| {
            c.udp.receive_buffer(small(v) as usize);
            c.raw.receive_buffer(small(v) as usize);
        }),
    ),
    setting(
        "send_buffer",
        Kind::Bytes(4096, GIB, |c, v| {
            c.udp.send_buffer(small(v) as usize);
            c.raw.send_buffer(small(v) as usize);
        }),
    ),
    setting(
        "gso",
        Kind::Switch(|c, v| {
            c.udp.gso(v);
        }),
    ),
    setting(
        "gro",
        Kind::Switch(|c, v| {
            c.udp.gro(v);
        }),
    ),
    setting(
        "bundles",
        Kind::Switch(|c, v| {
            c.udp.bundles(v);
        }),
    ),
    setting(
        "max_packet",
        Kind::Bytes(548, 65_507, |c, v| {
            c.udp.max_packet(small(v) as usize);
            c.raw.max_packet(small(v) as usize);
        }),
    ),
    setting(
        "message_max",
        Kind::Bytes(1, GIB, |c, v| {
            c.protocol.message_max(small(v));
        }),
    ),
    setting(
        "unscheduled",
        Kind::Bytes(0, 16 * MIB, |c, v| {
            c.protocol.unscheduled(small(v));
        }),
    ),
    setting(
        "unscheduled_max",
        Kind::Bytes(0, 16 * MIB, |c, v| {
            c.protocol.unscheduled_max(small(v));
        }),
    ),
    setting(
        "max_incoming",
        Kind::Bytes(10_000, GIB, |c, v| {
            c.protocol.max_incoming(v);
        }),
    ),
    setting(
        "overcommitment",
        Kind::Count(1, 64, |c, v| {
            c.protocol.overcommitment(small(v) as usize);
        }),
    ),
    setting(
        "priorities",
        Kind::Count(1, 8, |c, v| {
            c.protocol.priorities(u8::try_from(v).unwrap_or(u8::MAX));
        }),
    ),
    setting(
        "fifo_share",
        Kind::Count(0, 500, |c, v| {
            c.protocol.fifo_share(small(v));
        }),
    ),
    setting(
        "link_mbps",
        Kind::Count(0, 10_000_000, |c, v| {
            c.protocol.link_mbps(v);
        }),
    ),
    setting(
        "pacing",
        Kind::Switch(|c, v| {
            c.protocol.pacing(v);
        }),
    ),
    setting(
        "pacing_backlog",
        Kind::Time(Duration::ZERO, MS_10, |c, v| {
            c.protocol.pacing_backlog(v);
        }),
    ),
    setting(
        "burst",
        Kind::Bytes(1_500, 16 * MIB, |c, v| {
            c.protocol.burst(v);
        }),
    ),
    setting(
        "resend_initial",
        Kind::Time(US_100, S_10, |c, v| {
            c.protocol.resend_initial(v);
        }),
    ),
    setting(
        "resend_min",
        Kind::Time(US_100, S_10, |c, v| {
            c.protocol.resend_min(v);
        }),
    ),
    setting(
        "peer_timeout",
        Kind::Time(MS_10, HOUR, |c, v| {
            c.protocol.peer_timeout(v);
        }),
    ),
    setting(
        "calls_max",
        Kind::Count(1, 1 << 20, |c, v| {
            c.protocol.calls_max(small(v));
        }),
    ),
    setting(
        "peers_max",
        Kind::Count(1, 1 << 20, |c, v| {
            c.protocol.peers_max(small(v) as usize);
        }),
    ),
    setting(
        "peer_budget",
        Kind::Bytes(64 << 10, TIB, |c, v| {
            c.protocol.peer_budget(v);
        }),
    ),
    setting(
        "socket_budget",
        Kind::Bytes(64 << 10, TIB, |c, v| {
            c.protocol.socket_budget(v);
        }),
    ),
    setting(
        "total_budget",
        Kind::Bytes(64 << 10, TIB, |c, v| {
            c.protocol.total_budget(v);
        }),
    ),
    setting(
        "confirm_peers",
        Kind::Switch(|c, v| {
            c.protocol.confirm_peers(v);
        }),
    ),
    setting(
        "incast_threshold",
        Kind::Count(1, 1 << 20, |c, v| {
            c.protocol.incast_threshold(small(v));
        }),
    ),
    setting(
        "incast_unscheduled",
        Kind::Bytes(0, MIB, |c, v| {
            c.protocol.incast_unscheduled(small(v));
        }),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_there_once_and_its_bounds_are_taken() {
        let mut seen = std::collections::BTreeSet::new();
        for setting in SETTINGS {
            assert!(seen.insert(setting.key), "{} twice", setting.key);
            let mut config = Config::default();
            let values = match &setting.kind {
                Kind::Bytes(low, high, _) | Kind::Count(low, high, _) => {
                    vec![low.to_string(), high.to_string()]
                }
                Kind::Time(low, high, _) => {
                    [low, high].map(|t| format!("{}ns", t.as_nanos())).into()
                }
                Kind::Switch(_) => vec!["true".to_owned(), "false".to_owned()],
                Kind::Text(..) => vec![],
            };
            for value in values {
                setting.apply(&mut config, setting.key, &value).unwrap();
            }
            assert!(setting.apply(&mut config, setting.key, "x").is_err(), "{}", setting.key);
        }
    }

    #[test]
    fn sizes_and_times_have_units() {
        let sizes = ["7", "7 B", "2kB", "2 KiB", "1MB", "1 MiB", "1 GB", "1 GiB"].map(bytes);
        let wanted = [7, 7, 2_000, 2_048, 1_000_000, MIB, 1_000_000_000, GIB].map(Some);
        assert_eq!(sizes, wanted);
        assert_eq!(["", "KiB", "1 kb", "-1", "1.5 MB"].map(bytes), [None; 5]);
        assert_eq!(bytes("99999999999 GiB"), None, "too large for 64 bits");
        let times = ["5ns", "5 us", "5 µs", "5ms", "5 s"].map(time);
        assert_eq!(
            times.map(|t| t.unwrap().as_nanos()),
            [5, 5_000, 5_000, 5_000_000, 5_000_000_000]
        );
        assert_eq!(["5", "s", "5 min"].map(time), [None; 3]);
    }
}
