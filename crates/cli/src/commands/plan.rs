//! `plan`.

use anyhow::Result;
use cozy_core::plan::{Plan, Prepared, Severity};

use crate::args::{self, PlanOutput};
use crate::load::{self, Loaded, Names, Role};
use crate::printer::Printer;
use crate::{Outcome, markdown, text};

/// Plans and prints.
pub(crate) fn run(command: &args::Plan, printer: &Printer) -> Result<Outcome> {
    let plan = plan(command)?;
    let printed = match command.output {
        PlanOutput::Text => text::plan(&plan),
        PlanOutput::Json => cozy_yaml::to_json_pretty(&plan.to_json())?,
        PlanOutput::Markdown => markdown::plan(&plan),
    };
    printer.data(&printed)?;
    Ok(if plan.count(Severity::Error) > 0 {
        Outcome::Failed
    } else if plan.has_changes() {
        Outcome::Changed
    } else {
        Outcome::Unchanged
    })
}

fn plan(command: &args::Plan) -> Result<Plan> {
    let inputs = &command.inputs;
    let root = inputs.repo_root.as_deref();
    let platform = load::load(&inputs.platform, &Names::default(), Role::Platform, None)?;
    let repository = load::load(&command.repo, &Names::default(), Role::Repository, root)?;
    let base = match (&command.base, &command.base_git) {
        (Some(path), _) => Some(load::load(path, &Names::default(), Role::Repository, root)?),
        (None, Some(revision)) => Some(load::git::base(&command.repo, revision)?),
        (None, None) => None,
    };
    let incomplete = repository.is_incomplete();
    let mut findings = platform.findings;
    findings.extend(repository.findings);
    let base = base.map(|base| {
        findings.extend(base.findings.into_iter().map(of_the_past));
        base.objects
    });
    let mut prepared = Prepared::new(platform.objects, base, repository.objects, incomplete);
    if let Some(charts) = &inputs.charts {
        findings.extend(load::charts::load(charts, &mut prepared)?);
    }
    let mut plan = prepared.plan(&(&inputs.releases).into());
    plan.add_findings(findings);
    Ok(plan)
}

/// What was wrong before the change is no reason to refuse the change.
fn of_the_past(mut finding: cozy_core::plan::Finding) -> cozy_core::plan::Finding {
    finding.severity = Severity::Warning;
    finding.message = format!("in the base: {}", finding.message);
    finding
}

/// The repository's objects with what was found while reading them.
pub(crate) fn prepare(
    inputs: &args::Inputs,
    repo: Option<&std::path::Path>,
) -> Result<(Prepared, Vec<cozy_core::plan::Finding>)> {
    let platform = load::load(&inputs.platform, &Names::default(), Role::Platform, None)?;
    let repository = match repo {
        Some(repo) => load::load(repo, &Names::default(), Role::Repository, inputs.repo_root.as_deref())?,
        None => Loaded::default(),
    };
    let mut findings = platform.findings;
    findings.extend(repository.findings);
    let mut prepared = Prepared::new(platform.objects, None, repository.objects, false);
    if let Some(charts) = &inputs.charts {
        findings.extend(load::charts::load(charts, &mut prepared)?);
    }
    Ok((prepared, findings))
}
