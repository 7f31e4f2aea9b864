//! Names that distinguish processes of one program.

use std::collections::BTreeSet;
use std::path::Path;

use procfs::process::{FDTarget, Process as SystemProcess};

use crate::counters::Process;

/// Characters of a command that are shown.
const COMMAND_MAX: usize = 48;

/// Ports that are shown.
const PORTS_MAX: usize = 4;

/// The command and the ports of a process, or the name of its program if the system has no more.
pub(super) struct Name {
    pub(super) command: String,
    /// UDP ports that it has bound.
    pub(super) ports: String,
}

impl Name {
    pub(super) fn of(process: &Process) -> Self {
        let system = (process.alive == Some(true))
            .then(|| SystemProcess::new(i32::try_from(process.pid).ok()?).ok())
            .flatten();
        let command = system.as_ref().and_then(|system| command(&system.cmdline().ok()?));
        let ports = system.as_ref().and_then(ports).unwrap_or_default();
        Self { command: command.unwrap_or_else(|| process.program.clone()), ports }
    }
}

/// A command line without the directory of its program, cut where it is long.
fn command(words: &[String]) -> Option<String> {
    let (program, arguments) = words.split_first()?;
    let program = Path::new(program).file_name()?.to_string_lossy();
    let words = [program.as_ref()].into_iter().chain(arguments.iter().map(String::as_str));
    let text = words.collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(COMMAND_MAX) {
        Some((end, _)) => Some(format!("{}…", &text[..end])),
        None => Some(text),
    }
}

fn ports(system: &SystemProcess) -> Option<String> {
    let sockets: BTreeSet<u64> = system
        .fd()
        .ok()?
        .filter_map(|descriptor| match descriptor.ok()?.target {
            FDTarget::Socket(inode) => Some(inode),
            _ => None,
        })
        .collect();
    let both = [system.udp(), system.udp6()];
    let entries = both.into_iter().filter_map(Result::ok).flatten();
    let bound = entries.filter(|entry| sockets.contains(&entry.inode));
    let ports: BTreeSet<u16> = bound.map(|entry| entry.local_address.port()).collect();
    let mut shown: Vec<String> = ports.iter().take(PORTS_MAX).map(u16::to_string).collect();
    if ports.len() > PORTS_MAX {
        shown.push("…".to_owned());
    }
    Some(shown.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_short() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let shown = command(&words("/usr/bin/apus node server")).unwrap();
        assert_eq!(shown, "apus node server");
        let long = command(&words(&format!("apus {}", "ä".repeat(100)))).unwrap();
        assert_eq!(long.chars().count(), COMMAND_MAX + 1);
        assert_eq!(command(&[]), None);
    }
}
