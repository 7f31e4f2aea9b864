//! Epoll sets of programs with the preloaded library: `APUS_EPOLL`, `APUS_EPOLL_REPEAT` and `apus irq run --preload`.

use std::process::{Command, Stdio};

use apus_irq::{EpollParameters, Mode, ProcessId, Program};

use crate::irq::{Host, Server, Started};
use crate::program::{stderr, wait_until};
use crate::run::{Directory, output, run, stdout};
use crate::skipped::skipped;

/// The epoll sets of a process and its descendants.
fn sets_of(pid: u32) -> Vec<EpollParameters> {
    let pid = i32::try_from(pid).expect("the kernel's numbers are smaller");
    let family = ProcessId::of(pid).map(|it| it.with_descendants()).unwrap_or_default();
    let programs = family.iter().filter_map(|it| Program::open(it.pid).ok());
    let sets = programs.filter_map(|program| program.epoll_sets().ok()).flatten();
    sets.map(|set| set.parameters).collect()
}

#[test]
fn waits_end_as_those_of_the_kernel() {
    let directory = Directory::new("epoll-waits");
    let program = directory.program("waits_in_epoll.c", &[]);
    let plain = stdout(&output(&mut Command::new(&program)));
    assert!(plain.lines().count() == 15 && !plain.contains("too early"), "{plain}");
    for variables in [&["APUS_EPOLL"][..], &["APUS_EPOLL", "APUS_EPOLL_REPEAT"]] {
        let mut command = run([program.as_os_str()]);
        for name in variables {
            command.env(name, if *name == "APUS_EPOLL" { "1000,64,1" } else { "1" });
        }
        let ended = output(&mut command);
        assert_eq!((stdout(&ended), stderr(&ended)), (plain.clone(), String::new()));
    }
}

#[test]
fn values_that_have_no_sense_are_named_and_ignored() {
    let mut command = run(["true"]);
    let ended = output(command.env("APUS_EPOLL", "0,64,2").env("APUS_EPOLL_REPEAT", "yes"));
    let said = stderr(&ended);
    assert!(ended.status.success() && said.lines().count() == 2, "{said}");
    for words in ["APUS_EPOLL = '0,64,2'", "USECS,BUDGET,PREFER", "APUS_EPOLL_REPEAT = 'yes'"] {
        assert!(said.contains(words), "no '{words}' in: {said}");
    }
}

#[test]
fn a_program_of_fullbusy_has_its_parameters_and_waits_as_ever() {
    let Some(host) = Host::new("irqfull") else { return };
    let directory = Directory::new("irq-fullbusy");
    let program = directory.program("waits_in_epoll.c", &[]);
    let plain = stdout(&output(&mut Command::new(&program)));
    let line = format!("run --preload --mode fullbusy eth0 -- {} stay", program.display());
    let mut run = host.command(&line);
    run.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut run = Started(run.spawn().expect("the program starts"));
    let mode: Mode = "fullbusy".parse().expect("it is a mode");
    wait_until("both sets are made", || sets_of(run.0.id()).len() == 2);
    assert_eq!(sets_of(run.0.id()), [mode.epoll(); 2]);
    assert_eq!(host.parameters(), [mode.napi()]);
    drop(run.0.stdin.take());
    let text = std::io::read_to_string(run.0.stdout.take().expect("it is a pipe"));
    assert!(run.0.wait().expect("it is a child").success());
    assert_eq!(text.expect("it is text"), plain);
    let linked = directory.compiled("cc", "waits_in_epoll.c", &["-static"], "static");
    match linked {
        None => skipped("the C compiler links no static programs"),
        Some(program) => {
            let line = format!("run --preload --mode fullbusy eth0 -- {}", program.display());
            let refused = host.irq(&line);
            let said = stderr(&refused);
            assert!(!refused.status.success() && said.contains("statically linked"), "{said}");
        }
    }
    let refused = host.irq("run --mode fullbusy eth0 -- true");
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("apus irq run --preload"), "{}", stderr(&refused));
}

#[test]
fn memcached_and_the_workers_of_nginx_have_the_parameters() {
    let Some(host) = Host::new("irqreal") else { return };
    let directory = Directory::new("irq-real");
    let at = |name: &str| directory.file(name).display().to_string();
    let configuration = format!(
        "daemon off; worker_processes 2; pid {}; error_log stderr; events {{}} http {{ access_log off; server {{ listen unix:{}; }} }}",
        at("pid"),
        at("nginx")
    );
    std::fs::write(at("conf"), configuration).expect("the directory is ours");
    // memcached has a set for each of its 2 threads and one for accepting connections.
    let programs = [
        (3, format!("memcached -u root -t 2 -s {}", at("memcached"))),
        (2, format!("nginx -e stderr -c {}", at("conf"))),
    ];
    let wanted =
        EpollParameters { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true };
    for (count, program) in programs {
        let name = program.split(' ').next().expect("it has a name");
        if !Command::new(name).arg("-V").output().is_ok_and(|output| output.status.success()) {
            skipped(format!("{name} is not installed"));
            continue;
        }
        let mut run = host.command(&format!("run --preload --mode suspend:20 eth0 -- {program}"));
        let run = Server(Started(run.stdin(Stdio::null()).spawn().expect("the program starts")));
        wait_until("all sets are made", || sets_of(run.0.0.id()).len() >= count);
        assert!(sets_of(run.0.0.id()).iter().all(|set| *set == wanted), "{name}");
    }
}
