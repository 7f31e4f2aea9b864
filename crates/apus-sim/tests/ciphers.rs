//! A run of the sealed campaign is the same with AES-128-GCM as with the fake cipher.
//!
//! Runs with `cargo test -p apus-sim --features aes --test ciphers`.

use apus_sim::check::{ScenarioSubset, log};

#[test]
fn a_run_does_not_depend_on_the_cipher() {
    let fake = ScenarioSubset { is_sealed: true, ..ScenarioSubset::default() };
    let real = ScenarioSubset { is_real: true, ..fake.clone() };
    for seed in (0..60).chain(1_000_000..1_000_060) {
        let (expected, found) = (log(seed, &fake), log(seed, &real));
        let differs = expected.iter().zip(&found).position(|(one, other)| one != other);
        assert_eq!(differs.map(|at| (&expected[at], &found[at])), None, "seed {seed}");
        assert_eq!(expected.len(), found.len(), "seed {seed}");
    }
}
