//! Delivery modes and their parameters, as values and as text.

use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::time::Duration;

use apus_proto::{Number, Setting, Unit};

use crate::config::{parse_duration, parse_number};

/// The way of messages from the network to the application: by polling, by wake-up, or by both in turn. Names and parameters are
/// those of the kernel's IRQ suspension patches.
///
/// | mode | background thread | a thread that waits | use |
/// |---|---|---|---|
/// | `base` | wakes for every packet | sleeps | comparison; many mostly idle threads |
/// | `defer:X` | wakes for a packet, then looks every X µs while packets come | sleeps | fewer wake-ups, for X µs of latency |
/// | `napibusy` | as `defer:200`, but stays away while a thread polls | polls 64 µs, then sleeps | comparison |
/// | `fullbusy` | does not exist | never sleeps | lowest latency, a core for each waiting thread |
/// | `suspend:X` | stays away while threads find messages | looks; finding nothing, sleeps X µs on a timer and looks again; finding nothing again, sleeps on the link | much load, on a core that others use too |
/// | `suspend` | stays away while threads wait | polls while that pays, then sleeps on the link | the default, for everything else |
///
/// # Parameters
///
/// | key | in the kernel | in | default | allowed |
/// |---|---|---|---|---|
/// | `short_timeout` (the X) | `gro_flush_timeout` | defer, napibusy, suspend | X; napibusy 200 µs; `suspend` none | 0 to 100 ms |
/// | `defer` | `napi_defer_hard_irqs` | defer, napibusy, suspend | 1 | 0 to 10,000 |
/// | `suspend_timeout` | `irq_suspend_timeout` | suspend | `suspend:X` 20 ms, `suspend` 10 ms | 0 to 10 s |
/// | `poll` | `busy_poll_usecs` | napibusy, suspend | napibusy 64 µs, `suspend:X` 0, `suspend` adaptive | 0 to 1 s, or `adaptive` |
/// | `budget` | `busy_poll_budget` | all | 64 | 1 to 1,024 |
///
/// Each parameter has a `with_*` method, which returns a changed copy. As text: `suspend:20,suspend_timeout=5ms,defer=2`, or
/// `suspend20` as in the patches' tables.
///
/// ```
/// use std::time::Duration;
/// use apus::{Config, Delivery};
///
/// let mode = Delivery::suspend_after(Duration::from_micros(20)).with_defer_count(2);
/// assert_eq!(mode, "suspend:20,defer=2".parse()?);
///
/// let mut config = Config::new();
/// config.delivery(mode);
/// # Ok::<(), apus::DeliveryError>(())
/// ```
///
/// # Settings that turn a mode off
///
/// As in the kernel, suspension has no effect without the other settings, and reports no error. Without deferral (`suspend:0`,
/// `defer:0`, or `defer=0`) a mode behaves as `base`, the negative control of the patches' experiments. With deferral but with
/// `suspend_timeout=0`, `suspend:X` behaves as `defer:X`, and `suspend` as `base`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Delivery {
    mechanism: Mechanism,
    short_timeout: Option<Duration>,
    defer: u32,
    suspend_timeout: Duration,
    /// None: adaptive.
    poll: Option<Duration>,
    budget: u32,
}

/// The mechanism of a mode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Mechanism {
    Base,
    Defer,
    NapiBusy,
    FullBusy,
    Suspend,
}

/// The effective mode after conflicting settings have been applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Regime {
    /// The background thread leads, always.
    Background,
    /// Threads lead while they poll; then the background thread does.
    PollFirst,
    /// Threads lead while they wait, asleep or not.
    ThreadsLead,
    /// Each waiting thread turns the engine; there is no background thread.
    AlwaysPolls,
}

impl Default for Delivery {
    fn default() -> Self {
        Self::suspend()
    }
}

impl Delivery {
    /// One value of each mode, with an X of 20 µs where there is one.
    pub const ALL: [Self; 6] = [
        Self::base(),
        Self::defer(Duration::from_micros(20)),
        Self::napibusy(),
        Self::fullbusy(),
        Self::suspend(),
        Self::suspend_after(Duration::from_micros(20)),
    ];

