//! The memory limit of this process's control groups.

use std::fs;
use std::path::Path;

/// Mount point of control groups, version 2.
const ROOT: &str = "/sys/fs/cgroup";

/// Bytes that the tightest control group around this process allows (`memory.max`). `None` without such a limit, and where it cannot
/// be known.
pub(crate) fn memory_limit() -> Option<u64> {
    tightest(&|path| fs::read_to_string(path).ok())
}

fn tightest(read: &dyn Fn(&Path) -> Option<String>) -> Option<u64> {
    let groups = read(Path::new("/proc/self/cgroup"))?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
    let around = Path::new(&group).ancestors();
    let limit = |group: &Path| read(&Path::new(ROOT).join(group).join("memory.max"));
    around.filter_map(|group| limit(group)?.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_group_counts() {
        let of = |outer: &str, inner: &str| {
            tightest(&|path| match path.to_str()? {
                "/proc/self/cgroup" => Some("4:cpu:/job\n0::/system.slice/apus.service\n".into()),
                "/sys/fs/cgroup/system.slice/memory.max" => Some(outer.to_owned()),
                "/sys/fs/cgroup/system.slice/apus.service/memory.max" => Some(inner.to_owned()),
                _ => None,
            })
        };
        assert_eq!(of("max\n", "max\n"), None);
        assert_eq!(of("1000\n", "max\n"), Some(1_000));
        assert_eq!(of("1000\n", "900\n"), Some(900));
        assert_eq!(tightest(&|_| None), None);
    }
}
