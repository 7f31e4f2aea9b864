//! The C library's calls behind ours, by name and signature.
//!
//! Each call has a slot with its address. A slot first holds a function that resolves *all* slots and then makes the call, so a
//! constructor of another library may call before [`start`](crate::start) runs. Afterwards, a call is one jump through the slot.
//! A slot only ever changes from that function to the address, so threads and signal handlers may resolve concurrently. `dlsym`
//! allocates only for names that it does not find. So names that older C libraries lack come last in the table.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{mem, process, ptr};

use libc::{
    FILE, c_char, c_int, c_long, c_uint, c_ulong, epoll_event, fd_set, iovec, mmsghdr, msghdr,
    off_t, pid_t, pollfd, posix_spawn_file_actions_t, posix_spawnattr_t, sigset_t, size_t,
    sockaddr, socklen_t, ssize_t, timespec, timeval,
};

use crate::errno;

/// A list of arguments or environment strings, as exec takes it.
pub(crate) type Strings = *const *const c_char;

/// The arguments of `vdprintf`: a pointer on x86-64, and a structure passed by address on AArch64.
pub(crate) type VaList = *mut c_void;

macro_rules! originals {
    ($look_up:ident; $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty;)*) => {
        struct Slots {
            $($name: AtomicPtr<c_void>,)*
        }

        static SLOTS: Slots = Slots {
            $($name: AtomicPtr::new(unresolved::$name as *mut c_void),)*
        };

        /// Looks up all originals.
        pub(crate) extern "C" fn resolve() {
            $(
                let name = concat!(stringify!($name), "\0").as_ptr().cast();
                let found = $look_up(name).unwrap_or(missing::$name as *mut c_void);
                SLOTS.$name.store(found, Ordering::Relaxed);
            )*
        }

        $(
            /// The call of the C library with this name.
            ///
            /// # Safety
            /// As for that call.
            #[inline(always)]
            pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
                let address = SLOTS.$name.load(Ordering::Relaxed);
                type Original = unsafe extern "C-unwind" fn($($type),*) -> $result;
                // SAFETY: a slot holds the address of a function with this signature.
                let original = unsafe { mem::transmute::<*mut c_void, Original>(address) };
                // SAFETY: guaranteed by the caller.
                unsafe { original($($argument),*) }
            }
        )*

        /// The functions in slots that are not resolved yet.
        mod unresolved {
            use super::*;

            $(pub(super) unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
                resolve();
                // SAFETY: guaranteed by the caller.
                unsafe { super::$name($($argument),*) }
            })*
        }

        /// The functions in slots of calls that this C library lacks.
        mod missing {
            use super::*;

            $(pub(super) unsafe extern "C-unwind" fn $name($(_: $type),*) -> $result {
                errno::set(libc::ENOSYS);
                Failure::FAILED
            })*
        }
    };
}

