//! Checks that each crate compiles without features, with each feature alone, and with all.

use anyhow::Result;

use crate::manifest::{crates, table};
use crate::program::{cargo, run};

pub(crate) fn check() -> Result<()> {
    for krate in crates()? {
        let features = table(&krate.manifest, "features");
        if features.is_empty() {
            continue;
        }
        let alone = features.keys().map(|feature| format!("--features={feature}"));
        for choice in [String::new()].into_iter().chain(alone).chain(["--all-features".to_owned()])
        {
            println!("{} {choice}", krate.name);
            let mut clippy = cargo();
            clippy.args(["clippy", "-p", &krate.name, "--no-default-features"]);
            clippy.args((!choice.is_empty()).then_some(choice));
            run(clippy.args(["--locked", "--quiet", "--", "-D", "warnings"]))?;
        }
    }
    Ok(())
}
