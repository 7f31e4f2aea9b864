//! One call as an HTML page: client and server side by side, time from top to bottom.

use std::fmt::Write as _;

use apus_trace::{Flight, Merged, Moment, STAGES, TracedCall, story};

use super::files::micros;

/// Colours for light and dark pages, and where things are.
const STYLE: &str = include_str!("page.css");

/// Least distance of two lines of text, in pixels.
const LINE: f64 = 20.0;

/// Pixels that the time of the whole call takes at most, beyond the lines.
const TIME: f64 = 600.0;

/// Distance of the two ends.
const BETWEEN: f64 = 340.0;

/// Least room for the labels of each end.
const LABELS_MIN: f64 = 430.0;

/// Most pixels that a character takes: the font is one of fixed width, or narrower.
const CHARACTER: f64 = 7.8;

const TOP: f64 = 50.0;

/// Horizontal positions of the two ends, which leave room for all labels.
#[derive(Clone, Copy)]
struct Ends {
    client: f64,
    server: f64,
    width: f64,
}

impl Ends {
    /// The widths for labels of these lengths in characters.
    fn of(client: usize, server: usize) -> Self {
        let room = |characters: usize| (characters as f64 * CHARACTER + 24.0).max(LABELS_MIN);
        let (client, right) = (room(client), room(server));
        let server = client + BETWEEN;
        Self { client, server, width: server + right }
    }
}

/// A page about some calls of a trace. It needs nothing else: no script, no font, no network.
pub(super) fn page(merged: &Merged, calls: &[&TracedCall]) -> String {
    let policy = "default-src 'none'; style-src 'unsafe-inline'";
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <title>Timeline of a call</title><style>{STYLE}</style></head><body>\n"
    );
    for call in calls {
        section(&mut page, merged, call);
    }
    page + "</body></html>\n"
}

fn section(page: &mut String, merged: &Merged, call: &TracedCall) {
    let (records, flights) = story(merged, call);
    let length =
        |length: Option<u32>| length.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
    let took = call.round_trip().map_or_else(|| "-".to_owned(), |nanos| us(nanos as f64));
    let _ = writeln!(
        page,
        "<h1>Call {}, pair {:08x}</h1>\n<p>Request {} bytes, response {} bytes, round trip {took}, {} disturbances. The distance \
         between lines is not a measure of time; each line has the time since the first line, and since the previous line of its \
         node.</p>",
        call.id,
        call.pair,
        length(call.request),
        length(call.response),
        call.disturbances
    );
    drawing(page, merged, &records, &flights);
    stages(page, call);
}

/// Vertical position of each record: by its time, and at least a line below the record before.
fn places(records: &[(&Moment, bool)]) -> Vec<f64> {
    let first = records.first().map_or(0, |(moment, _)| moment.nanos);
    let last = records.last().map_or(0, |(moment, _)| moment.nanos);
    let scale = TIME / (last - first).max(1) as f64;
    let (mut before, mut time) = (TOP - LINE, first);
    let places = records.iter().map(|(moment, _)| {
        let gap = (moment.nanos - time) as f64 * scale;
        (before, time) = (before + gap.max(LINE), moment.nanos);
        before
    });
    places.collect()
}

fn drawing(page: &mut String, merged: &Merged, records: &[(&Moment, bool)], flights: &[Flight]) {
    let places = places(records);
    let height = places.last().copied().unwrap_or(TOP) + 2.0 * LINE;
    let labels = labels(merged, records);
    let longest = |of_client| {
        let labels = labels.iter().zip(records).filter(|(_, (_, side))| *side == of_client);
        labels.map(|((text, times), _)| text.chars().count() + times.chars().count() + 1).max()
    };
    let ends = Ends::of(longest(true).unwrap_or(0), longest(false).unwrap_or(0));
    let Ends { client, server, width } = ends;
    let _ = writeln!(
        page,
        "<div class=\"wide\"><svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"Records of the client and the server\">\n\
         <defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\">\
         <path d=\"M0 0L8 4L0 8z\"/></marker></defs>"
    );
    for (x, name) in [(client, "client"), (server, "server")] {
        let bottom = height - LINE;
        let _ = writeln!(
            page,
            "<text class=\"end\" x=\"{x}\" y=\"20\" text-anchor=\"middle\">{name}</text>"
        );
        let _ = writeln!(
            page,
            "<line class=\"life\" x1=\"{x}\" y1=\"30\" x2=\"{x}\" y2=\"{bottom:.0}\"/>"
        );
    }
    let place = |nanos: u64, at_client: bool| {
        let index = records.iter().position(|(it, side)| it.nanos == nanos && *side == at_client);
        index.map(|index| places[index])
    };
    for flight in flights {
        arrow(page, flight, ends, &place);
    }
    for (((_, at_client), y), (text, times)) in records.iter().zip(&places).zip(&labels) {
        let (x, anchor, dot) = match at_client {
            true => (client - 12.0, "end", client),
            false => (server + 12.0, "start", server),
        };
        let (text, baseline) = (escaped(text), y + 4.0);
        let _ = writeln!(
            page,
            "<circle cx=\"{dot}\" cy=\"{y:.1}\" r=\"3\"/><text x=\"{x}\" y=\"{baseline:.1}\" text-anchor=\"{anchor}\">{text} \
             <tspan class=\"time\">{times}</tspan></text>"
        );
    }
    page.push_str("</svg></div>\n");
}

