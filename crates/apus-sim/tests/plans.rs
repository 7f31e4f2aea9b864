//! Every shipped simulation plan can be read.

use std::fs;
use std::path::Path;

use apus_sim::sweep;

#[test]
fn all_plans_read() {
    let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plans");
    let mut seen = 0;
    for entry in fs::read_dir(plans).expect("the plans are part of the repository") {
        let path = entry.expect("readable").path();
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        if name.starts_with("sim-") {
            let text = fs::read_to_string(&path).expect("readable");
            let points = sweep::points(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(!points.is_empty(), "{name}");
            seen += 1;
        }
    }
    assert!(seen >= 9, "{seen} plans");
}
