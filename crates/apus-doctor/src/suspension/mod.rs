//! Obstacles to IRQ suspension of the kernel for a program or on a device, and whether it acts.
//!
//! [`Suspension`] has the kernel's data. The findings of `instances` and `program` are pure functions of it, and `acting` watches
//! the kernel's timers and polls.
//!
//! | file | contents |
//! |---|---|
//! | `kernel` | the data of the kernel |
//! | `instances`, `program` | findings, from these data |
//! | `acting` | whether suspension acts, from a watch |

mod acting;
mod instances;
mod kernel;
mod program;

use std::time::Duration;

pub use acting::{Counts, Watched};
pub use kernel::{ProgramOrDevice, Suspension};

use crate::finding::Finding;

impl Suspension {
    /// Watches the kernel's timers and polls for this time, and meanwhile notes the waits of the programs' threads. Without the
    /// right to watch, only packets are counted.
    pub fn watch(&mut self, time: Duration) -> Watched {
        Watched::watch(self, time)
    }

    /// The findings, in the order of the report.
    pub fn findings(&self, watched: &Watched) -> Vec<Finding> {
        let mut findings = instances::before(self);
        findings.extend(program::findings(self));
        findings.extend(instances::findings(self));
        findings.extend(acting::findings(self, watched));
        findings
    }

    /// The program or the device.
    pub fn inspected(&self) -> &ProgramOrDevice {
        &self.inspected
    }
}
