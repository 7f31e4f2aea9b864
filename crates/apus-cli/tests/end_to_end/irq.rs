//! `apus irq` on a veth pair with GRO, and on the epoll sets of this process. It needs root, and is skipped with a message
//! otherwise.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio, id};
use std::thread;
use std::time::Duration;

use apus_irq::{
    Device, EpollParameters, Error, Mode, NapiParameters, ProcessId, THREADED_BUSY_POLL, Watch,
    napis_can_be_set, set_feature,
};
use nix::sched::{CloneFlags, setns};
use nix::sys::epoll::{Epoll, EpollCreateFlags};
use serde_json::Value;

use crate::program::{command, fails, stderr, wait_until};
use crate::raw::Wire;
use crate::skipped::skipped;

/// Two hosts, the second with a NAPI instance, and a state directory.
pub(crate) struct Host {
    pub(crate) wire: Wire,
    state: OwnState,
}

pub(crate) struct OwnState(PathBuf);

impl OwnState {
    fn new(test: &str) -> Self {
        Self(std::env::temp_dir().join(format!("apus-irq-{test}-{}", id())))
    }
}

impl Drop for OwnState {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Host {
    pub(crate) fn new(test: &str) -> Option<Self> {
        let host = Self { wire: Wire::new(test)?, state: OwnState::new(test) };
        host.inside(|| set_feature("eth0", "rx-gro", true)).expect("veth has GRO");
        if let Err(why) = host.inside(napi_set_is_there) {
            skipped(why);
            return None;
        }
        Some(host)
    }

    /// Runs a function on a thread inside the host's network namespace.
    pub(crate) fn inside<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        self.inside_of(1, what)
    }

    /// Runs a function on a thread inside the namespace of the peer (0) or the host (1).
    pub(crate) fn inside_of<T: Send>(&self, place: usize, what: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/run/netns/{}", self.wire.names[place]));
        let namespace = namespace.expect("`ip netns add` made it");
        let run = || {
            setns(&namespace, CloneFlags::CLONE_NEWNET).expect("root may enter it");
            what()
        };
        thread::scope(|scope| scope.spawn(run).join().expect("it does not panic"))
    }

    /// Makes local TCP packets come by the NAPI instance. With any kind of TSO at the peer, they bypass it.
    pub(crate) fn without_tso(&self) {
        for kind in ["", "6", "-ecn", "-mangleid"] {
            let feature = format!("tx-tcp{kind}-segmentation");
            self.inside_of(0, || set_feature("eth0", &feature, false)).expect("veth has TSO");
        }
    }

    pub(crate) fn command(&self, arguments: &str) -> Command {
        let (before, after) = arguments.split_once(" -- ").unwrap_or((arguments, ""));
        let mut command = self.wire.command(1, &format!("irq {before}"));
        if !before.starts_with("show") {
            command.arg("--state").arg(&self.state.0);
        }
        if !after.is_empty() {
            command.arg("--").args(after.split_whitespace());
        }
        command
    }

    pub(crate) fn irq(&self, arguments: &str) -> Output {
        self.command(arguments).output().expect("the program starts")
    }

    pub(crate) fn parameters(&self) -> Vec<NapiParameters> {
        let slots = || Device::named("eth0").expect("it was made").slots().expect("it is up");
        self.inside(|| slots().iter().map(|slot| slot.napi.parameters()).collect())
    }

    pub(crate) fn succeeds(&self, arguments: &str) -> String {
        let output = self.irq(arguments);
        assert!(output.status.success(), "`{arguments}`: {}", stderr(&output));
        String::from_utf8(output.stdout).expect("it writes text")
    }
}

/// Whether the kernel sets NAPI instances for this process, tested by setting one to its present values. Only a refusal of the
/// kernel is a reason to skip a test: `apus` itself is not asked.
fn napi_set_is_there() -> Result<(), &'static str> {
    if !napis_can_be_set().expect("the kernel answers") {
        return Err("this kernel has no napi-set (Linux 6.13 and newer do)");
    }
    let slots = Device::named("eth0").expect("it was made").slots().expect("it is up");
    match apus_irq::set(slots[0].napi.id, &slots[0].napi.parameters()) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Err("no CAP_NET_ADMIN in the initial user namespace")
        }
        done => {
            done.expect("the values are those that it has");
            Ok(())
        }
    }
}

