//! `apus irq attach`: a mode for a program that runs already, as long as the command runs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use apus_bench::misuse::Misuse;
use apus_irq::{Device, Mode, ProcessId, Program, Target};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::os::fd::AsFd;

use super::session::Session;
use super::set;
use super::state::StateArgs;
use crate::failure;

/// Give a running program a mode, until this command ends
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Sets the parameters of all epoll sets of the program and of its children, and of those that they make later, and of the \
devices if some are given. All of it is restored when the command or the program ends; also when the command is killed. The epoll sets \
need the right to trace the program, the devices CAP_NET_ADMIN.

Examples:
  apus irq attach 4711 --mode suspend:20 eth0
  apus irq attach $(pidof memcached) --mode suspend:20 eth0:0 eth0:1
  apus irq attach 4711 --mode napibusy"
)]
pub(crate) struct AttachArgs {
    /// Process of the program
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: i32,
    #[command(flatten)]
    what: What,
    /// Devices, or receive queues of them, that get the mode's parameters as well
    #[arg(value_name = "DEV[:QUEUE]")]
    targets: Vec<Target>,
}

#[derive(Clone, Debug, clap::Args)]
pub(super) struct What {
    /// Mode: base, defer:X, napibusy, fullbusy (only with `apus irq run --preload`) or suspend:X, X in microseconds
    #[arg(long, value_name = "MODE")]
    pub(super) mode: Mode,
    /// Set queues that other programs use, too
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    state: StateArgs,
}

impl What {
    /// A session that has set the devices. `preloaded`: the program has a library that makes its waits.
    ///
    /// # Errors
    /// When the mode takes that library, or a device is not there, is shared or held, or the kernel refuses.
    pub(super) fn session(
        &self,
        targets: &[Target],
        of: &BTreeSet<ProcessId>,
        preloaded: bool,
    ) -> Result<Session> {
        if self.mode.needs_other_waits() && !preloaded {
            return Err(Misuse(format!(
                "'--mode {}': its program polls without sleeping, with waits of 1 ms that repeat; parameters cannot make a program \
                 wait so. `apus irq run --preload` starts a program that does; napibusy and suspend:X work from outside",
                self.mode
            ))
            .into());
        }
        let mut found = Vec::new();
        for target in targets {
            let device = Device::named(&target.device)?;
            let slots = device.slots_of(target.queue)?;
            if !self.force {
                set::refuse_shared(&slots, of, 1)?;
            }
            found.push((device, slots));
        }
        let mut session = Session::new(self.state.open()?, self.mode)?;
        for (device, slots) in found {
            session.set_device(device, &slots)?;
        }
        Ok(session)
    }
}

/// Gives a running program a mode until a signal, or the program's end.
///
/// # Errors
/// When there is no such process, it may not be reached, or a device cannot be set.
pub(crate) fn attach(args: &AttachArgs) -> Result<()> {
    let pid = args.pid;
    let program = Program::open(pid).with_context(|| format!("process {pid}"))?;
    let signals = Signals::handle()?;
    let family = program.id().with_descendants().into_iter().collect();
    let session = args.what.session(&args.targets, &family, false)?;
    let sets = session.refresh(&program.id().with_descendants())?;
    failure::note(&format!(
        "{} (pid {pid}): {} for {sets} epoll sets; Ctrl-C restores them",
        program.name(),
        args.what.mode
    ));
    while signals.last() == 0 && !wait(&program)? {
        session.refresh_devices()?;
        session.refresh(&program.id().with_descendants())?;
    }
    session.restore()
}

/// Waits until the program ends, but not long; whether it has ended.
///
/// # Errors
/// When the kernel refuses to wait.
pub(super) fn wait(program: &Program) -> Result<bool> {
    let mut fds = [PollFd::new(program.pidfd().as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(RESCAN).expect("it is short");
    match poll(&mut fds, timeout) {
        Ok(ended) => Ok(ended > 0),
        Err(nix::errno::Errno::EINTR) => Ok(false),
        Err(error) => Err(error).context("wait for the program"),
    }
}

/// How often new epoll sets are looked for.
const RESCAN: Duration = Duration::from_millis(200);

/// The signals that end the command.
#[derive(Debug)]
pub(super) struct Signals(Arc<AtomicUsize>);

impl Signals {
    /// From now on, they do not end the command themselves.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn handle() -> Result<Self> {
        let last = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let number = usize::try_from(signal).expect("signals are above 0");
            signal_hook::flag::register_usize(signal, Arc::clone(&last), number)
                .context("cannot handle signals")?;
        }
        Ok(Self(last))
    }

    /// The last one that came; 0 if none came.
    pub(super) fn last(&self) -> i32 {
        i32::try_from(self.0.load(Ordering::Relaxed)).expect("it was one of three")
    }
}
