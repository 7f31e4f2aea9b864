//! The two formats of a page: OpenMetrics, and the text format of before, for clients that prefer it.

use std::borrow::Cow;

use hyper::header::{ACCEPT, HeaderMap};

/// A format of the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Format {
    OpenMetrics,
    /// Version 0.0.4 of Prometheus's text format.
    Text,
}

impl Format {
    /// The one that a request prefers; OpenMetrics if it does not say.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let accepted: Vec<_> =
            headers.get_all(ACCEPT).iter().filter_map(|it| it.to_str().ok()).collect();
        let accepted = accepted.join(",");
        let open = weight(&accepted, ["application/openmetrics-text", "application/*", "*/*"]);
        let text = weight(&accepted, ["text/plain", "text/*", "*/*"]);
        if text > open { Self::Text } else { Self::OpenMetrics }
    }

    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// A page of OpenMetrics in this format.
    pub(super) fn write(self, page: String) -> String {
        match self {
            Self::OpenMetrics => page,
            Self::Text => as_text(&page),
        }
    }
}

/// Weight that a client gives to a media type, from 0 to 1,000: that of the first matching range.
fn weight(accepted: &str, ranges: [&str; 3]) -> u16 {
    let of_range = |range: &str| accepted.split(',').find_map(|element| weight_of(element, range));
    ranges.into_iter().find_map(of_range).unwrap_or(0)
}

fn weight_of(element: &str, range: &str) -> Option<u16> {
    let mut parts = element.split(';').map(str::trim);
    if !parts.next()?.eq_ignore_ascii_case(range) {
        return None;
    }
    let weight = parts.find_map(|it| it.strip_prefix("q=").or_else(|| it.strip_prefix("Q=")));
    let weight = weight.and_then(|it| it.parse::<f64>().ok()).unwrap_or(1.0);
    Some((weight.clamp(0.0, 1.0) * 1_000.0) as u16)
}

/// The older format: a counter's family has the name of its samples, a help text has its quotation marks as they are, and there are
/// neither units nor an end.
fn as_text(page: &str) -> String {
    let mut counters = std::collections::BTreeSet::new();
    for line in page.lines() {
        if let Some(name) = line.strip_prefix("# TYPE ").and_then(|it| it.strip_suffix(" counter"))
        {
            counters.insert(name);
        }
    }
    let mut text = String::with_capacity(page.len());
    for line in page.lines() {
        let line = match line.split_once(' ').map(|(_, rest)| rest.split_once(' ')) {
            Some(Some(("UNIT", _))) if line.starts_with('#') => continue,
            Some(None) if line == "# EOF" => continue,
            Some(Some((kind @ ("HELP" | "TYPE"), rest))) if line.starts_with('#') => {
                let (name, words) = rest.split_once(' ').unwrap_or((rest, ""));
                let suffix = if counters.contains(name) { "_total" } else { "" };
                let words =
                    if kind == "HELP" { words.replace("\\\"", "\"") } else { words.to_owned() };
                Cow::Owned(format!("# {kind} {name}{suffix} {words}"))
            }
            _ => Cow::Borrowed(line),
        };
        text.push_str(&line);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(accept: &[&'static str]) -> Format {
        let mut headers = HeaderMap::new();
        for value in accept {
            headers.append(ACCEPT, value.parse().expect("a header"));
        }
        Format::of(&headers)
    }

    #[test]
    fn a_client_gets_the_format_that_it_prefers() {
        assert_eq!(of(&[]), Format::OpenMetrics);
        assert_eq!(of(&["*/*"]), Format::OpenMetrics);
        assert_eq!(of(&["text/plain"]), Format::Text);
        assert_eq!(of(&["text/plain;version=0.0.4;q=1,*/*;q=0.1"]), Format::Text);
        assert_eq!(of(&["Text/*"]), Format::Text);
        assert_eq!(
            of(&["text/plain;q=0.3", "application/openmetrics-text; q=0.5"]),
            Format::OpenMetrics
        );
        // Prometheus before and after 2.49.
        let before = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(of(&[before]), Format::OpenMetrics);
        let after = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        assert_eq!(of(&[after]), Format::OpenMetrics);
    }

    #[test]
    fn the_older_format_names_counters_as_their_samples() {
        let page = "# HELP apus_a_bytes A \\\"b\\\" and \\\\.\n# TYPE apus_a_bytes counter\n# UNIT apus_a_bytes bytes\n\
            apus_a_bytes_total{program=\"# UNIT x\"} 1\n# HELP apus_g A gauge.\n# TYPE apus_g gauge\napus_g 1\n# EOF\n";
        let text = "# HELP apus_a_bytes_total A \"b\" and \\\\.\n# TYPE apus_a_bytes_total counter\n\
            apus_a_bytes_total{program=\"# UNIT x\"} 1\n# HELP apus_g A gauge.\n# TYPE apus_g gauge\napus_g 1\n";
        assert_eq!(as_text(page), text);
    }
}
