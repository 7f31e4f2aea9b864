//! Parameters that last until they are restored by hand.

use std::collections::BTreeMap;

use crate::device::{Device, Slot};
use crate::error::Error;
use crate::mode::Mode;
use crate::netdev::NapiParameters;
use crate::state::{Changed, StateDirectory};

/// Parameters to set on NAPI instances. An absent value is taken from the mode, and without a mode from the instance.
#[derive(Clone, Copy, Debug, Default)]
pub struct NapiChange {
    /// The mode whose values are set.
    pub mode: Option<Mode>,
    /// Empty polls on the timer until the interrupt is unmasked.
    pub defer_hard_irqs: Option<u32>,
    /// Period of that timer in nanoseconds.
    pub gro_flush_timeout_ns: Option<u64>,
    /// Longest suspension in nanoseconds.
    pub irq_suspend_timeout_ns: Option<u64>,
}

impl NapiChange {
    /// The parameters after the change.
    #[must_use]
    pub fn of(&self, before: NapiParameters) -> NapiParameters {
        let base = self.mode.map_or(before, |mode| mode.napi());
        NapiParameters {
            defer_hard_irqs: self.defer_hard_irqs.unwrap_or(base.defer_hard_irqs),
            gro_flush_timeout_ns: self.gro_flush_timeout_ns.unwrap_or(base.gro_flush_timeout_ns),
            irq_suspend_timeout_ns: self
                .irq_suspend_timeout_ns
                .unwrap_or(base.irq_suspend_timeout_ns),
            threaded: base.threaded,
        }
    }

    /// Sets instances of a device until they are restored by hand. `is_whole` says that they are all instances of the device: later
    /// instances then get the same parameters, if these are equal for all. Returns the values of the instances by place.
    ///
    /// # Errors
    /// As [`StateDirectory::set_whole_device`].
    pub fn set(
        &self,
        state: &StateDirectory,
        device: &Device,
        slots: &[Slot],
        is_whole: bool,
    ) -> Result<BTreeMap<String, Changed<NapiParameters>>, Error> {
        let wanted = |slot: &Slot| self.of(slot.napi.parameters());
        let mut parameters = slots.iter().map(wanted);
        let first = parameters.next().filter(|_| is_whole);
        let later = first.filter(|first| parameters.all(|it| it == *first));
        state.set_whole_device(device, slots, wanted, later, None)?;
        let mut napis = state.held(device)?.map(|held| held.slots).unwrap_or_default();
        napis.retain(|name, _| slots.iter().any(|slot| slot.name == *name));
        Ok(napis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_values_replace_those_of_the_mode_and_of_the_instance() {
        let before = NapiParameters { defer_hard_irqs: 7, ..NapiParameters::default() };
        let change = NapiChange { gro_flush_timeout_ns: Some(5_000), ..NapiChange::default() };
        let after = NapiParameters { gro_flush_timeout_ns: 5_000, ..before };
        assert_eq!(change.of(before), after);
        let mode: Mode = "suspend:20".parse().unwrap();
        let change = NapiChange { mode: Some(mode), ..change };
        assert_eq!(
            change.of(before),
            NapiParameters { gro_flush_timeout_ns: 5_000, ..mode.napi() }
        );
        assert_eq!(NapiChange::default().of(before), before);
    }

    #[test]
    fn a_suspension_needs_a_timer() {
        let suspend: Mode = "suspend:20".parse().unwrap();
        assert!(suspend.napi().can_suspend());
        for change in [
            NapiChange { defer_hard_irqs: Some(0), ..NapiChange::default() },
            NapiChange { gro_flush_timeout_ns: Some(0), ..NapiChange::default() },
            NapiChange { irq_suspend_timeout_ns: Some(0), ..NapiChange::default() },
        ] {
            assert!(!change.of(suspend.napi()).can_suspend(), "{change:?}");
        }
    }
}
