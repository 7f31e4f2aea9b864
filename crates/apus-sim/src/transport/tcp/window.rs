//! The congestion window: NewReno, CUBIC with HyStart++, DCTCP.

/// Packets of the initial window (RFC 6928).
const INITIAL: f64 = 10.0;
/// Least window after a loss or a mark, in packets, as in Linux.
const LEAST: f64 = 2.0;
/// DCTCP's weight of a new estimate (RFC 8257 section 4.2).
const DCTCP_GAIN: f64 = 1.0 / 16.0;
/// CUBIC's constant C (RFC 9438 section 5).
const CUBIC_C: f64 = 0.4;
/// CUBIC's multiplicative decrease (RFC 9438 section 5).
const CUBIC_BETA: f64 = 0.7;
/// HyStart++: samples of a round before it counts, and rounds of conservative slow start (RFC 9406 section 4.3).
const HYSTART_SAMPLES: u32 = 8;
const CSS_ROUNDS: u32 = 5;
/// HyStart++: the growth of conservative slow start (RFC 9406 section 4.3).
const CSS_GROWTH: f64 = 0.25;
/// HyStart++: bounds on the growth of the round trip that ends slow start. RFC 9406 has 4 and 16 ms, which the queues of a
/// datacenter never reach; these are a thousandth of them.
const RISE_MIN_PS: u64 = 4_000_000;
const RISE_MAX_PS: u64 = 16_000_000;

/// The variant of TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flavour {
    NewReno,
    Cubic,
    Dctcp,
}

/// A packet's acknowledgement, as the window sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckedPacket {
    pub(super) now: u64,
    /// Time at which the packet was sent.
    pub(super) sent: u64,
    /// Smoothed round trip, in ps.
    pub(super) smoothed: f64,
    pub(super) is_marked: bool,
}

/// The window of one connection, in packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct CongestionWindow {
    flavour: Flavour,
    packets: f64,
    threshold: f64,
    /// Time of the last reduction. Packets sent before it neither grow the window nor reduce it again (as RFC 9002 section 7.3.2).
    reduced_at: Option<u64>,
    cubic: CubicCurve,
    hystart: HyStart,
    marks: MarkedShare,
}

impl CongestionWindow {
    pub(super) fn new(flavour: Flavour) -> Self {
        Self {
            flavour,
            packets: INITIAL,
            threshold: f64::INFINITY,
            reduced_at: None,
            cubic: CubicCurve::default(),
            hystart: HyStart::default(),
            marks: MarkedShare::default(),
        }
    }

    /// Whether a connection with this number of packets in flight may send another one.
    pub(super) fn has_room(&self, in_flight: usize) -> bool {
        (in_flight as f64) < self.packets
    }

    /// A packet was acknowledged for the first time.
    pub(super) fn on_ack(&mut self, acked: AckedPacket) {
        let is_old = self.reduced_at.is_some_and(|at| acked.sent <= at);
        if self.flavour == Flavour::Dctcp {
            let share = self.marks.note(acked);
            if acked.is_marked && !is_old {
                self.packets = (self.packets * (1.0 - share / 2.0)).max(LEAST);
                self.threshold = self.packets;
                self.reduced_at = Some(acked.now);
                return;
            }
        }
        if is_old {
            return;
        }
        if self.packets >= self.threshold {
            self.packets += match self.flavour {
                Flavour::Cubic => self.cubic.step(self.packets, acked),
                Flavour::NewReno | Flavour::Dctcp => 1.0 / self.packets,
            };
            return;
        }
        let growth =
            if self.flavour == Flavour::Cubic { self.hystart.growth(acked) } else { Some(1.0) };
        match growth {
            Some(packets) => self.packets += packets,
            None => self.threshold = self.packets,
        }
    }

