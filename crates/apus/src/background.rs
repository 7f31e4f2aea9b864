//! The background thread: the engine's interrupt. It keeps grants, retransmissions and other
//! sockets moving while no application thread does; [`crate::delivery`] says when that is.

use std::sync::Arc;
use std::time::Duration;

use crate::clock;
use crate::delivery::Step;
use crate::parker::Parker;
use crate::shared::Shared;

/// Runs until the node stops. `me` must be the calling thread's parker.
pub(crate) fn run(shared: &Shared, me: &Arc<Parker>) {
    loop {
        let mut engine = shared.lock_for_cleanup();
        if engine.stopped {
            return;
        }
        let now = clock::now();
        let last_turn = engine.last_turn;
        match engine.command.background_step(now, last_turn) {
            Step::Turn => {
                engine.counters.background_turns += 1;
                engine.turn(now);
                let due = engine.due(now);
                engine.command.background_doze(due);
                me.prepare();
                shared.unlock(engine);
                me.sleep_on(shared.descriptor, due.map(|due| due.saturating_since(now)));
            }
            Step::Park(timeout) => {
                me.prepare();
                shared.unlock(engine);
                me.park(Duration::ZERO, timeout);
            }
        }
    }
}
