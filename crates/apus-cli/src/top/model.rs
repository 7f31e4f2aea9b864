//! The state of the screen, without a clock, files or a terminal: samples and actions go in.

use std::time::Duration;

use apus_shm::ProcessName;

use serde_json::json;

use super::column::Column;
use super::keys::Action;
use super::rates::Rates;
use super::row::{Liveness, Row};
use super::sample::Sample;
use crate::counters::{Change, Identity};

/// The state of the screen.
#[derive(Debug)]
pub(super) struct Model {
    /// In the order of the table.
    pub(super) rows: Vec<Row>,
    pub(super) host: HostLine,
    pub(super) sort: Column,
    /// Time between two samples.
    pub(super) interval: Duration,
    pub(super) is_panel_open: bool,
    pub(super) is_help_open: bool,
    pub(super) is_paused: bool,
    /// The error of the last sample.
    pub(super) trouble: Option<String>,
    /// None: the first row, whichever it is.
    selected: Option<Identity>,
    last: Option<Sample>,
}

/// Figures of the whole host.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct HostLine {
    pub(super) cpus: Option<usize>,
    /// From 0 to 1, of all CPUs.
    pub(super) busy: Option<f64>,
    pub(super) load: Option<[f32; 3]>,
    /// Processes with a node that have not ended.
    pub(super) processes: usize,
    /// Of all processes; none before the second sample.
    pub(super) rates: Option<Rates>,
}

/// Whether the screen stays open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flow {
    GoOn,
    Quit,
}

impl Model {
    /// The contents of the screen, for programs.
    pub(super) fn as_json(&self) -> serde_json::Value {
        let HostLine { cpus, busy, load, processes, rates } = self.host;
        let rows: Vec<_> = self.rows.iter().map(Row::as_json).collect();
        json!({
            "interval_s": self.interval.as_secs_f64(),
            "host": {
                "cpus": cpus,
                "busy": busy,
                "load": load,
                "processes": processes,
                "rates": rates.map(|rates| rates.as_json()),
            },
            "processes": rows,
        })
    }

    /// Without any sample. `selected` is a process that has its panel open from the beginning.
    pub(super) fn new(interval: Duration, selected: Option<Identity>) -> Self {
        Self {
            rows: Vec::new(),
            host: HostLine::default(),
            sort: Column::Calls,
            interval,
            is_panel_open: selected.is_some(),
            is_help_open: false,
            is_paused: false,
            trouble: None,
            selected,
            last: None,
        }
    }

    /// Takes a sample. While the screen is paused it is only kept, so that the first interval afterwards is no longer than others.
    pub(super) fn take(&mut self, sample: Sample) {
        if !self.is_paused {
            self.trouble = trouble(&sample);
            self.show(&sample);
        }
        self.last = Some(sample);
    }

    /// No sample could be taken.
    pub(super) fn fail(&mut self, why: String) {
        self.trouble = Some(why);
    }

    /// Performs the action of a key.
    pub(super) fn act(&mut self, action: Action) -> Flow {
        match action {
            Action::Leave if self.is_help_open => self.is_help_open = false,
            Action::Quit | Action::Leave => return Flow::Quit,
            Action::Move(by) => {
                let place = self.selected_place().unwrap_or(0);
                self.select(place.saturating_add_signed(by));
            }
            Action::First => self.select(0),
            Action::Last => self.select(usize::MAX),
            Action::Panel => {
                self.is_panel_open = !self.is_panel_open;
                // The panel stays with its process.
                self.select(self.selected_place().unwrap_or(0));
            }
            Action::NextColumn => self.sort_by(self.sort.next()),
            Action::PreviousColumn => self.sort_by(self.sort.previous()),
            Action::Pause => self.is_paused = !self.is_paused,
            Action::Help => self.is_help_open = !self.is_help_open,
            Action::LongerInterval => {
                let longer = INTERVALS.into_iter().find(|it| *it > self.interval);
                self.interval = longer.unwrap_or(self.interval);
            }
            Action::ShorterInterval => {
                let shorter = INTERVALS.into_iter().rev().find(|it| *it < self.interval);
                self.interval = shorter.unwrap_or(self.interval);
            }
        }
        Flow::GoOn
    }

