//! Whole screens.

use std::time::Duration;

use expect_test::{Expect, expect};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::{Color, Modifier};

use super::{Look, draw, text};
use crate::counters::Process;
use crate::top::keys::Action;
use crate::top::model::Model;
use crate::top::recorded::{PeerTraffic, Recorded};
use crate::top::script::{ended, process, sample};

const SERVER: [(&str, u64); 14] = [
    ("delivery.handoffs", 2_500),
    ("delivery.messages", 10_000),
    ("delivery.polling_ns", 300_000_000),
    ("delivery.sleeping_ns", 700_000_000),
    ("link.bytes_received", 12_500_000),
    ("link.bytes_sent", 1_250_000),
    ("link.receive_buffer_drops", 12),
    ("protocol.packets_received", 20_000),
    ("protocol.packets_sent", 15_000),
    ("protocol.priority0_bytes", 1_000_000),
    ("protocol.priority7_bytes", 250_000),
    ("protocol.received_bytes_to_1048576", 9_000_000),
    ("protocol.requests", 10_000),
    ("protocol.sent_bytes_to_64", 640_000),
];

/// A server, its client, and a process that ended, after one second.
fn model() -> Model {
    let mut model = Model::new(Duration::from_secs(1), None);
    let mut first = sample(0.0, [1, 2, 3].map(|pid| process(pid, &[])));
    first.host.ticks = Some((0, 0));
    model.take(first);
    let client: Process = process(2, &[("protocol.calls", 1_234_567), ("memory.bytes_sent", 99)]);
    let mut second = sample(1.0, [process(1, &SERVER), client, ended(3)]);
    second.host.cpus = Some(2);
    second.host.load = Some([0.5, 0.25, 0.125]);
    second.host.ticks = Some((43, 100));
    model.take(second);
    model
}

fn check(model: &Model, width: u16, height: u16, expected: &Expect) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let look = Look { colours: true };
    terminal.draw(|frame| draw(model, look, frame.area(), frame.buffer_mut())).unwrap();
    expected.assert_eq(&terminal.backend().to_string());
}

