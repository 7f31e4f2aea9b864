//! Calls by which a process starts a program, becomes another program, or ends.
//!
//! `fork` is here only for its failure, which `pthread_atfork` handlers do not see. The handlers that [`start`] registers also
//! run in children of `daemon` and `forkpty`.

use libc::{
    FILE, c_char, c_int, pid_t, posix_spawn_file_actions_t as FileActions,
    posix_spawnattr_t as Attributes,
};

use crate::originals::{self, Strings};
use crate::{carried, descriptors, report, start};

unsafe extern "C" {
    static environ: Strings;
}

/// Exports calls that start a program in a new process.
macro_rules! that_start_a_program {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            carried::before_program(stringify!($name));
            let _spared = carried::spare_from_spawn();
            // SAFETY: the caller's arguments are passed through.
            unsafe { originals::$name($($argument),*) }
        }
    )*};
}

that_start_a_program! {
    fn posix_spawn(
        process: *mut pid_t, path: *const c_char, actions: *const FileActions, attributes: *const Attributes,
        arguments: Strings, environment: Strings,
    ) -> c_int;
    fn posix_spawnp(
        process: *mut pid_t, file: *const c_char, actions: *const FileActions, attributes: *const Attributes,
        arguments: Strings, environment: Strings,
    ) -> c_int;
    fn system(command: *const c_char) -> c_int;
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
}

/// Exports calls by which the process becomes another program.
macro_rules! that_become_a_program {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            before_exec();
            // SAFETY: the caller's arguments are passed through.
            let result = unsafe { originals::$name($($argument),*) };
            carried::after_exec_failed();
            result
        }
    )*};
}

that_become_a_program! {
    fn execve(path: *const c_char, arguments: Strings, environment: Strings);
    fn execv(path: *const c_char, arguments: Strings);
    fn execvp(file: *const c_char, arguments: Strings);
    fn execvpe(file: *const c_char, arguments: Strings, environment: Strings);
    fn fexecve(fd: c_int, arguments: Strings, environment: Strings);
    fn execveat(directory: c_int, path: *const c_char, arguments: Strings, environment: Strings, flags: c_int);
}

/// `execl`. [`variadic`](super::variadic) has put the arguments after the path into a list.
pub(super) unsafe extern "C" fn exec_list(path: *const c_char, arguments: Strings) -> c_int {
    before_exec();
    // SAFETY: the list ends with a null pointer, as the caller's arguments did.
    let result = unsafe { originals::execve(path, arguments, environ) };
    carried::after_exec_failed();
    result
}

/// `execlp`, with its arguments in a list.
pub(super) unsafe extern "C" fn exec_list_searched(
    file: *const c_char,
    arguments: Strings,
) -> c_int {
    before_exec();
    // SAFETY: as above.
    let result = unsafe { originals::execvp(file, arguments) };
    carried::after_exec_failed();
    result
}

/// `execle`, with its arguments in a list. The environment follows the null pointer that ends the list.
pub(super) unsafe extern "C" fn exec_list_with_environment(
    path: *const c_char,
    arguments: Strings,
) -> c_int {
    before_exec();
    // SAFETY: as above.
    let result = unsafe {
        let mut end = arguments;
        while !(*end).is_null() {
            end = end.add(1);
        }
        originals::execve(path, arguments, *end.add(1).cast::<Strings>())
    };
    carried::after_exec_failed();
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fork() -> pid_t {
    // SAFETY: the call takes no arguments.
    let child = unsafe { originals::fork() };
    if child < 0 {
        carried::after_failed_fork();
    }
    child
}

/// `fork` without `pthread_atfork` handlers. May be called in a signal handler.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _Fork() -> pid_t {
    start::before_this_thread_forks();
    // SAFETY: the call takes no arguments.
    let child = unsafe { originals::_Fork() };
    if child == 0 {
        start::in_child_of_fork(false);
    } else {
        start::after_this_thread_forked(child < 0);
    }
    child
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _exit(status: c_int) -> ! {
    before_exit();
    loop {
        // SAFETY: the caller's arguments are passed through. The call does not return.
        unsafe { originals::_exit(status) }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _Exit(status: c_int) -> ! {
    // SAFETY: as above.
    unsafe { _exit(status) }
}

/// Runs before this process becomes another program, which loses the memory of its connections. In a child of `vfork` the
/// connections are the parent's.
pub(super) fn before_exec() {
    carried::before_exec();
    if report::is_wanted() && descriptors::belongs_to_this_process() {
        report::print();
    }
}

/// Runs before this process ends without `atexit` functions.
pub(super) fn before_exit() {
    if descriptors::belongs_to_this_process() {
        if report::is_wanted() {
            report::print();
        }
        carried::before_exit();
    }
}
