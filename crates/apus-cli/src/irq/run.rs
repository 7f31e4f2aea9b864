//! `apus irq run`: a mode for a program that is started.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{self, Command};

use anyhow::{Context, Result};
use apus_bench::misuse::Misuse;
use apus_irq::{Mode, Program, Target};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid, User, geteuid};
use signal_hook::consts::SIGINT;

use super::attach::{Signals, What, wait};
use crate::failure::NotStarted;
use crate::run::{find, preload};

/// Start a program with a mode, which ends with it
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "As `apus irq attach` for a program that is started. The exit code is that of the program.

With --preload, the library of `apus run` gives the parameters to each epoll set when the program makes it, and nothing reaches into \
the program from outside. Only so is there the mode fullbusy: the library makes each wait of the program a row of waits of 1 ms, which \
do not sleep. No connection is carried, unless the variable APUS_SOCKETS says otherwise. A program that is statically linked, uses \
musl or gains privileges when it starts cannot be preloaded.

Examples:
  apus irq run --mode suspend:20 eth0 -- memcached -t 4
  sudo apus irq run --user www-data --mode suspend:20 --steer eth0 -- nginx -g 'daemon off;'
  apus irq run --preload --mode fullbusy eth0 -- memcached -t 4"
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    what: What,
    /// Set the program's epoll sets by a library in it instead of from outside
    #[arg(long)]
    preload: bool,
    /// User that the program runs as, by name or number, with that user's group alone [default: the user of this command]
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Device, or one of its receive queues, that gets the mode's parameters as well
    #[arg(value_name = "DEV[:QUEUE]")]
    target: Target,
    /// Program and its arguments
    #[arg(value_name = "PROGRAM", required = true, last = true)]
    program: Vec<OsString>,
}

/// Runs a program with a mode, and ends as it does.
///
/// # Errors
/// When it cannot be started or preloaded, or a device cannot be set.
pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let signals = Signals::handle()?;
    let mut command = args.command()?;
    let targets = std::slice::from_ref(&args.target);
    let mut steering = args.what.steering(targets)?;
    let session = args.what.session(targets, &BTreeSet::new(), args.preload)?;
    let mut child = command.spawn().map_err(|error| {
        let code = match error.kind() {
            ErrorKind::NotFound => NotStarted::NOT_FOUND,
            _ => NotStarted::CANNOT,
        };
        let name = args.program[0].display();
        NotStarted { code, why: format!("cannot start `{name}`: {error}") }
    })?;
    let pid = i32::try_from(child.id()).expect("the kernel's numbers are smaller");
    let program = Program::open(pid).context("the program")?;
    let mut passed_on = 0;
    while !wait(&program, session.links())? {
        session.refresh_devices()?;
        let family = program.id().with_descendants();
        if !args.preload {
            session.refresh(&family)?;
        }
        if let Some(steering) = &mut steering {
            steering.refresh(&session, &family)?;
        }
        let signal = signals.last();
        if signal != passed_on && signal != SIGINT {
            // The terminal sends SIGINT to the program itself.
            let signal = Signal::try_from(signal).context("a signal")?;
            // It may have ended; then the next wait says so.
            let _ = kill(Pid::from_raw(pid), signal);
        }
        passed_on = signal;
    }
    let status = child.wait().context("the program")?;
    session.restore()?;
    process::exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
}

impl RunArgs {
    /// What starts the program.
    fn command(&self) -> Result<Command> {
        let (name, arguments) = self.program.split_first().expect("clap requires one");
        let path = find(name)?;
        let mut command = Command::new(&path);
        command.arg0(name).args(arguments);
        if let Some(user) = &self.user {
            run_as(&mut command, user)?;
        }
        if !self.preload {
            return Ok(command);
        }
        command.env("LD_PRELOAD", preload(&path)?);
        command.env("APUS_EPOLL", epoll_variable(self.what.mode));
        if self.what.mode.needs_other_waits() {
            command.env("APUS_EPOLL_REPEAT", "1");
        }
        if env::var_os("APUS_SOCKETS").is_none() {
            command.env("APUS_SOCKETS", "off");
        }
        Ok(command)
    }
}

/// Has a program run as a user, with that user's home directory and names in its environment.
fn run_as(command: &mut Command, name: &str) -> Result<()> {
    let by_name = User::from_name(name).context("the table of users")?;
    let by_number =
        || name.parse().ok().map(Uid::from_raw).and_then(|uid| User::from_uid(uid).ok()?);
    let Some(user) = by_name.or_else(by_number) else {
        return Err(Misuse(format!("'--user {name}': there is no such user")).into());
    };
    if user.uid == geteuid() {
        return Ok(());
    }
    if !geteuid().is_root() {
        return Err(Misuse(format!(
            "'--user {name}': only root can run a program as another user"
        ))
        .into());
    }
    // The standard library takes the supplementary groups away when root becomes another user.
    command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    command.env("HOME", user.dir).env("USER", &user.name).env("LOGNAME", &user.name);
    Ok(())
}

/// The parameters of a mode as the library reads them.
fn epoll_variable(mode: Mode) -> String {
    let epoll = mode.epoll();
    let prefer = u8::from(epoll.prefer_busy_poll);
    format!("{},{},{prefer}", epoll.busy_poll_usecs, epoll.busy_poll_budget)
}
