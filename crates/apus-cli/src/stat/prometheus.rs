//! Counters for Prometheus, over HTTP.
//!
//! One kind of request, `GET /metrics`, needs no HTTP library: the request line and one header are looked at. A scraper that asks for
//! OpenMetrics gets it, any other the older text format.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use apus_shm::CounterDirectory;

use crate::counters::{Process, Snapshot, now_ns};
use crate::output;

/// Serves the counters at an address until the process ends.
///
/// # Errors
/// When the address cannot be used.
pub(super) fn serve(address: SocketAddr, directory: &CounterDirectory) -> Result<()> {
    let cannot = || format!("cannot listen at '--prometheus {address}'");
    let listener = TcpListener::bind(address).with_context(cannot)?;
    let address = listener.local_addr().with_context(cannot)?;
    output::print(&format!("metrics at http://{address}/metrics\n"))?;
    for stream in listener.incoming() {
        match stream {
            // One after the other: each may take PATIENCE at most, and its memory is bounded.
            Ok(stream) => drop(answer(stream, directory)),
            Err(_) => thread::sleep(PAUSE), // No descriptor is left.
        }
    }
    Ok(())
}

fn answer(mut stream: TcpStream, directory: &CounterDirectory) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let head = read_head(&mut stream)?;
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split('?').next().unwrap_or_default();
    let (status, kind, body) = match (method, path) {
        ("GET" | "HEAD", "/metrics" | "/") => {
            let format = Format::wanted(&head);
            let empty = Snapshot { taken_ns: now_ns(), monotonic: None, processes: Vec::new() };
            let snapshot = Snapshot::take(directory).map_or(empty, |(snapshot, _)| snapshot);
            ("200 OK", format.content_type(), page(&snapshot, format))
        }
        ("GET" | "HEAD", _) => ("404 Not Found", TEXT, "see /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", TEXT, "only GET\n".to_owned()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    if method != "HEAD" {
        stream.write_all(body.as_bytes())?;
    }
    stream.flush()
}

/// The request up to the empty line.
fn read_head(stream: &mut TcpStream) -> io::Result<String> {
    let until = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() > HEAD_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut part = [0; 1024];
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => head.extend(&part[..length]),
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    OpenMetrics,
    /// The text format of Prometheus before OpenMetrics.
    Classic,
}

impl Format {
    fn wanted(head: &str) -> Self {
        let accepts = head.lines().skip(1).filter_map(|line| line.split_once(':'));
        let mut accepts = accepts.filter(|(name, _)| name.eq_ignore_ascii_case("accept"));
        match accepts.any(|(_, value)| value.contains("application/openmetrics-text")) {
            true => Self::OpenMetrics,
            false => Self::Classic,
        }
    }

    fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// A counter of all processes.
struct Family {
    name: String,
    unit: Option<&'static str>,
    help: String,
    /// Values are times in nanoseconds.
    is_time: bool,
    samples: Vec<(String, u64)>,
}

fn page(snapshot: &Snapshot, format: Format) -> String {
    let mut text = String::new();
    let help = "Whether the process runs: 1, or 0 after its end and for processes of other pid namespaces.";
    let _ = writeln!(text, "# HELP apus_up {help}\n# TYPE apus_up gauge");
    for process in &snapshot.processes {
        let Process { version, alive, .. } = process;
        let labels = labels(process);
        let version = escaped(version);
        let up = u8::from(*alive == Some(true));
        let _ = writeln!(text, "apus_up{{{labels},version=\"{version}\"}} {up}");
    }
    for family in families(snapshot).values() {
        family.write(&mut text, format);
    }
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

/// Counters that any process names, this version's knowledge of them, and their values.
fn families(snapshot: &Snapshot) -> BTreeMap<String, Family> {
    let mut families = BTreeMap::new();
    let mut add = |key: &str, labels: String, value: u64| {
        let family = families.entry(key.to_owned()).or_insert_with(|| Family::of(key));
        family.samples.push((labels, value));
    };
    for process in &snapshot.processes {
        let own = labels(process);
        for metric in apus_metrics::engine_metrics() {
            let key = format!("{}.{}", metric.group, metric.name);
            if !process.counters.contains_key(&key) {
                add(&key, own.clone(), 0); // A counter is there before it first counts.
            }
        }
        process.counters.iter().for_each(|(key, value)| add(key, own.clone(), *value));
        for (place, attached) in process.attached.iter().enumerate() {
            let of = format!(
                "{own},place=\"{place}\",attached=\"{}\",uid=\"{}\"",
                attached.pid, attached.uid
            );
            attached.counters.iter().for_each(|(key, value)| add(key, of.clone(), *value));
        }
    }
    families
}

fn labels(process: &Process) -> String {
    let program = escaped(&process.program);
    let Process { pid, start, namespace, .. } = process;
    format!("pid=\"{pid}\",start=\"{start}\",namespace=\"{namespace}\",program=\"{program}\"")
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl Family {
    fn of(key: &str) -> Self {
        let known =
            apus_metrics::metrics().find(|it| key.split_once('.') == Some((it.group, it.name)));
        let help = known.map_or("A counter of another version of Apus.", |it| it.meaning.trim());
        let unit = match known.map(|it| it.unit) {
            Some("bytes") => Some("bytes"),
            Some("nanoseconds") => Some("seconds"),
            _ => None,
        };
        let mut name = format!("apus_{}", key.replace('.', "_"));
        if let Some(unit) = unit {
            // The unit is the end of the name.
            for part in ["_bytes", "_ns"] {
                name = name.replacen(part, "", 1);
            }
            name = format!("{name}_{unit}");
        }
        let (help, is_time) = (help.to_owned(), unit == Some("seconds"));
        Self { name, unit, help, is_time, samples: Vec::new() }
    }

    fn write(&self, text: &mut String, format: Format) {
        let Self { name, unit, help, is_time, samples } = self;
        let head = match format {
            Format::OpenMetrics => name.clone(),
            Format::Classic => format!("{name}_total"),
        };
        let help = escaped(help);
        let help = if format == Format::Classic { help.replace("\\\"", "\"") } else { help };
        let _ = writeln!(text, "# HELP {head} {help}\n# TYPE {head} counter");
        if let (Some(unit), Format::OpenMetrics) = (unit, format) {
            let _ = writeln!(text, "# UNIT {head} {unit}");
        }
        for (labels, value) in samples {
            let _ = write!(text, "{name}_total{{{labels}}} ");
            let _ = match is_time {
                true => writeln!(text, "{}.{:09}", value / 1_000_000_000, value % 1_000_000_000),
                false => writeln!(text, "{value}"),
            };
        }
    }
}

const TEXT: &str = "text/plain; charset=utf-8";

/// How long a scraper may take to ask, and to read.
const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes of a request.
const HEAD_MAX: usize = 16 << 10;

/// How long to wait for a descriptor.
const PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_with_their_unit() {
        let of = |key: &str| Family::of(key).name;
        assert_eq!(of("protocol.calls"), "apus_protocol_calls");
        assert_eq!(of("protocol.data_bytes_sent"), "apus_protocol_data_sent_bytes");
        assert_eq!(of("link.bytes_sent"), "apus_link_sent_bytes");
        assert_eq!(of("protocol.priority7_bytes"), "apus_protocol_priority7_bytes");
        assert_eq!(of("protocol.received_bytes_to_64"), "apus_protocol_received_to_64_bytes");
        assert_eq!(of("delivery.polling_ns"), "apus_delivery_polling_seconds");
        let mut names: Vec<_> =
            apus_metrics::metrics().map(|it| of(&format!("{}.{}", it.group, it.name))).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn a_page_has_every_counter_once() {
        let process = Process {
            pid: 7,
            start: 8,
            namespace: 9,
            program: "a\"b\\".to_owned(),
            version: "0.1.0".to_owned(),
            alive: Some(true),
            written_ns: 0,
            counters: BTreeMap::from([
                ("delivery.polling_ns".to_owned(), 1_500_000_000),
                ("later.counter".to_owned(), 2),
            ]),
            attached: Vec::new(),
        };
        let snapshot = Snapshot { taken_ns: 0, monotonic: None, processes: vec![process] };
        let text = page(&snapshot, Format::OpenMetrics);
        assert!(text.contains("# UNIT apus_delivery_polling_seconds seconds\n"), "{text}");
        assert!(text.contains("program=\"a\\\"b\\\\\"} 1.500000000\n"), "{text}");
        assert!(text.contains("# HELP apus_later_counter A counter of another version"), "{text}");
        assert!(text.ends_with("# EOF\n"));
        let types = text.lines().filter(|line| line.starts_with("# TYPE")).count();
        assert_eq!(types, apus_metrics::engine_metrics().count() + 2);
        assert!(!page(&snapshot, Format::Classic).contains("# UNIT"));
    }

    #[test]
    fn openmetrics_is_for_those_who_ask_for_it() {
        let wanted = |accept| Format::wanted(&format!("GET / HTTP/1.1\r\n{accept}\r\n\r\n"));
        assert_eq!(
            wanted("accept: application/openmetrics-text;version=1.0.0"),
            Format::OpenMetrics
        );
        assert_eq!(wanted("Accept: */*"), Format::Classic);
        assert_eq!(wanted("Host: x"), Format::Classic);
    }
}
