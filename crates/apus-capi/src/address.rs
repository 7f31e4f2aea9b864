//! Addresses of services.

use std::ffi::c_char;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use apus::Address;

use crate::argument;
use crate::entry;
use crate::failure::Failure;
use crate::sized::{self, Growing, Places};

/// The family of an address: 4 bytes of `ip` are used.
pub const APUS_IPV4: u16 = 4;

/// The family of an address: 16 bytes of `ip` are used.
pub const APUS_IPV6: u16 = 6;

/// The size of a buffer that is long enough for the text of every address.
pub const APUS_ADDRESS_TEXT: usize = 80;

/// The address of a service: a node, by its IP address and UDP port, and a Homa port on it. Begin with APUS_ADDRESS_INIT.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct apus_address {
    /// sizeof(apus_address). The first element of an array states the size of all.
    pub size: u32,
    /// APUS_IPV4 or APUS_IPV6.
    pub family: u16,
    /// The Homa port of the service.
    pub port: u16,
    /// The UDP port of the node; 0 for a host that is reached by IP protocol 146 (`homa://`).
    pub udp_port: u16,
    /// Zero.
    pub reserved: u16,
    /// The interface of a link-local IPv6 address; otherwise 0.
    pub scope_id: u32,
    /// The IP address in network order.
    pub ip: [u8; 16],
}

// SAFETY: it is `repr(C)`, of numbers, and begins with its size.
unsafe impl Growing for apus_address {
    const NAME: &'static str = "apus_address";
    const FIRST: usize = 32;
}

const _: () = assert!(size_of::<apus_address>() >= apus_address::FIRST);

impl apus_address {
    pub(crate) fn of(address: Address) -> Self {
        let mut ip = [0; 16];
        let (family, scope_id) = match address.host {
            SocketAddr::V4(host) => {
                ip[..4].copy_from_slice(&host.ip().octets());
                (APUS_IPV4, 0)
            }
            SocketAddr::V6(host) => {
                ip = host.ip().octets();
                (APUS_IPV6, host.scope_id())
            }
        };
        let (port, udp_port) = (address.port, address.host.port());
        let size = size_of::<Self>() as u32;
        Self { size, family, port, udp_port, reserved: 0, scope_id, ip }
    }

    #[inline(always)]
    fn address(&self, name: &str) -> Result<Address, Failure> {
        let host = match self.family {
            APUS_IPV4 => {
                let [a, b, c, d, ..] = self.ip;
                SocketAddr::new(IpAddr::from([a, b, c, d]), self.udp_port)
            }
            APUS_IPV6 => {
                let ip = Ipv6Addr::from(self.ip);
                SocketAddrV6::new(ip, self.udp_port, 0, self.scope_id).into()
            }
            other => return Err(other_family(name, other)),
        };
        Ok(Address { host, port: self.port })
    }
}

#[cold]
fn other_family(name: &str, family: u16) -> Failure {
    let name = format!("{name}->family");
    Failure::argument(&name, &family, "APUS_IPV4 or APUS_IPV6")
}

/// Reads an address.
#[inline(always)]
pub(crate) unsafe fn read(name: &str, address: *const apus_address) -> Result<Address, Failure> {
    // SAFETY: as of this function.
    unsafe { sized::read(name, address)? }.address(name)
}

/// Writes an address.
pub(crate) unsafe fn write(
    name: &str,
    place: *mut apus_address,
    address: Address,
) -> Result<(), Failure> {
    // SAFETY: as of this function.
    unsafe { sized::write(name, place, &apus_address::of(address)) }
}

/// Reads an address in numbers: `IP:PORT`, or `IP:PORT@UDPPORT` if the UDP port of the node is not 20146, with IPv6 addresses in
/// brackets; `homa://IP:PORT` for a host that is reached by IP protocol 146. Never blocks. apus_resolve() takes names as well.
///
/// Returns 0, or APUS_EADDRESS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_address_parse(
    text: *const c_char,
    address: *mut apus_address,
) -> i32 {
    entry::number(|| {
        // SAFETY: the pointer is that of a text, or NULL.
        let parsed: Address = unsafe { argument::text("text", text)? }.parse()?;
        // SAFETY: the pointer is that of a structure with its size, or NULL.
        unsafe { write("address", address, parsed)? };
        Ok(0)
    })
}

/// Writes the text of an address, and a NUL, to a buffer of `size` bytes; APUS_ADDRESS_TEXT is enough.
///
/// Returns the length of the text without the NUL, or APUS_EINVAL if it does not fit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_address_format(
    address: *const apus_address,
    buffer: *mut c_char,
    size: usize,
) -> i32 {
    entry::number(|| {
        // SAFETY: the pointer is that of a structure with its size, or NULL.
        let address = unsafe { read("address", address)? };
        // SAFETY: the buffer has that many bytes, or is NULL.
        unsafe { write_text(&address.to_string(), buffer, size) }
    })
}

/// Writes a text with a NUL to a buffer. Returns its length.
pub(crate) unsafe fn write_text(
    text: &str,
    buffer: *mut c_char,
    size: usize,
) -> Result<i32, Failure> {
    if buffer.is_null() {
        return Err(Failure::null("buffer"));
    }
    if size <= text.len() {
        let allowed = format!("at least {}", text.len() + 1);
        return Err(Failure::argument("size", &size, &allowed));
    }
    // SAFETY: the buffer has room for the text and a NUL.
    unsafe {
        buffer.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
        buffer.add(text.len()).write(0);
    }
    Ok(text.len() as i32)
}

/// Finds the addresses of a service: `HOST:PORT` or `HOST:PORT@UDPPORT`, where HOST is a name or an IP address, or
/// `homa://HOST:PORT`. Writes up to `*count` of them to `addresses`, IPv4 addresses first, and the number of those found to
/// `*count`. A name is looked up with the system's resolver, which may block for seconds.
///
/// A node with a certificate expects the name that apus_node_resolve() found.
///
/// Returns 0, APUS_EADDRESS or APUS_ELOOKUP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_resolve(
    text: *const c_char,
    addresses: *mut apus_address,
    count: *mut usize,
) -> i32 {
    entry::number(|| {
        // SAFETY: the pointer is that of a text, or NULL.
        let text = unsafe { argument::text("text", text)? };
        // SAFETY: the pointer is valid, or NULL.
        let count = unsafe { argument::place("count", count)? };
        let room = argument::count("*count", *count)?;
        // SAFETY: the pointer is that of structures of which the first has its size, or NULL.
        let places = unsafe { Places::new("addresses", addresses)? };
        let found = apus::resolve_all(text)?;
        for (index, address) in found.iter().take(room).enumerate() {
            // SAFETY: there are `room` places.
            unsafe { places.write(index, &apus_address::of(*address)) };
        }
        *count = found.len();
        Ok(0)
    })
}
