//! The cases of the IRQ suspension series, by name.

use std::fmt;
use std::str::FromStr;

use crate::epoll::EpollParameters;
use crate::netdev::{NapiParameters, THREADED_BUSY_POLL};

/// Parameters of NAPI instances and epoll sets that belong together.
///
/// | mode | defer | gro-flush | irq-suspend | epoll: µs, budget, prefer |
/// |---|---|---|---|---|
/// | `base` | 0 | 0 | 0 | 0, 0, no |
/// | `defer:X` | 100 | X µs | 0 | 0, 0, no |
/// | `napibusy` | 100 | 200 µs | 0 | 64, 64, yes |
/// | `fullbusy` | 100 | 5 ms | 0 | 1000, 64, yes |
/// | `suspend:X` | 100 | X µs | 20 ms | 0, 64, yes |
/// | `suspend:0` | 0 | 0 | 20 ms | 0, 64, yes; the negative control, which suspends nothing |
/// | `threadbusy` | 0 | 0 | 0 | 0, 0, no; a kernel thread polls all the time (Linux 6.19), which is no case of the series |
///
/// X is 1 to 100000. `suspend20` is another name of `suspend:20`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mode {
    mechanism: Mechanism,
    /// The X of the mode, in microseconds.
    short_timeout: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mechanism {
    Base,
    Defer,
    NapiBusy,
    FullBusy,
    Suspend,
    ThreadBusy,
    /// Parameters that were measured or chosen by hand.
    Own {
        napi: NapiParameters,
        epoll: EpollParameters,
    },
}

/// Upper bound on the X in `defer:X`, in microseconds.
const SHORT_TIMEOUT_US_MAX: u32 = 100_000;

impl Mode {
    /// Parameters outside the series.
    #[must_use]
    pub fn own(napi: NapiParameters, epoll: EpollParameters) -> Self {
        Self { mechanism: Mechanism::Own { napi, epoll }, short_timeout: 0 }
    }

    /// The parameters for the NAPI instances.
    pub fn napi(&self) -> NapiParameters {
        let deferred = |short_timeout_us: u32, irq_suspend_timeout_ns| NapiParameters {
            defer_hard_irqs: 100,
            gro_flush_timeout_ns: u64::from(short_timeout_us) * 1_000,
            irq_suspend_timeout_ns,
            threaded: None,
        };
        match self.mechanism {
            Mechanism::Own { napi, .. } => napi,
            Mechanism::Base => NapiParameters::default(),
            Mechanism::Defer => deferred(self.short_timeout, 0),
            Mechanism::NapiBusy => deferred(200, 0),
            Mechanism::FullBusy => deferred(5_000, 0),
            Mechanism::Suspend if self.short_timeout == 0 => {
                NapiParameters { irq_suspend_timeout_ns: 20_000_000, ..NapiParameters::default() }
            }
            Mechanism::Suspend => deferred(self.short_timeout, 20_000_000),
            Mechanism::ThreadBusy => {
                NapiParameters { threaded: Some(THREADED_BUSY_POLL), ..NapiParameters::default() }
            }
        }
    }

    /// The parameters for the epoll sets.
    pub fn epoll(&self) -> EpollParameters {
        let preferred = |busy_poll_usecs| EpollParameters {
            busy_poll_usecs,
            busy_poll_budget: 64,
            prefer_busy_poll: true,
        };
        match self.mechanism {
            Mechanism::Own { epoll, .. } => epoll,
            Mechanism::Base | Mechanism::Defer | Mechanism::ThreadBusy => {
                EpollParameters::default()
            }
            Mechanism::NapiBusy => preferred(64),
            Mechanism::FullBusy => preferred(1_000),
            Mechanism::Suspend => preferred(0),
        }
    }

    /// Whether parameters alone do not make the mode, because the program has to wait in another way.
    pub fn needs_other_waits(&self) -> bool {
        self.mechanism == Mechanism::FullBusy
    }
}

