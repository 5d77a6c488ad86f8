//! The command `cozy-gitops`: what a change in a repository does to a Cozystack cluster, and the operator itself.

mod adopt;
mod args;
mod commands;
mod load;
mod markdown;
mod printer;
mod text;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::{Arguments, Command};
use crate::printer::Printer;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing would change.
    Unchanged,
    /// Something would change.
    Changed,
    /// Something is wrong with the input; it was told.
    Failed,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(match outcome {
            Outcome::Unchanged => 0,
            Outcome::Changed => 2,
            Outcome::Failed => 1,
        })
    }
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    let printer = Printer::new(arguments.color.into());
    let result = match arguments.command {
        Command::Plan(command) => commands::plan::run(&command, &printer),
        Command::Render(command) => commands::render::run(&command, &printer),
        Command::Adopt(command) => adopt::run(&command, printer),
        Command::Operator(command) => commands::operator::run(&command),
        Command::Crds => commands::simple::crds(&printer),
        Command::Completions { shell } => commands::simple::completions(shell, &printer),
        Command::Version => commands::simple::version(&printer),
    };
    match result {
        Ok(outcome) => outcome.into(),
        Err(error) => {
            printer.error(&error);
            Outcome::Failed.into()
        }
    }
}

/// Help goes to standard output and succeeds; a wrong command line is an error like any other (clap would exit
/// with 2, which means "changes" here).
fn usage(error: &clap::Error) -> ExitCode {
    // Nobody to tell when the terminal is gone.
    let _ = error.print();
    if error.use_stderr() { Outcome::Failed.into() } else { Outcome::Unchanged.into() }
}
