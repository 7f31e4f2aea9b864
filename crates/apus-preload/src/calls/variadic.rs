//! Calls that a Rust function cannot implement: those with variable arguments, and those with an unusual way of returning. Each
//! is a few instructions of assembly.
//!
//! - `execl`, `execlp`, `execle`: the arguments in registers are pushed in front of those on the stack. Together they form a
//!   list, as `execv` takes it.
//! - `vfork`: the child runs on the stack of its parent, and would overwrite it if a function returned in the child. So the code
//!   jumps to the original, which returns to the caller.
//! - `dprintf`: the C library writes by an internal call, which bypasses this library. The code jumps to the original too, with
//!   all argument registers intact.
//! - `longjmp` and its relatives: calls that a jump leaves release their [`holds`].

use std::arch::naked_asm;
use std::ffi::c_void;

use libc::c_int;

use super::process::{exec_list, exec_list_searched, exec_list_with_environment};
use crate::carry::holds;
use crate::originals::{DPRINTF, DPRINTF_CHK, JUMPS, VFORK};
use crate::{carried, descriptors};

macro_rules! of_a_list {
    ($($name:ident = $function:path;)*) => {$(
        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name() {
            naked_asm!(
                // The return address is popped to make room for the last register, next to the arguments on the stack.
                "pop r10",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push r10",
                "call {function}",
                "pop r10",
                "add rsp, 40",
                "push r10",
                "ret",
                function = sym $function,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name() {
            naked_asm!(
                "stp x30, x1, [sp, #-64]!",
                "stp x2, x3, [sp, #16]",
                "stp x4, x5, [sp, #32]",
                "stp x6, x7, [sp, #48]",
                "add x1, sp, #8",
                "bl {function}",
                "ldr x30, [sp], #64",
                "ret",
                function = sym $function,
            )
        }
    )*};
}

of_a_list! {
    execl = exec_list;
    execlp = exec_list_searched;
    execle = exec_list_with_environment;
}

macro_rules! of_vfork {
    ($($name:ident)*) => {$(
        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name() {
            naked_asm!(
                "sub rsp, 8",
                "call {before}",
                "add rsp, 8",
                "jmp rax",
                before = sym before_vfork,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name() {
            naked_asm!(
                "stp x29, x30, [sp, #-16]!",
                "bl {before}",
                "ldp x29, x30, [sp], #16",
                "mov x16, x0",
                "br x16",
                before = sym before_vfork,
            )
        }
    )*};
}

of_vfork! { vfork __vfork }

macro_rules! of_a_jump {
    ($($name:ident = $before:path;)*) => {$(
        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name() {
            naked_asm!(
                "push rdi",
                "push rsi",
                "sub rsp, 8",
                "call {before}",
                "add rsp, 8",
                "pop rsi",
                "pop rdi",
                "jmp rax",
                before = sym $before,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name() {
            naked_asm!(
                "stp x29, x30, [sp, #-32]!",
                "stp x0, x1, [sp, #16]",
                "bl {before}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldp x29, x30, [sp], #32",
                "br x16",
                before = sym $before,
            )
        }
    )*};
}

of_a_jump! {
    longjmp = before_longjmp;
    _longjmp = before_underscore_longjmp;
    siglongjmp = before_siglongjmp;
    __longjmp_chk = before_longjmp_chk;
}

/// Does the work before a jump. Returns the address of the original.
macro_rules! before_jumps {
    ($($name:ident = $which:literal;)*) => {$(
        unsafe extern "C" fn $name(buffer: *const u64) -> *const c_void {
            // SAFETY: the caller passes a valid buffer.
            unsafe { holds::before_jump(buffer) };
            JUMPS[$which].get()
        }
    )*};
}

before_jumps! {
    before_longjmp = 0;
    before_underscore_longjmp = 1;
    before_siglongjmp = 2;
    before_longjmp_chk = 3;
}

macro_rules! of_a_format {
    ($($name:ident = $before:path;)*) => {$(
        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name() {
            naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "sub rsp, 192",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8",
                "mov [rsp + 40], r9",
                "mov [rsp + 48], rax",
                "movaps [rsp + 64], xmm0",
                "movaps [rsp + 80], xmm1",
                "movaps [rsp + 96], xmm2",
                "movaps [rsp + 112], xmm3",
                "movaps [rsp + 128], xmm4",
                "movaps [rsp + 144], xmm5",
                "movaps [rsp + 160], xmm6",
                "movaps [rsp + 176], xmm7",
                "call {before}",
                "mov r11, rax",
                "mov rdi, [rsp]",
                "mov rsi, [rsp + 8]",
                "mov rdx, [rsp + 16]",
                "mov rcx, [rsp + 24]",
                "mov r8, [rsp + 32]",
                "mov r9, [rsp + 40]",
                "mov rax, [rsp + 48]",
                "movaps xmm0, [rsp + 64]",
                "movaps xmm1, [rsp + 80]",
                "movaps xmm2, [rsp + 96]",
                "movaps xmm3, [rsp + 112]",
                "movaps xmm4, [rsp + 128]",
                "movaps xmm5, [rsp + 144]",
                "movaps xmm6, [rsp + 160]",
                "movaps xmm7, [rsp + 176]",
                "leave",
                "jmp r11",
                before = sym $before,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name() {
            naked_asm!(
                "stp x29, x30, [sp, #-208]!",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "stp q0, q1, [sp, #80]",
                "stp q2, q3, [sp, #112]",
                "stp q4, q5, [sp, #144]",
                "stp q6, q7, [sp, #176]",
                "bl {before}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]",
                "ldp q0, q1, [sp, #80]",
                "ldp q2, q3, [sp, #112]",
                "ldp q4, q5, [sp, #144]",
                "ldp q6, q7, [sp, #176]",
                "ldp x29, x30, [sp], #208",
                "br x16",
                before = sym $before,
            )
        }
    )*};
}

of_a_format! {
    dprintf = before_dprintf;
    __dprintf_chk = before_dprintf_chk;
}

extern "C" fn before_vfork() -> *const c_void {
    carried::before_program("vfork");
    VFORK.get()
}

extern "C" fn before_dprintf(fd: c_int) -> *const c_void {
    before_format(fd);
    DPRINTF.get()
}

extern "C" fn before_dprintf_chk(fd: c_int) -> *const c_void {
    before_format(fd);
    DPRINTF_CHK.get()
}

fn before_format(fd: c_int) {
    if descriptors::is_carried(fd) {
        carried::return_to_kernel(fd, "dprintf");
    }
}