    const fn new(mechanism: Mechanism) -> Self {
        Self {
            mechanism,
            short_timeout: None,
            defer: DEFER,
            suspend_timeout: Duration::ZERO,
            poll: Some(Duration::ZERO),
            budget: BUDGET,
        }
    }

    /// The background thread takes every packet and wakes the receiver: one handoff and at least one wake-up per message, and
    /// no CPU time while no packet arrives.
    #[must_use]
    pub const fn base() -> Self {
        Self::new(Mechanism::Base)
    }

    /// As [`base`](Self::base), but after packets have arrived the background thread sleeps on a timer and not on the link, so
    /// that packets are taken in batches and their senders wake no thread. It returns to the link when it has found nothing
    /// [`defer_count`](Self::defer_count) times in a row.
    #[must_use]
    pub const fn defer(short_timeout: Duration) -> Self {
        let mut mode = Self::new(Mechanism::Defer);
        mode.short_timeout = Some(short_timeout);
        mode
    }

    /// A thread that waits turns the engine for 64 µs, then leaves it to the background thread, which behaves as in
    /// [`defer`](Self::defer) with 200 µs.
    #[must_use]
    pub const fn napibusy() -> Self {
        let mut mode = Self::new(Mechanism::NapiBusy);
        mode.short_timeout = Some(Duration::from_micros(200));
        mode.poll = Some(Duration::from_micros(64));
        mode
    }

    /// Every thread that waits turns the engine until its message arrives. Each waiting thread uses a core. The engine stands
    /// still while no thread waits: grants, retransmissions and acknowledgements stop. A future keeps its executor busy.
    #[must_use]
    pub const fn fullbusy() -> Self {
        let mut mode = Self::new(Mechanism::FullBusy);
        mode.poll = Some(Duration::MAX);
        mode
    }

    /// The default. A thread that waits turns the engine itself for seven times the recent mean wait, 350 µs at most, then sleeps
    /// on the link. If messages are rare or polling does harm, it sleeps at once. When no thread waits, the background thread takes
    /// over within 10 ms, or at once if a task waits or a message is partly sent.
    #[must_use]
    pub const fn suspend() -> Self {
        let mut mode = Self::new(Mechanism::Suspend);
        mode.suspend_timeout = Duration::from_millis(10);
        mode.poll = None;
        mode
    }

    /// A thread that waits turns the engine itself. While it keeps finding messages no other thread runs. When a look finds
    /// nothing it sleeps on a timer for `short_timeout`, so that packets are taken in batches and their senders wake no thread.
    /// When it has found nothing [`defer_count`](Self::defer_count) more times, it sleeps on the link. When no thread waits,
    /// the background thread takes over after 20 ms, or at once if a task waits or a message is partly sent. The timers are
    /// precise (`PR_SET_TIMERSLACK`), and stay so for threads that have slept on them.
    #[must_use]
    pub const fn suspend_after(short_timeout: Duration) -> Self {
        let mut mode = Self::new(Mechanism::Suspend);
        mode.short_timeout = Some(short_timeout);
        mode.suspend_timeout = Duration::from_millis(20);
        mode
    }

    /// Sets the length of a deferred sleep, the X of the names. No effect in `base` and `fullbusy`.
    #[must_use]
    pub const fn with_short_timeout(mut self, time: Duration) -> Self {
        if self.mechanism.has(Key::ShortTimeout) {
            self.short_timeout = Some(time);
        }
        self
    }

    /// Sets the number of deferred sleeps in a row that may end without a packet before the next sleep is on the link. The
    /// patches' experiments use 100, which engages no better and costs a timer each time: a hundred for every message at low
    /// load. No effect in `base` and `fullbusy`.
    #[must_use]
    pub const fn with_defer_count(mut self, count: u32) -> Self {
        if self.mechanism.has(Key::Defer) {
            self.defer = count;
        }
        self
    }

    /// Sets the time without a turn, while the application computes, after which the background thread turns the engine. Has an
    /// effect in `suspend` only.
    #[must_use]
    pub const fn with_suspend_timeout(mut self, time: Duration) -> Self {
        if self.mechanism.has(Key::SuspendTimeout) {
            self.suspend_timeout = time;
        }
        self
    }

