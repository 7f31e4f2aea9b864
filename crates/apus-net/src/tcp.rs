//! The kernel's data about a TCP connection.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Indices of `tcpi_bytes_received` and `tcpi_bytes_sent` in the kernel's `struct tcp_info`, in words of eight bytes.
const RECEIVED: usize = 16;
const SENT: usize = 25;

/// Returns the bytes that the kernel has carried for a TCP connection, received and sent together; retransmissions count again.
/// Written bytes that have not left yet do not count.
///
/// # Errors
/// The error of `getsockopt`; `Unsupported` before Linux 4.19, which does not count.
pub fn bytes_carried(connection: impl AsFd) -> io::Result<u64> {
    let mut words = [0_u64; SENT + 1];
    let mut size = size_of_val(&words) as libc::socklen_t;
    let descriptor = connection.as_fd().as_raw_fd();
    let value = words.as_mut_ptr().cast();
    // SAFETY: the descriptor is open, the value has room for `size` bytes, and all bytes are valid values.
    let result = unsafe {
        libc::getsockopt(descriptor, libc::IPPROTO_TCP, libc::TCP_INFO, value, &raw mut size)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if (size as usize) < size_of_val(&words) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(words[RECEIVED] + words[SENT])
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn bytes_of_both_directions_are_counted() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        assert_eq!(bytes_carried(&client).unwrap(), 0);
        let mut buffer = [0; 1000];
        client.write_all(&buffer).unwrap();
        server.read_exact(&mut buffer).unwrap();
        server.write_all(&buffer[..10]).unwrap();
        client.read_exact(&mut buffer[..10]).unwrap();
        assert_eq!(bytes_carried(&client).unwrap(), 1010);
        assert_eq!(bytes_carried(&server).unwrap(), 1010);
    }

    #[test]
    fn other_sockets_have_no_such_count() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(bytes_carried(&one).is_err());
    }
}
