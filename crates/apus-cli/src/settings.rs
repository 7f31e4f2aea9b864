//! `apus settings`: every setting of a node.

use std::fmt::Write as _;

use anyhow::Result;
use apus::Config;

use crate::output;

/// List the settings of Apus nodes: keys, defaults, ranges, meaning
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Each setting is a key in a TOML file, a variable of the environment (message_max is APUS_MESSAGE_MAX)
and a setter of apus::Config. Settings marked † follow the rate of a slow link unless they are set.

Examples:
  apus settings
  apus settings budget
  APUS_PEER_TIMEOUT=300ms APUS_PRIORITIES=4 apus bench rtt"
)]
pub(crate) struct Args {
    /// Only settings with this in their keys
    #[arg(value_name = "PART", default_value = "", hide_default_value = true)]
    part: String,
}

/// Columns of the text.
const WIDTH: usize = 76;

/// Prints the list.
///
/// # Errors
/// When standard output cannot be written, and when there is no such setting.
pub(crate) fn run(args: &Args) -> Result<()> {
    let text = list(&args.part);
    anyhow::ensure!(!text.is_empty(), "no setting has '{}' in its key", args.part);
    output::print(&text)
}

fn list(part: &str) -> String {
    let mut text = String::new();
    for setting in Config::settings().filter(|setting| setting.key.contains(part)) {
        let range = if setting.range.is_empty() { "" } else { "from " };
        let line = format!("{:<20}{:<20}{range}{}", setting.key, setting.default, setting.range);
        let _ = writeln!(text, "{}", line.trim_end());
        let mut line = String::from("   ");
        for word in setting.text.split_whitespace() {
            if line.chars().count() + 1 + word.chars().count() > WIDTH {
                let _ = writeln!(text, "{line}");
                line.truncate(3);
            }
            let _ = write!(line, " {word}");
        }
        let _ = writeln!(text, "{line}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_shown_with_its_default_range_and_text() {
        assert_eq!(
            list("resend_initial"),
            "resend_initial      5 ms                from 100 µs to 10 s
    Time until a missing answer is asked for, of a peer that was not
    measured yet (`resend_ticks`).

"
        );
        assert!(list("").lines().all(|line| line.chars().count() <= 80));
        assert_eq!(list("colour"), "");
    }
}