    /// Sets the time for which a thread polls before it sleeps. Zero is one look; `None` adapts the time to the recent success of
    /// polling. Has an effect in `napibusy` and `suspend` only.
    #[must_use]
    pub const fn with_poll_time(mut self, time: Option<Duration>) -> Self {
        if self.mechanism.has(Key::Poll) {
            self.poll = time;
        }
        self
    }

    /// Sets the number of packets that one turn of the engine takes, which bounds the time for which it holds the lock.
    #[must_use]
    pub const fn with_budget(mut self, packets: u32) -> Self {
        self.budget = packets;
        self
    }

    /// The length of a deferred sleep; `None` if the mode has none.
    #[must_use]
    pub const fn short_timeout(&self) -> Option<Duration> {
        self.short_timeout
    }

    /// The number of deferred sleeps in a row that may end without a packet.
    #[must_use]
    pub const fn defer_count(&self) -> u32 {
        self.defer
    }

    /// The time without a turn after which the background thread turns the engine. Zero if the mode has no suspension.
    #[must_use]
    pub const fn suspend_timeout(&self) -> Duration {
        self.suspend_timeout
    }

    /// The time for which a thread polls before it sleeps: `Duration::MAX` in `fullbusy`, `None` if the time adapts.
    #[must_use]
    pub const fn poll_time(&self) -> Option<Duration> {
        self.poll
    }

    /// The number of packets that one turn takes.
    #[must_use]
    pub const fn budget(&self) -> u32 {
        self.budget
    }

    pub(crate) fn regime(&self) -> Regime {
        match self.mechanism {
            Mechanism::FullBusy => Regime::AlwaysPolls,
            Mechanism::NapiBusy => Regime::PollFirst,
            Mechanism::Suspend if self.suspends() => Regime::ThreadsLead,
            Mechanism::Base | Mechanism::Defer | Mechanism::Suspend => Regime::Background,
        }
    }

    /// Suspension needs its own timeout, and the short one if it is to fall back to that.
    fn suspends(&self) -> bool {
        !self.suspend_timeout.is_zero() && (self.short_timeout.is_none() || self.defers())
    }

    fn defers(&self) -> bool {
        self.defer > 0 && self.short_timeout.is_some_and(|time| !time.is_zero())
    }

    /// Length and number in a row of the deferred sleeps; `None`: there are none.
    pub(crate) fn deferral(&self) -> Option<(Duration, u32)> {
        let time = self.short_timeout.filter(|_| self.defers())?;
        Some((time, self.defer))
    }

    /// The time without a turn after which the mask of the background thread ends.
    pub(crate) fn mask(&self) -> Duration {
        match self.mechanism {
            // The patches' busy polling has no timeout of its own: the short one does its work.
            Mechanism::NapiBusy => self.short_timeout.unwrap_or(Duration::ZERO).max(MASK_MIN),
            _ => self.suspend_timeout.max(MASK_MIN),
        }
    }

    /// The mode without further parameters.
    fn plain(&self) -> Self {
        match (self.mechanism, self.short_timeout) {
            (Mechanism::Base, _) => Self::base(),
            (Mechanism::Defer, time) => Self::defer(time.unwrap_or(Duration::ZERO)),
            (Mechanism::NapiBusy, _) => Self::napibusy(),
            (Mechanism::FullBusy, _) => Self::fullbusy(),
            (Mechanism::Suspend, Some(time)) => Self::suspend_after(time),
            (Mechanism::Suspend, None) => Self::suspend(),
        }
    }

    /// Whether every parameter is in its range.
    ///
    /// # Errors
    ///
    /// [`DeliveryError`] for the first that is not.
    pub(crate) fn check(&self) -> Result<(), DeliveryError> {
        for key in Key::ALL.into_iter().filter(|key| self.mechanism.has(*key)) {
            let number = match key {
                Key::ShortTimeout => self.short_timeout.map(Number::number),
                Key::Defer => Some(self.defer.number()),
                Key::SuspendTimeout => Some(self.suspend_timeout.number()),
                Key::Poll => self.poll.map(Number::number),
                Key::Budget => Some(self.budget.number()),
            };
            if number.is_some_and(|number| key.setting().check(number).is_err()) {
                return Err(DeliveryError { text: self.to_string(), expected: key.expected() });
            }
        }
        Ok(())
    }

