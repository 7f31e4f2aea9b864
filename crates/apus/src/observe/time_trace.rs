//! The time trace of this process, which records the events of its engines and threads.
//!
//! The first node of a process reads `APUS_TRACE` and the variables that begin with it ([`Node`](crate::Node#time-trace)).

use std::ffi::OsStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use apus_net::Link;
use apus_proto::{Endpoint, TraceChoice, TraceEvent, TraceMark, TraceSink};
use apus_trace::{Controls, EventInfo, RingStorage, Settings};

use crate::config::parse_duration;
use crate::observe::missing_files;

/// Default of `APUS_TRACE_CALLS`: one call in this many is recorded.
const ONE_IN: u32 = 64;

/// Time after which a trace that a peer has frozen continues.
const FROZEN_FOR_PEER: Duration = Duration::from_secs(60);

/// Time without renewal after which settings of another process return to their first values.
const WANTED_FOR: Duration = Duration::from_secs(5);

/// The engine's part in the trace of its process.
#[derive(Debug)]
pub(crate) struct Following {
    /// `None`: the process has no trace.
    controls: Option<&'static Controls>,
    settings: Settings,
    /// Whether the kernel stamps arriving datagrams for the trace.
    stamps: bool,
}

impl Following {
    /// Has the events of an endpoint recorded, if this process has a trace.
    pub(crate) fn begin(endpoint: &mut Endpoint, link: &mut dyn Link) -> Self {
        let controls = started();
        let settings = controls.map_or_else(|| settings_from(None, None), Controls::settings);
        if controls.is_some() {
            endpoint.set_trace(Box::new(Recorder), choice(settings));
        }
        let wanted = std::env::var_os("APUS_TRACE_KERNEL").is_some_and(|text| text == "on");
        let stamps = controls.is_some() && wanted && link.stamp_arrivals();
        Self { controls, settings, stamps }
    }

    /// The link brought datagrams, which the endpoint has taken.
    #[inline]
    pub(crate) fn received(&mut self, link: &dyn Link, datagrams: usize, bytes: usize) {
        if self.stamps {
            record_arrival(link);
        }
        record(TraceEvent::LinkRecv, [datagrams as u32, bytes as u32, 0, 0]);
    }

    /// Follows changes that were made from outside.
    #[inline]
    pub(crate) fn look(&mut self, endpoint: &mut Endpoint) {
        apus_trace::thaw_if_due();
        let Some(controls) = self.controls else { return };
        apus_trace::restore_if_due(controls, WANTED_FOR);
        let settings = controls.settings();
        if settings != self.settings {
            self.settings = settings;
            endpoint.set_trace_choice(choice(settings));
        }
    }
}

fn choice(Settings { one_in, slower_than }: Settings) -> TraceChoice {
    TraceChoice { one_in, slower_than }
}

/// Records an event of the calling thread.
#[inline]
pub(crate) fn record(event: TraceEvent, arguments: [u32; 4]) {
    apus_trace::record(event as u16, arguments);
}

/// Records an event of a call, if that was chosen.
#[inline]
pub(crate) fn record_of(event: TraceEvent, mark: Option<TraceMark>, length: usize) {
    if let Some(TraceMark { id, pair }) = mark {
        record(event, [id, pair, length as u32, 0]);
    }
}

/// Records the time at which the kernel had the packets that the link has just received.
#[cold]
fn record_arrival(link: &dyn Link) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    if let (Some(at), Ok(now)) = (link.arrived(), now) {
        let ago = (now.as_nanos() as u64).saturating_sub(at);
        record(TraceEvent::KernelRecv, [u32::try_from(ago).unwrap_or(u32::MAX), 0, 0, 0]);
    }
}

/// Records that the application takes a request, with `waiting` ones behind it.
#[cold]
pub(crate) fn record_request(mark: TraceMark, length: usize, waiting: usize) {
    let TraceMark { id, pair } = mark;
    record(TraceEvent::RecvmsgRequest, [id, pair, length as u32, waiting as u32]);
}

/// Records the core's events with a time stamp.
struct Recorder;

impl TraceSink for Recorder {
    #[inline]
    fn record(&mut self, event: TraceEvent, arguments: [u32; 4]) {
        record(event, arguments);
    }

    fn freeze(&mut self) {
        apus_trace::freeze();
    }

    /// A process that looks for slow calls itself keeps its records until they are written. A client may stop the trace of other
    /// processes, which resumes by itself.
    fn freeze_for_peer(&mut self) {
        let looks = apus_trace::controls().is_some_and(|it| it.settings().slower_than.is_some());
        if looks { apus_trace::freeze() } else { apus_trace::freeze_for(FROZEN_FOR_PEER) }
    }
}

/// Begins the trace with the first node of the process. `None` if there is no trace: it is not wanted, or the system had no memory
/// for it, which is no reason to have no node.
fn started() -> Option<&'static Controls> {
    let storage = match std::env::var_os("APUS_TRACE").filter(|text| !text.is_empty()) {
        None => RingStorage::Memory,
        Some(text) if text == "on" => RingStorage::Memory,
        Some(text) if text == "off" => return None,
        Some(directory) => RingStorage::Directory(directory.into()),
    };
    let [calls, slower_than] = ["APUS_TRACE_CALLS", "APUS_TRACE_SLOWER_THAN"].map(std::env::var_os);
    let settings = settings_from(calls.as_deref(), slower_than.as_deref());
    if let Err(error) = apus_trace::start(&storage, &events(), &settings) {
        missing_files::note("time trace", &error);
        return None;
    }
    apus_trace::controls()
}

/// Reads the variables. Malformed values are ignored, because a node has no way to report them.
fn settings_from(calls: Option<&OsStr>, slower_than: Option<&OsStr>) -> Settings {
    let slower_than = slower_than.and_then(|text| parse_duration(text.to_str()?).ok());
    Settings {
        one_in: one_in_from(calls.and_then(OsStr::to_str)),
        slower_than: slower_than.filter(|limit| *limit > Duration::ZERO),
    }
}

/// Reads `APUS_TRACE_CALLS`: `all`, or one call in N. Other values mean none.
fn one_in_from(text: Option<&str>) -> u32 {
    match text {
        Some("all") => 1,
        Some(number) => number.parse().ok().filter(|&one_in| one_in > 0).unwrap_or(ONE_IN),
        None => ONE_IN,
    }
}

/// The table of the core and the engine.
fn events() -> Vec<EventInfo> {
    let table = TraceEvent::TABLE.iter();
    table.map(|&(name, arguments, text)| EventInfo { name, arguments, text }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_chosen_as_the_variable_says() {
        for (text, one_in) in
            [(None, 64), (Some("all"), 1), (Some("8"), 8), (Some("0"), 64), (Some("many"), 64)]
        {
            assert_eq!(one_in_from(text), one_in, "{text:?}");
        }
    }

    #[test]
    fn a_slow_call_is_as_long_as_the_variable_says() {
        for (text, micros) in [("5ms", Some(5_000)), ("0s", None), ("soon", None)] {
            let limit = settings_from(None, Some(OsStr::new(text))).slower_than;
            assert_eq!(limit, micros.map(Duration::from_micros), "{text}");
        }
    }

    #[test]
    fn each_text_has_a_place_for_each_argument() {
        for (name, arguments, text) in TraceEvent::TABLE {
            assert_eq!(text.matches(['{']).count(), arguments.len(), "{name}");
            assert!(arguments.len() <= 4, "{name}");
        }
        assert_eq!(TraceEvent::TABLE[TraceEvent::WakeUp as usize].0, "wake_up");
    }
}
