//! The program: two processes, and a result that `apus report` reads.

use std::path::Path;
use std::process::Command;

use apus_load::ResultFile;

#[test]
fn with_tls_every_side_of_one_run_has_a_certificate() {
    let transports = "tonic,tonic-poll,tarpc,tarpc-poll,quinn,quinn-poll,s2n-quic,s2n-quic-poll,apus-udp,apus-shm,\
                      apus-await-udp,apus-await-shm,tcp-block";
    let output = Command::new(env!("CARGO_BIN_EXE_apus-rivals"))
        .args(["rtt", "--tls", "--runs", "1", "--seconds", "0.01", "--pin", "none"])
        .args(["--json", "-", "--transports", transports])
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("JSON");
    let result = ResultFile::parse(&text, Path::new("-")).expect("a result");
    let tls: Vec<_> = result.rows.iter().map(|row| row.text("tls")).collect();
    assert_eq!(tls[..12], [Some("mutual"); 12]);
    assert_eq!(tls[12..], [Some("none")]);
}

#[test]
fn a_rival_without_tls_is_refused_beside_certificates() {
    let output = Command::new(env!("CARGO_BIN_EXE_apus-rivals"))
        .args(["rtt", "--tls", "--transports", "zeromq"])
        .output()
        .expect("the program starts");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("zeromq"));
}

#[test]
fn a_result_states_the_versions_of_rivals_beside_apus() {
    let output = Command::new(env!("CARGO_BIN_EXE_apus-rivals"))
        .args(["rtt", "--runs", "1", "--seconds", "0.01", "--pin", "none", "--json", "-"])
        .args(["--transports", "tarpc-unix,zeromq,iceoryx2-poll,tcp-block,apus-shm"])
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("JSON");
    let result = ResultFile::parse(&text, Path::new("-")).expect("a result");
    let lock = include_str!("../Cargo.lock");
    for (row, package) in result.rows.iter().zip(["tarpc", "zeromq", "iceoryx2"]) {
        let version = row.text("version").expect("a version");
        assert!(lock.contains(&format!("name = \"{package}\"\nversion = \"{version}\"\n")));
    }
    let ours: Vec<_> = result.rows[3..].iter().map(|row| row.text("transport")).collect();
    assert_eq!(ours, [Some("tcp-block"), Some("apus-shm")]);
    assert!(result.rows[3..].iter().all(|row| row.text("version").is_none()));
}
