//! An echo server, or a client that sends a known stream through one, with rustix, which makes system calls by its own
//! instructions. A preloaded library does not see them. `plans/sockets-peers.sh` connects it to programs under `apus run`.
//!
//! ```text
//! rustix_peer server                prints its port
//! rustix_peer client PORT BYTES
//! ```

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use rustix::io::{read, write};
use rustix::net::{self, AddressFamily, Shutdown, SocketType};

fn at(offset: usize) -> u8 {
    (offset.wrapping_mul(31) >> 3) as u8
}

fn put(socket: &OwnedFd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let count = write(socket, bytes).context("write")?;
        bytes = &bytes[count..];
    }
    Ok(())
}

fn echo(socket: &OwnedFd) -> Result<()> {
    let mut buffer = vec![0; 50_000];
    loop {
        match read(socket, &mut *buffer).context("read")? {
            0 => return Ok(()),
            count => put(socket, &buffer[..count])?,
        }
    }
}

fn send_all(socket: &OwnedFd, all: usize) -> Result<()> {
    let (mut done, mut size) = (0, 1);
    while done < all {
        let piece: Vec<u8> = (done..all.min(done + size)).map(at).collect();
        put(socket, &piece)?;
        done += piece.len();
        size = size * 7 % 70_000 + 1;
    }
    net::shutdown(socket, Shutdown::Write).context("shutdown")
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    match *arguments {
        ["server"] => {
            net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
            net::listen(&socket, 5)?;
            println!("{}", SocketAddrV4::try_from(net::getsockname(&socket)?)?.port());
            loop {
                let connection = net::accept(&socket)?;
                thread::spawn(move || echo(&connection));
            }
        }
        ["client", port, bytes] => {
            let (port, all) = (port.parse()?, bytes.parse()?);
            net::connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
            let mut got = 0;
            thread::scope(|threads| -> Result<()> {
                let sending = threads.spawn(|| send_all(&socket, all));
                let mut buffer = vec![0; 50_000];
                loop {
                    let count = read(&socket, &mut *buffer).context("read")?;
                    if count == 0 {
                        break;
                    }
                    for (offset, value) in (got..).zip(&buffer[..count]) {
                        ensure!(*value == at(offset), "the byte at {offset} is wrong");
                    }
                    got += count;
                }
                sending.join().expect("no panic")
            })?;
            ensure!(got == all, "{got} of {all} bytes");
            Ok(())
        }
        _ => bail!("rustix_peer server | rustix_peer client PORT BYTES"),
    }
}
