//! Calls are executed once at most, whatever is repeated.

mod increments;

use increments::Run;

#[test]
fn restarts_drains_and_loss_execute_nothing_twice() {
    let run = Run { calls: 3_000, callers: 4, servers: 3, restarts: 8, loss: 0.05, seed: 1 };
    let counts = run.count();
    assert!(counts.are_right(), "{counts:?}");
    assert_eq!(counts.acknowledged + counts.uncertain + counts.not_executed, run.calls);
    assert_eq!(counts.restarts, run.restarts);
    assert!(counts.moved > 0, "{counts:?}");
    assert!(counts.acknowledged > run.calls * 9 / 10, "{counts:?}");
}