originals! {
    look_up;

    fn read(fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t;
    fn write(fd: c_int, buffer: *const c_void, bytes: size_t) -> ssize_t;
    fn syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long;

    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    fn recv(fd: c_int, buffer: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t;
    fn recvfrom(
        fd: c_int, buffer: *mut c_void, bytes: size_t, flags: c_int, from: *mut sockaddr, length: *mut socklen_t,
    ) -> ssize_t;
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    fn __read_chk(fd: c_int, buffer: *mut c_void, bytes: size_t, size: size_t) -> ssize_t;
    fn __recv_chk(fd: c_int, buffer: *mut c_void, bytes: size_t, size: size_t, flags: c_int) -> ssize_t;
    fn __recvfrom_chk(
        fd: c_int, buffer: *mut c_void, bytes: size_t, size: size_t, flags: c_int, from: *mut sockaddr,
        length: *mut socklen_t,
    ) -> ssize_t;

    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    fn send(fd: c_int, buffer: *const c_void, bytes: size_t, flags: c_int) -> ssize_t;
    fn sendto(
        fd: c_int, buffer: *const c_void, bytes: size_t, flags: c_int, to: *const sockaddr, length: socklen_t,
    ) -> ssize_t;
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    fn sendfile(to: c_int, from: c_int, offset: *mut off_t, bytes: size_t) -> ssize_t;
    fn splice(
        from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, bytes: size_t, flags: c_uint,
    ) -> ssize_t;
    fn vdprintf(fd: c_int, format: *const c_char, arguments: VaList) -> c_int;
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: VaList) -> c_int;

    fn poll(members: *mut pollfd, count: c_ulong, timeout_ms: c_int) -> c_int;
    fn ppoll(
        members: *mut pollfd, count: c_ulong, timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int;
    fn __poll_chk(members: *mut pollfd, count: c_ulong, timeout_ms: c_int, size: size_t) -> c_int;
    fn __ppoll_chk(
        members: *mut pollfd, count: c_ulong, timeout: *const timespec, mask: *const sigset_t, size: size_t,
    ) -> c_int;
    fn select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval,
    ) -> c_int;
    fn pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int;
    fn epoll_create(size: c_int) -> c_int;
    fn epoll_create1(flags: c_int) -> c_int;
    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    fn epoll_wait(set: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int) -> c_int;
    fn epoll_pwait(
        set: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int, mask: *const sigset_t,
    ) -> c_int;

    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int) -> c_int;
    fn accept(fd: c_int, peer: *mut sockaddr, length: *mut socklen_t) -> c_int;
    fn accept4(fd: c_int, peer: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    fn connect(fd: c_int, peer: *const sockaddr, length: socklen_t) -> c_int;
    fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    fn listen(fd: c_int, backlog: c_int) -> c_int;
    fn shutdown(fd: c_int, how: c_int) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn dup(fd: c_int) -> c_int;
    fn dup2(fd: c_int, to: c_int) -> c_int;
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;

    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;
    fn ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int;

    fn execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int;
    fn execv(path: *const c_char, arguments: Strings) -> c_int;
    fn execvp(file: *const c_char, arguments: Strings) -> c_int;
    fn execvpe(file: *const c_char, arguments: Strings, environment: Strings) -> c_int;
    fn fork() -> pid_t;
    fn fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int;
    fn posix_spawn(
        process: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: Strings, environment: Strings,
    ) -> c_int;
    fn posix_spawnp(
        process: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: Strings, environment: Strings,
    ) -> c_int;
    fn system(command: *const c_char) -> c_int;
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
    fn _exit(status: c_int) -> ();
    fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int;

    // Calls of glibc 2.26 and later, and names that only glibc has.
    fn preadv2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn pwritev2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn execveat(directory: c_int, path: *const c_char, arguments: Strings, environment: Strings, flags: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn closefrom(first: c_int) -> ();
    fn _Fork() -> pid_t;
    fn epoll_pwait2(
        set: c_int, events: *mut epoll_event, count: c_int, timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int;
}

/// The C library's own calls, for this library's own work. Another library that replaces calls for the program, before or after
/// this one, does not affect them. Such a library may stop the clock.
pub(crate) mod own {
    use super::*;

    originals! {
        look_up_in_c_library;

        fn read(fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t;
        fn write(fd: c_int, buffer: *const c_void, bytes: size_t) -> ssize_t;
        fn pread(fd: c_int, buffer: *mut c_void, bytes: size_t, offset: off_t) -> ssize_t;
        fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t;
        fn recv(fd: c_int, buffer: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t;
        fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
        fn send(fd: c_int, buffer: *const c_void, bytes: size_t, flags: c_int) -> ssize_t;
        fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
        fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
        fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
        fn listen(fd: c_int, backlog: c_int) -> c_int;
        fn accept4(fd: c_int, peer: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
        fn getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
        fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
        fn connect(fd: c_int, peer: *const sockaddr, length: socklen_t) -> c_int;
        fn shutdown(fd: c_int, how: c_int) -> c_int;
        fn close(fd: c_int) -> c_int;
        fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
        fn ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int;
        fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
        fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;
        fn poll(members: *mut pollfd, count: c_ulong, timeout_ms: c_int) -> c_int;
        fn ppoll(
            members: *mut pollfd, count: c_ulong, timeout: *const timespec, mask: *const sigset_t,
        ) -> c_int;
        fn epoll_create1(flags: c_int) -> c_int;
        fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
        fn epoll_wait(set: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int) -> c_int;
        fn clock_gettime(clock: c_int, time: *mut timespec) -> c_int;
        fn sched_yield() -> c_int;
        fn mmap(
            at: *mut c_void, bytes: size_t, access: c_int, flags: c_int, fd: c_int, offset: off_t,
        ) -> *mut c_void;
        fn munmap(at: *mut c_void, bytes: size_t) -> c_int;
        fn mremap(from: *mut c_void, before: size_t, bytes: size_t, flags: c_int, to: *mut c_void) -> *mut c_void;
    }
}

/// Calls that are jumped to, because their arguments or their return differ from a function's.
pub(crate) struct Address {
    name: &'static CStr,
    slot: AtomicPtr<c_void>,
}

pub(crate) static VFORK: Address = Address::new(c"vfork");
pub(crate) static DPRINTF: Address = Address::new(c"dprintf");
pub(crate) static DPRINTF_CHK: Address = Address::new(c"__dprintf_chk");
/// `longjmp`, `_longjmp`, `siglongjmp`, `__longjmp_chk`. Signal handlers call them, so they are looked up in advance.
pub(crate) static JUMPS: [Address; 4] = [
    Address::new(c"longjmp"),
    Address::new(c"_longjmp"),
    Address::new(c"siglongjmp"),
    Address::new(c"__longjmp_chk"),
];

impl Address {
    const fn new(name: &'static CStr) -> Self {
        Self { name, slot: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The address of the call. Every glibc for these architectures has it.
    pub(crate) fn get(&self) -> *const c_void {
        let known = self.slot.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        let found = look_up(self.name.as_ptr()).unwrap_or_else(|| process::abort());
        self.slot.store(found, Ordering::Relaxed);
        found
    }
}

fn look_up(name: *const c_char) -> Option<*mut c_void> {
    // SAFETY: the name ends with a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name) };
    (!found.is_null()).then_some(found)
}

fn look_up_in_c_library(name: *const c_char) -> Option<*mut c_void> {
    // SAFETY: the names end with a zero byte. The library is already loaded, so `dlopen` only finds it.
    let found = unsafe {
        let library = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() { ptr::null_mut() } else { libc::dlsym(library, name) }
    };
    if found.is_null() { look_up(name) } else { Some(found) }
}

/// The return value of a failed call.
trait Failure {
    const FAILED: Self;
}

impl Failure for c_int {
    const FAILED: Self = -1;
}

impl Failure for ssize_t {
    const FAILED: Self = -1;
}

impl Failure for c_long {
    const FAILED: Self = -1;
}

impl Failure for *mut FILE {
    const FAILED: Self = ptr::null_mut();
}

impl Failure for *mut c_void {
    const FAILED: Self = libc::MAP_FAILED;
}

impl Failure for () {
    const FAILED: Self = ();
}
