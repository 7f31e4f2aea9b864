//! The capabilities of the processes that stay behind: only those that restoring needs.

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// The capabilities to set NAPI instances, to reach the descriptors of programs, and to write into the state directory.
const NEEDED: CapabilitySet =
    CapabilitySet::NET_ADMIN.union(CapabilitySet::SYS_PTRACE).union(CapabilitySet::DAC_OVERRIDE);

/// Gives up all other capabilities. A process that has none of them keeps none.
pub(super) fn keep_what_restoring_takes() {
    let Ok(now) = capabilities(None) else { return };
    let kept = CapabilitySets {
        effective: now.effective & NEEDED,
        permitted: now.permitted & NEEDED,
        inheritable: CapabilitySet::empty(),
    };
    // Giving up capabilities is always permitted.
    let _ = set_capabilities(None, kept);
}
