//! Shows that apus-proto is pure state. The lints in `crates/apus-proto/clippy.toml` forbid clocks, threads, sockets and hash
//! order; this check covers the properties that a lint cannot see: dependencies, the places of unsafe code, and that of the
//! simulator's cipher.

use std::process::Command;

use anyhow::{Result, bail};

use crate::manifest::crates;
use crate::program::{cargo, output, read};

/// The dependencies of apus-proto.
const DEPENDENCIES: [&str; 6] =
    ["apus-metrics", "apus-wire", "bytes", "foldhash", "hashbrown", "siphasher"];

/// Crates with unsafe code. apus-irq has it for two ioctls and two socket options (`src/epoll.rs`), and for two ioctls of events
/// (`src/perf.rs`), none of which a library wraps. apus-capi takes the pointers of programs in C.
const UNSAFE: [&str; 6] =
    ["apus-capi", "apus-irq", "apus-net", "apus-preload", "apus-shm", "apus-trace"];

/// The name of the simulator's cipher, which keeps no secret, and the folder that may name it.
const FAKE_CIPHER: &str = "FakeAead";
const SIMULATOR: &str = "crates/apus-sim/";

pub(crate) fn check() -> Result<()> {
    let mut tree = cargo();
    tree.args(["tree", "-p", "apus-proto", "-e", "normal", "--depth", "1", "--prefix", "none"]);
    let tree = output(tree.arg("--locked"))?;
    let (actual, allowed) = (dependencies(&tree).join(" "), DEPENDENCIES.join(" "));
    if actual != allowed {
        bail!("apus-proto depends on: {actual}; allowed: {allowed}");
    }
    for krate in crates()?.iter().filter(|krate| !UNSAFE.contains(&krate.name.as_str())) {
        let roots = ["src/lib.rs", "src/main.rs"].map(|root| krate.path.join(root));
        for root in roots.iter().filter(|root| root.exists()) {
            if !forbids_unsafe(&read(root)?) {
                bail!("{} must forbid unsafe code", root.display());
            }
        }
    }
    let mut grep = Command::new("git");
    let files = output(grep.args(["grep", "--untracked", "-l", FAKE_CIPHER, "--", "crates/*.rs"]))?;
    if let Some(file) = files.lines().find(|file| !file.starts_with(SIMULATOR)) {
        bail!("{file} names {FAKE_CIPHER}, which belongs to {SIMULATOR}");
    }
    let [others @ .., last] = UNSAFE;
    println!(
        "apus-proto stands on: {actual}; unsafe code is in {} and {last} only",
        others.join(", ")
    );
    Ok(())
}

/// Returns the names below the first line of `cargo tree`, in order.
fn dependencies(tree: &str) -> Vec<&str> {
    let mut names: Vec<&str> =
        tree.lines().skip(1).filter_map(|line| line.split(' ').next()).collect();
    names.sort_unstable();
    names
}

fn forbids_unsafe(root: &str) -> bool {
    root.lines().any(|line| line.starts_with("#![forbid(unsafe_code)]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_tree_is_the_crate_itself() {
        let tree = "apus-proto v0.1.0 (/apus)\nsiphasher v1.0.1\napus-wire v0.1.0 (/wire)\n\
            bytes v1.11.0";
        assert_eq!(dependencies(tree), ["apus-wire", "bytes", "siphasher"]);
        assert!(dependencies("apus-proto v0.1.0").is_empty());
    }

    #[test]
    fn only_an_attribute_of_the_crate_forbids() {
        assert!(forbids_unsafe("//! A crate.\n\n#![forbid(unsafe_code)]\nmod a;"));
        assert!(!forbids_unsafe("// #![forbid(unsafe_code)]\n#![deny(unsafe_code)]"));
    }
}
