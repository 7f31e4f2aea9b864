//! The programs whose instructions are counted.

use anyhow::Result;

use crate::program::{cargo, run};

/// Builds them all at once (`xtask/counted`), so that each check finds the crates as another one has built them.
///
/// # Errors
/// If cargo fails.
pub(crate) fn build() -> Result<()> {
    let mut build = cargo();
    build.args(["build", "--release", "--locked", "-p", "counted"]).env_remove("RUSTFLAGS");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CARGO_PROFILE_")) {
        build.env_remove(name);
    }
    run(&mut build)
}
