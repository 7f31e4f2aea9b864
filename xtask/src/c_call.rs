//! Instructions that the C interface adds to a blocking call of 100 bytes through shared memory.
//!
//! Both programs of the example `c_call` copy the body of the request, wait for the response in a function of their own, and free
//! it. The instructions outside that function are counted, which depend on no other thread.

use anyhow::{Result, bail};

use crate::callgrind::{Invocation, instructions_of};
use crate::counted_programs;
use crate::program::{is_installed, target};

/// A call in C may take this many instructions more than one in Rust.
const MORE_MAX: f64 = 150.0;

const CALLS: [u32; 2] = [100, 1_100];

/// The functions of a way: instructions in the first ones count, without those in the last one.
const C: (&str, [&str; 4]) =
    ("c", ["apus_call", "apus_message_data", "apus_message_free", "apus_capi::client::wait*"]);
const RUST: (&str, [&str; 3]) =
    ("rust", ["c_call::rust_call*", "c_call::rust_free*", "c_call::rust_wait*"]);

pub(crate) fn check() -> Result<()> {
    if !is_installed("valgrind") {
        println!("skipped: instructions of a call in C: valgrind is not installed");
        return Ok(());
    }
    counted_programs::build()?;
    let c = a_call(C.0, &C.1)?;
    let rust = a_call(RUST.0, &RUST.1)?;
    println!(
        "instructions outside the wait for the response: {c:.0} in C, {rust:.0} in Rust; {:.0} more",
        c - rust
    );
    // A call in C does more than one in Rust: otherwise the names of functions above match nothing.
    if rust <= 0.0 || c <= rust || c - rust > MORE_MAX {
        bail!("a call in C takes more instructions than one in Rust, at most {MORE_MAX} more");
    }
    Ok(())
}

/// Returns the instructions of a call between these functions and the last one.
fn a_call(way: &str, functions: &[&str]) -> Result<f64> {
    let program = format!("{}/release/c_call", target());
    let total = |calls: u32| {
        let calls = calls.to_string();
        // The server may be late on a busy machine.
        let variables =
            [("APUS_LINK", "auto"), ("APUS_METRICS", "off"), ("APUS_PEER_TIMEOUT", "60 s")];
        let invocation =
            Invocation { program: &program, arguments: &[way, &calls], variables: &variables };
        instructions_of(&invocation, functions)
    };
    let [fewer, more] = CALLS;
    Ok((total(more)? as f64 - total(fewer)? as f64) / f64::from(more - fewer))
}
