//! Processor time of processes, from `/proc/PID/stat`.

use std::process::Command;

use anyhow::{Context, Result};

use crate::program::{output, read};

/// Processor time of a process, in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CpuTicks {
    /// Time of the process.
    pub(crate) own: u64,
    /// Time of its children that have ended.
    pub(crate) of_children: u64,
}

impl CpuTicks {
    /// The time of a process: a PID, or `self`.
    ///
    /// # Errors
    /// If there is no such process.
    pub(crate) fn of(process: &str) -> Result<Self> {
        let path = format!("/proc/{process}/stat");
        Self::parse(&read(&path)?).with_context(|| format!("{path} has another form"))
    }

    /// Parses the fields 14 to 17: utime, stime, cutime and cstime.
    fn parse(stat: &str) -> Option<Self> {
        // The name of the program is in parentheses and may contain spaces.
        let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
        let fields: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
        let [user, system, of_children_user, of_children_system] = fields[..] else { return None };
        Some(Self { own: user + system, of_children: of_children_user + of_children_system })
    }
}

/// Ticks per second.
///
/// # Errors
/// If `getconf` cannot be started.
pub(crate) fn ticks_per_second() -> Result<u64> {
    let ticks = output(Command::new("getconf").arg("CLK_TCK"))?;
    ticks.parse().context("ticks per second")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_follow_the_name_of_the_program() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 200 0 0 10 20 300 400 20 0 1 0 5 6 7";
        assert_eq!(CpuTicks::parse(stat), Some(CpuTicks { own: 30, of_children: 700 }));
        assert_eq!(CpuTicks::parse("7 (a) S 1 7"), None);
        assert!(CpuTicks::of("self").is_ok() && ticks_per_second().unwrap() > 0);
    }
}
