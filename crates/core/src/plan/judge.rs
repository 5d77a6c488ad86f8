//! What is said about a rendered Package and the override on it.

use cozy_api::packages::ComponentState;
use serde_json::Value;

use super::finding::{Finding, FindingKind, Severity};
use super::opaque;
use super::source::Object;
use super::state::{Kind, State, did_you_mean};
use crate::chart::Chart;
use crate::merge::{How, MergeError, Override, Place as Whose};
use crate::render::{PackageRender, Problem, ProblemKind, ReleaseRender};
use crate::snapshot::{artifact_name, selected_variant};

/// Judges what a state is rendered to.
pub(super) struct Judge<'a> {
    pub(super) state: &'a State,
    pub(super) charts_given: bool,
}

/// Pointer of a component in a PackageValues.
fn component_pointer(component: &str) -> String {
    let mut pointer = "/spec/components".to_owned();
    cozy_yaml::push_token(&mut pointer, component);
    pointer
}

impl Judge<'_> {
    /// PackageValues whose Package is not there.
    pub(super) fn orphans(&self, out: &mut Vec<Finding>) {
        let snapshot = &self.state.snapshot;
        for name in snapshot.values_names() {
            if snapshot.package(name).is_some() {
                continue;
            }
            let Some(object) = self.state.object(Kind::PackageValues, name) else { continue };
            if self.suspended(name, object, out) {
                continue;
            }
            let (message, hint) = if snapshot.source(name).is_some() {
                let message = format!(
                    "there is no Package {name}: these overrides are in force nowhere; its PackageSource is there, so the package is only not installed"
                );
                (message, None)
            } else {
                let message = format!("there is no Package {name}: these overrides are in force nowhere");
                (message, did_you_mean(name, snapshot.package_names()))
            };
            let mut finding = Finding::new(FindingKind::OrphanPackageValues, Severity::Warning, message)
                .at(object, "/metadata/name");
            finding.hint = hint;
            out.push(finding);
        }
    }

    fn suspended(&self, name: &str, object: &Object, out: &mut Vec<Finding>) -> bool {
        let suspended = self.state.snapshot.values(name).is_some_and(|v| v.spec.suspend == Some(true));
        if suspended {
            let message = "suspended: contributes nothing";
            out.push(
                Finding::new(FindingKind::Suspended, Severity::Info, message).at(object, "/spec/suspend"),
            );
        }
        suspended
    }

    /// One Package.
    pub(super) fn package(&self, name: &str, render: &PackageRender, out: &mut Vec<Finding>) {
        self.source(name, out);
        for problem in &render.problems {
            self.problem(name, problem, out);
        }
        let Some(object) = self.state.object(Kind::PackageValues, name) else { return };
        if self.suspended(name, object, out) {
            return;
        }
        let Some(values) = &render.package_values else { return };
        for (component, result) in &values.components {
            self.component(name, object, component, result.state, out);
            let base = format!("{}/values", component_pointer(component));
            self.unknown_keys(name, object, component, result.unknown_keys.as_deref(), out);
            for violation in &result.violations {
                let pointer = format!("{base}{}", violation.pointer);
                if object.value.pointer(&pointer).is_some_and(opaque::is_concealed) {
                    continue;
                }
                let message = format!("the chart's schema refuses the merged values: {}", violation.message);
                out.push(
                    Finding::new(FindingKind::SchemaViolation, Severity::Warning, message)
                        .at(object, pointer),
                );
            }
        }
        for release in &render.releases {
            self.lists(name, object, release, out);
        }
    }

    fn source(&self, name: &str, out: &mut Vec<Finding>) {
        let snapshot = &self.state.snapshot;
        let (Some(package), Some(object)) = (snapshot.package(name), self.state.object(Kind::Package, name))
        else {
            return;
        };
        let Some(source) = snapshot.source(name) else {
            let message = format!("there is no PackageSource {name}, so this Package installs nothing");
            let mut finding = Finding::new(FindingKind::PackageSourceNotFound, Severity::Error, message)
                .at(object, "/metadata/name");
            finding.hint = did_you_mean(name, snapshot.source_names())
                .or_else(|| Some("is the PackageSource part of --platform?".to_owned()));
            out.push(finding);
            return;
        };
        if snapshot.variant(name).is_none() {
            let selected = selected_variant(package);
            let names: Vec<&str> =
                source.spec.variants.iter().flatten().map(|variant| variant.name.as_str()).collect();
            let message = format!(
                "PackageSource {name} has no variant {selected:?}; it has: {}",
                if names.is_empty() { "none".to_owned() } else { names.join(", ") }
            );
            let mut finding = Finding::new(FindingKind::VariantNotFound, Severity::Error, message)
                .at(object, "/spec/variant");
            finding.hint = did_you_mean(selected, names);
            out.push(finding);
        }
    }

    fn problem(&self, name: &str, problem: &Problem, out: &mut Vec<Finding>) {
        let message = problem.kind.to_string();
        let (kind, owner) = match &problem.kind {
            ProblemKind::Merge { error, .. } => {
                return self.merge_error(name, &problem.component, error, out);
            }
            ProblemKind::Invalid { pointer, message, .. } => {
                let Some(object) = self.state.object(Kind::PackageValues, name) else { return };
                let pointer = format!("{}/values{pointer}", component_pointer(&problem.component));
                let message = format!(
                    "the chart's schema refuses the merged values, and `validation: Enforce` keeps the HelmRelease's last good ones: {message}"
                );
                out.push(
                    Finding::new(FindingKind::SchemaViolation, Severity::Error, message).at(object, pointer),
                );
                return;
            }
            ProblemKind::Taken { .. } | ProblemKind::Twice { .. } => {
                (FindingKind::ReleaseConflict, Kind::PackageSource)
            }
            _ => (FindingKind::InvalidConfiguration, Kind::PackageSource),
        };
        let finding = Finding::new(kind, Severity::Error, message);
        out.push(match self.state.object(owner, name) {
            Some(object) => finding.on(object),
            None => finding,
        });
    }

    fn merge_error(&self, name: &str, component: &str, error: &MergeError, out: &mut Vec<Finding>) {
        let Some(object) = self.state.object(Kind::PackageValues, name) else { return };
        let pointer = format!("{}{}", component_pointer(component), error.pointer());
        let finding = if error.needs_chart_defaults() {
            let message = format!(
                "cannot tell what this becomes: {error}; its HelmRelease is shown as if this override were not there"
            );
            let hint = match self.charts_given {
                false => "give the charts with --charts <dir>",
                true => "the chart is not below --charts",
            };
            Finding::new(FindingKind::NeedsCharts, Severity::Warning, message).hint(hint)
        } else {
            let kind = match error {
                MergeError::Values { .. } => FindingKind::InvalidObject,
                MergeError::Rule { .. } => FindingKind::InvalidList,
            };
            let message = format!("{error}; the HelmRelease keeps its last good values");
            Finding::new(kind, Severity::Error, message)
        };
        out.push(finding.at(object, pointer));
    }

    fn component(
        &self,
        name: &str,
        object: &Object,
        component: &str,
        state: ComponentState,
        out: &mut Vec<Finding>,
    ) {
        let snapshot = &self.state.snapshot;
        let pointer = component_pointer(component);
        let variant = snapshot.variant(name);
        let variant_name = variant.map(|v| v.name.as_str()).unwrap_or_default();
        let (kind, message, hint) = match state {
            ComponentState::Applied => return,
            ComponentState::UnknownComponent => {
                let names: Vec<&str> = variant
                    .iter()
                    .flat_map(|v| v.components.iter().flatten())
                    .map(|c| c.name.as_str())
                    .collect();
                let message = format!(
                    "variant {variant_name:?} of {name} has no component {component:?}, so this is ignored; it has: {}",
                    names.join(", ")
                );
                (FindingKind::UnknownComponent, message, did_you_mean(component, names))
            }
            ComponentState::Disabled => {
                let message =
                    format!("Package {name} disables component {component}, so this is in force nowhere");
                (FindingKind::DisabledComponent, message, None)
            }
            ComponentState::NotInstalled => {
                let message =
                    format!("component {component} has no HelmRelease, so this is in force nowhere");
                (FindingKind::NotInstalled, message, None)
            }
        };
        let mut finding = Finding::new(kind, Severity::Warning, message).at(object, pointer);
        finding.hint = hint;
        out.push(finding);
    }

    fn chart(&self, name: &str, component: &str) -> Option<&Chart> {
        let snapshot = &self.state.snapshot;
        snapshot.chart(&artifact_name(name, &snapshot.variant(name)?.name, component))
    }

    fn unknown_keys(
        &self,
        name: &str,
        object: &Object,
        component: &str,
        keys: Option<&[String]>,
        out: &mut Vec<Finding>,
    ) {
        let chart = self.chart(name, component);
        for key in keys.into_iter().flatten() {
            let (above, last) = key.rsplit_once('/').unwrap_or_default();
            let last = cozy_yaml::unescape_token(last);
            let siblings = chart.and_then(|chart| chart.values.pointer(above)).and_then(Value::as_object);
            let message = format!("the chart knows no value {key}, so it is probably without effect");
            let mut finding = Finding::new(FindingKind::UnknownKey, Severity::Warning, message)
                .at(object, format!("{}/values{key}", component_pointer(component)));
            finding.hint =
                siblings.and_then(|siblings| did_you_mean(&last, siblings.keys().map(String::as_str)));
            out.push(finding);
        }
    }

    fn lists(&self, name: &str, object: &Object, release: &ReleaseRender, out: &mut Vec<Finding>) {
        let chart = self.chart(name, &release.component);
        for set in &release.overrides {
            let pointer = format!("{}/values{}", component_pointer(&release.component), set.pointer);
            match set.how {
                How::ListReplaced { below: Some(whose), dropped } if dropped > 0 => {
                    let list = replaced(set, whose, chart);
                    let message = format!(
                        "replaces {}: {dropped} of its {} entries are dropped",
                        match whose {
                            Whose::Chart => "the chart's default list",
                            _ => "the Package's list",
                        },
                        list.len()
                    );
                    out.push(
                        Finding::new(FindingKind::ListReplaced, Severity::Warning, message)
                            .at(object, pointer)
                            .hint(list_hint(&set.pointer, list)),
                    );
                }
                How::ListReplaced { below: None, .. } if chart.is_none() => {
                    let message = "replaces whatever list the chart has there by default";
                    let hint = match self.charts_given {
                        false => "with --charts <dir> the plan tells how many entries are dropped",
                        true => "the chart is not below --charts",
                    };
                    out.push(
                        Finding::new(FindingKind::ListReplaced, Severity::Info, message)
                            .at(object, pointer)
                            .hint(hint),
                    );
                }
                How::ListMerged { unmatched, .. } if unmatched > 0 => {
                    let message = format!("{unmatched} `$patch: delete` of this list match nothing");
                    out.push(
                        Finding::new(FindingKind::UnmatchedDelete, Severity::Warning, message)
                            .at(object, pointer),
                    );
                }
                _ => {}
            }
        }
    }
}

/// The list that was replaced.
fn replaced<'a>(set: &'a Override, whose: Whose, chart: Option<&'a Chart>) -> &'a [Value] {
    let list = match whose {
        Whose::Chart => chart.and_then(|chart| chart.values.pointer(&set.pointer)),
        _ => set.from.as_ref(),
    };
    list.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// How the list would be merged instead.
fn list_hint(path: &str, below: &[Value]) -> String {
    let named = below.iter().all(|entry| entry.get("name").is_some_and(Value::is_string));
    let rule = match named {
        true => serde_json::json!({"path": path, "type": "Map", "keys": ["name"]}),
        false => serde_json::json!({"path": path, "type": "Append"}),
    };
    format!("to merge it instead, add to the component: lists: [{rule}]")
}
