//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use cozy_core::duration::GoDuration;
use cozy_core::render::RenderOptions;

/// Configuration of a Cozystack platform from git: what a change does, before it is pushed.
#[derive(Debug, Parser)]
#[command(name = "cozy-gitops", version, propagate_version = true, max_term_width = 110)]
pub(crate) struct Arguments {
    /// When to use colours; `auto` follows the terminal, NO_COLOR and CLICOLOR.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub(crate) color: Color,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless the environment says otherwise.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl From<Color> for anstream::ColorChoice {
    fn from(color: Color) -> Self {
        match color {
            Color::Auto => Self::Auto,
            Color::Always => Self::Always,
            Color::Never => Self::Never,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what a repository, or a change of it, does to the platform's HelmReleases.
    ///
    /// Without --base or --base-git the platform alone is compared with the platform and the repository; with one of
    /// them, the repository as it was is compared with the repository as it is. No cluster is needed.
    ///
    /// Exit code: 0 when nothing changes, 2 when something does, 1 on an error.
    Plan(Plan),
    /// Print every object that the operator makes of the platform's objects and the repository's.
    ///
    /// Dependencies between Packages are taken as ready.
    Render(Render),
    /// Write the part of a hand-made Package that goes to git, above all of the bootstrap Package.
    ///
    /// The manifest owns just the fields in it; see docs/adopt.md. Values are printed as they are, credentials included.
    Adopt(crate::adopt::Adopt),
    /// Run the operator: PackageSource, Package and PackageValues become ArtifactGenerators and HelmReleases.
    Operator(Box<crate::commands::operator::Operator>),
    /// Print the CustomResourceDefinitions of Package, PackageSource and PackageValues.
    Crds,
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Print the version.
    Version,
}

/// Where the objects are.
#[derive(Debug, Args)]
pub(crate) struct Inputs {
    /// Packages and PackageSources of the platform: a file, or a directory with everything below it.
    #[arg(long, value_name = "PATH")]
    pub(crate) platform: PathBuf,
    /// What kustomizations and links may not lead out of; by default the git work tree that the repository is in.
    #[arg(long, value_name = "DIR")]
    pub(crate) repo_root: Option<PathBuf>,
    /// The charts' sources, to compare overrides with: the repository of Cozystack, or its `packages` directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) charts: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) releases: Releases,
}

#[derive(Debug, Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    pub(crate) inputs: Inputs,
    /// The repository: a file, a directory, or `-` for standard input. What Flux is told as `spec.path`.
    #[arg(long, value_name = "PATH")]
    pub(crate) repo: PathBuf,
    /// The repository as it was: a file or directory like --repo.
    #[arg(long, value_name = "PATH", conflicts_with = "base_git")]
    pub(crate) base: Option<PathBuf>,
    /// The repository as it was at this git revision, such as `origin/main`.
    #[arg(long, value_name = "REV", allow_hyphen_values = true)]
    pub(crate) base_git: Option<String>,
    /// Format of the output.
    #[arg(long, short, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: PlanOutput,
}

/// Format of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlanOutput {
    /// For people.
    #[default]
    Text,
    /// For programs; see docs/plan.md.
    Json,
    /// For comments on a change.
    Markdown,
}

#[derive(Debug, Args)]
pub(crate) struct Render {
    #[command(flatten)]
    pub(crate) inputs: Inputs,
    /// The repository: a file, a directory, or `-` for standard input.
    #[arg(long, value_name = "PATH")]
    pub(crate) repo: Option<PathBuf>,
    /// Format of the output.
    #[arg(long, short, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: RenderOutput,
}

/// Format of rendered objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum RenderOutput {
    /// One document per object.
    #[default]
    Yaml,
    /// One `List`.
    Json,
}

/// The operator's flags that shape HelmReleases.
#[derive(Debug, Args)]
#[command(next_help_heading = "The operator's settings")]
pub(crate) struct Releases {
    /// How often helm-controller reconciles.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = positive)]
    pub(crate) helmrelease_interval: GoDuration,
    /// Time between two attempts of a failed action.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = positive)]
    pub(crate) helmrelease_retry_interval: GoDuration,
    /// Longest time of an installation.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = positive)]
    pub(crate) helmrelease_install_timeout: GoDuration,
    /// Longest time of an upgrade.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = positive)]
    pub(crate) helmrelease_upgrade_timeout: GoDuration,
    /// Revisions that Helm keeps; 0 keeps all.
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(i64).range(0..))]
    pub(crate) helmrelease_max_history: i64,
}

fn positive(text: &str) -> Result<GoDuration, String> {
    let duration: GoDuration = text.parse().map_err(|error| format!("{error}"))?;
    if duration.as_nanos() <= 0 {
        return Err("must be more than 0".to_owned());
    }
    Ok(duration)
}

impl From<&Releases> for RenderOptions {
    fn from(flags: &Releases) -> Self {
        Self {
            interval: flags.helmrelease_interval,
            retry_interval: flags.helmrelease_retry_interval,
            install_timeout: flags.helmrelease_install_timeout,
            upgrade_timeout: flags.helmrelease_upgrade_timeout,
            max_history: flags.helmrelease_max_history,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory as _;
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_defaults_are_the_operators() {
        let arguments = Arguments::try_parse_from(["cozy-gitops", "render", "--platform", "x"]).unwrap();
        let Command::Render(render) = arguments.command else { panic!("not render") };
        assert_eq!(RenderOptions::from(&render.inputs.releases), RenderOptions::default());
    }

    #[test]
    fn durations_of_no_length_are_refused() {
        for duration in ["0", "0s", "-1m", "1", "x"] {
            let flag = format!("--helmrelease-interval={duration}");
            assert!(Arguments::try_parse_from(["cozy-gitops", "render", "--platform", "x", &flag]).is_err());
        }
    }
}