/// A text that is not the name of a mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "mode `{0}`: expected base, defer:X, napibusy, fullbusy, suspend:X or threadbusy, where X is 1 to 100000 microseconds \
     (suspend: from 0)"
)]
pub struct UnknownMode(String);

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        let unknown = || UnknownMode(text.to_owned());
        let plain = match text {
            "base" => Some(Mechanism::Base),
            "napibusy" => Some(Mechanism::NapiBusy),
            "fullbusy" => Some(Mechanism::FullBusy),
            "threadbusy" => Some(Mechanism::ThreadBusy),
            _ => None,
        };
        if let Some(mechanism) = plain {
            return Ok(Self { mechanism, short_timeout: 0 });
        }
        let mechanisms = [("defer", Mechanism::Defer), ("suspend", Mechanism::Suspend)];
        let found = mechanisms.iter().find_map(|(name, mechanism)| {
            text.strip_prefix(name).map(|rest| (*mechanism, rest.strip_prefix(':').unwrap_or(rest)))
        });
        let (mechanism, number) = found.ok_or_else(unknown)?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let short_timeout = number.parse().ok().filter(|_| is_number).ok_or_else(unknown)?;
        let least = u32::from(mechanism == Mechanism::Defer);
        if !(least..=SHORT_TIMEOUT_US_MAX).contains(&short_timeout) {
            return Err(unknown());
        }
        Ok(Self { mechanism, short_timeout })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mechanism {
            Mechanism::Own { napi, .. } => write!(
                f,
                "defer {}, gro-flush {} us, irq-suspend {} us",
                napi.defer_hard_irqs,
                napi.gro_flush_timeout_ns / 1_000,
                napi.irq_suspend_timeout_ns / 1_000
            ),
            Mechanism::Base => f.write_str("base"),
            Mechanism::Defer => write!(f, "defer:{}", self.short_timeout),
            Mechanism::NapiBusy => f.write_str("napibusy"),
            Mechanism::FullBusy => f.write_str("fullbusy"),
            Mechanism::ThreadBusy => f.write_str("threadbusy"),
            Mechanism::Suspend => write!(f, "suspend:{}", self.short_timeout),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_the_parameters_of_the_series() {
        let cases = [
            ("base", (0, 0, 0), (0, 0, false)),
            ("defer10", (100, 10_000, 0), (0, 0, false)),
            ("defer:200", (100, 200_000, 0), (0, 0, false)),
            ("napibusy", (100, 200_000, 0), (64, 64, true)),
            ("fullbusy", (100, 5_000_000, 0), (1000, 64, true)),
            ("suspend:20", (100, 20_000, 20_000_000), (0, 64, true)),
            ("suspend200", (100, 200_000, 20_000_000), (0, 64, true)),
            ("suspend0", (0, 0, 20_000_000), (0, 64, true)),
            ("threadbusy", (0, 0, 0), (0, 0, false)),
        ];
        for (text, napi, epoll) in cases {
            let mode: Mode = text.parse().unwrap();
            let NapiParameters {
                defer_hard_irqs,
                gro_flush_timeout_ns,
                irq_suspend_timeout_ns,
                threaded,
            } = mode.napi();
            assert_eq!(threaded, (text == "threadbusy").then_some(THREADED_BUSY_POLL));
            assert_eq!((defer_hard_irqs, gro_flush_timeout_ns, irq_suspend_timeout_ns), napi);
            let EpollParameters { busy_poll_usecs, busy_poll_budget, prefer_busy_poll } =
                mode.epoll();
            assert_eq!((busy_poll_usecs, busy_poll_budget, prefer_busy_poll), epoll, "{text}");
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in
            ["", "defer", "defer:0", "suspend:", "suspend:+5", "suspend::5", "busy", "defer:100001"]
        {
            let error = text.parse::<Mode>().unwrap_err().to_string();
            assert!(
                error.contains(&format!("`{text}`")) && error.contains("1 to 100000"),
                "{error}"
            );
        }
    }
}
