//! `apus irq attach`: a mode for a running program, while the command runs.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result};
use apus_irq::{Device, Done, Mode, ProcessId, Program, Session, Steering, Target};
use apus_load::misuse::Misuse;
use serde::Serialize;

use super::preset;
use super::session;
use super::set;
use super::signals::{self, Signals};
use super::state::StateArgs;
use crate::failure;
use crate::output::OutputFile;

/// Give a running program a mode, until this command ends
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Sets the parameters of all epoll sets of the program and of its children, including later ones, and of the \
devices that are given. The values before are restored when the command or the program ends, even if the command is killed. \
Setting epoll sets needs the right to trace the program; setting devices needs CAP_NET_ADMIN.

--steer is for programs in which each worker has its own listener at the same address (SO_REUSEPORT; nginx with `listen ... \
reuseport`). The kernel then selects the listener by the number of the connection's receive queue instead of a hash, so the epoll \
set of each worker has one NAPI instance. --steer replaces a filter that the program has set for this purpose, and does not \
restore it.

Examples:
  apus irq attach 4711 --mode suspend:20 eth0
  apus irq attach $(pidof memcached) --mode suspend:20 eth0:0 eth0:1
  apus irq attach 4711 --mode suspend:20 --steer eth0
  apus irq attach 4711 --mode napibusy"
)]
pub(crate) struct AttachArgs {
    /// Process of the program
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: i32,
    #[command(flatten)]
    what: What,
    /// Devices, or receive queues of them, that also get the parameters of the mode
    #[arg(value_name = "DEV[:QUEUE]")]
    targets: Vec<Target>,
    /// Write the result as JSON to FILE at the end; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The result for `--json`.
#[derive(Debug, Serialize)]
struct AttachResult<'a> {
    schema: &'static str,
    pid: i32,
    program: &'a str,
    mode: String,
    /// `signal`, or `program` if the program has ended.
    ended_by: &'static str,
    #[serde(flatten)]
    done: Done,
}

#[derive(Clone, Debug, clap::Args)]
pub(super) struct What {
    /// Mode: base, defer:X, napibusy, fullbusy (only with `apus irq run --preload`), suspend:X, X in microseconds, or threadbusy (Linux
    /// 6.19); or the name of a preset
    #[arg(long, value_name = "MODE", value_parser = preset::mode)]
    pub(super) mode: Mode,
    /// Also set queues that other programs use
    #[arg(long)]
    force: bool,
    /// Give each connection to the listener of its receive queue, in programs with an SO_REUSEPORT listener for each worker
    #[arg(long)]
    steer: bool,
    #[command(flatten)]
    state: StateArgs,
}

impl What {
    /// The steering that `--steer` requests; `None` without the option.
    ///
    /// # Errors
    /// When the target is not one whole device.
    pub(super) fn steering(&self, targets: &[Target]) -> Result<Option<Steering>> {
        match targets {
            _ if !self.steer => Ok(None),
            [Target { device, queue: None }] => Ok(Some(Steering::new(device))),
            _ => Err(Misuse(
                "'--steer' needs exactly one device, without a queue: queue numbers are unique only within a device"
                    .to_owned(),
            )
            .into()),
        }
    }

    /// Starts a session and sets the devices. `preloaded` means that the program has a library that makes its waits.
    ///
    /// # Errors
    /// When the mode needs that library, a device is absent, shared or held, or the kernel refuses.
    pub(super) fn session(
        &self,
        targets: &[Target],
        of: &BTreeSet<ProcessId>,
        preloaded: bool,
    ) -> Result<Session> {
        if self.mode.needs_other_waits() && !preloaded {
            return Err(Misuse(format!(
                "'--mode {}': in this mode the program repeats waits of 1 ms instead of sleeping, which parameters cannot achieve \
                 from outside. Start the program with `apus irq run --preload`, or use napibusy or suspend:X",
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
            found.push((device, slots, target.queue.is_none()));
        }
        let mut session = session::start(self.state.open()?, self.mode)?;
        for (device, slots, is_whole) in found {
            session.set_device(device, &slots, is_whole)?;
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
    let mut signals = Signals::handle(&signals::ENDING)?;
    let json = args.json.as_deref().map(OutputFile::open).transpose()?;
    let mut steering = args.what.steering(&args.targets)?;
    let family = program.id().with_descendants();
    let mut session = args.what.session(&args.targets, &family.iter().copied().collect(), false)?;
    if let Some(steering) = &mut steering {
        steering.begin(&session, &family).map_err(session::of_steering)?;
    }
    let sets = session.refresh(&family)?;
    failure::note(&format!(
        "{} (pid {pid}): {} for {sets} epoll sets; Ctrl-C restores them",
        program.name(),
        args.what.mode
    ));
    let ended_by = loop {
        if !signals.take().is_empty() {
            break "signal";
        }
        if session.wait_for(&program)? {
            break "program";
        }
        session.refresh_devices()?;
        let family = program.id().with_descendants();
        session.refresh(&family)?;
        if let Some(steering) = &mut steering {
            steering.refresh(&session, &family).map_err(session::of_steering)?;
        }
    };
    let done = session.done().clone();
    session.restore()?;
    let Some(json) = json else { return Ok(()) };
    json.write_json(&AttachResult {
        schema: "apus-irq-attach/1",
        pid,
        program: program.name(),
        mode: args.what.mode.to_string(),
        ended_by,
        done,
    })
}
