//! IRQ suspension by the kernel: whether it is supported, and whether an interface is set for it.

use apus_irq::Napi;

use crate::device::Device;
use crate::finding::{Finding, Subject, Verdict};

const SUBJECT: Subject = Subject::IrqSuspension;

#[derive(Debug)]
pub(super) struct IrqSuspension {
    device: String,
    /// Release of the kernel, as `6.18.44`.
    release: String,
    /// Whether parameters of single NAPI instances can be set.
    settable: Result<bool, String>,
    napis: Result<Vec<Napi>, String>,
}

impl IrqSuspension {
    pub(super) fn gather(release: &str, device: &Device) -> Self {
        let napis = device.index.map_or_else(|| Ok(Vec::new()), apus_irq::napis);
        Self {
            device: device.name.clone(),
            release: release.to_owned(),
            settable: apus_irq::napis_can_be_set().map_err(|error| error.to_string()),
            napis: napis.map_err(|error| error.to_string()),
        }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        vec![kernel(self), interface(self)]
    }
}

fn kernel(irq_suspension: &IrqSuspension) -> Finding {
    let IrqSuspension { release, settable, .. } = irq_suspension;
    let new_enough = version(release).map(|version| version >= (6, 13));
    let (verdict, found) = match (new_enough, settable) {
        (Some(true), Ok(true)) => (
            Verdict::Good,
            format!(
                "Linux {release} has it, and accepts irq-suspend-timeout for a NAPI instance (netdev napi-set)"
            ),
        ),
        (Some(false), _) | (_, Ok(false)) => (
            Verdict::Good,
            format!("Linux {release} does not have it; it needs Linux 6.13 with napi-set"),
        ),
        (_, Err(why)) => (
            Verdict::NotKnown,
            format!("Linux {release}; whether the kernel has napi-set is not known: {why}"),
        ),
        (None, _) => {
            (Verdict::NotKnown, format!("the kernel release `{release}` has no version number"))
        }
    };
    Finding::new(SUBJECT, "kernel", verdict, found)
        .apus("has the same modes in user space (setting delivery), and neither needs nor sets NAPI parameters")
        .value("release", release.as_str())
}

/// Deferral of interrupts by the kernel delays packets to sleeping threads.
fn interface(irq_suspension: &IrqSuspension) -> Finding {
    let (name, device) = ("interface", &irq_suspension.device);
    let napis = match &irq_suspension.napis {
        Ok(napis) if napis.is_empty() => {
            let why = format!("the kernel reports no NAPI instance of {device}");
            return Finding::new(SUBJECT, name, Verdict::Good, why).apus("needs none");
        }
        Ok(napis) => napis,
        Err(why) => {
            return Finding::not_known(
                SUBJECT,
                name,
                format!("the kernel does not report the NAPI instances of {device}: {why}"),
            );
        }
    };
    let deferred = napis.iter().filter(|it| it.defer_hard_irqs > 0 && it.gro_flush_timeout_ns > 0);
    let longest = deferred.map(|it| it.gro_flush_timeout_ns).max().unwrap_or(0);
    let suspended = napis.iter().filter_map(|it| it.irq_suspend_timeout_ns).max().unwrap_or(0);
    let defer = napis.iter().map(|it| it.defer_hard_irqs).max().unwrap_or(0);
    let found = format!(
        "NAPI instances of {device}: {}; defer-hard-irqs {defer}, interrupts deferred by up to {} µs, irq-suspend-timeout {} µs",
        napis.len(),
        longest / 1_000,
        suspended / 1_000
    );
    Finding::new(SUBJECT, name, Verdict::good_if(longest == 0), found)
        .apus("sleeps in ppoll, for which the kernel does not suspend interrupts; deferral may delay a packet by this time")
        .change(
            format!("for file in napi_defer_hard_irqs gro_flush_timeout; do echo 0 | sudo tee /sys/class/net/{device}/$file; done"),
            format!("up to {} µs less latency for a sleeping thread; the setting may be intended for other programs of the \
                     host", longest / 1_000),
        )
        .value("napis", napis.len())
        .value("deferred_us", longest / 1_000)
        .value("irq_suspend_timeout_us", suspended / 1_000)
}

/// The first two numbers of a release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|it: char| !it.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn irq_suspension(release: &str, napis: &[Napi]) -> IrqSuspension {
        let (device, release) = ("eth0".to_owned(), release.to_owned());
        IrqSuspension { device, release, settable: Ok(true), napis: Ok(napis.to_vec()) }
    }

    #[test]
    fn the_release_decides() {
        assert_eq!(version("6.18.44-fc-v595"), Some((6, 18)));
        assert_eq!(version("5.4"), Some((5, 4)));
        assert_eq!(version("next"), None);
        assert!(kernel(&irq_suspension("6.12.1", &[])).found.contains("does not have it"));
        assert!(kernel(&irq_suspension("6.13.0", &[])).found.contains("has it"));
        let unknown =
            IrqSuspension { settable: Err("EPERM".to_owned()), ..irq_suspension("6.13.0", &[]) };
        assert_eq!(kernel(&unknown).verdict, Verdict::NotKnown);
    }

    #[test]
    fn deferred_interrupts_delay_a_sleeper() {
        let napi = Napi {
            id: 513,
            defer_hard_irqs: 100,
            gro_flush_timeout_ns: 200_000,
            irq_suspend_timeout_ns: Some(20_000_000),
            ..Napi::default()
        };
        let finding = interface(&irq_suspension("6.13.0", &[Napi::default(), napi]));
        assert_eq!(finding.verdict, Verdict::CouldBeBetter);
        assert!(
            finding.found.contains("deferred by up to 200 µs, irq-suspend-timeout 20000 µs"),
            "{}",
            finding.found
        );
        let inert = Napi { irq_suspend_timeout_ns: Some(20_000_000), ..Napi::default() };
        assert_eq!(interface(&irq_suspension("6.13.0", &[inert])).verdict, Verdict::Good);
        assert_eq!(interface(&irq_suspension("6.13.0", &[])).verdict, Verdict::Good);
    }
}