    fn set(&mut self, key: Key, value: &str) -> Option<()> {
        *self = if key == Key::Poll && value == "adaptive" {
            self.with_poll_time(None)
        } else {
            let number = parse_number(key.setting(), value)?;
            key.setting().check(number).ok()?;
            let time = Duration::from_nanos(number);
            match key {
                Key::ShortTimeout => self.with_short_timeout(time),
                Key::Defer => self.with_defer_count(Number::from_number(number)),
                Key::SuspendTimeout => self.with_suspend_timeout(time),
                Key::Poll => self.with_poll_time(Some(time)),
                Key::Budget => self.with_budget(Number::from_number(number)),
            }
        };
        Some(())
    }

    fn value(&self, key: Key) -> String {
        match key {
            Key::ShortTimeout => shown(self.short_timeout.unwrap_or(Duration::ZERO)),
            Key::Defer => self.defer.to_string(),
            Key::SuspendTimeout => shown(self.suspend_timeout),
            Key::Poll => self.poll.map_or_else(|| "adaptive".to_owned(), shown),
            Key::Budget => self.budget.to_string(),
        }
    }
}

/// A time in its largest unit that needs no fraction.
fn shown(time: Duration) -> String {
    match time.as_nanos() {
        nanos if nanos % 1_000_000 == 0 => format!("{}ms", nanos / 1_000_000),
        nanos if nanos % 1_000 == 0 => format!("{}us", nanos / 1_000),
        nanos => format!("{nanos}ns"),
    }
}

const DEFER: u32 = 1;
const BUDGET: u32 = 64;
/// In nanoseconds.
const SHORT_TIMEOUT_MAX: u64 = 100_000_000;
/// Shortest interval between checks of a masked background thread.
const MASK_MIN: Duration = Duration::from_micros(50);

/// A parameter's key in a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Key {
    ShortTimeout,
    Defer,
    SuspendTimeout,
    Poll,
    Budget,
}

impl Key {
    const ALL: [Self; 5] =
        [Self::ShortTimeout, Self::Defer, Self::SuspendTimeout, Self::Poll, Self::Budget];

    /// Names and ranges. The default depends on the mode; 0 stands for that.
    const SETTINGS: [Setting; 5] = [
        Setting::new(("short_timeout", ""), Unit::Time, 0, (0, SHORT_TIMEOUT_MAX), false),
        Setting::new(("defer", ""), Unit::Count("looks"), DEFER as u64, (0, 10_000), false),
        Setting::new(("suspend_timeout", ""), Unit::Time, 0, (0, 10_000_000_000), false),
        Setting::new(("poll", ""), Unit::Time, 0, (0, 1_000_000_000), false),
        Setting::new(("budget", ""), Unit::Count("packets"), BUDGET as u64, (1, 1_024), false),
    ];

    const fn setting(self) -> &'static Setting {
        &Self::SETTINGS[self as usize]
    }

    const fn name(self) -> &'static str {
        self.setting().name
    }

    fn expected(self) -> String {
        let adaptive = if self == Self::Poll { ", or adaptive" } else { "" };
        format!("{} to be {}{adaptive}", self.name(), self.setting().allowed())
    }
}

impl Mechanism {
    const ALL: [Self; 5] = [Self::Base, Self::Defer, Self::NapiBusy, Self::FullBusy, Self::Suspend];

    const fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Defer => "defer",
            Self::NapiBusy => "napibusy",
            Self::FullBusy => "fullbusy",
            Self::Suspend => "suspend",
        }
    }

    const fn has(self, key: Key) -> bool {
        match key {
            Key::Budget => true,
            Key::ShortTimeout | Key::Defer => !matches!(self, Self::Base | Self::FullBusy),
            Key::SuspendTimeout => matches!(self, Self::Suspend),
            Key::Poll => matches!(self, Self::NapiBusy | Self::Suspend),
        }
    }

    /// The mode of the mechanism with the given X.
    fn mode(self, x: Option<Duration>) -> Option<Delivery> {
        match (self, x) {
            (Self::Base, None) => Some(Delivery::base()),
            (Self::Defer, Some(x)) => Some(Delivery::defer(x)),
            (Self::NapiBusy, None) => Some(Delivery::napibusy()),
            (Self::FullBusy, None) => Some(Delivery::fullbusy()),
            (Self::Suspend, None) => Some(Delivery::suspend()),
            (Self::Suspend, Some(x)) => Some(Delivery::suspend_after(x)),
            _ => None,
        }
    }
}