/// Whether this process, and therefore `apus`, may watch the kernel's timers and polls. Prints a message otherwise.
pub(crate) fn tracepoints_are_there() -> bool {
    match Watch::open(Duration::from_millis(20)) {
        Err(Error::CannotWatch { right, source })
            if [ErrorKind::PermissionDenied, ErrorKind::NotFound].contains(&source.kind()) =>
        {
            skipped(format!("tracepoints may not be read: {source} ({right})"));
            false
        }
        watch => watch.is_ok() || panic!("{watch:?}"),
    }
}

pub(crate) fn suspend20() -> Mode {
    "suspend:20".parse().expect("it is a mode")
}

#[test]
fn values_are_set_shown_and_restored() {
    let Some(host) = Host::new("irqset") else { return };
    let base = NapiParameters::default();
    host.succeeds("set eth0 --preset suspend:20 --defer 1");
    let wanted = NapiParameters { defer_hard_irqs: 1, ..suspend20().napi() };
    assert_eq!(host.parameters(), [wanted]);
    let shown: Value = serde_json::from_str(&host.succeeds("show eth0 --json -")).expect("JSON");
    let napi = &shown["devices"][0]["napis"][0];
    assert_eq!((&napi["name"], &shown["schema"]), (&"napi-0".into(), &"apus-irq/1".into()));
    assert_eq!(napi["napi"]["irq_suspend_timeout_ns"], 20_000_000);
    let text = host.succeeds("show eth0");
    for words in ["napi-0", "gro-flush us", "20000"] {
        assert!(text.contains(words), "no '{words}' in: {text}");
    }
    host.succeeds("set eth0:0 --gro-flush 50");
    assert_eq!(host.parameters(), [NapiParameters { gro_flush_timeout_ns: 50_000, ..wanted }]);
    assert!(host.succeeds("restore eth0").contains("eth0: restored"));
    assert_eq!(host.parameters(), [base]);
    assert_eq!(host.succeeds("restore"), "nothing to restore\n");
    for (arguments, word) in [
        ("set eth0:7 --preset base", "receive queue 7"),
        ("set eth7 --preset base", "`eth7`"),
        ("set lo --preset base", "no visible NAPI instance"),
        ("run --mode suspend:20 eth0 -- /no/such/program", "/no/such/program"),
    ] {
        let output = host.irq(arguments);
        assert!(!output.status.success() && stderr(&output).contains(word), "{}", stderr(&output));
    }
    assert_eq!(host.parameters(), [base]);
}

#[test]
fn a_queue_that_another_program_uses_is_refused() {
    let Some(host) = Host::new("irqshare") else { return };
    host.without_tso();
    let listener = host.inside(|| TcpListener::bind("10.88.0.2:0")).expect("the host is up");
    let at = listener.local_addr().expect("it is bound");
    let mut peer = host.inside_of(0, || TcpStream::connect(at)).expect("it listens");
    let mut socket = listener.accept().expect("it has connected").0;
    peer.write_all(b"x").expect("it is connected");
    socket.read_exact(&mut [0]).expect("it was sent");
    let refused = host.irq("run --mode suspend:20 eth0 -- true");
    let said = stderr(&refused);
    let this = format!("(pid {})", id());
    assert!(
        !refused.status.success() && said.contains(&this) && said.contains("--force"),
        "{said}"
    );
    host.succeeds("run --mode suspend:20 --force eth0 -- true");
    // An instance with one program is not shared.
    host.succeeds("set eth0 --preset defer:20");
    let shown: Value = serde_json::from_str(&host.succeeds("show eth0 --json -")).expect("JSON");
    assert_eq!(shown["devices"][0]["napis"][0]["napi"]["gro_flush_timeout_ns"], 20_000);
    host.succeeds("restore");
}

