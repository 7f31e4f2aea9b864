//! `apus irq run`: a mode for a program that the command starts.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use anyhow::Result;
use apus_irq::{Done, Mode, ProcessTree, Target, adopt_orphans};
use apus_load::misuse::Misuse;
use serde::Serialize;

use super::attach::What;
use super::session;
use super::signals::{self, Signals};
use super::user;
use crate::failure::NotStarted;
use crate::output::OutputFile;
use crate::run::{find, preload};

/// Start a program with a mode for its lifetime
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Starts a program and sets the parameters as `apus irq attach` does. The exit status is that of the program. The \
command forwards every signal to the program.

The command follows a server into the background (memcached -d, nginx, redis-server --daemonize yes): while a process that the \
server left behind has an internet socket, the values stay and the command waits. The exit status is then that of the background \
process. If no process opens a socket within 10 seconds, the command reports this and restores the values.

With --preload, the library of `apus run` sets the parameters of each epoll set when the program creates it, so the command needs \
no access to the process. The mode fullbusy needs --preload: the library replaces each wait of the program with repeated waits of \
1 ms, which do not sleep. The library carries no connections unless the variable APUS_SOCKETS is set. A program that is statically \
linked, uses musl or gains privileges when it starts cannot be preloaded.

Examples:
  apus irq run --mode suspend:20 eth0 -- memcached -t 4
  sudo apus irq run --user www-data --mode suspend:20 --steer eth0 -- nginx -g 'daemon off;'
  apus irq run --preload --mode fullbusy eth0 -- memcached -t 4"
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    what: What,
    /// Set the program's epoll sets with a preloaded library instead of from outside
    #[arg(long)]
    preload: bool,
    /// User to run the program as, by name or number, with all groups of the user [default: the user of this command]
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Device, or one of its receive queues, that also gets the parameters of the mode
    #[arg(value_name = "DEV[:QUEUE]")]
    target: Target,
    /// Write the result as JSON to FILE at the end; standard output belongs to the program
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Program and its arguments
    #[arg(value_name = "PROGRAM", required = true, last = true)]
    program: Vec<OsString>,
}

/// The result for `--json`.
#[derive(Debug, Serialize)]
struct Ran {
    schema: &'static str,
    pid: i32,
    program: String,
    mode: String,
    /// Processes in the background that were followed.
    background: Vec<i32>,
    exit_code: i32,
    #[serde(flatten)]
    done: Done,
}

/// Runs a program with a mode. Ends with the program's exit code.
///
/// # Errors
/// When it cannot be started or preloaded, or a device cannot be set.
pub(crate) fn run(args: &RunArgs) -> Result<()> {
    if args.json.as_deref() == Some(Path::new("-")) {
        let why = "'--json -': standard output is the program's; give a file";
        return Err(Misuse(why.to_owned()).into());
    }
    let mut signals = Signals::handle(&signals::PASSED_ON)?;
    let mut command = args.command()?;
    let json = args.json.as_deref().map(OutputFile::open).transpose()?;
    let targets = std::slice::from_ref(&args.target);
    let mut steering = args.what.steering(targets)?;
    let mut session = args.what.session(targets, &BTreeSet::new(), args.preload)?;
    adopt_orphans()?;
    let child = command.spawn().map_err(|error| NotStarted::of(&args.program[0], &error))?;
    let pid = i32::try_from(child.id()).expect("the kernel's numbers are smaller");
    let mut tree = ProcessTree::of(pid, session.guardian(), session::report)?;
    let exit_code = loop {
        tree.wait(session.links())?;
        if let Some(code) = tree.look() {
            break code;
        }
        session.refresh_devices()?;
        let processes = tree.processes();
        if !args.preload {
            session.refresh(&processes)?;
        }
        if let Some(steering) = &mut steering {
            steering.refresh(&session, &processes).map_err(session::of_steering)?;
        }
        for signal in signals.take() {
            tree.pass_on(|program| signal.pass_on(program));
        }
    };
    let done = session.done().clone();
    session.restore()?;
    if let Some(json) = json {
        json.write_json(&Ran {
            schema: "apus-irq-run/1",
            pid,
            program: args.program[0].to_string_lossy().into_owned(),
            mode: args.what.mode.to_string(),
            background: tree.background().collect(),
            exit_code,
            done,
        })?;
    }
    process::exit(exit_code);
}

impl RunArgs {
    /// The command that starts the program.
    fn command(&self) -> Result<Command> {
        let (name, arguments) = self.program.split_first().expect("clap requires one");
        let path = find(name)?;
        let preload = self.preload.then(|| preload(&path)).transpose()?;
        let user = self.user.as_deref().map(user::named).transpose()?.flatten();
        let mut command = match user {
            Some(user) => user::command(&user, &path, preload, &self.program)?,
            None => {
                let mut command = Command::new(&path);
                command.arg0(name).args(arguments);
                if let Some(preload) = preload {
                    command.env("LD_PRELOAD", preload);
                }
                command
            }
        };
        if !self.preload {
            return Ok(command);
        }
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

/// The parameters of a mode in the form that the library reads.
fn epoll_variable(mode: Mode) -> String {
    let epoll = mode.epoll();
    let prefer = u8::from(epoll.prefer_busy_poll);
    format!("{},{},{prefer}", epoll.busy_poll_usecs, epoll.busy_poll_budget)
}
