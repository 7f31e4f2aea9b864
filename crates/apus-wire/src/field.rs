//! Big-endian fields at fixed places (rule W1). The callers hold fixed-size arrays and constant ranges, so that inlining removes
//! all bounds checks.

use std::ops::Range;

#[inline(always)]
pub(crate) fn read_u16(bytes: &[u8], at: Range<usize>) -> u16 {
    u16::from_be_bytes(bytes[at].try_into().expect("the range of a u16 field spans two bytes"))
}

#[inline(always)]
pub(crate) fn read_u32(bytes: &[u8], at: Range<usize>) -> u32 {
    u32::from_be_bytes(bytes[at].try_into().expect("the range of a u32 field spans four bytes"))
}

#[inline(always)]
pub(crate) fn read_u64(bytes: &[u8], at: Range<usize>) -> u64 {
    u64::from_be_bytes(bytes[at].try_into().expect("the range of a u64 field spans eight bytes"))
}

#[inline(always)]
pub(crate) fn write_u16(bytes: &mut [u8], at: Range<usize>, value: u16) {
    bytes[at].copy_from_slice(&value.to_be_bytes());
}

#[inline(always)]
pub(crate) fn write_u32(bytes: &mut [u8], at: Range<usize>, value: u32) {
    bytes[at].copy_from_slice(&value.to_be_bytes());
}

#[inline(always)]
pub(crate) fn write_u64(bytes: &mut [u8], at: Range<usize>, value: u64) {
    bytes[at].copy_from_slice(&value.to_be_bytes());
}
