//! `apus settings`: every setting of a node.

use anyhow::Result;
use apus::Config;
use apus_load::report::{Style, Table};
use serde_json::json;

use crate::output::JsonArgs;

/// List the settings of a node: key, default, range, purpose
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Each setting is a key in a TOML file, an environment variable (message_max is APUS_MESSAGE_MAX) \
and a setter of apus::Config. Settings marked † follow the rate of a slow link unless they are set.

Examples:
  apus settings
  apus settings budget
  apus settings --json - | jq '.settings[] | {key, default}'
  APUS_PEER_TIMEOUT=300ms APUS_PRIORITIES=4 apus bench rtt"
)]
pub(crate) struct Args {
    /// Only settings whose key contains PART
    #[arg(value_name = "PART", default_value = "", hide_default_value = true)]
    part: String,
    #[command(flatten)]
    json: JsonArgs,
}

/// Prints the list.
///
/// # Errors
/// When standard output cannot be written, and when there is no such setting.
pub(crate) fn run(args: &Args) -> Result<()> {
    let text = list(&args.part, Style::for_stdout());
    anyhow::ensure!(!text.is_empty(), "no key contains '{}'", args.part);
    args.json.deliver_value(&as_json(&args.part), || text)
}

fn as_json(part: &str) -> serde_json::Value {
    let found = Config::settings().filter(|setting| setting.key.contains(part));
    let one = |setting: apus::Setting| {
        json!({
            "key": setting.key,
            "variable": setting.variable,
            "default": setting.default,
            "range": setting.range,
            "meaning": setting.text,
        })
    };
    json!({ "settings": found.map(one).collect::<Vec<_>>() })
}

fn list(part: &str, style: Style) -> String {
    let found = Config::settings().filter(|setting| setting.key.contains(part));
    let lines: Vec<Vec<String>> = found
        .map(|setting| {
            let range = match setting.range.as_str() {
                "" => String::new(),
                range => format!(" From {range}."),
            };
            let meaning = format!("{}{range}", setting.text);
            vec![setting.key.to_owned(), setting.default.to_string(), meaning]
        })
        .collect();
    if lines.is_empty() {
        return String::new();
    }
    let heads = [("setting", false), ("default", false), ("meaning", false)];
    Table::of_texts("", "", &heads, lines).text(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_shown_with_its_default_range_and_text() {
        let text = list("resend_initial", Style::PLAIN);
        assert!(text.contains("\nresend_initial  5 ms     Initial RTO, the time until"), "{text}");
        assert!(text.contains("µs to 10 s."), "{text}");
        let all = list("", Style::PLAIN);
        assert!(all.lines().all(|line| line.chars().count() <= 80), "{all}");
        assert_eq!(list("colour", Style::PLAIN), "");
    }
}
