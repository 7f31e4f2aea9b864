//! The choice of a datagram's socket among those at one address: classic BPF programs of the group (`SO_ATTACH_REUSEPORT_CBPF`),
//! which need no privilege.
//!
//! Each link has two sockets, so that short and control packets do not wait behind long DATA packets in one queue of the kernel.
//! The kernel numbers the sockets in the order of their binds: a link's first, for short packets, then its second.

use apus_seal::VERSION_SEALED;
use libc::{
    BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_IMM, BPF_IND, BPF_JA, BPF_JEQ,
    BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_LEN, BPF_LSH, BPF_MEM, BPF_MISC, BPF_MOD,
    BPF_MUL, BPF_RET, BPF_RSH, BPF_ST, BPF_TAX, BPF_W, BPF_X, BPF_XOR, sock_filter,
};

/// Length from which datagrams are long, unless they are bundles: most of a full Ethernet frame.
pub(super) const LONG_DATAGRAM: u32 = 1_200;

/// The bits of a sealed datagram's fourth byte that are not zero in a DATA packet.
const HEADER_WORDS: u32 = 0x1F;

/// Factor that spreads differences in the low bits of ports over all bits.
pub(super) const SPREAD_PORT: u32 = 0x85EB_CA6B;
/// Factor that spreads differences in the low bits of the sum over all bits.
pub(super) const SPREAD_ALL: u32 = 0x9E37_79B1;

/// Offset of the IP header for a program (`SKF_NET_OFF`).
const IP: u32 = 0xFFF0_0000;

const fn jump(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

const fn op(code: u32, k: u32) -> sock_filter {
    jump(code, k, 0, 0)
}

//= docs/wire.md#W43
/// Leaves 1 in the accumulator for a long DATA packet, otherwise 0. A bundle begins with two zeros, in place of a packet's source
/// port. So does a sealed datagram, which says behind its version whether it is a DATA packet.
const IS_LONG: [sock_filter; 11] = [
    op(BPF_LD | BPF_W | BPF_LEN, 0),
    jump(BPF_JMP | BPF_JGE | BPF_K, LONG_DATAGRAM, 0, 6),
    op(BPF_LD | BPF_H | BPF_ABS, 0),
    jump(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 6),
    op(BPF_LD | BPF_B | BPF_ABS, 2),
    jump(BPF_JMP | BPF_JEQ | BPF_K, VERSION_SEALED as u32, 0, 2),
    op(BPF_LD | BPF_B | BPF_ABS, 3),
    jump(BPF_JMP | BPF_JSET | BPF_K, HEADER_WORDS, 2, 0),
    op(BPF_LD | BPF_IMM, 0),
    op(BPF_JMP | BPF_JA, 1),
    op(BPF_LD | BPF_IMM, 1),
];

/// Returns the program of one link with two sockets.
pub(super) fn by_length() -> Vec<sock_filter> {
    [&IS_LONG[..], &[op(BPF_RET | BPF_A, 0)]].concat()
}

/// Returns the program of several links: [`shard_of`](super::shard_of) for the kernel. `split`: each has two sockets. An IPv6
/// sender's port is read after the fixed header: datacenters do not use extension headers before UDP.
pub(super) fn by_sender(shards: u32, split: bool) -> Vec<sock_filter> {
    let mut program = Vec::new();
    if split {
        program.extend(IS_LONG);
        program.push(op(BPF_ST, 1));
    }
    program.extend([
        // The version is in the upper half of the first byte.
        op(BPF_LD | BPF_B | BPF_ABS, IP),
        op(BPF_ALU | BPF_RSH | BPF_K, 4),
        jump(BPF_JMP | BPF_JEQ | BPF_K, 6, 8, 0),
        // IPv4: the header's length, the port after it, the address.
        op(BPF_LD | BPF_B | BPF_ABS, IP),
        op(BPF_ALU | BPF_AND | BPF_K, 15),
        op(BPF_ALU | BPF_LSH | BPF_K, 2),
        op(BPF_MISC | BPF_TAX, 0),
        op(BPF_LD | BPF_H | BPF_IND, IP),
        op(BPF_ST, 0),
        op(BPF_LD | BPF_W | BPF_ABS, IP + 12),
        op(BPF_JMP | BPF_JA, 12),
        // IPv6: the port, and the four words of the address combined.
        op(BPF_LD | BPF_H | BPF_ABS, IP + 40),
        op(BPF_ST, 0),
        op(BPF_LD | BPF_W | BPF_ABS, IP + 8),
        op(BPF_MISC | BPF_TAX, 0),
        op(BPF_LD | BPF_W | BPF_ABS, IP + 12),
        op(BPF_ALU | BPF_XOR | BPF_X, 0),
        op(BPF_MISC | BPF_TAX, 0),
        op(BPF_LD | BPF_W | BPF_ABS, IP + 16),
        op(BPF_ALU | BPF_XOR | BPF_X, 0),
        op(BPF_MISC | BPF_TAX, 0),
        op(BPF_LD | BPF_W | BPF_ABS, IP + 20),
        op(BPF_ALU | BPF_XOR | BPF_X, 0),
        // Both: mix, and choose.
        op(BPF_MISC | BPF_TAX, 0),
        op(BPF_LD | BPF_MEM, 0),
        op(BPF_ALU | BPF_MUL | BPF_K, SPREAD_PORT),
        op(BPF_ALU | BPF_ADD | BPF_X, 0),
        op(BPF_ALU | BPF_MUL | BPF_K, SPREAD_ALL),
        op(BPF_ALU | BPF_RSH | BPF_K, 16),
        op(BPF_ALU | BPF_MOD | BPF_K, shards),
    ]);
    if split {
        program.extend([
            op(BPF_ALU | BPF_MUL | BPF_K, 2),
            op(BPF_MISC | BPF_TAX, 0),
            op(BPF_LD | BPF_MEM, 1),
            op(BPF_ALU | BPF_ADD | BPF_X, 0),
        ]);
    }
    program.push(op(BPF_RET | BPF_A, 0));
    program
}
