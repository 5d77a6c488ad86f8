//! `cargo xtask <task>`: regenerates what is generated. With `--check` nothing is written, and a file that would
//! change is an error.

mod crds;
mod deny;
mod dependencies;
mod files;
mod links;
mod packages;
mod reference;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::files::Mode;

const USAGE: &str = "usage: cargo xtask <task>

  crds [--check]   the chart's CustomResourceDefinitions and the tables of docs/api.md, from the types of crates/api
  check            all of the above with --check, and: the deciding crates do no I/O, every direct dependency is
                   explained in docs/dependencies.md, charts and PackageSources follow Cozystack's conventions, the pages'
                   links resolve
  deny [--build]   licences, sources and bans of the dependency tree, by cargo-deny where it is installed; with
                   --build it is built into the cache first (minutes, once)
";

/// What is made from the types of `crates/api`.
fn generate(mode: Mode) -> Result<()> {
    crds::generate(mode)?;
    reference::generate(mode)
}

/// A check by name.
type Check = (&'static str, fn() -> Result<()>);

/// Every check; all of them run, so that one pass shows everything that is wrong.
fn check() -> Result<()> {
    let checks: [Check; 5] = [
        ("generated files", || generate(Mode::Check)),
        ("layers", dependencies::core_is_pure),
        ("dependencies", dependencies::are_explained),
        ("packages", packages::follow_the_conventions),
        ("links", links::resolve),
    ];
    let problems: Vec<String> = checks
        .into_iter()
        .filter_map(|(name, check)| check().err().map(|error| format!("{name}: {error:#}")))
        .collect();
    if problems.is_empty() { Ok(()) } else { bail!(problems.join("\n")) }
}

fn run(arguments: &[String]) -> Result<()> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["crds"] => generate(Mode::Write),
        ["crds", "--check"] => generate(Mode::Check),
        ["check"] => check(),
        ["deny"] => deny::run(deny::Missing::Skip),
        ["deny", "--build"] => deny::run(deny::Missing::Build),
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
