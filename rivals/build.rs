//! Passes the versions of the measured packages to the program, from `Cargo.lock`, and generates the gRPC service.

use std::fs;

/// The packages whose version a result states.
const MEASURED: [&str; 8] =
    ["apus", "iceoryx2", "quinn", "s2n-quic", "shmipc", "tarpc", "tonic", "zeromq"];

fn main() {
    println!("cargo:rerun-if-changed=Cargo.lock");
    let lock = fs::read_to_string("Cargo.lock").expect("Cargo.lock is beside Cargo.toml");
    for package in MEASURED {
        let version =
            version(&lock, package).unwrap_or_else(|| panic!("`{package}` is not in Cargo.lock"));
        println!("cargo:rustc-env={}_VERSION={version}", package.to_uppercase().replace('-', "_"));
    }
    let method = tonic_build::manual::Method::builder()
        .name("call")
        .route_name("Call")
        .input_type("crate::with_tonic::Message")
        .output_type("crate::with_tonic::Message")
        .codec_path("tonic_prost::ProstCodec");
    let service = tonic_build::manual::Service::builder().name("Echo").package("apus.rivals");
    let service = service.method(method.build()).build();
    tonic_build::manual::Builder::new().build_transport(false).compile(&[service]);
}

/// The version of a package in the text of a `Cargo.lock`.
fn version<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let (_, entry) = lock.split_once(&format!("name = \"{package}\"\nversion = \""))?;
    entry.split('"').next()
}
