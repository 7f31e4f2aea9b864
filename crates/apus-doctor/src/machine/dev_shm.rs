//! The file system of shared memory.

use rustix::fs::statvfs;

use crate::finding::{Finding, Subject, Verdict};

const SUBJECT: Subject = Subject::DevShm;

/// Size and free space in bytes, or the reason why there is no such file system.
#[derive(Debug)]
pub(super) struct DevShm(Result<(u64, u64), String>);

impl DevShm {
    pub(super) fn gather() -> Self {
        let space =
            statvfs("/dev/shm").map(|it| (it.f_blocks * it.f_frsize, it.f_bavail * it.f_frsize));
        Self(space.map_err(|error| error.to_string()))
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let apus = "keeps the counters of processes there (apus stat); messages between processes use memfds and need no space in \
                    /dev/shm";
        let name = "space";
        let brings =
            "counters of each process, readable after the process has ended (docs/metrics.md)";
        vec![match &self.0 {
            Err(why) => Finding::new(
                SUBJECT,
                name,
                Verdict::CouldBeBetter,
                format!("/dev/shm is missing ({why})"),
            )
            .apus(apus)
            .change("sudo mount -t tmpfs -o size=64m tmpfs /dev/shm", brings),
            Ok((size, free)) => {
                let found = format!("{} MiB free of {} MiB", free >> 20, size >> 20);
                Finding::new(SUBJECT, name, Verdict::good_if(*free >= ENOUGH), found)
                    .apus(apus)
                    .change("sudo mount -o remount,size=64m /dev/shm # in a container: --shm-size 64m at its start", brings)
                    .value("size_bytes", *size)
                    .value("free_bytes", *free)
            }
        }]
    }
}

/// Size of the files of 64 processes, each with a section for some shards.
const ENOUGH: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_space_could_be_better() {
        let of = |space| DevShm(space).findings().remove(0);
        assert_eq!(of(Ok((64 << 20, 64 << 20))).verdict, Verdict::Good);
        let full = of(Ok((64 << 20, 1 << 20)));
        assert_eq!(full.found, "1 MiB free of 64 MiB");
        assert!(full.change.unwrap().starts_with("sudo mount -o remount,size=64m /dev/shm"));
        assert!(of(Err("ENOENT".to_owned())).found.contains("missing (ENOENT)"));
    }
}
