//! The exported calls, grouped by purpose.
//!
//! Many calls act on one descriptor, their first argument, and pass through unless the descriptor is carried. The macro
//! `on_one_descriptor` declares those. Every other call has a function of its own.
//!
//! | file | contents |
//! |---|---|
//! | `send`, `receive` | calls that move bytes |
//! | `readiness` | calls that wait for ready descriptors |
//! | `lifecycle` | calls that open, close, duplicate and connect |
//! | `options` | socket options and device requests |
//! | `process`, `filters` | calls about the process: programs, ends, filters of system calls |
//! | `direct`, `variadic` | `syscall`; calls that a Rust function cannot implement |
//! | `sanitizers` | options for sanitizers |

/// Exports calls that act on the descriptor in their first argument. `= original` names the original of an alias.
macro_rules! on_one_descriptor {
    (@original $name:ident) => { crate::originals::$name };
    (@original $name:ident $original:ident) => { crate::originals::$original };
    ($(fn $name:ident($fd:ident $(, $argument:ident: $type:ty)* $(,)?) -> $result:ty $(= $original:ident)?;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($fd: libc::c_int $(, $argument: $type)*) -> $result {
            if crate::descriptors::is_carried($fd) {
                crate::carried::return_to_kernel($fd, stringify!($name));
            }
            // SAFETY: the caller's arguments are passed through.
            unsafe { on_one_descriptor!(@original $name $($original)?)($fd $(, $argument)*) }
        }
    )*};
}

mod direct;
mod filters;
mod lifecycle;
mod options;
mod process;
mod readiness;
mod receive;
pub(crate) mod sanitizers;
mod send;
pub(crate) mod variadic;
