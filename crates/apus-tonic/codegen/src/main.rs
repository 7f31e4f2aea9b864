//! Generates `../proto/generated` from `../proto/*.proto`, without protoc. With `--check` it fails if that changes a file.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::{env, process};

use prost::Message as _;

/// The files of `../proto`, without the ending.
const PROTOS: [&str; 3] = ["helloworld", "interop", "routeguide"];

fn main() -> Result<(), Box<dyn Error>> {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto");
    let generated = proto.join("generated");
    let fresh = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/generated");
    fs::create_dir_all(&fresh)?;
    let files: Vec<_> = PROTOS.iter().map(|name| format!("{name}.proto")).collect();
    let descriptors = protox::compile(files, [&proto])?;
    fs::write(fresh.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().out_dir(&fresh).compile_fds(descriptors)?;
    let is_check = env::args().any(|argument| argument == "--check");
    let names = PROTOS.iter().map(|name| format!("{name}.rs"));
    let mut is_stale = false;
    for name in names.chain(["descriptors.bin".to_owned()]) {
        let (from, to) = (fresh.join(&name), generated.join(&name));
        if !is_check {
            fs::create_dir_all(&generated)?;
            fs::copy(from, to)?;
        } else if fs::read(from)? != fs::read(to)? {
            eprintln!("proto/generated/{name} is not what `cargo run` in codegen/ makes of proto/");
            is_stale = true;
        }
    }
    process::exit(i32::from(is_stale));
}