#[test]
fn a_run_restores_at_its_end_and_a_guardian_when_it_is_killed() {
    let Some(host) = Host::new("irqrun") else { return };
    let before = NapiParameters { defer_hard_irqs: 2, ..NapiParameters::default() };
    host.succeeds("set eth0 --defer 2");
    let refused = host.irq("run --mode suspend:20 eth0 -- true");
    assert!(stderr(&refused).contains("apus irq restore"), "{}", stderr(&refused));
    host.succeeds("restore");
    host.inside(|| {
        let slot = &Device::named("eth0").unwrap().slots().unwrap()[0];
        apus_irq::set(slot.napi.id, &before).expect("root may");
    });
    let ended = host.irq("run --mode suspend:20 eth0 -- sh -c exit${IFS}7");
    assert_eq!(ended.status.code(), Some(7), "{}", stderr(&ended));
    assert_eq!(host.parameters(), [before]);
    let start = || Started::run(&host);
    for killed in ["TERM", "KILL"] {
        let mut run = start();
        wait_until("the mode is set", || host.parameters() == [suspend20().napi()]);
        let held = host.irq("restore eth0");
        assert!(stderr(&held).contains("holds eth0"), "{}", stderr(&held));
        let sleepers = children(run.0.id(), "cat");
        run.signal(killed);
        run.0.wait().expect("it is a child of this process");
        wait_until("the values are restored", || host.parameters() == [before]);
        for pid in sleepers.iter().filter(|_| killed == "KILL") {
            kill(pid, "TERM");
        }
    }
    assert_eq!(host.succeeds("restore"), "nothing to restore\n");
}

/// A process that is killed when it is dropped.
pub(crate) struct Started(pub(crate) Child);

impl Started {
    /// Runs `apus irq run` with a program that ends at the end of its input, which is the end of the test, even if the command is
    /// gone.
    fn run(host: &Host) -> Self {
        let mut run = host.command("run --mode suspend:20 eth0 -- cat");
        run.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(run.spawn().expect("the program starts"))
    }

    pub(crate) fn signal(&self, name: &str) {
        let kill = Command::new("kill").args(["-s", name, &self.0.id().to_string()]).status();
        assert!(kill.expect("the system has a kill command").success());
    }
}

/// A process with children: it is ended by a signal, so that the children end with it.
pub(crate) struct Server(pub(crate) Started);

