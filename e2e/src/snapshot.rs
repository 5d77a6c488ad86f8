//! Tables that are recorded beside the tests, so that a change of them is seen in review.

use std::path::Path;

/// Compares with `tests/snapshots/<name>`; `UPDATE_SNAPSHOTS=1` records.
///
/// # Errors
/// When they differ; the error holds what it is now.
pub fn expect(name: &str, actual: &str) -> anyhow::Result<()> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&file, actual)?;
    }
    let recorded = std::fs::read_to_string(&file).unwrap_or_default();
    anyhow::ensure!(recorded == actual, "{} differs; now it is:\n{actual}", file.display());
    Ok(())
}
