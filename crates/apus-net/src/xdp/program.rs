//! The program at a device that passes short datagrams for a link to its XSKs, and everything else to the network stack.
//!
//! It is assembled here, from the link's address and port, and attached by a BPF link, which ends with its descriptor: when the process
//! ends in any way, nothing stays at the device.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::headers::ETHERNET_LEN;

/// Length of the longest frame that is passed to an XSK. Longer ones are joined and received in place by the network stack.
const SHORT_MAX: i32 = 1_200;

/// Number of queues whose packets can be passed on: those at which an XSK may be.
const QUEUES: u32 = 16;

/// An instruction of eBPF (`struct bpf_insn`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
struct Step {
    code: u8,
    /// Destination in the low half, source in the high half.
    registers: u8,
    offset: i16,
    immediate: i32,
}

// Codes of instructions: class, size or operation, mode or source.
const LOAD_BYTE: u8 = 0x71;
const LOAD_HALF: u8 = 0x69;
const LOAD_WORD: u8 = 0x61;
const LOAD_MAP: u8 = 0x18;
const MOVE: u8 = 0xBF;
const MOVE_VALUE: u8 = 0xB7;
const ADD_VALUE: u8 = 0x07;
const AND_VALUE: u8 = 0x57;
const JUMP_IF_GREATER: u8 = 0x2D;
const JUMP_IF_NOT_GREATER: u8 = 0xBD;
const JUMP_ALWAYS: u8 = 0x05;
const JUMP_IF_OTHER_VALUE: u8 = 0x56; // the lower 32 bits
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// The source of `LOAD_MAP`: the descriptor of a map.
const PSEUDO_MAP: u8 = 1;

const REDIRECT_MAP: i32 = 51;
const XDP_PASS: i32 = 2;

// Places in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const QUEUE: i16 = 16;

/// Steps under construction, in which jumps lead to the end.
#[derive(Default)]
struct Assembly(Vec<Step>);

impl Assembly {
    fn step(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) {
        self.0.push(Step { code, registers: from << 4 | to, offset, immediate });
    }

    /// Leaves the program unless the bytes of a field, loaded by `code` from the frame in register 2, have a value.
    fn expect(&mut self, code: u8, at: usize, value: i32) {
        self.step(code, 5, 2, at as i16, 0);
        self.step(JUMP_IF_OTHER_VALUE, 5, 0, 0, value);
    }

    fn expect_half(&mut self, at: usize, value: u16) {
        self.expect(LOAD_HALF, at, i32::from(u16::from_ne_bytes(value.to_be_bytes())));
    }

    fn expect_bytes(&mut self, at: usize, bytes: &[u8]) {
        for (number, word) in bytes.chunks_exact(4).enumerate() {
            let word = i32::from_ne_bytes(word.try_into().expect("four bytes"));
            self.expect(LOAD_WORD, at + 4 * number, word);
        }
    }

    /// Ends the program: jumps without a target, and the last step, pass the frame to the network stack.
    fn finish(mut self) -> Vec<Step> {
        let end = self.0.len();
        for (at, step) in self.0.iter_mut().enumerate() {
            let jumps = [JUMP_IF_GREATER, JUMP_IF_NOT_GREATER, JUMP_IF_OTHER_VALUE, JUMP_ALWAYS];
            if jumps.contains(&step.code) && step.offset == 0 {
                step.offset = (end - at - 1) as i16;
            }
        }
        self.step(MOVE_VALUE, 0, 0, 0, XDP_PASS);
        self.step(EXIT, 0, 0, 0, 0);
        self.0
    }
}

