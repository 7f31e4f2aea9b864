//! The background thread: the engine's interrupt. It keeps grants, retransmissions and other
//! sockets moving while no application thread does; [`crate::delivery`] says when that is.

use std::sync::Arc;
use std::time::Duration;

use crate::delivery::BackgroundAction;
use crate::delivery::parker::{Parker, SleepKind};
use crate::engine::lock::Shared;
use crate::sync::clock;

/// Runs until the node stops. `me` must be the calling thread's parker.
pub(crate) fn run(shared: &Shared, me: &Arc<Parker>) {
    loop {
        let Ok(mut engine) = shared.enter() else { return };
        if engine.stopped {
            return;
        }
        let now = clock::now();
        let last_turn = engine.turns.last;
        match engine.leadership.background_action(now, last_turn) {
            BackgroundAction::Turn { forced } => {
                engine.counters.background_turns += 1;
                engine.counters.safety_turns += u64::from(forced);
                let received = engine.turn(now);
                if received > 0 && engine.leadership.defers() {
                    continue;
                }
                let kind = engine.leadership.sleep_kind();
                let until = engine.due(now).into_iter().chain(kind.until(now)).min();
                engine.leadership.background_sleeps(until);
                engine.counters.deferred_sleeps += u64::from(kind != SleepKind::Link);
                engine.turns.on_timer = kind != SleepKind::Link;
                me.prepare();
                drop(engine);
                let timeout = until.map(|until| until.saturating_since(now));
                me.sleep_as_leader(kind, shared.descriptors, timeout);
            }
            BackgroundAction::Guard(descriptor) => {
                me.prepare();
                drop(engine);
                me.sleep_as_leader(SleepKind::Link, descriptor, None);
            }
            BackgroundAction::Park(timeout) => {
                me.prepare();
                drop(engine);
                me.park(Duration::ZERO, || false, timeout);
            }
        }
    }
}