#[test]
fn a_screen_of_80_columns() {
    check(
        &model(),
        80,
        14,
        &expect![[r#"
        "apus top every 1s · 2 CPUs 43 % busy · load 0.50 0.25 0.12 · 2 processes        "
        "calls/s 1.23M   requests/s 10000   Mbit/s in 100   out 10.0   drops/s 12.0      "
        "                                                                                "
        "    pid program         calls/s requests/s Mbit/s in      out CPU % drops/s warn"
        "      2 program-2         1.23M          0         0        0     0       0     "
        "      1 program-1             0      10000       100     10.0     0    12.0    1"
        "      3 program-3         ended                                                 "
        "                                                                                "
        "warning: 1: the receive buffer is too small for the bursts (setting             "
        "receive_buffer, net.core.rmem_max): link.receive_buffer_drops +12               "
        "                                                                                "
        "                                                                                "
        "                                                                                "
        "q quit  ↑↓ select  Enter open  s sort: calls/s  p pause  +/- interval  ? help   "
    "#]],
    );
}

#[test]
fn a_screen_of_120_columns() {
    check(
        &model(),
        120,
        12,
        &expect![[r#"
        "apus top every 1s · 2 CPUs 43 % busy · load 0.50 0.25 0.12 · 2 processes                                                "
        "calls/s 1.23M   requests/s 10000   Mbit/s in 100   out 10.0   drops/s 12.0                                              "
        "                                                                                                                        "
        "    pid program         user     calls/s requests/s Mbit/s in      out packets/s poll/sleep wakes/msg CPU % drops/s warn"
        "      2 program-2       alice      1.23M          0         0        0         0          -         -     0       0     "
        "      1 program-1       alice          0      10000       100     10.0     35000      30/70      0.25     0    12.0    1"
        "      3 program-3       alice      ended                                                                                "
        "                                                                                                                        "
        "warning: 1: the receive buffer is too small for the bursts (setting receive_buffer, net.core.rmem_max):                 "
        "link.receive_buffer_drops +12                                                                                           "
        "                                                                                                                        "
        "q quit  ↑↓ select  Enter open  s sort: calls/s  p pause  +/- interval  ? help                                           "
    "#]],
    );
}

#[test]
fn the_panel() {
    let mut model = model();
    model.act(Action::Move(1));
    model.act(Action::Panel);
    check(
        &model,
        80,
        24,
        &expect![[r#"
        "apus top every 1s · 2 CPUs 43 % busy · load 0.50 0.25 0.12 · 2 processes        "
        "calls/s 1.23M   requests/s 10000   Mbit/s in 100   out 10.0   drops/s 12.0      "
        "                                                                                "
        "    pid program         calls/s requests/s Mbit/s in      out CPU % drops/s warn"
        "      2 program-2         1.23M          0         0        0     0       0     "
        "      1 program-1             0      10000       100     10.0     0    12.0    1"
        "      3 program-3         ended                                                 "
        "                                                                                "
        "program-1 (pid 1) · Apus 0.1.0 · runs · user alice                              "
        "waiting threads polled 30 % and slept 70 % · 0.25 wake-ups per message          "
        "warning: the receive buffer is too small for the bursts (setting receive_buffer,"
        "net.core.rmem_max): link.receive_buffer_drops +12                               "
        "                                                                                "
        "counter                               per s  message B/s       in     out       "
        "link.bytes_received                  12.50M  to 64 B            0  640000 ▌     "
        "link.bytes_sent                       1.25M  to 1 MiB       9.00M       0 ██████"
        "protocol.packets_received             20000  priority B/s     out               "
        "protocol.packets_sent                 15000  priority 7    250000 ███▌          "
        "delivery.messages                     10000  priority 0     1.00M ██████████████"
        "protocol.requests                     10000                                     "
        "delivery.handoffs                      2500                                     "
        "link.receive_buffer_drops              12.0                                     "
        "                                                                                "
        "q quit  ↑↓ select  Enter close  s sort: calls/s  p pause  +/- interval  ? help  "
    "#]],
    );
    check(
        &model,
        120,
        24,
        &expect![[r#"
        "apus top every 1s · 2 CPUs 43 % busy · load 0.50 0.25 0.12 · 2 processes                                                "
        "calls/s 1.23M   requests/s 10000   Mbit/s in 100   out 10.0   drops/s 12.0                                              "
        "                                                                                                                        "
        "    pid program         user     calls/s requests/s Mbit/s in      out packets/s poll/sleep wakes/msg CPU % drops/s warn"
        "      2 program-2       alice      1.23M          0         0        0         0          -         -     0       0     "
        "      1 program-1       alice          0      10000       100     10.0     35000      30/70      0.25     0    12.0    1"
        "      3 program-3       alice      ended                                                                                "
        "                                                                                                                        "
        "program-1 (pid 1) · Apus 0.1.0 · runs · user alice                                                                      "
        "waiting threads polled 30 % and slept 70 % · 0.25 wake-ups per message                                                  "
        "warning: the receive buffer is too small for the bursts (setting receive_buffer, net.core.rmem_max):                    "
        "link.receive_buffer_drops +12                                                                                           "
        "                                                                                                                        "
        "counter                               per s  message B/s       in     out                  priority B/s     out         "
        "link.bytes_received                  12.50M  to 64 B            0  640000 █▏               priority 7    250000 ██      "
        "link.bytes_sent                       1.25M  to 1 MiB       9.00M       0 ███████████████  priority 0     1.00M ████████"
        "protocol.packets_received             20000                                                                             "
        "protocol.packets_sent                 15000                                                                             "
        "delivery.messages                     10000                                                                             "
        "protocol.requests                     10000                                                                             "
        "delivery.handoffs                      2500                                                                             "
        "link.receive_buffer_drops              12.0                                                                             "
        "                                                                                                                        "
        "q quit  ↑↓ select  Enter close  s sort: calls/s  p pause  +/- interval  ? help                                          "
    "#]],
    );
}

#[test]
fn recent_calls_in_the_panel() {
    let mut model = model();
    model.act(Action::Panel);
    let mut third = sample(2.0, [process(2, &[("protocol.calls", 1_234_667)])]);
    let peers = vec![PeerTraffic { pair: 0x324e_9d85, messages: 24, bytes: 1_536 }];
    let (p50, p99) = (Duration::from_nanos(8_120), Duration::from_micros(1_250));
    third.recorded = Some(((2, 0, 0), Recorded { calls: 12, p50, p99, peers }));
    model.take(third);
    check(
        &model,
        80,
        19,
        &expect![[r#"
        "apus top every 1s · 1 process                                                   "
        "calls/s 100   requests/s 0   Mbit/s in 0   out 0   drops/s 0                    "
        "                                                                                "
        "    pid program         calls/s requests/s Mbit/s in      out CPU % drops/s warn"
        "      2 program-2           100          0         0        0     0       0     "
        "      1 program-1         ended                                                1"
        "      3 program-3         ended                                                 "
        "                                                                                "
        "program-2 (pid 2) · Apus 0.1.0 · runs · user alice                              "
        "no wait of a thread ended · no messages                                         "
        "p50 8.12 µs · p99 1.25 ms of 12 recorded calls in 10 s                          "
        "                                                                                "
        "counter                               per s  message B/s       in     out       "
        "protocol.calls                          100  no complete message                "
        "                                             recorded B      both               "
        "                                             pair 324e9d85    1536 █████████████"
        "                                                                                "
        "                                                                                "
        "q quit  ↑↓ select  Enter close  s sort: calls/s  p pause  +/- interval  ? help  "
    "#]],
    );
    model.take(sample(3.0, [process(2, &[("protocol.calls", 1_234_667)])]));
    assert_eq!(model.selected_row().map(|row| row.recorded.is_none()), Some(true));
}

#[test]
fn the_help_fits_a_small_terminal() {
    let mut model = model();
    model.act(Action::Help);
    check(
        &model,
        80,
        24,
        &expect![[r#"
        "apus top every 1s · 2 CPUs 43 % busy · load 0.50 0.25 0.12 · 2 processes        "
        "calls/s 1.23M   requests/s 10000   Mbit/s in 100   out 10.0   drops/s 12.0      "
        "                                                                                "
        "q, Ctrl-C       quit                                                            "
        "Esc             close the help; without it, quit                                "
        "up, down, k, j  select a process; also PgUp, PgDn, Home, End                    "
        "Enter, Space    open or close the panel of the process                          "
        "s, S            sort by the next or the previous column                         "
        "p               pause, and go on                                                "
        "+, -            longer or shorter interval                                      "
        "?               this help                                                       "
        "                                                                                "
        "calls/s         started calls                                                   "
        "requests/s      requests passed to the application                              "
        "Mbit/s in       received from links and through shared memory                   "
        "out             sent, likewise                                                  "
        "packets/s       Homa packets sent and received                                  "
        "poll/sleep      shares of waiting time that threads polled and slept, in %      "
        "wakes/msg       wake-ups per message: 0 if polling finds every message          "
        "CPU %           of one CPU                                                      "
        "drops/s         packets and datagrams that were dropped                         "
        "warn            counters that should not move, in 10 intervals; Enter shows them"
        "                                                                                "
        "q quit  ↑↓ select  Enter open  s sort: calls/s  p pause  +/- interval  ? help   "
    "#]],
    );
}

#[test]
fn no_process_and_no_directory() {
    let mut model = Model::new(Duration::from_millis(500), None);
    model.fail("cannot read the counters of processes in '/nowhere': No such file".to_owned());
    model.act(Action::Pause);
    check(
        &model,
        60,
        10,
        &expect![[r#"
        "apus top PAUSED every 500ms · 0 processes                   "
        "                                                            "
        "                                                            "
        "No process publishes counters.                              "
        "                                                            "
        "                                                            "
        "                                                            "
        "cannot read the counters of processes in '/nowhere': No such"
        "file                                                        "
        "q quit  ↑↓ select  Enter open  s sort: calls/s  p pause  +/-"
    "#]],
    );
}

#[test]
fn a_terminal_that_is_too_small_shows_what_fits() {
    let mut model = model();
    model.act(Action::Panel);
    for (width, height) in [(1, 1), (20, 3), (10, 30), (200, 2), (43, 8), (45, 9)] {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let look = Look { colours: true };
        terminal.draw(|frame| draw(&model, look, frame.area(), frame.buffer_mut())).unwrap();
    }
}

#[test]
fn the_text_has_everything() {
    let mut model = model();
    let text_of = text(&model, 120);
    expect![[r#"
        apus top every 1s · 2 CPUs 43 % busy · load 0.50 0.25 0.12 · 2 processes
        calls/s 1.23M   requests/s 10000   Mbit/s in 100   out 10.0   drops/s 12.0

            pid program         user     calls/s requests/s Mbit/s in      out packets/s poll/sleep wakes/msg CPU % drops/s warn
              2 program-2       alice      1.23M          0         0        0         0          -         -     0       0
              1 program-1       alice          0      10000       100     10.0     35000      30/70      0.25     0    12.0    1
              3 program-3       alice      ended

        warning: 1: the receive buffer is too small for the bursts (setting receive_buffer, net.core.rmem_max):
        link.receive_buffer_drops +12
    "#]].assert_eq(&text_of);
    model.act(Action::Move(1));
    model.act(Action::Panel);
    let text_of = text(&model, 80);
    for name in ["link.receive_buffer_drops", "protocol.packets_received", "to 1 MiB", "priority 7"]
    {
        assert!(text_of.contains(name), "no '{name}' in {text_of}");
    }
}

#[test]
fn the_name_of_a_program_cannot_take_over_the_terminal() {
    let mut model = Model::new(Duration::from_secs(1), Some((1, 0, 0)));
    let program = "a\x1b[31mb\nc".to_owned();
    model.take(sample(0.0, [Process { program, ..process(1, &[]) }]));
    let text_of = text(&model, 80);
    assert!(text_of.chars().all(|it| it == '\n' || !it.is_control()), "{text_of:?}");
    assert!(text_of.contains("(pid 1)"), "{text_of:?}");
}

#[test]
fn styles_need_no_colours() {
    for colours in [true, false] {
        let mut terminal = Terminal::new(TestBackend::new(120, 24)).unwrap();
        let mut model = model();
        model.act(Action::Move(1));
        model.act(Action::Panel);
        let look = Look { colours };
        terminal.draw(|frame| draw(&model, look, frame.area(), frame.buffer_mut())).unwrap();
        let cells = &terminal.backend().buffer().content;
        assert_eq!(cells.iter().any(|cell| cell.fg != Color::Reset), colours);
        for style in [Modifier::REVERSED, Modifier::DIM, Modifier::BOLD, Modifier::UNDERLINED] {
            assert!(cells.iter().any(|cell| cell.modifier.contains(style)), "{style:?}");
        }
    }
}