/// Returns the program for datagrams to an address.
fn assemble(to: SocketAddr, map: RawFd) -> Vec<Step> {
    let mut program = Assembly::default();
    let header = ETHERNET_LEN + if to.is_ipv4() { 20 } else { 40 };
    program.step(LOAD_WORD, 2, 1, DATA, 0);
    program.step(LOAD_WORD, 3, 1, DATA_END, 0);
    program.step(MOVE, 4, 2, 0, 0);
    program.step(ADD_VALUE, 4, 0, 0, header as i32 + 8);
    program.step(JUMP_IF_GREATER, 4, 3, 0, 0);
    program.step(MOVE, 4, 2, 0, 0);
    program.step(ADD_VALUE, 4, 0, 0, SHORT_MAX + 1);
    program.step(JUMP_IF_NOT_GREATER, 4, 3, 0, 0);
    match to.ip() {
        IpAddr::V4(ip) => {
            program.expect_half(12, 0x0800);
            program.expect(LOAD_BYTE, 14, 0x45); // No options.
            program.step(LOAD_HALF, 5, 2, 20, 0);
            let fragment = i32::from(u16::from_ne_bytes(0x3FFFu16.to_be_bytes()));
            program.step(AND_VALUE, 5, 0, 0, fragment);
            program.step(JUMP_IF_OTHER_VALUE, 5, 0, 0, 0);
            program.expect(LOAD_BYTE, 23, libc::IPPROTO_UDP);
            program.expect_bytes(30, &ip.octets());
        }
        IpAddr::V6(ip) => {
            program.expect_half(12, 0x86DD);
            program.expect(LOAD_BYTE, 20, libc::IPPROTO_UDP);
            // An address of the link's scope is complete with its device only, which the kernel adds.
            program.step(LOAD_HALF, 5, 2, 22, 0);
            let scope = i32::from(u16::from_ne_bytes(0xFFC0u16.to_be_bytes()));
            program.step(AND_VALUE, 5, 0, 0, scope);
            let link = i32::from(u16::from_ne_bytes(0xFE80u16.to_be_bytes()));
            program.step(JUMP_IF_OTHER_VALUE, 5, 0, 1, link);
            program.step(JUMP_ALWAYS, 0, 0, 0, 0);
            program.expect_bytes(38, &ip.octets());
        }
    }
    program.expect_half(header + 2, to.port());
    program.step(LOAD_WORD, 2, 1, QUEUE, 0);
    program.step(LOAD_MAP, 1, PSEUDO_MAP, 0, map);
    program.step(0, 0, 0, 0, 0); // The second half of the last step.
    program.step(MOVE_VALUE, 3, 0, 0, XDP_PASS);
    program.step(CALL, 0, 0, 0, REDIRECT_MAP);
    program.step(EXIT, 0, 0, 0, 0);
    program.finish()
}

/// A program at a device, which is removed when this is dropped or the process ends.
#[derive(Debug)]
pub(super) struct Attachment {
    _link: OwnedFd,
}

// Commands of the system call, and values of their attributes.
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const PROGRAM_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const MAP_OF_XSKS: u32 = 17;
const KIND_XDP: u32 = 6;
const AT_XDP: u32 = 37;
/// Runs the program in the network stack: all devices have that mode, and it neither resets a device nor changes its offloads.
const SKB_MODE: u32 = 1 << 1;