impl Drop for Server {
    fn drop(&mut self) {
        let child = &mut self.0.0;
        if matches!(child.try_wait(), Ok(None)) {
            kill(&child.id().to_string(), "TERM");
            let _ = child.wait();
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // Fails if the process has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_run_is_restored_whatever_it_was_doing_and_with_its_guardian_by_hand() {
    let Some(host) = Host::new("irqkill") else { return };
    let base = [NapiParameters::default()];
    let start = || Started::run(&host);
    let is_kept = || {
        let entries = std::fs::read_dir(&host.state.0).into_iter().flatten().flatten();
        // A killed process can leave a part of a file under another name, which is never read.
        entries.map(|it| it.path()).any(|it| it.extension().is_some_and(|it| it == "json"))
    };
    let end = |run: &mut Started| {
        let sleepers = children(run.0.id(), "cat");
        run.signal("KILL");
        run.0.wait().expect("it is a child of this process");
        for pid in sleepers {
            kill(&pid, "TERM");
        }
    };
    for moment in 0..4 {
        let mut run = start();
        match moment {
            0 => wait_until("a guardian", || !children(run.0.id(), "apus").is_empty()),
            1 => wait_until("the values are kept", is_kept),
            2 => wait_until("the mode is set", || host.parameters() == [suspend20().napi()]),
            _ => wait_until("a program", || !children(run.0.id(), "cat").is_empty()),
        }
        end(&mut run);
        wait_until("the values are restored", || host.parameters() == base && !is_kept());
    }
    let mut run = start();
    wait_until("the program", || !children(run.0.id(), "cat").is_empty());
    for guardian in children(run.0.id(), "apus") {
        kill(&guardian, "KILL");
    }
    end(&mut run);
    assert_eq!(host.parameters(), [suspend20().napi()], "nobody is left to restore it");
    assert!(host.succeeds("restore").contains("eth0: restored"));
    assert_eq!(host.parameters(), base);
}

pub(crate) fn kill(pid: &str, signal: &str) {
    // Fails if the process has ended.
    let _ = Command::new("kill").args(["-s", signal, pid]).status();
}

/// The children of a process that run a program of this name.
pub(crate) fn children(pid: u32, program: &str) -> Vec<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let pids = text.unwrap_or_default();
    let name = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/comm"));
    let is_it = |pid: &&str| name(pid).is_ok_and(|name| name.trim() == program);
    pids.split_whitespace().filter(is_it).map(str::to_owned).collect()
}

#[test]
fn epoll_sets_that_run_already_and_later_ones_are_set_and_restored() {
    let epoll = || Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("the kernel has epoll");
    let first = epoll();
    let before = match EpollParameters::of(&first.0) {
        Err(error) if error.raw_os_error() == Some(nix::errno::Errno::ENOTTY as i32) => {
            return skipped("this kernel has no parameters of epoll sets");
        }
        before => before.expect("it is an epoll set"),
    };
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if !["", "0"].contains(&scope.trim()) && !nix::unistd::geteuid().is_root() {
        return skipped("a child may not trace this process");
    }
    let state = OwnState::new("attach");
    let own = format!("irq show --pid {} --json -", id());
    let shown = command(&own).output().expect("the program starts");
    let shown: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    assert!(!shown["programs"][0]["epoll_sets"].as_array().expect("a list").is_empty());
    let is = |epoll: &Epoll, wanted| EpollParameters::of(&epoll.0).expect("it is open") == wanted;
    let wanted = suspend20().epoll();
    for killed in ["TERM", "KILL"] {
        let mut attach = command(&format!("irq attach {} --mode suspend:20 --state", id()));
        let attach = attach.arg(&state.0).stderr(Stdio::null()).spawn();
        let mut attach = Started(attach.expect("the program starts"));
        wait_until("the first set is set", || is(&first, wanted));
        let second = epoll();
        wait_until("the second set is set", || is(&second, wanted));
        attach.signal(killed);
        attach.0.wait().expect("it is a child of this process");
        wait_until("both are restored", || is(&first, before) && is(&second, before));
    }
}

#[test]
fn wrong_use_is_named() {
    fails(
        2,
        &format!("irq attach {} --mode fullbusy", id()),
        &["fullbusy", "waits", "apus irq run --preload"],
    );
    fails(1, "irq attach 2147483647 --mode suspend:20", &["process 2147483647"]);
    fails(2, "irq attach 1 --mode suspend:x", &["`suspend:x`", "--mode"]);
    fails(2, "irq set eth0", &["--preset"]);
    fails(2, "irq set eth0 --suspend 10001", &["10001", "--suspend"]);
    fails(2, "irq set eth0:x --defer 1", &["eth0:x"]);
    fails(1, "irq show no-such-one", &["`no-such-one`"]);
    fails(1, "irq doctor no-such-one", &["`no-such-one`"]);
    fails(1, "irq doctor 2147483647", &["process 2147483647"]);
    fails(2, "irq doctor 1 --watch 0", &["'0'", "--watch", "0.1 to 3600"]);
}

/// The keeper of a device that was set, according to the state file.
fn keeper(host: &Host) -> Option<ProcessId> {
    let files = std::fs::read_dir(&host.state.0).into_iter().flatten().flatten();
    let texts = files.filter_map(|file| std::fs::read(file.path()).ok());
    let mut values = texts.filter_map(|text| serde_json::from_slice::<Value>(&text).ok());
    values.find_map(|value| serde_json::from_value(value["keeper"].clone()).ok())
}

#[test]
fn values_that_a_link_event_loses_are_set_again_until_they_are_restored() {
    let Some(host) = Host::new("irqkeep") else { return };
    let link = |state: &str| {
        let arguments = ["-n", &host.wire.names[1], "link", "set", "eth0", state];
        let changed = Command::new("ip").args(arguments).status();
        assert!(changed.expect("ip starts").success());
    };
    let base = NapiParameters::default();
    host.succeeds("set eth0 --preset suspend:20");
    let first = keeper(&host).expect("set leaves it behind");
    host.succeeds("set eth0:0 --suspend 10");
    assert_eq!(keeper(&host), Some(first), "one is enough");
    let wanted = NapiParameters { irq_suspend_timeout_ns: 10_000_000, ..suspend20().napi() };
    for _ in 0..2 {
        link("down");
        assert_eq!(host.parameters(), []);
        link("up");
        wait_until("the values are set again", || host.parameters() == [wanted]);
    }
    host.succeeds("restore");
    assert!(!first.runs() && keeper(&host).is_none());
    link("down");
    link("up");
    assert_eq!(host.parameters(), [base]);
    // Without a keeper, lost values are not set again.
    host.succeeds("set eth0 --once --defer 3");
    assert!(keeper(&host).is_none());
    host.succeeds("restore");
    // A keeper ends when its state is removed.
    host.succeeds("set eth0 --defer 3");
    let last = keeper(&host).expect("set leaves it behind");
    // The keeper may write a file while the directory is emptied.
    wait_until("the state is removed", || std::fs::remove_dir_all(&host.state.0).is_ok());
    wait_until("the keeper ends", || !last.runs());
}

#[test]
fn the_program_runs_as_the_user_that_is_asked_for_and_without_capabilities() {
    let Some(host) = Host::new("irquser") else { return };
    let text = host.succeeds("run --user nobody --mode suspend:20 eth0 -- id -u");
    assert_eq!(text, "65534\n");
    let text =
        host.succeeds("run --user nobody --mode suspend:20 eth0 -- grep CapEff /proc/self/status");
    assert_eq!(text.split_whitespace().last(), Some("0000000000000000"));
    assert_eq!(host.succeeds("run --mode suspend:20 eth0 -- id -u"), "0\n");
    let refused = host.irq("run --user no-such-user --mode suspend:20 eth0 -- true");
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("'--user no-such-user'"), "{}", stderr(&refused));
}