    /// A packet that was sent at `sent` is lost. Returns whether the window was reduced for it.
    pub(super) fn on_loss(&mut self, now: u64, sent: u64) -> bool {
        if self.reduced_at.is_some_and(|at| sent <= at) {
            return false;
        }
        self.reduce(now);
        self.packets = self.threshold;
        true
    }

    /// All packets in flight are taken for lost (RFC 5681 section 3.1).
    pub(super) fn on_timeout(&mut self, now: u64) {
        self.reduce(now);
        self.packets = 1.0;
    }

    fn reduce(&mut self, now: u64) {
        let beta = if self.flavour == Flavour::Cubic { CUBIC_BETA } else { 0.5 };
        self.threshold = (self.packets * beta).max(LEAST);
        self.reduced_at = Some(now);
        self.cubic.on_loss(self.packets);
        self.hystart = HyStart::default();
    }
}

/// CUBIC's curve (RFC 9438 section 4.2).
#[derive(Clone, Copy, Debug, Default)]
struct CubicCurve {
    /// Window at the last loss.
    max: f64,
    /// Time at which the window began to grow after it, and its size then.
    epoch: Option<(u64, f64)>,
}

impl CubicCurve {
    fn on_loss(&mut self, window: f64) {
        // Fast convergence (RFC 9438 section 4.7).
        let gives_way = window < self.max;
        self.max = if gives_way { window * (1.0 + CUBIC_BETA) / 2.0 } else { window };
        self.epoch = None;
    }

    /// Growth for one acknowledged packet: never slower than NewReno's (RFC 9438 section 4.3).
    fn step(&mut self, window: f64, acked: AckedPacket) -> f64 {
        let (began, first) = *self.epoch.get_or_insert((acked.now, window));
        let max = self.max.max(first);
        let elapsed = (acked.now - began) as f64 / 1e12 + acked.smoothed / 1e12;
        let offset = elapsed - cube_root((max - first) / CUBIC_C);
        let target = CUBIC_C * offset * offset * offset + max;
        ((target - window) / window).clamp(1.0 / window, 0.5)
    }
}

/// HyStart++ (RFC 9406): ends slow start when round trips grow.
#[derive(Clone, Copy, Debug)]
struct HyStart {
    /// Time at which the round began: it ends with the first acknowledgement of a packet sent later.
    began: u64,
    /// Least round trip of the last round and of this one, in ps.
    last_min: u64,
    least: u64,
    samples: u32,
    /// Conservative slow start: the round trip that it began with, and its rounds.
    conservative: Option<(u64, u32)>,
}

impl Default for HyStart {
    fn default() -> Self {
        Self { began: 0, last_min: u64::MAX, least: u64::MAX, samples: 0, conservative: None }
    }
}

impl HyStart {
    /// Growth of the window for one acknowledged packet, in packets; `None` ends slow start.
    fn growth(&mut self, acked: AckedPacket) -> Option<f64> {
        if acked.sent >= self.began {
            (self.began, self.last_min, self.least) = (acked.now, self.least, u64::MAX);
            self.samples = 0;
            if let Some((_, rounds)) = &mut self.conservative {
                *rounds += 1;
                if *rounds > CSS_ROUNDS {
                    return None;
                }
            }
        }
        self.least = self.least.min(acked.now - acked.sent);
        self.samples += 1;
        if self.samples >= HYSTART_SAMPLES {
            self.conservative = match self.conservative {
                None => {
                    let rise = (self.last_min / 8).clamp(RISE_MIN_PS, RISE_MAX_PS);
                    let grows = self.least >= self.last_min.saturating_add(rise);
                    grows.then_some((self.least, 0))
                }
                Some((baseline, rounds)) => (self.least >= baseline).then_some((baseline, rounds)),
            };
        }
        Some(if self.conservative.is_some() { CSS_GROWTH } else { 1.0 })
    }
}

/// DCTCP's estimate of the share of marked packets (RFC 8257 section 3.3).
#[derive(Clone, Copy, Debug)]
struct MarkedShare {
    share: f64,
    /// Time at which the round began.
    began: u64,
    acked: u32,
    marked: u32,
}

