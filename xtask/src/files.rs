//! Generated files: written, or compared with what is there.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Whether generated files are written or compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Write them.
    Write,
    /// Fail when one differs.
    Check,
}

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Writes `content` to `file`, a path below the root, or checks that it is there; `task` is what regenerates it.
pub(crate) fn emit(mode: Mode, task: &str, file: &str, content: &str) -> Result<()> {
    let path = root().join(file);
    let current = std::fs::read_to_string(&path).ok();
    if current.as_deref() == Some(content) {
        return Ok(());
    }
    match mode {
        Mode::Check => {
            bail!("{file} is not what the code says; run `cargo xtask {task}` and commit the result")
        }
        Mode::Write => {
            if let Some(directory) = path.parent() {
                std::fs::create_dir_all(directory)
                    .with_context(|| format!("cannot make the directory of {file}"))?;
            }
            std::fs::write(&path, content).with_context(|| format!("cannot write {file}"))
        }
    }
}