#[test]
fn a_user_with_one_capability_sets_a_device_for_a_program_that_has_none() {
    let Some(host) = Host::new("irqcap") else { return };
    // A directory that another user may enter, with a program that has the capability.
    let directory = OwnState::new("cap");
    std::fs::create_dir_all(directory.0.join("state")).expect("a temporary directory");
    let program = directory.0.join("apus");
    std::fs::copy(env!("CARGO_BIN_EXE_apus"), &program).expect("there is room");
    chown(directory.0.join("state"), Some(65_534), None).expect("root may");
    let capable = Command::new("setcap").arg("cap_net_admin=ep").arg(&program).status();
    if !capable.is_ok_and(|status| status.success()) {
        return skipped("no setcap, or a file system without capabilities");
    }
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &host.wire.names[1], "setpriv"]);
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
    command
        .args("irq run --mode suspend:20 eth0 --state".split(' '))
        .arg(directory.0.join("state"));
    let ended = command.args("-- grep -E ^(Uid|CapEff): /proc/self/status".split(' ')).output();
    let ended = ended.expect("ip starts");
    assert!(ended.status.success(), "{}", stderr(&ended));
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    let words: Vec<_> = text.split_whitespace().collect();
    assert_eq!(words[1..5], ["65534"; 4]);
    assert_eq!(words.last(), Some(&"0000000000000000"));
    assert_eq!(host.parameters(), [NapiParameters::default()]);
}

