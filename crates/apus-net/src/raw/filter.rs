//! The filter of packets that the kernel drops without a wake-up: a classic BPF program on the socket, which needs no privilege
//! beyond the socket's own.

use apus_wire::{COMMON_LEN, PacketType};
use libc::{
    BPF_ALU, BPF_B, BPF_H, BPF_IND, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_K, BPF_LD, BPF_LDX,
    BPF_LEN, BPF_MSH, BPF_RET, BPF_SUB, BPF_W, BPF_X, sock_filter,
};

use crate::sys::IpVersion;

/// Return value for a datagram that is kept whole.
const WHOLE: u32 = u32::MAX;

/// Offsets in the common header.
const SOURCE_PORT: u32 = 0;
const TYPE: u32 = 11;

const fn jump(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

const fn op(code: u32, k: u32) -> sock_filter {
    jump(code, k, 0, 0)
}

/// Returns a program that keeps packets with a common header, a known type and a source port (rules W2 to W4). Every receiver of
/// Homa drops the others. An IPv4 raw socket sees the IP header, an IPv6 one does not.
pub(super) fn program(version: IpVersion) -> Vec<sock_filter> {
    let header = match version {
        IpVersion::V4 => op(BPF_LDX | BPF_B | BPF_MSH, 0),
        IpVersion::V6 => op(BPF_LDX | BPF_W, 0), // immediate 0
    };
    vec![
        header,
        op(BPF_LD | BPF_W | BPF_LEN, 0),
        op(BPF_ALU | BPF_SUB | BPF_X, 0),
        jump(BPF_JMP | BPF_JGE | BPF_K, COMMON_LEN as u32, 0, 6),
        op(BPF_LD | BPF_B | BPF_IND, TYPE),
        jump(BPF_JMP | BPF_JGE | BPF_K, PacketType::Data as u32, 0, 4),
        jump(BPF_JMP | BPF_JGT | BPF_K, PacketType::Ack as u32, 3, 0),
        op(BPF_LD | BPF_H | BPF_IND, SOURCE_PORT),
        jump(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
        op(BPF_RET | BPF_K, WHOLE),
        op(BPF_RET | BPF_K, 0),
    ]
}

/// Returns the program of a socket that only sends: it drops everything.
pub(super) fn nothing() -> [sock_filter; 1] {
    [op(BPF_RET | BPF_K, 0)]
}
