//! The key log: its file, its gauge, and the datagrams that its keys open.
#![cfg(feature = "secure")]

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use crate::pair::certificates::Authority;
use apus::{Address, Config, Node, StartError};
use apus_net::packet_file::read_keys;
use apus_seal::{AwsAead, LoggedKeys};

const PORT: u16 = 4000;
const NAMES: &[&str] = &["spiffe://example.org/kv", "127.0.0.1"];

fn config(authority: &Authority, file: &str, log: &Path) -> Config {
    authority.issue(file, NAMES, 2100);
    let mut config = authority.config(file);
    config.keylog(Some(log.to_owned()));
    config
}

/// Passes datagrams between its address and a server's, and copies all.
fn proxy(server: SocketAddr) -> (SocketAddr, Receiver<Vec<u8>>) {
    let [front, back] = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
    let address = front.local_addr().unwrap();
    let (copies, copied) = channel();
    back.connect(server).unwrap();
    let [front_again, back_again] = [&front, &back].map(|socket| socket.try_clone().unwrap());
    let (clients, client) = channel();
    let to_server = copies.clone();
    thread::spawn(move || {
        let mut room = vec![0; 65_536];
        while let Ok((len, from)) = front.recv_from(&mut room) {
            let _ = clients.send(from);
            let _ = to_server.send(room[..len].to_vec());
            let _ = back.send(&room[..len]);
        }
    });
    thread::spawn(move || {
        let mut room = vec![0; 65_536];
        let Ok(to) = client.recv() else { return };
        while let Ok(len) = back_again.recv(&mut room) {
            let _ = copies.send(room[..len].to_vec());
            let _ = front_again.send_to(&room[..len], to);
        }
    });
    (address, copied)
}

/// Reads the log until it has this number of keys.
fn keys(log: &Path, number: usize) -> LoggedKeys<AwsAead> {
    loop {
        let keys = read_keys(&fs::read(log).unwrap()[..]);
        if let Ok(keys) = keys.as_ref().map_err(ToString::to_string)
            && keys.len() < number
        {
            thread::yield_now();
            continue;
        }
        return keys.unwrap();
    }
}

#[test]
fn the_log_of_one_end_opens_all_sealed_datagrams_of_both() {
    let authority = Authority::new();
    let log = authority.directory().join("keys");
    authority.issue("server", NAMES, 2100);
    let server = Node::start(&authority.config("server")).unwrap();
    let service = server.bind(PORT).unwrap();
    thread::spawn(move || {
        service.serve(|mut request| {
            let body = request.take_body();
            let _ = request.reply(body);
        })
    });
    let node = Node::start(&config(&authority, "client", &log)).unwrap();
    assert_eq!(fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(node.stats().identity.keylog, Some(1));
    assert_eq!(server.stats().identity.keylog, None);
    let (front, copied) = proxy(server.local_addr());
    let client = node.client().unwrap();
    for length in [0, 100, 20_000] {
        let body = vec![0xC5; length];
        assert_eq!(client.call(Address::new(front, PORT), body.clone()).wait().unwrap(), body);
    }
    let mut keys = keys(&log, 2);
    assert_eq!(keys.len(), 2, "one for each direction");
    let (mut room, mut opened, mut plaintext) = (Vec::new(), 0, 0);
    while let Ok(datagram) = copied.try_recv() {
        if datagram[..3] != [0, 0, 2] {
            continue;
        }
        let text = keys.open(&datagram, &mut room).unwrap().text;
        opened += 1;
        plaintext += text.iter().filter(|&&byte| byte == 0xC5).count();
    }
    assert!(opened >= 4 && plaintext >= 40_200, "{opened} datagrams, {plaintext} bytes");
    let texts = fs::read_to_string(&log).unwrap();
    assert!(texts.lines().all(|line| line.starts_with("APUS2 ")));
    node.close(Duration::from_secs(20)).unwrap();
}

#[test]
fn a_file_that_others_can_read_a_link_and_a_pipe_refuse_the_start() {
    let authority = Authority::new();
    let path = |name: &str| -> PathBuf { authority.directory().join(name) };
    fs::write(path("read"), "").unwrap();
    fs::set_permissions(path("read"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::write(path("target"), "").unwrap();
    fs::set_permissions(path("target"), fs::Permissions::from_mode(0o600)).unwrap();
    symlink(path("target"), path("link")).unwrap();
    nix::unistd::mkfifo(&path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (name, said) in [
        ("read", "(mode 0640; chmod 0600)"),
        ("link", "no keys can be written"),
        ("pipe", "no keys can be written"),
        ("missing/keys", "No such file"),
    ] {
        let error = Node::start(&config(&authority, "node", &path(name))).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, StartError::Identity(_)), "{text}");
        assert!(text.contains(name) && text.contains(said), "{text}");
    }
    assert_eq!(fs::read(path("target")).unwrap(), b"");
}

#[test]
fn a_node_without_a_certificate_has_no_keys_to_log() {
    let authority = Authority::new();
    let log = authority.directory().join("keys");
    let mut config = Config::new();
    config.keylog(Some(log.clone()));
    let node = Node::start(&config).unwrap();
    assert_eq!(node.stats().identity.keylog, None);
    assert!(!log.exists());
    assert!(Config::new().set("keylog", "keys").is_err(), "a relative path");
}