/// A script in a file beside the test's state directory.
fn script(host: &Host, text: &str) -> String {
    std::fs::create_dir_all(&host.state.0).expect("a temporary directory");
    let path = host.state.0.with_extension("sh");
    std::fs::write(&path, text).expect("a temporary file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    path.to_str().expect("it is text").to_owned()
}

#[test]
fn every_signal_is_passed_on_also_equal_ones() {
    let Some(host) = Host::new("irqsig") else { return };
    let program = script(
        &host,
        "#!/bin/sh\ntrap 'echo HUP' HUP\ntrap 'echo USR1' USR1\ntrap 'echo INT' INT\ntrap 'kill $!; exit 3' TERM\n\
         tail -f /dev/null &\necho ready\nwhile :; do wait $!; done\n",
    );
    let mut run = host.command(&format!("run --mode suspend:20 eth0 -- {program}"));
    let mut run = Started(run.stdout(Stdio::piped()).spawn().expect("the program starts"));
    let mut lines = BufReader::new(run.0.stdout.take().expect("it is a pipe")).lines();
    let mut line = || lines.next().expect("it goes on").expect("it is text");
    assert_eq!(line(), "ready");
    for signal in ["HUP", "HUP", "USR1", "HUP", "INT", "INT"] {
        run.signal(signal);
        assert_eq!(line(), signal);
    }
    run.signal("TERM");
    assert_eq!(run.0.wait().expect("it is a child of this process").code(), Some(3));
    assert_eq!(host.parameters(), [NapiParameters::default()]);
    let _ = std::fs::remove_file(program);
}

#[test]
fn a_program_that_leaves_a_process_without_a_socket_is_given_up_with_a_line() {
    let Some(host) = Host::new("irqleft") else { return };
    let program = script(&host, "#!/bin/sh\ntail -f /dev/null >/dev/null 2>&1 &\necho $!\n");
    let run = host.irq(&format!("run --mode suspend:20 eth0 -- {program}"));
    let left = String::from_utf8(run.stdout.clone()).expect("it is text");
    kill(left.trim(), "TERM");
    let said = stderr(&run);
    assert_eq!(run.status.code(), Some(0), "{said}");
    for words in [left.trim(), "are restored", "foreground", "apus irq attach"] {
        assert!(said.contains(words), "no '{words}' in: {said}");
    }
    assert_eq!(host.parameters(), [NapiParameters::default()]);
    let _ = std::fs::remove_file(program);
}

#[test]
fn results_are_json_for_programs() {
    let Some(host) = Host::new("irqjson") else { return };
    let json = |text: &str| -> Value { serde_json::from_str(text).expect("JSON") };
    let set = json(&host.succeeds("set eth0 --preset suspend:20 --json -"));
    assert_eq!((&set["schema"], &set["device"]), (&"apus-irq-set/1".into(), &"eth0".into()));
    let changed = &set["napis"]["napi-0"];
    assert_eq!(changed["before"]["gro_flush_timeout_ns"], 0);
    assert_eq!(changed["set"]["gro_flush_timeout_ns"], 20_000);
    assert!(set["keeper"]["pid"].is_u64(), "{set}");
    let restored = json(&host.succeeds("restore --json -"));
    assert_eq!(restored["schema"], "apus-irq-restore/1");
    assert_eq!(
        (&restored["devices"][0], &restored["errors"]),
        (&"eth0".into(), &Value::Array(vec![]))
    );
    let file = host.state.0.with_extension("json");
    let path = file.display();
    let ran = host.irq(&format!("run --mode suspend:20 --json {path} eth0 -- sh -c exit${{IFS}}7"));
    assert_eq!(ran.status.code(), Some(7), "{}", stderr(&ran));
    let ran = json(&std::fs::read_to_string(&file).expect("it was written"));
    assert_eq!((&ran["schema"], &ran["exit_code"]), (&"apus-irq-run/1".into(), &7.into()));
    assert_eq!(ran["devices"]["eth0"]["napi-0"]["set"]["irq_suspend_timeout_ns"], 20_000_000);
    let refused = host.irq("run --mode suspend:20 --json - eth0 -- true");
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("'--json -'"), "{}", stderr(&refused));
    let mut cat = Command::new("cat");
    let mut cat = Started(cat.stdin(Stdio::piped()).spawn().expect("cat starts"));
    let arguments = format!("attach {} --mode suspend:20 --json {path} eth0", cat.0.id());
    let attach =
        host.command(&arguments).stderr(Stdio::null()).spawn().expect("the program starts");
    let mut attach = Started(attach);
    wait_until("the mode is set", || host.parameters() == [suspend20().napi()]);
    drop(cat.0.stdin.take());
    // The child is reaped only now, because its number must not be reused before the check.
    cat.0.wait().expect("it is a child of this process");
    assert!(attach.0.wait().expect("it is a child of this process").success());
    let attached = json(&std::fs::read_to_string(&file).expect("it was written"));
    assert_eq!(attached["schema"], "apus-irq-attach/1");
    assert_eq!((&attached["program"], &attached["ended_by"]), (&"cat".into(), &"program".into()));
    let _ = std::fs::remove_file(file);
}

