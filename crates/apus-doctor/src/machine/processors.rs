//! The number of processors that this process may use: by its affinity, and by the quotas of its control groups.

use std::collections::BTreeSet;

use procfs::ProcessCGroups;

use super::cpu_list;
use crate::files::{Files, parsed};
use crate::finding::{Finding, Subject, Verdict};

const SUBJECT: Subject = Subject::Processors;

#[derive(Debug)]
pub(super) struct Processors {
    online: BTreeSet<usize>,
    allowed: BTreeSet<usize>,
    quota: Option<Quota>,
}

/// The tightest quota of the groups that this process is in.
#[derive(Clone, PartialEq, Debug)]
struct Quota {
    /// The quota as a number of CPUs.
    cpus: f64,
    /// The file that contains it.
    file: String,
    /// The text that removes the quota when it is written to the file.
    none: &'static str,
    /// Number of times that the group was throttled.
    throttled: u64,
}

impl Processors {
    pub(super) fn gather(files: &dyn Files, allowed: &[usize]) -> Self {
        let online = files.text("/sys/devices/system/cpu/online");
        Self {
            online: online.map(|it| cpu_list::of_list(&it)).unwrap_or_default(),
            allowed: allowed.iter().copied().collect(),
            quota: quota(files),
        }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        vec![count(self), quota_finding(self)]
    }
}

fn quota(files: &dyn Files) -> Option<Quota> {
    let groups: ProcessCGroups = parsed(files, "/proc/self/cgroup")?;
    let quotas = groups.0.iter().flat_map(|group| {
        let v2 = group.hierarchy == 0;
        let is_cpu = v2 || group.controllers.iter().any(|it| it == "cpu");
        let roots = if v2 { ROOTS_V2 } else { ROOTS_V1 };
        let roots = roots.iter().filter(move |_| is_cpu);
        // In a container, the path may be a path of the host, so that only the root exists.
        let paths = ancestors(&group.pathname);
        roots.flat_map(move |root| {
            paths.clone().into_iter().map(move |path| (v2, format!("{root}{path}")))
        })
    });
    let found = quotas.filter_map(|(v2, directory)| {
        if v2 { quota_v2(files, &directory) } else { quota_v1(files, &directory) }
    });
    found.min_by(|one, other| one.cpus.total_cmp(&other.cpus))
}

/// The paths of a group and of its ancestors, up to the root, which is empty.
fn ancestors(path: &str) -> Vec<String> {
    let mut paths = vec![path.trim_end_matches('/').to_owned()];
    while let Some((around, _)) = paths.last().and_then(|path| path.rsplit_once('/')) {
        paths.push(around.to_owned());
    }
    paths
}

/// Parses `cpu.max`: quota or `max`, and period, in microseconds.
fn quota_v2(files: &dyn Files, directory: &str) -> Option<Quota> {
    let file = format!("{directory}/cpu.max");
    let text = files.text(&file)?;
    let (quota, period) = text.split_once(' ')?;
    let cpus = cpus(quota.parse().ok()?, period.parse().ok()?)?;
    Some(Quota { cpus, file, none: "max", throttled: throttled(files, directory) })
}

/// A quota of -1 means no quota.
fn quota_v1(files: &dyn Files, directory: &str) -> Option<Quota> {
    let file = format!("{directory}/cpu.cfs_quota_us");
    let quota = files.text(&file)?.parse().ok()?;
    let period = files.text(&format!("{directory}/cpu.cfs_period_us"))?.parse().ok()?;
    Some(Quota {
        cpus: cpus(quota, period)?,
        file,
        none: "-1",
        throttled: throttled(files, directory),
    })
}

fn cpus(quota: i64, period: i64) -> Option<f64> {
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

fn throttled(files: &dyn Files, directory: &str) -> u64 {
    let text = files.text(&format!("{directory}/cpu.stat")).unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.parse().ok());
    count.unwrap_or(0)
}

