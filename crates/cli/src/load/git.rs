//! The repository as it was at a revision.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, anyhow, bail};

use super::{Loaded, Names, Role};

/// The work tree that a path is in, resolved; `None` when it is in none.
pub(super) fn work_tree(path: &Path) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    path.ancestors().find(|above| above.join(".git").exists()).map(Path::to_owned)
}

/// Reads the repository at a revision, into a directory of its own: the work tree, the index and the branches of
/// the user are not touched.
pub(crate) fn base(repo: &Path, revision: &str) -> Result<Loaded> {
    if repo == Path::new("-") {
        bail!("--base-git needs --repo to be in a git work tree; standard input is in none");
    }
    let tree = work_tree(repo).ok_or_else(|| {
        anyhow!("--base-git needs --repo to be in a git work tree; {} is in none", repo.display())
    })?;
    let below = repo.canonicalize()?;
    let below = below.strip_prefix(&tree).context("--repo is not below its own work tree")?;
    let commit = git(
        &tree,
        &["rev-parse", "--verify", "--quiet", "--end-of-options", &format!("{revision}^{{commit}}")],
        None,
    )
    .map_err(|_| {
        anyhow!(
            "git knows no commit {revision:?} in {}; fetch it first, or correct --base-git",
            tree.display()
        )
    })?;
    let scratch = tempfile::tempdir().context("cannot make a temporary directory")?;
    let index = scratch.path().join("index");
    let files = scratch.path().join("files");
    std::fs::create_dir(&files)?;
    git(&tree, &["read-tree", commit.trim()], Some(&index))?;
    let prefix = format!("--prefix={}/", files.display());
    git(&tree, &["checkout-index", "--all", "--quiet", &prefix], Some(&index))?;
    let files = files.canonicalize()?;
    let names = Names { replaced: Some((files.clone(), format!("{revision}:"))) };
    let path = files.join(below);
    if !path.exists() {
        // It is new: there was nothing before.
        return Ok(Loaded::default());
    }
    super::load(&path, &names, Role::Repository, Some(&files))
}

fn git(tree: &Path, arguments: &[&str], index: Option<&Path>) -> Result<String> {
    let mut command = Command::new("git");
    command.arg("-C").arg(tree).args(arguments).stdin(Stdio::null());
    if let Some(index) = index {
        command.env("GIT_INDEX_FILE", index);
    }
    let output = command.output().context("cannot run git; --base-git needs it")?;
    if !output.status.success() {
        bail!("git {}: {}", arguments.first().unwrap_or(&""), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