    /// The place of the selected process in the table; none if the table is empty.
    pub(super) fn selected_place(&self) -> Option<usize> {
        let place = self.rows.iter().position(|row| Some(row.identity) == self.selected);
        place.or_else(|| (!self.rows.is_empty()).then_some(0))
    }

    /// The selected process.
    pub(super) fn selected_row(&self) -> Option<&Row> {
        self.rows.get(self.selected_place()?)
    }

    /// The process whose recent calls are shown.
    pub(super) fn watched(&self) -> Option<Identity> {
        self.selected_row().filter(|_| self.is_panel_open).map(|row| row.identity)
    }

    fn select(&mut self, place: usize) {
        let last = self.rows.len().saturating_sub(1);
        self.selected = self.rows.get(place.min(last)).map(|row| row.identity);
    }

    fn sort_by(&mut self, column: Column) {
        self.sort = column;
        self.rows.sort_by(|one, other| column.compare(one, other));
    }

    fn show(&mut self, sample: &Sample) {
        let place = self.selected_place();
        let before = self.last.take();
        let seconds = before.as_ref().and_then(|before| seconds(before, sample));
        let earlier = before.as_ref().unwrap_or(sample);
        let change = Change::between(&earlier.counters, &sample.counters);
        let mut all = Rates::default();
        for it in &change.processes {
            let identity = it.process.identity();
            let seconds = seconds.filter(|_| !it.is_new);
            if let Some(seconds) = seconds {
                all = all.plus(&Rates::of(&it.grown, seconds));
            }
            let user = sample.usage.get(&identity).map(|usage| &*usage.user);
            let cpu = seconds.and_then(|seconds| cpu(earlier, sample, identity, seconds));
            match self.rows.iter_mut().find(|row| row.identity == identity) {
                Some(row) => row.take(it, user, cpu, seconds),
                None if it.process.alive == Some(false) => {} // It had ended before it was seen.
                None => self.rows.push(Row::new(&it.process, user)),
            }
        }
        for row in &mut self.rows {
            let recorded = sample.recorded.as_ref().filter(|(of, _)| *of == row.identity);
            row.recorded = recorded.map(|(_, recorded)| recorded.clone());
        }
        self.end_missing(sample);
        self.sort_by(self.sort);
        if self.selected.is_some_and(|it| self.rows.iter().all(|row| row.identity != it)) {
            self.select(place.unwrap_or(0));
        }
        self.host = HostLine {
            cpus: sample.host.cpus,
            busy: busy(earlier, sample),
            load: sample.host.load,
            processes: self.rows.iter().filter(|row| !row.has_ended()).count(),
            rates: seconds.map(|_| all),
        };
    }

    /// Marks processes without a file as ended. Ended processes leave the table after a while.
    fn end_missing(&mut self, sample: &Sample) {
        let unreadable = |name: &ProcessName| (name.pid, name.ticks, name.namespace);
        let is_there = |row: &Row| {
            let mut listed = sample.counters.processes.iter().map(|it| it.identity());
            let mut unreadable = sample.unreadable.iter().map(|(name, _)| unreadable(name));
            listed.any(|it| it == row.identity) || unreadable.any(|it| it == row.identity)
        };
        self.rows.iter_mut().filter(|row| !is_there(row)).for_each(Row::end);
        self.rows.retain(|row| !matches!(row.state, Liveness::Ended(ago) if ago > ENDED_INTERVALS));
    }
}

/// Which part of a CPU a process used between two samples.
fn cpu(before: &Sample, after: &Sample, process: Identity, seconds: f64) -> Option<f64> {
    let (before, after) = (before.usage.get(&process)?, after.usage.get(&process)?);
    Some(after.cpu.saturating_sub(before.cpu).as_secs_f64() / seconds)
}

/// None if there was no time between two samples.
fn seconds(before: &Sample, after: &Sample) -> Option<f64> {
    let seconds = after.at.saturating_sub(before.at).as_secs_f64();
    (seconds > 0.0).then_some(seconds)
}

/// Which part of the time of all CPUs was not idle.
#[expect(clippy::cast_precision_loss, reason = "a share for people")]
fn busy(before: &Sample, after: &Sample) -> Option<f64> {
    let ((busy_before, all_before), (busy, all)) = (before.host.ticks?, after.host.ticks?);
    let all = all.saturating_sub(all_before);
    (all > 0).then(|| busy.saturating_sub(busy_before) as f64 / all as f64)
}

