//! The machine on which a result was measured.

use std::fmt;
use std::fs;
use std::thread;

use procfs::{CpuInfo, Current, LoadAverage, Meminfo};
use serde::{Deserialize, Serialize};

/// Properties of the machine that matter to a figure. Unknown ones are empty, zero or `None`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Model name of the CPU.
    pub cpu: String,
    /// Architecture: `x86_64`, `aarch64`.
    pub architecture: String,
    /// CPUs online.
    pub cores: usize,
    /// CPUs on which this process may run, which may be fewer than are online.
    pub cores_allowed: usize,
    /// Total memory, in MB (1,000,000 bytes).
    pub memory_mb: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// Name of the distribution.
    pub system: String,
    /// Whether the machine is virtual. Times in a virtual machine have more outliers.
    pub hypervisor: bool,
    /// Frequency governor of the first CPU, if the kernel controls the frequency.
    pub governor: Option<String>,
    /// Load average of the last minute at the start of the run.
    pub load_average: f64,
}

impl Machine {
    /// The properties of this machine, from `/proc` and `/sys`.
    #[must_use]
    pub fn here() -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        let cpu = CpuInfo::current().ok();
        let allowed = thread::available_parallelism().map_or(0, usize::from);
        let governor = text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
        Self {
            cpu: cpu.as_ref().map(cpu_model).unwrap_or_default(),
            architecture: std::env::consts::ARCH.to_owned(),
            cores: cpu
                .as_ref()
                .map(CpuInfo::num_cores)
                .filter(|&cores| cores > 0)
                .unwrap_or(allowed),
            cores_allowed: allowed,
            memory_mb: Meminfo::current().map_or(0, |memory| memory.mem_total / 1_000_000),
            kernel: text("/proc/sys/kernel/osrelease").trim().to_owned(),
            system: system_name(&text("/etc/os-release")),
            hypervisor: cpu
                .as_ref()
                .and_then(|cpu| cpu.get_field(0, "flags"))
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            governor: Some(governor.trim().to_owned()).filter(|governor| !governor.is_empty()),
            // Two digits, like the kernel's.
            load_average: LoadAverage::current()
                .map_or(0.0, |load| (f64::from(load.one) * 100.0).round() / 100.0),
        }
    }

    /// A warning about the machine itself: a governor that lowers the frequency of an idle CPU. The load average is not a reason,
    /// because earlier runs of the same benchmark raise it; [`Watch`](crate::Watch) measures the actual use by other processes.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let slow = |name: &&str| matches!(*name, "powersave" | "ondemand" | "conservative");
        let governor = self.governor.as_deref().filter(slow)?;
        Some(format!(
            "the CPU frequency governor is `{governor}`, so speed depends on recent load; \
             `performance` gives steadier figures"
        ))
    }
}

impl fmt::Display for Machine {
    /// One line: "AMD EPYC · 2 cores · 8.1 GB · Linux 6.18.44 · virtual machine".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.push(if self.cpu.is_empty() {
            format!("unknown {} CPU", self.architecture)
        } else {
            self.cpu.clone()
        });
        if self.cores > 0 {
            let plural = if self.cores == 1 { "" } else { "s" };
            let allowed = if (1..self.cores).contains(&self.cores_allowed) {
                format!(" ({} allowed)", self.cores_allowed)
            } else {
                String::new()
            };
            parts.push(format!("{} core{plural}{allowed}", self.cores));
        }
        if self.memory_mb > 0 {
            parts.push(format!("{:.1} GB", self.memory_mb as f64 / 1e3));
        }
        if !self.kernel.is_empty() {
            parts.push(format!("Linux {}", self.kernel));
        }
        if !self.system.is_empty() {
            parts.push(self.system.clone());
        }
        if self.hypervisor {
            parts.push("virtual machine".to_owned());
        }
        if let Some(governor) = &self.governor {
            parts.push(format!("governor {governor}"));
        }
        f.write_str(&parts.join(" · "))
    }
}

/// x86 has the model's name; ARM has numbers of implementer and part.
fn cpu_model(cpu: &CpuInfo) -> String {
    let field = |name| cpu.get_field(0, name);
    if let Some(name) = field("model name").or_else(|| field("Model")) {
        return name.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    match (field("CPU implementer"), field("CPU part")) {
        (Some(implementer), Some(part)) => format!("ARM implementer {implementer} part {part}"),
        _ => String::new(),
    }
}

fn system_name(os_release: &str) -> String {
    let name = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or_default().trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfs::FromBufRead;

    const X86: &str =
        "processor\t: 0\nmodel name\t: AMD  EPYC\nflags\t\t: fpu sse hypervisor avx\n";
    const ARM: &str =
        "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";

    #[test]
    fn cpu_names() {
        let cpu_model = |text: &str| cpu_model(&CpuInfo::from_buf_read(text.as_bytes()).unwrap());
        assert_eq!(cpu_model(X86), "AMD EPYC");
        assert_eq!(cpu_model(ARM), "ARM implementer 0x41 part 0xd0c");
        assert_eq!(cpu_model(""), "");
    }

    #[test]
    fn the_system_has_a_name() {
        assert_eq!(
            system_name("ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n"),
            "Debian GNU/Linux 12 (bookworm)"
        );
    }

    #[test]
    fn one_line_has_the_essentials() {
        let machine = Machine {
            cpu: "AMD EPYC".into(),
            cores: 4,
            cores_allowed: 2,
            memory_mb: 8123,
            kernel: "6.18.44".into(),
            hypervisor: true,
            ..Machine::default()
        };
        assert_eq!(
            machine.to_string(),
            "AMD EPYC · 4 cores (2 allowed) · 8.1 GB · Linux 6.18.44 · virtual machine"
        );
        assert!(Machine::default().to_string().starts_with("unknown"));
    }

    #[test]
    fn a_machine_of_which_nothing_is_known_has_no_warning() {
        assert_eq!(Machine::default().warning(), None);
    }

    #[test]
    fn a_slow_governor_is_reported() {
        let machine = |name: &str| Machine { governor: Some(name.into()), ..Machine::default() };
        assert!(machine("powersave").warning().unwrap().contains("governor is `powersave`"));
        assert_eq!(machine("performance").warning(), None);
    }

    #[test]
    fn here_is_somewhere() {
        let machine = Machine::here();
        assert!(machine.cores >= 1 && machine.cores_allowed >= 1);
    }
}