fn count(processors: &Processors) -> Finding {
    let Processors { online, allowed, .. } = processors;
    let found = format!(
        "{} online ({}); this process may use {} ({})",
        online.len(),
        cpu_list::text(online),
        allowed.len(),
        cpu_list::text(allowed)
    );
    Finding::new(SUBJECT, "CPUs", Verdict::good_if(allowed.len() > 1), found)
        .apus(
            "polls with a thread that waits for messages; two threads that share a CPU detect this and yield",
        )
        .change(
            format!(
                "taskset -c {} PROGRAM # if the machine has several CPUs",
                cpu_list::text(online)
            ),
            "one core for each side: a 100 B call takes 6.1 µs instead of 12.4 µs (docs/performance.md)",
        )
        .value("online", online.len())
        .value("allowed", allowed.len())
}

fn quota_finding(processors: &Processors) -> Finding {
    let name = "quota";
    let apus = "polls, which may use up the quota; then all threads of the group are throttled until the period ends";
    let Some(quota) = &processors.quota else {
        return Finding::new(SUBJECT, name, Verdict::Good, "no control group limits the CPU time")
            .apus(apus);
    };
    let Quota { cpus, file, none, throttled } = quota;
    let found = format!("{cpus:.2} CPUs by {file}; its group was throttled {throttled} times");
    let verdict = match *cpus {
        cpus if cpus < 1.0 => Verdict::Bad,
        cpus => Verdict::good_if(cpus >= processors.allowed.len() as f64),
    };
    let change = match verdict {
        // A node with less than one core must not poll.
        Verdict::Bad => {
            format!("export APUS_DELIVERY=base # or, if permitted: echo {none} | sudo tee {file}")
        }
        _ => format!("echo {none} | sudo tee {file} # or less polling: APUS_DELIVERY=base"),
    };
    Finding::new(SUBJECT, name, verdict, found)
        .apus(apus)
        .change(change, "no pauses of up to a period, usually 100 ms")
        .value("cpus", *cpus)
        .value("throttled", *throttled)
}

/// The mount points of groups of version 2, alone or beside version 1.
const ROOTS_V2: &[&str] = &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

const ROOTS_V1: &[&str] = &["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::FakeFiles;

    #[test]
    fn the_tightest_quota_of_version_2_counts() {
        let files = FakeFiles(&[
            ("/proc/self/cgroup", "0::/system.slice/apus.service\n"),
            ("/sys/devices/system/cpu/online", "0-3\n"),
            ("/sys/fs/cgroup/system.slice/apus.service/cpu.max", "max 100000\n"),
            ("/sys/fs/cgroup/system.slice/cpu.max", "50000 100000\n"),
            (
                "/sys/fs/cgroup/system.slice/cpu.stat",
                "usage_usec 5\nnr_periods 4\nnr_throttled 3\nthrottled_usec 9\n",
            ),
        ]);
        let processors = Processors::gather(&files, &[0, 1]);
        let [count, quota] = processors.findings().try_into().unwrap();
        assert_eq!(count.found, "4 online (0-3); this process may use 2 (0-1)");
        assert_eq!(quota.verdict, Verdict::Bad);
        assert_eq!(
            quota.found,
            "0.50 CPUs by /sys/fs/cgroup/system.slice/cpu.max; its group was throttled 3 times"
        );
    }

    #[test]
    fn a_quota_of_version_1_is_found_beside_version_2() {
        let files = FakeFiles(&[
            ("/proc/self/cgroup", "4:memory:/job\n1:cpu,cpuacct:/job\n0::/\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "150000\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
        ]);
        let quota = quota_finding(&Processors::gather(&files, &[0, 1]));
        assert_eq!(quota.verdict, Verdict::CouldBeBetter);
        assert!(
            quota.change.unwrap().starts_with("echo -1 | sudo tee /sys/fs/cgroup/cpu,cpuacct/job/")
        );
    }

    #[test]
    fn no_group_is_no_limit() {
        let processors = Processors::gather(&FakeFiles(&[("/proc/self/cgroup", "0::/\n")]), &[2]);
        let [count, quota] = processors.findings().try_into().unwrap();
        assert_eq!((count.verdict, quota.verdict), (Verdict::CouldBeBetter, Verdict::Good));
        assert_eq!(ancestors("/a/b"), ["/a/b", "/a", ""]);
        assert_eq!(ancestors("/"), [""]);
    }
}