#[test]
fn threads_that_poll_all_the_time_are_set_and_restored_or_refused_with_the_kernel_that_has_them() {
    let Some(host) = Host::new("irqthread") else { return };
    let threaded = || {
        let slots = || Device::named("eth0").expect("it was made").slots().expect("it is up");
        host.inside(|| slots()[0].napi.threaded)
    };
    let set = host.irq("set eth0 --preset threadbusy");
    if !set.status.success() {
        // The kernel is asked as well, so that only its refusal counts.
        let parameters = "threadbusy".parse::<Mode>().expect("it is a mode").napi();
        let slots = || Device::named("eth0").expect("it was made").slots().expect("it is up");
        let refused = host.inside(|| apus_irq::set(slots()[0].napi.id, &parameters));
        assert_eq!(refused.expect_err("as `apus irq set`").kind(), ErrorKind::Unsupported);
        assert!(stderr(&set).contains("Linux 6.19"), "{}", stderr(&set));
        assert_eq!(
            (threaded().unwrap_or(0), host.parameters()),
            (0, vec![NapiParameters::default()])
        );
        assert_eq!(host.succeeds("restore"), "nothing to restore\n");
        return skipped(
            "this kernel has no threads that poll all the time: the refusal was looked at",
        );
    }
    assert_eq!(threaded(), Some(THREADED_BUSY_POLL));
    assert!(host.succeeds("show eth0").contains(" busy"));
    // A mode without a value for threads puts the thread back.
    host.succeeds("set eth0 --preset suspend:20");
    assert_eq!(threaded(), Some(0));
    host.succeeds("set eth0 --preset threadbusy");
    host.succeeds("restore");
    assert_eq!((threaded(), host.parameters()), (Some(0), vec![NapiParameters::default()]));
}

#[test]
fn root_obeys_no_state_that_another_user_could_have_written() {
    if !nix::unistd::geteuid().is_root() {
        return skipped("only root can make directories of other users");
    }
    let place = OwnState::new("planted");
    let (state, target) = (place.0.join("irq"), place.0.join("target"));
    std::fs::create_dir_all(&state).expect("a temporary directory");
    std::fs::write(&target, "precious").expect("a temporary file");
    let own = ProcessId::own().expect("/proc is there");
    let planted = format!(
        r#"{{"program":{{"pid":{},"started":{}}},"owner":{{"pid":1,"started":1}},"sets":{{}}}}"#,
        own.pid, own.started
    );
    let restore = |words: &[&str]| {
        let output = command("irq restore --state").arg(&state).output();
        let output = output.expect("the program starts");
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
        assert_eq!(std::fs::read_to_string(&target).expect("it is there"), "precious");
    };
    let file = state.join("program-1-1.json");
    std::fs::write(&file, &planted).expect("it is ours");
    symlink(&target, state.join("lock")).expect("it is ours");
    restore(&["lock", "symbolic link"]);
    std::fs::remove_file(state.join("lock")).expect("it is ours");
    chown(&file, Some(65_534), None).expect("root may");
    restore(&["program-1-1.json", "owned by user 65534"]);
    std::fs::remove_file(&file).expect("it is ours");
    symlink(&target, &file).expect("it is ours");
    restore(&["program-1-1.json", "symbolic link"]);
    // A directory that all processes of a host share.
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o1777)).expect("it is ours");
    restore(&["irq", "writable by other users (mode 1777)"]);
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    chown(&state, Some(65_534), None).expect("root may");
    restore(&["irq", "owned by user 65534"]);
}

#[test]
fn the_program_has_all_groups_of_its_user() {
    let Some(host) = Host::new("irqgroups") else { return };
    std::fs::create_dir_all(&host.state.0).expect("a temporary directory");
    let table = host.state.0.with_extension("group");
    let groups = std::fs::read_to_string("/etc/group").expect("it is there");
    let more = "apus-test-a:x:54001:nobody\napus-test-b:x:54002:daemon,nobody\n";
    std::fs::write(&table, groups + more).expect("a temporary file");
    // In a mount namespace of its own, so that no other process sees the table.
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount --bind \"$0\" /etc/group && exec \"$@\""]);
    let run = host.command("run --user nobody --mode suspend:20 eth0 -- id -G");
    command.arg(&table).arg(run.get_program()).args(run.get_args());
    let output = command.output().expect("unshare starts");
    let _ = std::fs::remove_file(table);
    let said = stderr(&output);
    if !output.status.success() && said.contains("unshare") {
        return skipped(said.trim());
    }
    assert!(output.status.success(), "{said}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut groups: Vec<u32> =
        text.split_whitespace().map(|it| it.parse().expect("a number")).collect();
    groups.sort_unstable();
    assert_eq!(groups, [54_001, 54_002, 65_534]);
}
