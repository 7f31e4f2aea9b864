//! The program as installed by `cargo install`: one file, without a checkout.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::program::stderr;
use crate::run::{Directory, output, stdout};
use crate::skipped::skipped;

/// `apus`, alone in a directory.
struct Installed {
    directory: Directory,
}

impl Installed {
    fn new(name: &str) -> Self {
        let directory = Directory::new(name);
        let bin = directory.file("bin");
        fs::create_dir_all(&bin).expect("the directory is ours");
        fs::create_dir_all(directory.file("runtime")).expect("as above");
        let to = bin.join("apus");
        let from = env!("CARGO_BIN_EXE_apus");
        fs::hard_link(from, &to).or_else(|_| fs::copy(from, &to).map(drop)).expect("as above");
        Self { directory }
    }

    fn path(&self) -> PathBuf {
        self.directory.file("bin/apus")
    }

    /// The directory of the library.
    fn place(&self) -> PathBuf {
        self.directory.file("runtime/apus")
    }

    /// Runs `apus`, with an environment of its own.
    fn apus(&self, arguments: &[&str]) -> Output {
        output(
            clean(&mut Command::new(self.path()))
                .args(arguments)
                .env("XDG_RUNTIME_DIR", self.directory.file("runtime")),
        )
    }

    /// The file that the dynamic linker loads into a program.
    fn loaded(&self) -> PathBuf {
        loaded(&self.apus(&["run", "cat", "/proc/self/maps"]))
    }
}

fn clean(command: &mut Command) -> &mut Command {
    let path = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";
    command.env_clear().env("PATH", path).env("HOME", "/nowhere").current_dir("/")
}

fn loaded(output: &Output) -> PathBuf {
    let text = stdout(output);
    let line = text.lines().find(|line| line.contains("libapus_preload"));
    let line = line.unwrap_or_else(|| panic!("not preloaded: {text} {}", stderr(output)));
    line.split_whitespace().nth(5).expect("a mapping of a file has a path").into()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
}

#[test]
fn an_installed_program_has_its_library() {
    let installed = Installed::new("installed");
    let library = installed.loaded();
    assert_eq!(library.parent(), Some(&*fs::canonicalize(installed.place()).unwrap()));
    assert_eq!((mode(&installed.place()), mode(&library)), (0o755, 0o555));

    let bench = ["bench", "sockets", "--only", "rr", "--sizes", "1", "--runs", "1"];
    let measured = installed.apus(&[&bench[..], &["--seconds", "0.01", "--json", "-"]].concat());
    // The figures may be refused on a busy machine.
    assert!([0, 3].contains(&measured.status.code().unwrap()), "{}", stderr(&measured));
    assert_eq!(installed.loaded(), library);
    assert_eq!(fs::read_dir(installed.place()).unwrap().count(), 1);
}

#[test]
fn a_library_that_was_changed_is_not_loaded() {
    let installed = Installed::new("changed");
    let library = installed.loaded();
    let right = fs::read(&library).expect("it is ours");

    let mut wrong = right.clone();
    *wrong.last_mut().unwrap() ^= 1;
    set_mode(&library, 0o755);
    fs::write(&library, &wrong).expect("it is ours");
    set_mode(&library, 0o555);
    assert_eq!(installed.loaded(), library);
    assert!(fs::read(&library).unwrap() == right);

    // Other users may write to it, so it could change after it was read.
    set_mode(&library, 0o777);
    assert_eq!(installed.loaded(), library);
    assert_eq!(mode(&library), 0o555);

    fs::remove_file(&library).expect("it is ours");
    let elsewhere = installed.directory.file("elsewhere.so");
    fs::write(&elsewhere, &right).expect("it is ours");
    std::os::unix::fs::symlink(&elsewhere, &library).expect("it is ours");
    assert_eq!(installed.loaded(), library);
    assert!(fs::symlink_metadata(&library).unwrap().is_file());

    // Other users may write to the directory, so they could put another file there.
    set_mode(&installed.place(), 0o777);
    assert!(!installed.loaded().starts_with(installed.directory.file("")));
}

/// Runs a script in a mount namespace of its own, with the path of the program in `$APUS`; `None` where that is not permitted.
fn in_namespace(installed: &Installed, script: &str) -> Option<Output> {
    let user = if nix::unistd::geteuid().is_root() { "-m" } else { "-rm" };
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        clean(&mut command)
            .args([user, "--propagation", "private", "sh", "-ec", script])
            .env("APUS", installed.path())
            .env("HERE", installed.directory.file(""))
            .env("XDG_RUNTIME_DIR", installed.directory.file("runtime"))
            .output()
    };
    let allowed = unshare("mount -t tmpfs x /mnt").is_ok_and(|output| output.status.success());
    if !allowed {
        skipped("mount namespaces are not allowed here");
        return None;
    }
    Some(unshare(script).expect("as before"))
}

#[test]
fn a_directory_that_is_noexec_is_passed_over() {
    let installed = Installed::new("noexec");
    let script = "mount -t tmpfs -o noexec x $XDG_RUNTIME_DIR
        $APUS run cat /proc/self/maps";
    let Some(output) = in_namespace(&installed, script) else { return };
    let library = loaded(&output);
    assert!(!library.starts_with(installed.directory.file("runtime")), "{}", library.display());
    assert_eq!(stderr(&output), "");
}

/// A root directory with the system's programs, read-only, like a container that has only the program in addition.
const ROOT: &str = "root=$HERE/root; mkdir -p $root; mount -t tmpfs x $root; cd $root
    mkdir usr etc proc dev opt
    for d in usr etc; do mount --rbind /$d $d; mount -o remount,bind,ro $d; done
    for d in bin lib lib64 sbin; do [ -e /$d ] && ln -s usr/$d $d; done
    mount --rbind /proc proc
    touch dev/null; mount --bind /dev/null dev/null
    cp $APUS opt/apus
    mount -o remount,ro $root
    unset XDG_RUNTIME_DIR";

#[test]
fn where_nothing_can_be_written_the_library_is_in_memory() {
    let installed = Installed::new("readonly");
    let script = format!("{ROOT}; exec chroot . /opt/apus run cat /proc/self/maps");
    let Some(output) = in_namespace(&installed, &script) else { return };
    assert!(stdout(&output).contains("/memfd:libapus_preload.so"), "{}", stdout(&output));
    let note = stderr(&output);
    assert!(
        note.contains("no directory can hold the library") && note.lines().count() == 1,
        "{note}"
    );
}

#[test]
fn the_commands_of_the_readme_need_no_checkout() {
    let installed = Installed::new("readme");
    let script = format!(
        "{ROOT}
        mount -t tmpfs x $root/opt; cp $APUS $root/opt/apus; mkdir $root/opt/run
        export XDG_RUNTIME_DIR=/opt/run PATH=/opt:$PATH
        try() {{ code=0; chroot . \"$@\" >/dev/null 2>$HERE/err || code=$?; echo \"$code: $*\"; head -n 3 $HERE/err >&2; }}
        try apus --help
        try apus settings
        try apus man --dir /opt/man
        try apus completions bash
        try apus run true
        try apus run --explain true
        try apus sim run --topology single-4 --workload 100 --sim-ms 0.1 --json /opt/sim.json --html /opt/sim.html
        try apus report /opt/sim.json"
    );
    let Some(output) = in_namespace(&installed, &script) else { return };
    let text = stdout(&output);
    assert_eq!(text.lines().count(), 8, "{text}{}", stderr(&output));
    assert!(text.lines().all(|line| line.starts_with("0: ")), "{text}{}", stderr(&output));
}
