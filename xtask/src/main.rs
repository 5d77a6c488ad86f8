//! `cargo xtask <task>`: regenerates what is generated. With `--check` nothing is written, and a file that would
//! change is an error.

mod crds;
mod files;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::files::Mode;

const USAGE: &str = "usage: cargo xtask <task>

  crds [--check]   the CustomResourceDefinitions of the chart, from the types of crates/api
";

fn run(arguments: &[String]) -> Result<()> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["crds"] => crds::generate(Mode::Write),
        ["crds", "--check"] => crds::generate(Mode::Check),
        _ => bail!("{USAGE}"),
    }
}

#[allow(clippy::print_stderr, reason = "the message of a developer's tool")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
