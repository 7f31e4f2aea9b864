//! The terminal: samples at intervals, keys and signals as they come.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::keys;
use super::model::{Flow, Model};
use super::sample::Reader;
use super::view::{self, Look};

/// An event for which the loop waits beside the time of the next sample.
enum Input {
    Terminal(Event),
    Signal(i32),
    /// Nothing comes from the terminal any more.
    Failed(io::Error),
}

/// Shows the screen until the user ends it. The terminal is as it was before afterwards, also after a panic. A signal ends the process
/// as it does without a handler, after the terminal was restored.
///
/// # Errors
/// When the terminal cannot be used.
pub(super) fn run(reader: &mut Reader, mut model: Model, look: Look) -> Result<()> {
    let inputs = inputs().context("cannot handle signals")?;
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let ended = watch(&mut terminal, &inputs, reader, &mut model, look);
    // The end of `terminal` would show the cursor, but a signal ends the process before.
    let cursor = terminal.show_cursor();
    let restored = ratatui::try_restore();
    if let Ok(End::Signal(signal)) = ended {
        emulate_default_handler(signal).context("cannot end by a signal")?;
    }
    ended?;
    cursor.and(restored).context("cannot restore the terminal")
}

/// Why the screen ends.
enum End {
    Quit,
    Signal(i32),
}

fn watch(
    terminal: &mut DefaultTerminal,
    inputs: &Receiver<Input>,
    reader: &mut Reader,
    model: &mut Model,
    look: Look,
) -> Result<End> {
    let start = Instant::now();
    // When the last sample was taken, and the longest time until the next. The second comes soon, because the first has no rates.
    let (mut taken, mut within) = (Duration::ZERO, Duration::ZERO);
    loop {
        let now = start.elapsed();
        if now >= taken + within.min(model.interval) {
            take(reader, model, now);
            taken = now;
            within = if within.is_zero() { FIRST_RATES_AFTER } else { Duration::MAX };
        }
        let draw = terminal.draw(|frame| view::draw(model, look, frame.area(), frame.buffer_mut()));
        draw.context("cannot draw to the terminal")?;
        let next = taken + within.min(model.interval);
        match inputs.recv_timeout(next.saturating_sub(start.elapsed())) {
            Ok(Input::Terminal(Event::Key(key))) => {
                if keys::action(key).map(|action| model.act(action)) == Some(Flow::Quit) {
                    return Ok(End::Quit);
                }
            }
            Ok(Input::Terminal(_)) | Err(RecvTimeoutError::Timeout) => {}
            Ok(Input::Signal(signal)) => return Ok(End::Signal(signal)),
            Ok(Input::Failed(error)) => return Err(error).context("cannot read the terminal"),
            Err(RecvTimeoutError::Disconnected) => anyhow::bail!("cannot read the terminal"),
        }
    }
}

fn take(reader: &mut Reader, model: &mut Model, now: Duration) {
    match reader.take(now, model.watched()) {
        Ok(sample) => model.take(sample),
        Err(error) => {
            let directory = reader.directory();
            model.fail(format!("cannot read the counters of processes in '{directory}': {error}"));
        }
    }
}

/// Waits for the terminal and for signals in threads of their own, which end with the process.
fn inputs() -> io::Result<Receiver<Input>> {
    let (sender, receiver) = mpsc::channel();
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let of_signals = sender.clone();
    thread::spawn(move || {
        for signal in signals.forever() {
            if of_signals.send(Input::Signal(signal)).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || read_terminal(&sender));
    Ok(receiver)
}

fn read_terminal(sender: &Sender<Input>) {
    loop {
        let (input, is_last) = match event::read() {
            Ok(event) => (Input::Terminal(event), false),
            Err(error) => (Input::Failed(error), true),
        };
        if sender.send(input).is_err() || is_last {
            return;
        }
    }
}

/// Time between the first two samples, if the interval is longer.
const FIRST_RATES_AFTER: Duration = Duration::from_millis(200);
