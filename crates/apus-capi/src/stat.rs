//! Counters of a node.

use std::ffi::{CString, c_char};
use std::sync::OnceLock;

use apus::Stats;

use crate::argument;
use crate::entry;
use crate::node::apus_node;
use crate::sized::{Growing, Places};

/// A counter of a node. APUS_STAT_INIT is one without a name.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct apus_stat {
    /// sizeof(apus_stat). The first element of an array states the size of all.
    pub size: u32,
    /// Zero.
    pub reserved: u32,
    /// The name, valid for ever.
    pub name: *const c_char,
    /// The value since the start of the node.
    pub value: u64,
}

// SAFETY: it is `repr(C)`, of numbers and a pointer, and begins with its size.
unsafe impl Growing for apus_stat {
    const NAME: &'static str = "apus_stat";
    const FIRST: usize = 24;
}

const _: () = assert!(size_of::<apus_stat>() >= apus_stat::FIRST);

/// The names of all counters, in the order of [`Stats::iter`].
fn names() -> &'static [CString] {
    static NAMES: OnceLock<Vec<CString>> = OnceLock::new();
    NAMES.get_or_init(|| {
        let named = |(name, _): (&str, u64)| CString::new(name).unwrap_or_default();
        Stats::default().iter().map(named).collect()
    })
}

/// Writes up to `max` counters of a node to `stats`, whose first element states the size of all. `stats` may be NULL if `max` is
/// 0. Takes the locks of the node.
///
/// Returns the number of counters that the node has, or APUS_ECLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_stats(
    node: *const apus_node,
    stats: *mut apus_stat,
    max: usize,
) -> i32 {
    entry::number(|| {
        // SAFETY: the handle is valid, or NULL.
        let node = unsafe { argument::shared("node", node)? };
        let found = node.with(|node| Ok(node.stats()))?;
        if max > 0 {
            // SAFETY: the pointer is that of structures of which the first has its size, or NULL.
            let places = unsafe { Places::new("stats", stats)? };
            for (index, ((_, value), name)) in found.iter().zip(names()).take(max).enumerate() {
                let size = size_of::<apus_stat>() as u32;
                let stat = apus_stat { size, reserved: 0, name: name.as_ptr(), value };
                // SAFETY: there are `max` places.
                unsafe { places.write(index, &stat) };
            }
        }
        Ok(i32::try_from(names().len()).unwrap_or(i32::MAX))
    })
}