/// Passes short datagrams to an address, which arrive at a queue of a device, to an XSK.
///
/// # Errors
///
/// `EPERM` without `CAP_BPF` and `CAP_NET_ADMIN`, `EBUSY` if the device has a program, and other errors of the kernel.
pub(super) fn attach(
    device: u32,
    queue: u32,
    to: SocketAddr,
    xsk: &OwnedFd,
) -> io::Result<Attachment> {
    let map = create(MAP_CREATE, &words(&[MAP_OF_XSKS, 4, 4, QUEUES]))?;
    // The attributes of each command are those of union bpf_attr, as far as they are used.
    let value = xsk.as_raw_fd();
    let mut update = [0; 32];
    update[..4].copy_from_slice(&map.as_raw_fd().to_ne_bytes());
    update[8..16].copy_from_slice(&place(&queue).to_ne_bytes());
    update[16..24].copy_from_slice(&place(&value).to_ne_bytes());
    bpf(MAP_UPDATE, &update)?;
    let steps = assemble(to, map.as_raw_fd());
    let license = c"Dual MIT/GPL";
    let mut load = [0; 72];
    load[..4].copy_from_slice(&KIND_XDP.to_ne_bytes());
    load[4..8].copy_from_slice(&(steps.len() as u32).to_ne_bytes());
    load[8..16].copy_from_slice(&place(&steps[0]).to_ne_bytes());
    load[16..24].copy_from_slice(&(license.as_ptr().addr() as u64).to_ne_bytes());
    load[68..72].copy_from_slice(&AT_XDP.to_ne_bytes());
    let program = create(PROGRAM_LOAD, &load)?;
    let link = words(&[program.as_raw_fd().cast_unsigned(), device, AT_XDP, SKB_MODE]);
    Ok(Attachment { _link: create(LINK_CREATE, &link)? })
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn place<T>(of: &T) -> u64 {
    std::ptr::from_ref(of).expose_provenance() as u64
}

/// Makes a system call. The pointers in the attributes lead to live values.
fn bpf(command: libc::c_int, attributes: &[u8]) -> io::Result<i32> {
    let (at, len) = (attributes.as_ptr(), attributes.len());
    // SAFETY: the kernel reads the attributes, with their length, and the values of the caller to which they point. It writes to
    // none of them.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, at, len) };
    i32::try_from(done).ok().filter(|&done| done >= 0).ok_or_else(io::Error::last_os_error)
}

/// Makes a system call that returns a new descriptor.
fn create(command: libc::c_int, attributes: &[u8]) -> io::Result<OwnedFd> {
    let descriptor = bpf(command, attributes)?;
    // SAFETY: the descriptor is new, so only this function owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[cfg(test)]
mod tests {
    use super::super::headers::{ethernet, write_packet};
    use super::*;

    /// Runs the steps as the kernel does, on a frame that arrived at queue 3. Returns whether they pass it to an XSK.
    fn run(steps: &[Step], frame: &[u8]) -> bool {
        const FRAME: u64 = 1 << 32;
        let (mut registers, mut at) = ([0u64; 11], 0);
        loop {
            let Step { code, registers: names, offset, immediate } = steps[at];
            let (to, from) = (usize::from(names & 15), usize::from(names >> 4));
            let value = i64::from(immediate) as u64;
            at += 1;
            let mut jump = |holds: bool| at += if holds { offset as usize } else { 0 };
            match code {
                LOAD_WORD if from == 1 => {
                    registers[to] = match offset {
                        DATA => FRAME,
                        DATA_END => FRAME + frame.len() as u64,
                        _ => 3,
                    };
                }
                LOAD_BYTE | LOAD_HALF | LOAD_WORD => {
                    let start = (registers[from] - FRAME) as usize + offset as usize;
                    let len =
                        if code == LOAD_BYTE { 1 } else { usize::from(code == LOAD_WORD) * 2 + 2 };
                    let mut bytes = [0; 8];
                    bytes[..len].copy_from_slice(&frame[start..start + len]);
                    registers[to] = u64::from_le_bytes(bytes);
                }
                LOAD_MAP => (registers[to], at) = (value, at + 1),
                MOVE => registers[to] = registers[from],
                MOVE_VALUE => registers[to] = value,
                ADD_VALUE => registers[to] += value,
                AND_VALUE => registers[to] &= value,
                JUMP_IF_GREATER => jump(registers[to] > registers[from]),
                JUMP_IF_NOT_GREATER => jump(registers[to] <= registers[from]),
                JUMP_IF_OTHER_VALUE => jump(registers[to] as u32 != immediate.cast_unsigned()),
                JUMP_ALWAYS => jump(true),
                CALL => {
                    assert_eq!(
                        (immediate, registers[1], registers[2], registers[3]),
                        (51, 9, 3, 2)
                    );
                    registers[0] = 4; // XDP_REDIRECT
                }
                EXIT => return registers[0] == 4,
                _ => panic!("{code:#x}"),
            }
        }
    }

    fn frame(from: &str, to: &str, payload: usize) -> Vec<u8> {
        let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
        let mut frame = ethernet([2; 6], [4; 6], to.is_ipv4()).to_vec();
        frame.resize(2_000, 0);
        let len = write_packet(&mut frame[ETHERNET_LEN..], from, to, 0, &vec![7; payload]);
        frame.truncate(ETHERNET_LEN + len);
        frame
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn only_short_datagrams_to_the_address_are_passed_on() {
        for (own, peer, other) in [
            ("10.1.0.1:7", "10.1.0.2:9", "10.1.0.3:7"),
            ("[fd01::1]:7", "[fd01::2]:9", "[fd01::3]:7"),
        ] {
            let steps = assemble(own.parse().unwrap(), 9);
            let passes = |frame: &[u8]| run(&steps, frame);
            assert!(passes(&frame(peer, own, 0)) && passes(&frame(peer, own, 1_100)));
            assert!(!passes(&frame(peer, own, 1_400)), "long");
            assert!(!passes(&frame(peer, other, 100)), "another address");
            assert!(!passes(&frame(peer, &own.replace(":7", ":8"), 100)), "another port");
            let header = ETHERNET_LEN + if own.starts_with('[') { 6 } else { 9 };
            let mut tcp = frame(peer, own, 100);
            tcp[header] = 6;
            assert!(!passes(&tcp), "TCP");
            let whole = frame(peer, own, 100);
            assert!((0..42).all(|len| !passes(&whole[..len])), "cut");
            let mut arp = whole.clone();
            arp[13] = 6;
            assert!(!passes(&arp), "ARP");
        }
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn a_sender_in_the_scope_of_the_link_is_left_to_the_kernel() {
        for (own, peer, passes) in [
            ("[fe80::1]:7", "[fe80::2]:9", false),
            ("[2001:db8::1]:7", "[fe80::2]:9", false),
            ("[2001:db8::1]:7", "[2001:db8::2]:9", true),
        ] {
            let steps = assemble(own.parse().unwrap(), 9);
            assert_eq!(run(&steps, &frame(peer, own, 100)), passes, "{peer}");
        }
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn fragments_and_options_are_not_passed_on() {
        let steps = assemble("10.1.0.3:7".parse().unwrap(), 9);
        let whole = frame("10.1.0.2:9", "10.1.0.3:7", 100);
        assert!(run(&steps, &whole));
        for (at, value) in [(20, 0x20), (21, 1), (14, 0x46)] {
            let mut other = whole.clone();
            other[at] = value;
            assert!(!run(&steps, &other), "{at}");
        }
    }
}
