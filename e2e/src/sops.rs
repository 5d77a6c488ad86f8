//! Files that the real sops encrypts with age.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use cozy_testenv::program;

/// An age key pair: the whole key file, and the public key.
///
/// # Errors
/// When age-keygen fails.
pub fn key(directory: &Path, name: &str) -> anyhow::Result<(String, String)> {
    let file = directory.join(name);
    let made = Command::new(program("age-keygen")?).arg("-o").arg(&file).output()?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let text = std::fs::read_to_string(file)?;
    let public =
        text.lines().find_map(|line| line.strip_prefix("# public key: ")).context("no public key")?;
    Ok((text.clone(), public.to_owned()))
}

/// Encrypts the values of the keys that the regular expression matches.
///
/// # Errors
/// When sops fails.
pub fn encrypt(directory: &Path, public: &str, keys: &str, plain: &str) -> anyhow::Result<String> {
    let file = directory.join("plain.yaml");
    std::fs::write(&file, plain)?;
    let output = Command::new(program("sops")?)
        .env_clear()
        .env("HOME", directory)
        .current_dir(directory)
        .args(["encrypt", "--age", public, "--encrypted-regex", keys])
        .arg(&file)
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::remove_file(file)?;
    Ok(String::from_utf8(output.stdout)?)
}
