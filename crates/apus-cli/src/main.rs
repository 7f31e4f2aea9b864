//! `apus`: measures, explains and tunes Homa in user space.
//!
//! One file a subcommand or a group of them, with arguments and `run`; [`cli`] is the tree of them. The options of a
//! measurement are arguments where it is, in [`apus_bench`] and [`apus_lab`].
//! Results go through [`output`], errors through [`failure`], progress through [`progress`]; [`interrupt`] is Ctrl-C.
//!
//! | file | contents |
//! |---|---|
//! | a folder, or `bench`, `cluster`, `doctor`, `report`, `settings`, `man`, `completions` | the subcommand, or the group of subcommands, of that name |
//! | `cli` | the tree of subcommands |
//! | `output`, `failure`, `progress` | results, errors, and the progress of long work |
//! | `interrupt` | Ctrl-C and other signals |
//! | `counters` | the files of counters, for `stat` and `top` |
//! | `samples` | a test of the commands that documents show |

#![forbid(unsafe_code)]

mod bench;
mod capture;
mod carrier;
mod cli;
mod cluster;
mod completions;
mod counters;
mod daemon;
mod demo;
mod dev_certs;
mod doctor;
mod failure;
mod interrupt;
mod irq;
mod lab;
mod man;
mod node;
mod output;
mod progress;
mod report;
mod run;
#[cfg(test)]
mod samples;
mod settings;
mod sim;
mod stat;
mod top;
mod trace;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

fn main() -> ExitCode {
    failure::warn_of_variables();
    let code = match cli::Cli::try_parse() {
        Ok(cli) => match cli::run(cli) {
            Ok(()) => 0,
            Err(error) => {
                failure::print(&error);
                failure::exit_code(&error)
            }
        },
        Err(error) => usage(&error),
    };
    ExitCode::from(code)
}

/// Help and version are wanted; anything else that keeps the command line from being understood is wrong use.
fn usage(error: &clap::Error) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A reader that closed standard output early has seen enough.
            let _ = error.print();
            0
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            failure::MISUSED
        }
        _ => {
            failure::print_usage(error);
            failure::MISUSED
        }
    }
}