/// The text of each record, and its time since the first one and since the one before at its node.
fn labels(merged: &Merged, records: &[(&Moment, bool)]) -> Vec<(String, String)> {
    let start = records.first().map_or(0, |(moment, _)| moment.nanos);
    let mut before = [None; 2];
    let label = |(moment, at_client): &(&Moment, bool)| {
        let since = before[usize::from(*at_client)].replace(moment.nanos).unwrap_or(moment.nanos);
        let [at, delta] =
            [moment.nanos - start, moment.nanos - since].map(|nanos| us(nanos as f64));
        (brief(merged, moment), format!("{at} (+{delta})"))
    };
    records.iter().map(label).collect()
}

/// A packet; one that did not arrive ends half way.
fn arrow(
    page: &mut String,
    flight: &Flight,
    ends: Ends,
    place: &impl Fn(u64, bool) -> Option<f64>,
) {
    let Some(from) = place(flight.sent, flight.from_client) else { return };
    let to = flight.received.and_then(|received| place(received, !flight.from_client));
    let Ends { client, server, .. } = ends;
    let (near, far) = if flight.from_client { (client, server) } else { (server, client) };
    let (class, x, y) = match to {
        Some(to) => ("packet", far, to),
        None => ("packet lost", f64::midpoint(near, far), from + LINE),
    };
    let what = match flight.offset {
        Some(offset) => format!("{} {offset}+{}", flight.kind, flight.bytes),
        None => flight.kind.to_owned(),
    };
    let took = match flight.received {
        Some(received) => us(received.saturating_sub(flight.sent) as f64),
        None => "did not arrive".to_owned(),
    };
    let _ = writeln!(
        page,
        "<line class=\"{class}\" x1=\"{near}\" y1=\"{from:.1}\" x2=\"{x}\" y2=\"{y:.1}\" marker-end=\"url(#tip)\">\
         <title>{what}, {took}</title></line>"
    );
}

/// The stages of the call as a table with bars.
fn stages(page: &mut String, call: &TracedCall) {
    let Some(reached) = call.all_stages() else { return };
    let whole = (reached[STAGES.len() - 1] - reached[0]).max(1) as f64;
    page.push_str(
        "<table><tr><th>stage</th><th>at</th><th>since the stage before</th><th></th></tr>\n",
    );
    for (index, stage) in STAGES.iter().enumerate() {
        let took = (reached[index] - reached[index.saturating_sub(1)]) as f64;
        let side = if stage.at_client { "client" } else { "server" };
        let width = took * 100.0 / whole;
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{side}</td><td class=\"number\">{}</td><td class=\"share\"><i style=\"width:{width:.1}%\"></i></td></tr>",
            stage.name,
            us(took)
        );
    }
    page.push_str("</table>\n");
}

/// A record without the id and the pair, which all of them share.
fn brief(merged: &Merged, moment: &Moment) -> String {
    let names = &merged.events[moment.event].arguments;
    let rest = names.iter().zip(moment.arguments).skip(2).filter(|(name, _)| !name.is_empty());
    let rest = rest.map(|(name, value)| match value {
        // A packet that names all bytes of a message.
        u32::MAX => format!(" {name} everything"),
        value => format!(" {name} {value}"),
    });
    format!("{}{}", merged.name(moment), rest.collect::<String>())
}

fn us(nanos: f64) -> String {
    format!("{:.3} µs", micros(nanos))
}

/// Text of a file as text of a page.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_a_line_apart_and_in_the_order_of_time() {
        let at = |nanos| Moment { nanos, ring: 0, event: 0, arguments: [0; 4] };
        let (one, other, last) = (at(100), at(101), at(1_100));
        let places = places(&[(&one, true), (&other, false), (&last, true)]);
        assert_eq!(places[1] - places[0], LINE);
        assert!(places[2] - places[1] > TIME * 0.9, "{places:?}");
        assert_eq!(super::places(&[]), [0.0; 0]);
    }

    #[test]
    fn the_longest_label_has_room() {
        let ends = Ends::of(100, 10);
        assert!(ends.client > 100.0 * CHARACTER && ends.server - ends.client == BETWEEN);
        assert_eq!(ends.width - ends.server, LABELS_MIN);
    }

    #[test]
    fn names_of_a_hostile_trace_are_text() {
        assert_eq!(escaped("<script>&\""), "&lt;script&gt;&amp;&quot;");
    }
}
