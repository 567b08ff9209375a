//! The `antiphon` command.

mod browsers;
mod join;
mod open;
mod serve;
mod settings;
mod view;

use std::env;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

/// A music studio in browsers: people far apart play together, peer to peer, uncompressed.
#[derive(Debug, Parser)]
#[command(
    name = "antiphon",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    max_term_width = 110
)]
#[command(after_help = "\
Examples:
  antiphon serve        try it on this computer; prints a room's link
  antiphon open LINK    enter a room with the lowest latency of your browser
  antiphon join LINK    enter a room without a browser, from a sound card

`antiphon help COMMAND` says more about a command.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Serve>),
    Open(open::Open),
    Join(Box<join::Join>),
}

/// What to tell the user, and the exit code: 2 for a mistake in what was asked, 1 for what went wrong doing it.
#[derive(Debug)]
struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    fn usage(message: impl ToString) -> Self {
        Self {
            code: 2,
            message: message.to_string(),
        }
    }

    fn running(message: impl ToString) -> Self {
        Self {
            code: 1,
            message: message.to_string(),
        }
    }
}

/// Prints a line. A closed standard output is no reason to stop.
fn say(line: impl Display) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Between the items of a list, clap knows one space only. Set to nothing is what a compose file has for not set.
fn tidy_variables() {
    for name in settings::LISTS {
        if let Ok(list) = env::var(name) {
            let items: Vec<_> = list.split_whitespace().collect();
            // SAFETY: no other thread has been started yet that could read the environment.
            unsafe { env::set_var(name, items.join(" ")) };
        }
    }
    let is_empty = |(name, value): &(OsString, OsString)| {
        name.to_string_lossy().starts_with("ANTIPHON_") && value.is_empty()
    };
    for (name, _) in env::vars_os().filter(is_empty) {
        // SAFETY: as above.
        unsafe { env::remove_var(name) };
    }
}

/// Variables that look like settings, and are none, each with the setting that it resembles most. Whoever misspelt one believes that it counts;
/// but some are of others: Kubernetes sets ANTIPHON_PORT where a service is called antiphon.
fn unknown_variables() -> Vec<(String, String)> {
    let command = Cli::command();
    let arguments = command
        .get_subcommands()
        .flat_map(clap::Command::get_arguments);
    let known: Vec<_> = arguments
        .filter_map(|argument| argument.get_env())
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    let names = env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    names
        .filter(|name| name.starts_with("ANTIPHON_") && !known.contains(name))
        .map(|name| {
            let nearest = known.iter().min_by_key(|it| strsim::levenshtein(it, &name));
            let nearest = nearest.cloned().unwrap_or_default();
            (name, nearest)
        })
        .collect()
}

fn main() -> ExitCode {
    tidy_variables();
    let result = match Cli::parse().command {
        Command::Serve(serve) => serve.run(),
        Command::Open(open) => open.run(),
        Command::Join(join) => join.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // The terminal may be closed.
            let _ = writeln!(io::stderr(), "error: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}
