//! The programs whose instructions are counted.

use anyhow::Result;

use crate::program::{cargo, run};

/// Builds them all at once, so that each check finds the crates as another one has built them.
///
/// # Errors
/// If cargo fails.
pub(crate) fn build() -> Result<()> {
    let mut build = cargo();
    build.args(["build", "--release", "--locked", "-p", "apus-proto", "--example", "core_cost"]);
    build.args(["-p", "apus", "--example", "call_cost", "--example", "call_rate"]);
    build.args(["-p", "apus-rpc", "--example", "rpc_cost"]);
    build.args(["-p", "apus-capi", "--example", "c_call"]).env_remove("RUSTFLAGS");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CARGO_PROFILE_")) {
        build.env_remove(name);
    }
    run(&mut build)
}