fn trouble(sample: &Sample) -> Option<String> {
    let (process, why) = sample.unreadable.first()?;
    let others = match sample.unreadable.len() - 1 {
        0 => String::new(),
        1 => " (and 1 other)".to_owned(),
        count => format!(" (and {count} others)"),
    };
    Some(format!("the counters of process {} are omitted: {why}{others}", process.pid))
}

/// Intervals for which a process stays in the table after it has ended.
const ENDED_INTERVALS: u32 = 10;

/// Intervals that the keys choose from.
const INTERVALS: [Duration; 9] = [
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::script::{ended, process, sample};

    fn model() -> Model {
        Model::new(Duration::from_secs(1), None)
    }

    fn pids(model: &Model) -> Vec<u32> {
        model.rows.iter().map(|row| row.identity.0).collect()
    }

    fn calls(model: &Model, pid: u32) -> Option<f64> {
        model.rows.iter().find(|row| row.identity.0 == pid)?.rates.map(|rates| rates.calls)
    }

    #[test]
    fn the_second_sample_has_rates_and_sorts_by_calls() {
        let mut model = model();
        model.take(sample(0.0, [process(1, &[("protocol.calls", 100)]), process(2, &[])]));
        assert_eq!((pids(&model), calls(&model, 1), model.host.rates), (vec![1, 2], None, None));
        let counted = [("protocol.calls", 160)];
        model.take(sample(2.0, [process(1, &counted), process(2, &counted)]));
        assert_eq!((calls(&model, 2), calls(&model, 1)), (Some(80.0), Some(30.0)));
        assert_eq!(pids(&model), [2, 1]);
        assert_eq!(model.host.rates.map(|it| it.calls), Some(110.0));
        assert_eq!(model.host.processes, 2);
    }

    #[test]
    fn a_process_that_appears_has_rates_one_interval_later() {
        let mut model = model();
        model.take(sample(0.0, []));
        model.take(sample(1.0, [process(7, &[("protocol.calls", 1_000)])]));
        assert_eq!((pids(&model), calls(&model, 7)), (vec![7], None));
        assert_eq!(model.host.rates.map(|it| it.calls), Some(0.0));
        model.take(sample(2.0, [process(7, &[("protocol.calls", 1_005)])]));
        assert_eq!(calls(&model, 7), Some(5.0));
    }

    #[test]
    fn a_process_that_ends_stays_for_some_intervals() {
        let mut model = model();
        model.take(sample(0.0, [process(1, &[]), process(2, &[]), ended(3)]));
        assert_eq!(pids(&model), [1, 2]); // The third had ended before.
        for second in 1..=11 {
            // The file of one ended process stays, the file of the other one is removed.
            model.take(sample(f64::from(second), [ended(1)]));
            assert!(model.rows.iter().all(Row::has_ended) && model.rows.len() == 2, "{second}");
            assert_eq!(model.host.processes, 0);
        }
        model.take(sample(12.0, [ended(1)]));
        assert_eq!(pids(&model), Vec::<u32>::new());
    }

    #[test]
    fn a_process_with_an_unreadable_file_has_not_ended() {
        let mut model = model();
        model.take(sample(0.0, [process(1, &[])]));
        let mut unreadable = sample(1.0, []);
        let name = ProcessName { pid: 1, ticks: 0, namespace: 0 };
        unreadable.unreadable = vec![(name, "too long".to_owned())];
        model.take(unreadable);
        assert!(!model.rows[0].has_ended());
        let trouble = model.trouble.as_deref();
        assert_eq!(trouble, Some("the counters of process 1 are omitted: too long"));
        model.take(sample(2.0, [process(1, &[])]));
        assert_eq!(model.trouble, None);
    }

    #[test]
    fn the_selection_stays_with_its_process() {
        let mut model = model();
        let all = |calls: [u64; 3]| {
            [1, 2, 3].map(|pid| process(pid, &[("protocol.calls", calls[pid as usize - 1])]))
        };
        model.take(sample(0.0, all([0, 0, 0])));
        model.act(Action::Move(1));
        assert_eq!(model.selected_row().map(|row| row.identity.0), Some(2));
        model.take(sample(1.0, all([5, 1, 9])));
        assert_eq!((pids(&model), model.selected_place()), (vec![3, 1, 2], Some(2)));
        model.act(Action::Move(5));
        assert_eq!(model.selected_place(), Some(2));
        model.act(Action::Move(-9));
        assert_eq!(model.selected_row().map(|row| row.identity.0), Some(3));
    }

    #[test]
    fn without_a_selection_the_first_row_is_it() {
        let mut model = model();
        assert_eq!(model.selected_place(), None);
        model.act(Action::Move(1));
        model.act(Action::Panel);
        model.act(Action::Panel);
        model.take(sample(0.0, [process(1, &[]), process(2, &[])]));
        model.take(sample(1.0, [process(1, &[]), process(2, &[("protocol.calls", 1)])]));
        assert_eq!(model.selected_row().map(|row| row.identity.0), Some(2));
        model.act(Action::Panel);
        model.take(sample(2.0, [process(1, &[("protocol.calls", 9)]), process(2, &[])]));
        assert_eq!(model.selected_row().map(|row| row.identity.0), Some(2));
    }

    #[test]
    fn a_pause_shows_nothing_new_and_is_no_interval() {
        let mut model = model();
        let at = |second, calls| sample(second, [process(1, &[("protocol.calls", calls)])]);
        model.take(at(0.0, 0));
        model.take(at(1.0, 10));
        model.act(Action::Pause);
        model.take(at(2.0, 1_000));
        assert_eq!(calls(&model, 1), Some(10.0));
        model.act(Action::Pause);
        model.take(at(3.0, 1_003));
        assert_eq!(calls(&model, 1), Some(3.0));
    }

    #[test]
    fn warnings_stay_for_ten_intervals() {
        let mut model = model();
        let at = |second, resends| {
            sample(f64::from(second), [process(1, &[("protocol.resends_sent", resends)])])
        };
        model.take(at(0, 5));
        assert!(model.rows[0].warnings.is_empty());
        model.take(at(1, 8));
        for second in 2..=10 {
            model.take(at(second, 8));
            let warnings = &model.rows[0].warnings;
            assert_eq!(warnings[..], ["packets are lost or late: protocol.resends_sent +3"]);
        }
        model.take(at(11, 8));
        assert!(model.rows[0].warnings.is_empty());
    }

    #[test]
    fn cpu_time_is_a_share_of_the_interval() {
        let mut model = model();
        let at = |second: f64, cpu| {
            let mut sample = sample(second, [process(1, &[])]);
            sample.usage.get_mut(&(1, 0, 0)).unwrap().cpu = Duration::from_millis(cpu);
            sample.host.ticks = Some((cpu, 2 * cpu));
            sample
        };
        model.take(at(0.0, 100));
        model.take(at(2.0, 3_100));
        assert_eq!((model.rows[0].cpu, model.host.busy), (Some(1.5), Some(0.5)));
        assert_eq!(model.rows[0].user.as_deref(), Some("alice"));
    }

    #[test]
    fn keys_sort_and_change_the_interval() {
        let mut model = model();
        let both = [process(1, &[("protocol.calls", 9)]), process(2, &[("protocol.requests", 9)])];
        model.take(sample(0.0, [process(1, &[]), process(2, &[])]));
        model.take(sample(1.0, both));
        assert_eq!(pids(&model), [1, 2]);
        model.act(Action::NextColumn);
        assert_eq!((model.sort, pids(&model)), (Column::Requests, vec![2, 1]));
        model.act(Action::PreviousColumn);
        assert_eq!((model.sort, pids(&model)), (Column::Calls, vec![1, 2]));
        model.act(Action::LongerInterval);
        assert_eq!(model.interval, Duration::from_secs(2));
        for _ in 0..20 {
            model.act(Action::ShorterInterval);
        }
        assert_eq!(model.interval, Duration::from_millis(100));
        for _ in 0..20 {
            model.act(Action::LongerInterval);
        }
        assert_eq!(model.interval, Duration::from_secs(60));
    }

    #[test]
    fn escape_closes_the_help_first() {
        let mut model = model();
        assert_eq!(model.act(Action::Help), Flow::GoOn);
        assert_eq!((model.act(Action::Leave), model.is_help_open), (Flow::GoOn, false));
        assert_eq!(model.act(Action::Leave), Flow::Quit);
        assert_eq!(model.act(Action::Quit), Flow::Quit);
    }
}
