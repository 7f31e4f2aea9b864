//! Findings as text.

use std::fmt::Write as _;

use apus_load::report::Style;

use super::finding::{Finding, Subject, Verdict};
use crate::wrap::wrap;

/// The findings, grouped by subject, and how many there are of each verdict.
pub(super) fn text(findings: &[Finding], style: Style) -> String {
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
        show(finding, &mut text);
    }
    let _ = writeln!(text, "\n{}", summary(findings));
    text
}

/// How many findings have each verdict.
pub(super) fn summary(findings: &[Finding]) -> String {
    let verdicts = [Verdict::Good, Verdict::CouldBeBetter, Verdict::Bad, Verdict::NotKnown];
    let counts = verdicts.map(|verdict| {
        let count = findings.iter().filter(|it| it.verdict == verdict).count();
        format!("{count} {}", verdict.words())
    });
    format!("{} findings: {}.", findings.len(), counts.join(", "))
}

fn show(finding: &Finding, text: &mut String) {
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
        let good = Finding::new(Subject::Clock, "source", Verdict::Good, "tsc");
        let better =
            Finding::new(Subject::Limits, "files", Verdict::CouldBeBetter, "word ".repeat(30));
        let better = better.apus("needs some").change("ulimit -n 65536", "room");
        let text = text(&[good, better], Style::PLAIN);
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
        let text = text(&[finding.change(command.clone(), "speed")], Style::PLAIN);
        assert!(text.contains(&command), "{text}");
    }
}
