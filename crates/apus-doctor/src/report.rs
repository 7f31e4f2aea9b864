//! The findings of a doctor as text and as JSON.

use std::fmt::Write as _;
use std::time::SystemTime;

use apus_load::Machine;
use apus_load::report::{Style, wrap};
use serde::Serialize;

use crate::finding::{Finding, Subject, Verdict};
use crate::suspension::{ProgramOrDevice, Watched};

/// The object of a doctor's inspection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Inspected {
    /// A network device of this machine.
    Device(String),
    /// The path to a peer, by the peer's address as the user wrote it.
    Peer(String),
    /// A program and its children.
    Program {
        /// PID of the process.
        pid: i32,
        /// Name of its first thread.
        name: String,
    },
}

impl From<ProgramOrDevice> for Inspected {
    fn from(inspected: ProgramOrDevice) -> Self {
        match inspected {
            ProgramOrDevice::Program { pid, name } => Self::Program { pid, name },
            ProgramOrDevice::Device(name) => Self::Device(name),
        }
    }
}

/// All findings; as JSON, one object.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    machine: Machine,
    started: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<String>,
    findings: Vec<Finding>,
    #[serde(skip_serializing_if = "Option::is_none")]
    watch: Option<Watched>,
}

const SCHEMA: &str = "apus-doctor/1";

impl Report {
    /// `started` is the time at which the inspection began. `watch` has the kernel's timers and polls, if they were watched.
    pub fn new(
        inspected: impl Into<Inspected>,
        started: SystemTime,
        findings: Vec<Finding>,
        watch: Option<Watched>,
    ) -> Self {
        let mut report = Self {
            schema: SCHEMA,
            machine: Machine::here(),
            started: humantime::format_rfc3339_seconds(started).to_string(),
            device: None,
            peer: None,
            pid: None,
            program: None,
            findings,
            watch,
        };
        match inspected.into() {
            Inspected::Device(name) => report.device = Some(name),
            Inspected::Peer(address) => report.peer = Some(address),
            Inspected::Program { pid, name } => {
                (report.pid, report.program) = (Some(pid), Some(name));
            }
        }
        report
    }

    /// The machine and the time, for the head of a text.
    pub fn machine_and_time(&self) -> String {
        format!("{} · {}", self.machine, self.started)
    }

    /// The findings, grouped by subject, and the number of each verdict.
    pub fn text(&self, style: Style) -> String {
        show(&self.findings, style)
    }

    /// The bad findings in one line; `None` if there is none.
    pub fn bad(&self) -> Option<String> {
        let bad = self.findings.iter().filter(|it| it.verdict == Verdict::Bad);
        let bad: Vec<_> = bad.map(|it| format!("{}: {}", it.subject.title(), it.name)).collect();
        let (some, all) = (bad.len(), self.findings.len());
        (some > 0).then(|| format!("{some} of {all} findings are bad: {}", bad.join("; ")))
    }
}

fn show(findings: &[Finding], style: Style) -> String {
    let mut text = String::new();
    let mut last: Option<Subject> = None;
    for finding in findings {
        if last != Some(finding.subject) {
            if last.is_some() {
                text.push('\n');
            }
            let title = finding.subject.title();
            let bold = style == Style::BOLD;
            let _ = if bold {
                writeln!(text, "\x1b[1m{title}\x1b[0m")
            } else {
                writeln!(text, "{title}")
            };
            last = Some(finding.subject);
        }
        show_one(finding, &mut text);
    }
    let _ = writeln!(text, "\n{}", summary(findings));
    text
}

/// The number of findings with each verdict.
fn summary(findings: &[Finding]) -> String {
    let verdicts = [Verdict::Good, Verdict::CouldBeBetter, Verdict::Bad, Verdict::NotKnown];
    let counts = verdicts.map(|verdict| {
        let count = findings.iter().filter(|it| it.verdict == verdict).count();
        format!("{count} {}", verdict.words())
    });
    format!("{} findings: {}.", findings.len(), counts.join(", "))
}

fn show_one(finding: &Finding, text: &mut String) {
    let verdict = finding.verdict.words();
    wrap(&format!("  {verdict:<16}"), &format!("{}: {}", finding.name, finding.found), text);
    if !finding.apus.is_empty() {
        wrap(&label("Apus:"), &finding.apus, text);
    }
    if let Some(command) = &finding.change {
        // A command stays in one line, so that it can be pasted.
        let _ = writeln!(text, "{}{command}", label("change:"));
    }
    if let Some(brings) = &finding.brings {
        wrap(&label("brings:"), brings, text);
    }
}

fn label(label: &str) -> String {
    format!("    {label:<14}")
}

#[cfg(test)]
mod tests {
    use apus_load::report::WIDTH;

    use super::*;

    #[test]
    fn a_finding_says_what_to_change() {
        let good = Finding::good(Subject::Clock, "source", "tsc");
        let better =
            Finding::new(Subject::Limits, "files", Verdict::CouldBeBetter, "word ".repeat(30));
        let better = better.apus("needs some").change("ulimit -n 65536", "room");
        let text = show(&[good, better], Style::PLAIN);
        assert!(text.starts_with("Clock\n  good            source: tsc\n\nLimits"), "{text}");
        assert!(text.contains("\n    change:       ulimit -n 65536\n"), "{text}");
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        let end = "\n2 findings: 1 good, 1 could be better, 0 bad, 0 not known.\n";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn a_command_is_not_wrapped() {
        let command = "x ".repeat(100);
        let finding = Finding::new(Subject::Clock, "source", Verdict::Bad, "hpet");
        let text = show(&[finding.change(command.clone(), "speed")], Style::PLAIN);
        assert!(text.contains(&command), "{text}");
    }

    #[test]
    fn both_doctors_have_one_form() {
        let attach = "sudo apus irq attach 7 --mode suspend:20";
        let findings = vec![
            Finding::good(Subject::SuspensionRights, "kernel", "the kernel can suspend interrupts"),
            Finding::bad(Subject::Program, "prefer", "1 of 2", attach),
            Finding::not_known(Subject::Suspension, "acts", "root only").command("sudo !!"),
        ];
        let inspected = Inspected::Program { pid: 7, name: "server".to_owned() };
        let report = Report::new(inspected, SystemTime::UNIX_EPOCH, findings, None);
        let expected = "Kernel and rights\n  good            kernel: the kernel can suspend interrupts\n\nProgram\n  bad             \
                        prefer: 1 of 2\n    change:       sudo apus irq attach 7 --mode suspend:20\n\nSuspension\n  not known       \
                        acts: root only\n    change:       sudo !!\n\n3 findings: 1 good, 0 could be better, 1 bad, 1 not known.\n";
        assert_eq!(report.text(Style::PLAIN), expected);
        assert_eq!(report.bad().as_deref(), Some("1 of 3 findings are bad: Program: prefer"));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((&json["schema"], &json["pid"]), (&SCHEMA.into(), &7.into()));
        assert_eq!(json["findings"][1]["verdict"], "bad");
        assert_eq!(json["findings"][1]["change"], attach);
        assert!(json.get("device").is_none() && json["findings"][1].get("brings").is_none());
    }
}
