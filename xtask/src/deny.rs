//! `cargo deny`, from the cache where the tests' other tools are.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::files;

/// The version that is built; `deny.toml` is written for it.
const VERSION: &str = "0.20.2";

/// What happens where cargo-deny is not installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Say so and go on: building it takes minutes.
    Skip,
    /// Build it into the cache.
    Build,
}

/// Where tools are kept: `$COZY_GITOPS_CACHE/tools`, by default `~/.cache/cozy-gitops/tools`.
fn tools() -> Result<PathBuf> {
    let cache = std::env::var_os("COZY_GITOPS_CACHE").map(PathBuf::from);
    let cache =
        cache.or_else(|| Some(PathBuf::from(std::env::var_os("XDG_CACHE_HOME")?).join("cozy-gitops")));
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/cozy-gitops")));
    Ok(cache.context("neither COZY_GITOPS_CACHE, XDG_CACHE_HOME nor HOME is set")?.join("tools"))
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed");
    }
    Ok(())
}

fn works(program: &PathBuf) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Checks licences, sources and bans. Advisories are left out: their database needs the network.
#[allow(clippy::print_stderr, reason = "the message of a developer's tool")]
pub(crate) fn run(missing: Missing) -> Result<()> {
    let root = tools()?;
    let cached = root.join("bin/cargo-deny");
    let installed = [cached.clone(), PathBuf::from("cargo-deny")].into_iter().find(works);
    let program = match (installed, missing) {
        (Some(program), _) => program,
        (None, Missing::Skip) => {
            eprintln!("skipped: cargo-deny is not installed; `cargo xtask deny --build` builds it");
            return Ok(());
        }
        (None, Missing::Build) => {
            let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
            succeed(
                Command::new(cargo)
                    .args(["install", "--locked", "--version", VERSION, "--no-default-features", "--root"])
                    .arg(&root)
                    .arg("cargo-deny"),
            )?;
            cached
        }
    };
    // Offline, since everything that is built is there already, and a check must not depend on a registry.
    let checks = ["--offline", "check", "--hide-inclusion-graph", "bans", "licenses", "sources"];
    succeed(Command::new(program).arg("--workspace").args(checks).current_dir(files::root()))
}
