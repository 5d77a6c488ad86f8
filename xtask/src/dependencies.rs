//! Rules about dependencies: the core's layer, and the page that says why each is there.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::files;

/// What makes I/O; a decision of the core must not be able to reach it.
const NOT_IN_CORE: [&str; 7] = ["tokio", "hyper", "h2", "reqwest", "ureq", "kube-client", "kube-runtime"];
/// The crates that decide and must stay synchronous, without I/O.
const PURE: [&str; 3] = ["cozy-core", "cozy-api", "cozy-yaml"];
/// The page with one line per direct dependency.
const PAGE: &str = "docs/dependencies.md";

fn cargo(arguments: &[&str]) -> Result<String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(arguments)
        .current_dir(files::root())
        .output()
        .with_context(|| format!("cannot run cargo {}", arguments.join(" ")))?;
    if !output.status.success() {
        bail!("cargo {} failed:\n{}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// The names in `tree`, the output of `cargo tree --prefix none --format {p}`, that are not allowed in the core.
fn forbidden(tree: &str) -> BTreeSet<&str> {
    tree.lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| NOT_IN_CORE.contains(name))
        .collect()
}

/// Fails when a pure crate depends, directly or not, on something that makes I/O.
///
/// Asked of `cargo tree` for one package at a time: `cargo metadata` unites the features that any member of the
/// workspace asks for, so it would blame the core for the operator's HTTP client.
pub(crate) fn core_is_pure() -> Result<()> {
    for package in PURE {
        let tree =
            cargo(&["tree", "-p", package, "-e", "normal,build", "--prefix", "none", "--format", "{p}"])?;
        let found = forbidden(&tree);
        if !found.is_empty() {
            bail!(
                "{package} depends on {}: it decides and does no I/O; `cargo tree -p {package} -i <crate>` shows how",
                found.into_iter().collect::<Vec<_>>().join(", ")
            );
        }
    }
    Ok(())
}

/// Names of the registry crates that a member of the workspace asks for.
fn direct(metadata: &Value) -> BTreeSet<String> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    packages
        .iter()
        .flat_map(|package| package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default())
        .filter(|dependency| dependency["path"].is_null())
        .filter_map(|dependency| dependency["name"].as_str().map(str::to_owned))
        .collect()
}

/// Names in the first column of the page's tables: rows that begin with a name in backquotes.
fn explained(page: &str) -> BTreeSet<String> {
    page.lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// Whether the workspace's manifest knows the crate, used by a member at present or not.
fn known(manifest: &str, name: &str) -> bool {
    manifest
        .lines()
        .any(|line| line.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with('=')))
}

/// Fails when a direct dependency has no line in the page, or a line is about a crate that the workspace does not
/// know.
pub(crate) fn are_explained() -> Result<()> {
    let metadata: Value = serde_json::from_str(&cargo(&["metadata", "--no-deps", "--format-version", "1"])?)?;
    let page =
        std::fs::read_to_string(files::root().join(PAGE)).with_context(|| format!("cannot read {PAGE}"))?;
    let manifest =
        std::fs::read_to_string(files::root().join("Cargo.toml")).context("cannot read Cargo.toml")?;
    let (direct, explained) = (direct(&metadata), explained(&page));
    let mut problems: Vec<String> = direct
        .difference(&explained)
        .map(|name| format!("{PAGE} does not say why `{name}` is a dependency"))
        .collect();
    problems.extend(
        explained
            .difference(&direct)
            .filter(|name| !known(&manifest, name))
            .map(|name| format!("{PAGE} explains `{name}`, which is no dependency")),
    );
    if problems.is_empty() { Ok(()) } else { bail!(problems.join("\n")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn io_crates_are_found_by_name_alone() {
        let tree =
            "cozy-core v0.1.0 (/src)\ntokio-util v0.7.0\nhyper v1.0.0 (*)\nserde v1.0.0\ntokio v1.0.0\n";
        assert_eq!(forbidden(tree), BTreeSet::from(["hyper", "tokio"]));
    }

    #[test]
    fn members_of_the_workspace_are_no_dependencies_to_explain() {
        let metadata = json!({ "packages": [{ "dependencies": [
            { "name": "serde", "path": null }, { "name": "cozy-api", "path": "/src" }, { "name": "anyhow" },
        ]}]});
        assert_eq!(direct(&metadata), BTreeSet::from(["anyhow".to_owned(), "serde".to_owned()]));
    }

    #[test]
    fn a_crate_is_known_by_its_whole_name() {
        assert!(known("[x]\nserde = \"1\"\n", "serde"));
        assert!(!known("serde_json = \"1\"\n# serde\n", "serde"));
    }

    #[test]
    fn a_line_of_the_page_is_a_row_that_begins_with_the_name() {
        let page = "| crate | why |\n| --- | --- |\n| `serde` | with `serde_json` |\ntext `tokio`\n";
        assert_eq!(explained(page), BTreeSet::from(["serde".to_owned()]));
    }
}