/// The shortest text that [`from_str`](FromStr::from_str) reads back.
impl fmt::Display for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.mechanism.name().to_owned();
        let plain = self.plain();
        if let Some(time) = plain.short_timeout.filter(|_| self.mechanism != Mechanism::NapiBusy) {
            match time.as_nanos() {
                nanos if nanos % 1_000 == 0 => write!(text, ":{}", nanos / 1_000)?,
                nanos => write!(text, ":{nanos}ns")?,
            }
        }
        for key in Key::ALL.into_iter().filter(|key| self.mechanism.has(*key)) {
            let value = self.value(key);
            if value != plain.value(key) {
                write!(text, ",{}={value}", key.name())?;
            }
        }
        f.pad(&text)
    }
}

/// A text that is not a delivery mode.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("delivery '{text}': expected {expected}")]
pub struct DeliveryError {
    text: String,
    expected: String,
}

impl DeliveryError {
    /// The allowed values, as a phrase.
    #[must_use]
    pub fn expected(&self) -> &str {
        &self.expected
    }
}

impl FromStr for Delivery {
    type Err = DeliveryError;

    fn from_str(text: &str) -> Result<Self, DeliveryError> {
        let error = |expected: String| DeliveryError { text: text.to_owned(), expected };
        let mut parts = text.split(',').map(str::trim);
        let mode = parts.next().and_then(mode).ok_or_else(|| error(modes()))?;
        parts.try_fold(mode, |mut mode, part| {
            let (name, value) = part
                .split_once('=')
                .map_or((part, ""), |(name, value)| (name.trim(), value.trim()));
            let key = Key::ALL
                .into_iter()
                .find(|key| key.name() == name && mode.mechanism.has(*key))
                .ok_or_else(|| error(mode.mechanism.keys(name)))?;
            mode.set(key, value).ok_or_else(|| error(key.expected()))?;
            Ok(mode)
        })
    }
}

fn modes() -> String {
    format!(
        "base, defer:20, napibusy, fullbusy, suspend or suspend:20 (any number of microseconds, up to {}), then perhaps \
         parameters like ,budget=64",
        SHORT_TIMEOUT_MAX / 1_000
    )
}

impl Mechanism {
    /// The keys of this mechanism, for an error about a key that it does not have.
    fn keys(self, wrong: &str) -> String {
        let keys: Vec<&str> =
            Key::ALL.into_iter().filter(|key| self.has(*key)).map(Key::name).collect();
        format!("{} after {}, not '{wrong}'", keys.join(", "), self.name())
    }
}

