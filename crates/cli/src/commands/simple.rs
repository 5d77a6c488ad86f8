//! Commands of a few lines.

use clap::CommandFactory as _;
use serde_json::json;

use crate::Outcome;
use crate::args::Arguments;
use crate::printer::Printer;

/// `crds`.
pub(crate) fn crds(printer: &Printer) -> anyhow::Result<Outcome> {
    let mut text = String::new();
    for crd in cozy_api::crds() {
        text.push_str("---\n");
        text.push_str(&cozy_yaml::to_yaml(&json!(crd))?);
    }
    printer.data(&text)?;
    Ok(Outcome::Unchanged)
}

/// `completions`.
pub(crate) fn completions(shell: clap_complete::Shell, printer: &Printer) -> anyhow::Result<Outcome> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "cozy-gitops", &mut text);
    printer.data(&String::from_utf8(text)?)?;
    Ok(Outcome::Unchanged)
}

/// `version`.
pub(crate) fn version(printer: &Printer) -> anyhow::Result<Outcome> {
    printer.data(&format!("cozy-gitops {}\n", env!("CARGO_PKG_VERSION")))?;
    Ok(Outcome::Unchanged)
}
