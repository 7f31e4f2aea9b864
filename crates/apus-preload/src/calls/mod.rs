//! The calls that a program sees, by what they are for.
//!
//! Many are about one descriptor, take it as their first argument, and pass through unless it is carried: the macro `on_one_descriptor`
//! declares those. A call gets a function of its own when it does something else.

/// Exports calls whose first argument is the descriptor that they are about. `= original` names the call behind an alias.
macro_rules! on_one_descriptor {
    (@original $name:ident) => { crate::originals::$name };
    (@original $name:ident $original:ident) => { crate::originals::$original };
    ($(fn $name:ident($fd:ident $(, $argument:ident: $type:ty)* $(,)?) -> $result:ty $(= $original:ident)?;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($fd: libc::c_int $(, $argument: $type)*) -> $result {
            if crate::descriptors::is_carried($fd) {
                crate::carried::return_to_kernel($fd, stringify!($name));
            }
            // SAFETY: these are the caller's arguments.
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