/// A mode without further parameters: `base`, `defer:20`, `defer20`, `defer:1500ns`.
fn mode(text: &str) -> Option<Delivery> {
    // The longest name first would only matter if one name began another; none does.
    let (mechanism, rest) = Mechanism::ALL
        .into_iter()
        .find_map(|mechanism| text.strip_prefix(mechanism.name()).map(|rest| (mechanism, rest)))?;
    if rest.is_empty() {
        return mechanism.mode(None);
    }
    let x = rest.strip_prefix(':').unwrap_or(rest).trim();
    let x = x.parse().ok().map(Duration::from_micros).or_else(|| parse_duration(x).ok())?;
    Key::ShortTimeout.setting().check(x.number()).ok()?;
    mechanism.mode(Some(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Delivery {
        text.parse().unwrap()
    }

    const X: Duration = Duration::from_micros(20);

    #[test]
    fn texts_round_trip() {
        for mode in Delivery::ALL {
            assert_eq!(read(&mode.to_string()), mode);
        }
        for text in [
            "base",
            "base,budget=8",
            "defer:20",
            "defer:0",
            "defer:1500ns,defer=100",
            "napibusy",
            "napibusy,short_timeout=100us,poll=10us",
            "napibusy,poll=adaptive",
            "fullbusy",
            "suspend",
            "suspend,suspend_timeout=5ms,poll=64us",
            "suspend:0",
            "suspend:20",
            "suspend:20,defer=2,suspend_timeout=0ms,poll=adaptive,budget=1",
        ] {
            assert_eq!(read(text).to_string(), text);
        }
    }

    #[test]
    fn the_spellings_of_the_patches_are_read_too() {
        assert_eq!(read("defer20"), Delivery::defer(X));
        assert_eq!(read("suspend20"), Delivery::suspend_after(X));
        assert_eq!(read("suspend0").regime(), Regime::Background);
        assert_eq!(read("suspend:20us"), Delivery::suspend_after(X));
        assert_eq!(
            read("suspend:20, suspend_timeout = 20 ms, poll=0us, budget=64, defer=1"),
            Delivery::suspend_after(X)
        );
        assert_eq!(
            read("suspend,short_timeout=20us").to_string(),
            "suspend:20,suspend_timeout=10ms,poll=adaptive"
        );
    }

    #[test]
    fn wrong_texts_are_named_with_what_is_allowed() {
        for text in
            ["", "busy", "defer", "base:20", "suspend:", "suspend:x", "defer:100001", "base20"]
        {
            let error = text.parse::<Delivery>().unwrap_err().to_string();
            assert_eq!(error, format!("delivery '{text}': expected {}", modes()));
        }
        for (text, expected) in [
            ("base,poll=0us", "budget after base, not 'poll'"),
            ("suspend:20,budget", "budget to be a number from 1 to 1,024"),
            ("suspend:20,budget=0", "budget to be a number from 1 to 1,024"),
            ("suspend:20,poll=2s", "poll to be a time from 0 to 1 s, or adaptive"),
            (
                "napibusy,suspend_timeout=1ms",
                "short_timeout, defer, poll, budget after napibusy, not 'suspend_timeout'",
            ),
        ] {
            assert_eq!(text.parse::<Delivery>().unwrap_err().expected(), expected);
        }
    }

    #[test]
    fn setters_take_any_value_and_a_check_names_what_is_not_allowed() {
        let far = Duration::from_secs(100);
        for (mode, expected) in [
            (Delivery::suspend_after(far), "short_timeout to be a time from 0 to 100 ms"),
            (Delivery::defer(X).with_defer_count(10_001), "defer to be a number from 0 to 10,000"),
            (
                Delivery::suspend().with_suspend_timeout(far),
                "suspend_timeout to be a time from 0 to 10 s",
            ),
            (
                Delivery::napibusy().with_poll_time(Some(far)),
                "poll to be a time from 0 to 1 s, or adaptive",
            ),
            (Delivery::base().with_budget(0), "budget to be a number from 1 to 1,024"),
        ] {
            assert_eq!(mode.check().unwrap_err().expected(), expected);
        }
        for mode in Delivery::ALL {
            assert_eq!(mode.check(), Ok(()), "{mode}");
        }
    }

    #[test]
    fn setters_touch_nothing_a_mode_does_not_have() {
        let base = Delivery::base().with_short_timeout(X).with_poll_time(None);
        assert_eq!(base.with_suspend_timeout(X).with_defer_count(9), Delivery::base());
    }

    #[test]
    fn the_documented_ranges_are_those_of_the_table() {
        let rows = include_str!("mode.rs").lines().filter(|line| line.starts_with("/// | `"));
        for key in Key::ALL {
            let row = rows.clone().find(|row| row.starts_with(&format!("/// | `{}`", key.name())));
            let allowed = row.unwrap().trim_end_matches(" |").rsplit(" | ").next().unwrap();
            let adaptive = if key == Key::Poll { ", or `adaptive`" } else { "" };
            assert_eq!(allowed, format!("{}{adaptive}", key.setting().range()));
        }
    }

    #[test]
    fn suspension_needs_all_of_its_settings() {
        let regimes = ["suspend:20", "suspend", "suspend:0", "suspend:20,defer=0"]
            .map(|text| read(text).regime());
        use Regime::{Background, ThreadsLead};
        assert_eq!(regimes, [ThreadsLead, ThreadsLead, Background, Background]);
        let off = read("suspend:20,suspend_timeout=0ms");
        assert_eq!((off.regime(), off.deferral()), (Background, Some((X, 1))));
        assert_eq!(read("suspend:0").deferral(), None);
    }
}
