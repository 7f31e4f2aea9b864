//! The array job files in `deploy/`, with the environment their schedulers set.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

const PLAN: &str = "topology = \"single-4\"\nworkload = \"w1\"\nload = 0.1\nsim_ms = 0.2\n\
                    [sweep]\nseed = [1, 2, 3, 4, 5]\n";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A directory of the test with the plan in it, and without results.
fn directory(name: &str) -> PathBuf {
    let dir = env::temp_dir().join(format!("apus-deploy-{name}-{}", process::id()));
    fs::create_dir_all(&dir).expect("the temporary directory can be written");
    fs::write(dir.join("plan.toml"), PLAN).expect("as above");
    dir
}

/// A shell with the program under test first in its path.
fn shell(program: &str) -> Command {
    let bin = Path::new(env!("CARGO_BIN_EXE_apus")).parent().expect("a file is in a directory");
    let path = env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command.current_dir(repository()).env("PATH", format!("{}:{path}", bin.display()));
    command
}

fn results(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir.join("results")).expect("the tasks made it");
    entries
        .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
        .collect()
}

fn all_five() -> BTreeSet<String> {
    (0..5).map(|point| format!("{point:05}.json")).collect()
}

#[test]
fn slurm_tasks_share_the_points() {
    let dir = directory("slurm");
    for task in 3..5 {
        let status = shell("bash")
            .args(["deploy/sim-sweep.slurm", &dir.join("plan.toml").display().to_string()])
            .env("APUS_RESULTS", dir.join("results"))
            .env("SLURM_ARRAY_TASK_ID", task.to_string())
            .env("SLURM_ARRAY_TASK_MIN", "3")
            .env("SLURM_ARRAY_TASK_COUNT", "2")
            .status();
        assert!(status.expect("there is a shell").success());
    }
    assert_eq!(results(&dir), all_five());
    fs::remove_dir_all(dir).expect("it was made here");
}

#[test]
fn kubernetes_pods_share_the_points() {
    let job = fs::read_to_string(repository().join("deploy/sim-sweep.yaml")).expect("it is there");
    assert!(job.contains("completions: 16") && job.contains("APUS_TASKS, value: \"16\""), "{job}");
    assert!(job.contains("/plan/sim-sweep.sh\", \"/plan/plan.toml\"]"), "{job}");
    let dir = directory("kubernetes");
    for pod in 0..2 {
        let status = shell("sh")
            .args(["deploy/sim-sweep.sh", &dir.join("plan.toml").display().to_string()])
            .env("APUS_RESULTS", dir.join("results"))
            .env("APUS_TASKS", "2")
            .env("APUS_JOBS", "2")
            .env("JOB_COMPLETION_INDEX", pod.to_string())
            .status();
        assert!(status.expect("there is a shell").success());
    }
    assert_eq!(results(&dir), all_five());
    fs::remove_dir_all(dir).expect("it was made here");
}

#[test]
fn a_task_nobody_numbered_is_refused() {
    let output = shell("sh").args(["deploy/sim-sweep.sh", "plan.toml"]).output();
    let output = output.expect("there is a shell");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("which task this is"), "{output:?}");
}