impl Default for MarkedShare {
    /// The share begins at 1 (`dctcp_alpha_on_init` of Linux), so that the first mark halves the window.
    fn default() -> Self {
        Self { share: 1.0, began: 0, acked: 0, marked: 0 }
    }
}

impl MarkedShare {
    /// Notes a packet. Returns the share of marked packets in the rounds before.
    fn note(&mut self, acked: AckedPacket) -> f64 {
        if acked.sent >= self.began {
            if self.acked > 0 {
                let last = f64::from(self.marked) / f64::from(self.acked);
                self.share += (last - self.share) * DCTCP_GAIN;
            }
            (self.began, self.acked, self.marked) = (acked.now, 0, 0);
        }
        self.acked += 1;
        self.marked += u32::from(acked.is_marked);
        self.share
    }
}

/// Cube root by Newton's method, which is the same on every machine.
fn cube_root(x: f64) -> f64 {
    let mut root = x.clamp(1e-9, 1e9).sqrt().max(1e-3);
    for _ in 0..40 {
        root -= (root * root * root - x) / (3.0 * root * root);
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: u64 = 10_000_000;

    /// Acknowledges a window of packets; returns the time after it.
    fn round(window: &mut CongestionWindow, sent: u64, took: u64, is_marked: bool) -> u64 {
        for number in 0..window.packets as u64 {
            let sent = sent + number;
            let smoothed = took as f64;
            window.on_ack(AckedPacket { now: sent + took, sent, smoothed, is_marked });
        }
        sent + took + 1_000
    }

    #[test]
    fn cube_roots() {
        for x in [0.001, 1.0, 8.0, 27.0, 1_000.0] {
            let root = cube_root(x);
            assert!((root * root * root / x - 1.0).abs() < 1e-9, "{x}: {root}");
        }
    }

    #[test]
    fn a_window_is_reduced_once_for_the_packets_of_a_round_trip() {
        for (flavour, after) in [(Flavour::NewReno, 5.0), (Flavour::Cubic, 7.0)] {
            let mut window = CongestionWindow::new(flavour);
            assert!(window.on_loss(100, 50) && !window.on_loss(110, 60));
            assert_eq!(window.packets, after);
            window.on_ack(AckedPacket { now: 120, sent: 70, smoothed: 50.0, is_marked: false });
            assert_eq!(window.packets, after, "packets from before the loss do not grow it");
            assert!(window.on_loss(200, 150));
        }
    }

    #[test]
    fn the_first_mark_halves_the_window_of_dctcp_and_rare_marks_take_little() {
        let mut window = CongestionWindow::new(Flavour::Dctcp);
        let mut at = round(&mut window, 1_000, ROUND_TRIP, false);
        let before = window.packets;
        at = round(&mut window, at, ROUND_TRIP, true);
        assert!((0.45..0.60).contains(&(window.packets / before)), "{before}: {window:?}");
        for _ in 0..60 {
            at = round(&mut window, at, ROUND_TRIP, false);
        }
        let before = window.packets;
        let smoothed = ROUND_TRIP as f64;
        window.on_ack(AckedPacket { now: at + ROUND_TRIP, sent: at, smoothed, is_marked: true });
        assert!(window.packets > 0.97 * before, "{before}: {window:?}");
    }

    #[test]
    fn slow_start_of_cubic_ends_when_round_trips_grow() {
        let grown = |rise: u64| {
            let mut window = CongestionWindow::new(Flavour::Cubic);
            let mut at = 1_000;
            for number in 0..9 {
                at = round(&mut window, at, ROUND_TRIP + number * rise, false);
            }
            window
        };
        assert!(grown(0).threshold.is_infinite() && grown(0).packets > 2_000.0, "{:?}", grown(0));
        let ended = grown(6_000_000);
        assert!(ended.threshold.is_finite() && ended.packets < 100.0, "{ended:?}");
    }
}
