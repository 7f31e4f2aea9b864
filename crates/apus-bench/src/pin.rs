//! Placements: the CPUs of the two sides of a measurement.

use std::borrow::Cow;
use std::str::FromStr;
use std::thread;

use anyhow::{Context, Result};
use apus_net::cpu;

/// The CPUs of the two sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pin {
    /// Client on the first CPU, server on the second
    #[default]
    Split,
    /// Both on the first CPU
    Same,
    /// Not pinned
    None,
    /// Each on a CPU by its number
    At {
        /// The client's CPU.
        client: usize,
        /// The server's CPU.
        server: usize,
    },
}

/// Allowed placements, for errors.
const ALLOWED: &str = "split, same, none, or CLIENT-SERVER with two CPU numbers";

impl Pin {
    /// The name in arguments and results.
    #[must_use]
    pub fn name(self) -> Cow<'static, str> {
        match self {
            Self::Split => "split".into(),
            Self::Same => "same".into(),
            Self::None => "none".into(),
            Self::At { client, server } => format!("{client}-{server}").into(),
        }
    }

    /// CPUs of the client and the server, among those that this process may use. A single CPU is for both.
    #[must_use]
    pub fn cpus(self) -> (Option<usize>, Option<usize>) {
        let allowed = cpu::allowed();
        let (first, second) =
            (allowed.first().copied(), allowed.get(1).or_else(|| allowed.first()).copied());
        match self {
            Self::Split => (first, second),
            Self::Same => (first, first),
            Self::None => (None, None),
            Self::At { client, server } => (Some(client), Some(server)),
        }
    }

    /// Whether client and server share one CPU.
    #[must_use]
    pub fn shares_cpu(self) -> bool {
        let (client, server) = self.cpus();
        client.is_some() && client == server || cpu::allowed().len() == 1
    }
}

impl FromStr for Pin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "split" => return Ok(Self::Split),
            "same" => return Ok(Self::Same),
            "none" => return Ok(Self::None),
            _ => {}
        }
        let numbers = text
            .split_once('-')
            .and_then(|(client, server)| Some((client.parse().ok()?, server.parse().ok()?)));
        let (client, server) = numbers.ok_or_else(|| format!("allowed are {ALLOWED}"))?;
        let allowed = cpu::allowed();
        match [client, server].into_iter().find(|cpu| !allowed.contains(cpu)) {
            None => Ok(Self::At { client, server }),
            Some(cpu) => {
                let allowed: Vec<_> = allowed.iter().map(ToString::to_string).collect();
                Err(format!(
                    "this process may not use CPU {cpu}; allowed are {}",
                    allowed.join(", ")
                ))
            }
        }
    }
}

/// Placements that are measured in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placements(Vec<Pin>);

impl Placements {
    /// Every placement of the server beside a client on the first CPU, and no placement.
    #[must_use]
    pub fn sweep() -> Self {
        let allowed = cpu::allowed();
        let client = allowed.first().copied().unwrap_or(0);
        let pinned = allowed.into_iter().map(|server| Pin::At { client, server });
        Self(pinned.chain([Pin::None]).collect())
    }

    /// All placements, at least one.
    pub fn iter(&self) -> impl Iterator<Item = Pin> + '_ {
        self.0.iter().copied()
    }

    /// Whether there are several.
    #[must_use]
    pub fn are_several(&self) -> bool {
        self.0.len() > 1
    }

    /// A placement's suffix for titles of plots and lines of progress; empty if there is only one placement.
    pub(crate) fn suffix(&self, pin: Pin) -> String {
        if self.are_several() { format!(", pin {}", pin.name()) } else { String::new() }
    }
}

impl From<Pin> for Placements {
    fn from(pin: Pin) -> Self {
        Self(vec![pin])
    }
}

impl FromStr for Placements {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "sweep" {
            return Ok(Self::sweep());
        }
        let mut pins = Vec::new();
        for word in text.split(',') {
            let pin = word.parse().map_err(|error: String| {
                let allowed =
                    error.replacen("allowed are split", "allowed are sweep, or a list of split", 1);
                if text == word { allowed } else { format!("'{word}': {allowed}") }
            })?;
            if pins.contains(&pin) {
                return Err(format!("'{word}' occurs twice in the list"));
            }
            pins.push(pin);
        }
        Ok(Self(pins))
    }
}

/// Pins this thread and its later children to a CPU, if one is given.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn stay_on(cpu: Option<usize>) -> Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    cpu::pin_current_thread(cpu).with_context(|| format!("cannot stay on CPU {cpu}"))
}

/// Runs `work` on a thread that [stays](stay_on) on a CPU.
///
/// # Errors
/// The errors of `stay_on` and `work`.
pub(crate) fn on_cpu<T: Send>(
    cpu: Option<usize>,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| stay_on(cpu).and_then(|()| work()));
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_are_a_list_or_all() {
        let first = cpu::allowed()[0];
        let at = Pin::At { client: first, server: first };
        let list: Placements = format!("split,{first}-{first}").parse().unwrap();
        assert_eq!(list.iter().collect::<Vec<_>>(), [Pin::Split, at]);
        assert!(at.shares_cpu() && list.are_several());
        assert_eq!(list.suffix(at), format!(", pin {first}-{first}"));
        let sweep: Placements = "sweep".parse().unwrap();
        assert_eq!(sweep.iter().count(), cpu::allowed().len() + 1);
        assert_eq!(Placements::from(Pin::Same).suffix(Pin::Same), "");
    }

    #[test]
    fn what_is_no_placement_is_named() {
        let error = |text: &str| text.parse::<Placements>().unwrap_err();
        assert_eq!(
            error("left"),
            "allowed are sweep, or a list of split, same, none, or CLIENT-SERVER with two CPU numbers"
        );
        assert!(error("same,left").starts_with("'left': allowed are sweep"));
        assert!(
            error("99998-99999").starts_with("this process may not use CPU 99998; allowed are ")
        );
        assert_eq!(error("same,same"), "'same' occurs twice in the list");
        assert_eq!("sweep".parse::<Pin>().unwrap_err(), format!("allowed are {ALLOWED}"));
    }
}
