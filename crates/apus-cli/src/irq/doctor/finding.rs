//! What was found about one condition of suspension.

use std::fmt::Write as _;

use serde::Serialize;

use crate::wrap::wrap;

/// Whether a condition is met.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    Ok,
    Wrong,
    /// It could not be found out.
    Unknown,
}

impl Verdict {
    fn words(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Wrong => "wrong",
            Self::Unknown => "unknown",
        }
    }
}

/// One line of the report.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Finding {
    /// The condition; each has one finding.
    pub(super) condition: &'static str,
    pub(super) verdict: Verdict,
    /// What was found, with its values.
    pub(super) found: String,
    /// A command that mends it, to be read and typed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mend: Option<String>,
}

impl Finding {
    pub(super) fn ok(condition: &'static str, found: impl Into<String>) -> Self {
        Self { condition, verdict: Verdict::Ok, found: found.into(), mend: None }
    }

    pub(super) fn wrong(
        condition: &'static str,
        found: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        let mend = Some(mend.into());
        Self { condition, verdict: Verdict::Wrong, found: found.into(), mend }
    }

    pub(super) fn unknown(condition: &'static str, why: impl Into<String>) -> Self {
        Self { condition, verdict: Verdict::Unknown, found: why.into(), mend: None }
    }

    /// A command that helps to find it out, if there is one.
    pub(super) fn try_if(mut self, command: Option<String>) -> Self {
        self.mend = command;
        self
    }

    /// A command that helps to find it out.
    pub(super) fn try_this(mut self, command: impl Into<String>) -> Self {
        self.mend = Some(command.into());
        self
    }
}

/// The findings as lines, and how many there are of each verdict.
pub(super) fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for it in findings {
        let found = format!("{}: {}", it.condition, it.found);
        wrap(&format!("  {:<8}", it.verdict.words()), &found, &mut text);
        if let Some(command) = &it.mend {
            // A command stays in one line, so that it can be pasted.
            let label = if it.verdict == Verdict::Wrong { "mend:" } else { "try:" };
            let _ = writeln!(text, "          {label:<6}{command}");
        }
    }
    let count = |verdict| findings.iter().filter(|it| it.verdict == verdict).count();
    let [ok, wrong, unknown] = [Verdict::Ok, Verdict::Wrong, Verdict::Unknown].map(count);
    let all = findings.len();
    let _ = writeln!(text, "\n{all} conditions: {ok} ok, {wrong} wrong, {unknown} unknown.");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_wrong_and_the_next_how_to_mend_it() {
        let findings = [
            Finding::ok("kernel", "Linux 6.18"),
            Finding::wrong("prefer", "1 of 2", "sudo apus irq attach 7 --mode suspend:20"),
            Finding::unknown("acts", "root only").try_this("sudo apus irq doctor 7"),
        ];
        let expected = "  ok      kernel: Linux 6.18\n  wrong   prefer: 1 of 2\n          \
            mend: sudo apus irq attach 7 --mode suspend:20\n  unknown acts: root only\n          \
            try:  sudo apus irq doctor 7\n\n3 conditions: 1 ok, 1 wrong, 1 unknown.\n";
        assert_eq!(text(&findings), expected);
    }
}
