//! Package, PackageSource and PackageValues to HelmReleases, Namespaces and statuses.

use std::collections::{BTreeMap, BTreeSet};

use cozy_api::flux::{
    DependencyRef, HelmAction, HelmRelease, HelmReleaseSpec, HelmStrategy, ObjectRef, ValuesReference,
    WaitStrategy,
};
use cozy_api::names;
use cozy_api::packages::{
    Component, ComponentOverrides, ComponentState, ComponentValues, EffectiveValues, Install, Package,
    PackageSource, PackageValues, Validation, Variant,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::{
    ComponentRender, Dependencies, Gate, NamespaceRender, Outcome, PackageRender, Problem, ProblemKind,
    ReleaseRender, RenderOptions, ValuesRender, owner,
};
use crate::chart::{Chart, Violation};
use crate::merge::{Merged, merge_component};
use crate::snapshot::{
    Snapshot, artifact_name, find_variant, installed, is_enabled, release_name, selected_variant,
};

/// Packages that have to be ready before the first HelmRelease of this one is created.
pub(super) fn needed<'s>(
    snapshot: &'s Snapshot,
    name: &str,
    variant: &'s Variant,
) -> impl Iterator<Item = &'s str> {
    let ignored: Vec<String> =
        snapshot.package(name).and_then(|p| p.spec.ignore_dependencies.clone()).unwrap_or_default();
    variant.depends_on.iter().flatten().map(String::as_str).filter(move |d| !ignored.iter().any(|i| i == d))
}

/// Renders a Package; `None` when the snapshot has none of that name.
///
/// A component that cannot be rendered is a [`Problem`]; the others are rendered all the same.
#[must_use]
pub fn render_package(
    snapshot: &Snapshot,
    name: &str,
    options: &RenderOptions,
    dependencies: Dependencies<'_>,
) -> Option<PackageRender> {
    let package = snapshot.package(name)?;
    let mut out = PackageRender {
        namespaces: Vec::new(),
        releases: Vec::new(),
        problems: Vec::new(),
        gate: Gate::Closed,
        ready: Outcome::new("Unknown", names::reason::INTERNAL_ERROR, ""),
        dependencies: BTreeMap::new(),
        values_merged: None,
        effective_values: BTreeMap::new(),
        values_left_out: false,
        overrides: BTreeMap::new(),
        package_values: None,
    };
    let Some(source) = snapshot.source(name) else {
        let message = format!("PackageSource {name} not found");
        out.ready = Outcome::new("False", names::reason::PACKAGE_SOURCE_NOT_FOUND, message.clone());
        out.close(snapshot.values(name), names::reason::PACKAGE_SOURCE_NOT_FOUND, &message);
        return Some(out);
    };
    let selected = selected_variant(package);
    let Some(variant) = find_variant(source, selected) else {
        let message = format!("Variant {selected} not found in PackageSource {name}");
        out.ready = Outcome::new("False", names::reason::VARIANT_NOT_FOUND, message.clone());
        out.close(snapshot.values(name), names::reason::VARIANT_NOT_FOUND, &message);
        return Some(out);
    };
    out.namespaces = namespaces(snapshot, package, variant);
    out.dependencies = dependency_readiness(snapshot, name, variant, dependencies);
    let live = matches!(dependencies, Dependencies::Observed);
    let render = Render { snapshot, package, source, variant, name, options, live };
    render.releases(&mut out);
    render.package_values(&mut out);
    limit_effective_values(&mut out);
    let all_ready = out.dependencies.values().all(|ready| *ready);
    out.gate = if all_ready { Gate::Open } else { Gate::UpdatesOnly };
    out.ready = ready(&out, all_ready);
    Some(out)
}

/// Status of a PackageValues whose Package does not exist.
pub(super) fn values_without_package(snapshot: &Snapshot, name: &str) -> Option<ValuesRender> {
    let values = snapshot.values(name)?;
    Some(not_in_force(
        values,
        names::reason::PACKAGE_NOT_FOUND,
        &format!("Package {name} not found: the overrides are in force nowhere"),
    ))
}

fn not_in_force(values: &PackageValues, reason: &str, message: &str) -> ValuesRender {
    let ready = if is_suspended(values) { suspended() } else { Outcome::new("False", reason, message) };
    ValuesRender { generation: values.metadata.generation, ready, components: BTreeMap::new() }
}

fn suspended() -> Outcome {
    Outcome::new("True", names::reason::SUSPENDED, "suspended: contributes nothing")
}

fn is_suspended(values: &PackageValues) -> bool {
    values.spec.suspend == Some(true)
}

impl PackageRender {
    fn close(&mut self, values: Option<&PackageValues>, reason: &str, message: &str) {
        self.package_values = values.map(|values| not_in_force(values, reason, message));
        self.values_merged = self.package_values.as_ref().map(|v| v.ready.clone());
    }
}

fn ready(out: &PackageRender, all_ready: bool) -> Outcome {
    if !all_ready {
        return Outcome::new(
            "False",
            names::reason::DEPENDENCIES_NOT_READY,
            "One or more dependencies are not ready",
        );
    }
    // What the override layer does wrong is told on the layer and in `ValuesMerged`: the releases are as they were.
    let blocking = out
        .problems
        .iter()
        .filter(|p| !matches!(p.kind, ProblemKind::Merge { .. } | ProblemKind::Invalid { .. }));
    let messages: Vec<String> = blocking.clone().map(|p| p.kind.to_string()).collect();
    let Some(first) = blocking.clone().next() else {
        let count = out.releases.len();
        let message = format!("reconciliation succeeded, generated {count} helmrelease(s)");
        return Outcome::new("True", names::reason::RECONCILIATION_SUCCEEDED, message);
    };
    let reason = match first.kind {
        ProblemKind::DependsOn { .. } => names::reason::DEPENDS_ON_FAILED,
        ProblemKind::Taken { .. } | ProblemKind::Twice { .. } => names::reason::RELEASE_CONFLICT,
        _ => names::reason::INVALID_CONFIGURATION,
    };
    Outcome::new("False", reason, messages.join("; "))
}

fn dependency_readiness(
    snapshot: &Snapshot,
    name: &str,
    variant: &Variant,
    dependencies: Dependencies<'_>,
) -> BTreeMap<String, bool> {
    needed(snapshot, name, variant)
        .map(|dependency| {
            let ready = match dependencies {
                Dependencies::Assumed => true,
                Dependencies::Ready(ready) => ready.contains(dependency),
                Dependencies::Observed => snapshot.package(dependency).is_some_and(is_ready),
            };
            (dependency.to_owned(), ready)
        })
        .collect()
}

fn is_ready(package: &Package) -> bool {
    let conditions = package.status.as_ref().and_then(|status| status.conditions.as_ref());
    cozy_api::flux::condition(conditions, names::CONDITION_READY).is_some_and(|c| c.status == "True")
}

fn namespaces(snapshot: &Snapshot, package: &Package, variant: &Variant) -> Vec<NamespaceRender> {
    let names: BTreeSet<&str> = installed(package, variant)
        .filter_map(|(_, install)| install.namespace.as_deref().filter(|n| !n.is_empty()))
        .collect();
    names
        .into_iter()
        .map(|name| NamespaceRender {
            name: name.to_owned(),
            system: !name.starts_with(names::TENANT_NAMESPACE_PREFIX),
            privileged: snapshot.is_privileged(name),
        })
        .collect()
}

struct Render<'a> {
    snapshot: &'a Snapshot,
    package: &'a Package,
    source: &'a PackageSource,
    variant: &'a Variant,
    name: &'a str,
    options: &'a RenderOptions,
    /// On a cluster, where a chart that is not known will be: `Enforce` waits for it. A plan has the charts that it was
    /// given.
    live: bool,
}

impl Render<'_> {
    fn releases(&self, out: &mut PackageRender) {
        let layer = self.snapshot.values(self.name).filter(|values| !is_suspended(values));
        let package_dependencies = self.package_dependencies();
        let mut mine: BTreeMap<(String, String), String> = BTreeMap::new();
        for (component, install) in installed(self.package, self.variant) {
            match self.release(component, install, layer, &package_dependencies, &mut mine, &mut out.problems)
            {
                Ok(release) => {
                    self.tell(&release, layer, out);
                    out.releases.push(release);
                }
                Err(kind) => out.problems.push(Problem { component: component.name.clone(), kind }),
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn release(
        &self,
        component: &Component,
        install: &Install,
        layer: Option<&PackageValues>,
        package_dependencies: &[DependencyRef],
        mine: &mut BTreeMap<(String, String), String>,
        problems: &mut Vec<Problem>,
    ) -> Result<ReleaseRender, ProblemKind> {
        let name = component.name.clone();
        let namespace = install
            .namespace
            .as_deref()
            .filter(|n| !n.is_empty())
            .ok_or_else(|| ProblemKind::NoNamespace(name.clone()))?;
        let release = release_name(component, install);
        let key = (namespace.to_owned(), release.to_owned());
        if let Some(first) = mine.get(&key) {
            let (namespace, release) = key;
            return Err(ProblemKind::Twice { component: name, namespace, release, first: first.clone() });
        }
        if let Some(other) =
            self.snapshot.release_owner(namespace, release).filter(|owner| *owner != self.name)
        {
            let (namespace, release) = key;
            return Err(ProblemKind::Taken { component: name, namespace, release, owner: other.to_owned() });
        }
        let mut depends_on = self
            .component_dependencies(&component.name, install)
            .map_err(|reason| ProblemKind::DependsOn { component: name.clone(), reason })?;
        depends_on.extend_from_slice(package_dependencies);
        mine.insert(key, name);

        let base = self.package_values_of(&component.name);
        let (merged, keep_values) = self.merged(component, base, layer, problems);
        let action = |timeout, crds: Option<String>| HelmAction {
            timeout: Some(format!("{timeout}")),
            strategy: Some(HelmStrategy {
                name: Some("RetryOnFailure".to_owned()),
                retry_interval: Some(self.options.retry_interval.to_string()),
                ..HelmStrategy::default()
            }),
            crds,
            ..HelmAction::default()
        };
        let checks = install.health_check_exprs.as_deref().unwrap_or_default();
        let explicit = install.wait_strategy.clone().filter(|s| !s.is_empty());
        let wait = explicit.or_else(|| (!checks.is_empty()).then(|| "poller".to_owned()));
        let artifact = artifact_name(self.name, &self.variant.name, &component.name);
        let skip = self
            .source
            .metadata
            .annotations
            .as_ref()
            .and_then(|a| a.get(names::ANNOTATION_SKIP_COZYSTACK_VALUES));
        let spec = HelmReleaseSpec {
            chart_ref: Some(ObjectRef::to("ExternalArtifact", names::SYSTEM_NAMESPACE, &artifact)),
            interval: Some(self.options.interval.to_string()),
            max_history: Some(self.options.max_history),
            install: Some(action(self.options.install_timeout, None)),
            upgrade: Some(action(
                self.options.upgrade_timeout,
                install.upgrade_crds.clone().filter(|c| !c.is_empty()),
            )),
            health_check_exprs: (!checks.is_empty()).then(|| checks.iter().map(Into::into).collect()),
            wait_strategy: wait.map(|name| WaitStrategy { name: Some(name), ..WaitStrategy::default() }),
            values_from: (skip.map(String::as_str) != Some("true")).then(|| {
                vec![ValuesReference {
                    kind: Some("Secret".to_owned()),
                    name: Some(names::COZYSTACK_VALUES.to_owned()),
                    ..ValuesReference::default()
                }]
            }),
            values: merged.values,
            depends_on: (!depends_on.is_empty()).then_some(depends_on),
            ..HelmReleaseSpec::default()
        };
        let mut object = HelmRelease::new(namespace, release, spec);
        self.metadata(&mut object.metadata, component, install);
        if let Some(layer) = layer.filter(|_| !merged.overrides.is_empty()) {
            let annotations = object.metadata.annotations.get_or_insert_default();
            annotations.insert(
                names::ANNOTATION_VALUES_FROM.to_owned(),
                values_from(layer, self.snapshot.revision(self.name)),
            );
        }
        Ok(ReleaseRender {
            component: component.name.clone(),
            object,
            overrides: merged.overrides,
            keep_values,
        })
    }

    fn metadata(&self, metadata: &mut ObjectMeta, component: &Component, install: &Install) {
        let mut labels = BTreeMap::from([(names::LABEL_PACKAGE.to_owned(), self.name.to_owned())]);
        if install.privileged == Some(true) {
            labels.insert(names::LABEL_PRIVILEGED.to_owned(), "true".to_owned());
        }
        metadata.labels = Some(labels);
        if let Some(files) = component.values_files.as_ref().filter(|files| !files.is_empty()) {
            metadata.annotations =
                Some([(names::ANNOTATION_VALUES_FILES.to_owned(), files.join(","))].into());
        }
        metadata.owner_references =
            Some(vec![owner("Package", self.name, self.package.metadata.uid.as_deref())]);
    }

    fn package_values_of(&self, component: &str) -> Option<&Value> {
        self.package.spec.components.as_ref()?.get(component)?.values.as_ref().filter(|v| !v.is_null())
    }

    /// The component's values, and whether the existing HelmRelease's must be kept instead.
    fn merged(
        &self,
        component: &Component,
        base: Option<&Value>,
        layer: Option<&PackageValues>,
        problems: &mut Vec<Problem>,
    ) -> (Merged, bool) {
        let unmerged = || Merged { values: base.cloned(), overrides: Vec::new() };
        let wanted = layer.and_then(|l| l.spec.components.as_ref()?.get(&component.name));
        let (Some(layer), Some(wanted)) = (layer, wanted) else { return (unmerged(), false) };
        let chart = self.snapshot.chart(&artifact_name(self.name, &self.variant.name, &component.name));
        let merged = match merge_component(base, wanted, chart.map(|c| &c.values)) {
            Ok(merged) => merged,
            Err(error) => {
                let kind = ProblemKind::Merge { component: component.name.clone(), error };
                problems.push(Problem { component: component.name.clone(), kind });
                return (unmerged(), true);
            }
        };
        if layer.spec.validation == Some(Validation::Enforce) {
            let values = merged.values.clone().unwrap_or_default();
            let broken = match chart {
                Some(chart) => judged(chart, &values),
                None if self.live => vec![Violation {
                    pointer: String::new(),
                    message: "the chart's schema is not at hand, and validation Enforce lets nothing pass unchecked"
                        .to_owned(),
                }],
                None => Vec::new(),
            };
            if let Some(first) = broken.into_iter().next() {
                let (pointer, message) = (first.pointer, first.message);
                let kind = ProblemKind::Invalid { component: component.name.clone(), pointer, message };
                problems.push(Problem { component: component.name.clone(), kind });
                return (unmerged(), true);
            }
        }
        (merged, false)
    }

    /// `install.dependsOn`, in its order; a disabled component is not waited for, because nobody creates it.
    fn component_dependencies(&self, name: &str, install: &Install) -> Result<Vec<DependencyRef>, String> {
        let mut out = Vec::new();
        for wanted in install.depends_on.iter().flatten() {
            let components = self.variant.components.as_deref().unwrap_or_default();
            let found = components
                .iter()
                .find(|c| c.name == *wanted)
                .ok_or_else(|| format!("component {wanted} not found in variant for dependency {name}"))?;
            if !is_enabled(self.package, wanted) {
                continue;
            }
            let Some(install) = &found.install else {
                return Err(format!("component {wanted} not found in variant for dependency {name}"));
            };
            let namespace = install.namespace.as_deref().filter(|n| !n.is_empty());
            let namespace = namespace
                .ok_or_else(|| format!("component {wanted} has empty namespace in Install section"))?;
            out.push(dependency(namespace, release_name(found, install)));
        }
        Ok(out)
    }

    /// HelmReleases of the Packages that this one depends on, in the order of both.
    fn package_dependencies(&self) -> Vec<DependencyRef> {
        let mut out = Vec::new();
        for wanted in needed(self.snapshot, self.name, self.variant) {
            let (Some(package), Some(variant)) =
                (self.snapshot.package(wanted), self.snapshot.variant(wanted))
            else {
                continue;
            };
            for (component, install) in installed(package, variant) {
                if let Some(namespace) = install.namespace.as_deref().filter(|n| !n.is_empty()) {
                    out.push(dependency(namespace, release_name(component, install)));
                }
            }
        }
        out
    }

    fn tell(&self, release: &ReleaseRender, layer: Option<&PackageValues>, out: &mut PackageRender) {
        let Some(layer) = layer.filter(|_| !release.overrides.is_empty()) else { return };
        let values = release.object.spec.values.clone().unwrap_or_default();
        let effective = EffectiveValues { digest: cozy_yaml::digest(&values), values: Some(values) };
        out.effective_values.insert(release.component.clone(), effective);
        let pointers = release.overrides.iter().map(|o| o.pointer.clone()).collect();
        let shadowing =
            release.overrides.iter().filter(|o| o.from.is_some()).map(|o| o.pointer.clone()).collect();
        out.overrides.insert(
            release.component.clone(),
            ComponentOverrides {
                from: self.name.to_owned(),
                generation: layer.metadata.generation.unwrap_or_default(),
                revision: self.snapshot.revision(self.name).map(str::to_owned),
                pointers,
                shadowing,
            },
        );
    }

    fn package_values(&self, out: &mut PackageRender) {
        let Some(layer) = self.snapshot.values(self.name) else { return };
        let mut components = BTreeMap::new();
        for (name, wanted) in layer.spec.components.iter().flatten() {
            components.insert(name.clone(), self.component_status(name, wanted, out));
        }
        let ready = self.layer_outcome(layer, &components, out);
        out.values_merged = Some(ready.clone());
        out.package_values = Some(ValuesRender { generation: layer.metadata.generation, ready, components });
    }

    fn component_status(&self, name: &str, wanted: &ComponentValues, out: &PackageRender) -> ComponentRender {
        let found = self.variant.components.iter().flatten().find(|c| c.name == name);
        let state = match found {
            None => ComponentState::UnknownComponent,
            Some(_) if !is_enabled(self.package, name) => ComponentState::Disabled,
            Some(_) if out.releases.iter().any(|r| r.component == name) => ComponentState::Applied,
            Some(_) => ComponentState::NotInstalled,
        };
        let chart =
            found.and_then(|_| self.snapshot.chart(&artifact_name(self.name, &self.variant.name, name)));
        let empty = Value::Null;
        let values = wanted.values.as_ref().unwrap_or(&empty);
        let effective =
            out.releases.iter().find(|r| r.component == name).and_then(|r| r.object.spec.values.clone());
        ComponentRender {
            state,
            unknown_keys: chart.map(|chart| chart.unknown_keys(values)),
            violations: chart.map(|chart| judged(chart, &effective.unwrap_or_default())).unwrap_or_default(),
        }
    }

    fn layer_outcome(
        &self,
        layer: &PackageValues,
        components: &BTreeMap<String, ComponentRender>,
        out: &PackageRender,
    ) -> Outcome {
        if is_suspended(layer) {
            return suspended();
        }
        let told = |kinds: fn(&ProblemKind) -> bool| -> Vec<String> {
            out.problems.iter().filter(|p| kinds(&p.kind)).map(|p| p.kind.to_string()).collect()
        };
        let lists = told(|kind| matches!(kind, ProblemKind::Merge { .. }));
        if !lists.is_empty() {
            return Outcome::new(
                "False",
                names::reason::INVALID_LIST,
                format!("{}; the last good values stay", lists.join("; ")),
            );
        }
        let invalid = told(|kind| matches!(kind, ProblemKind::Invalid { .. }));
        if !invalid.is_empty() {
            return Outcome::new(
                "False",
                names::reason::INVALID_VALUES,
                format!("{}; the last good values stay", invalid.join("; ")),
            );
        }
        let violations: Vec<String> = components
            .iter()
            .flat_map(|(name, c)| {
                c.violations.iter().map(move |v| format!("component {name}: {}: {}", v.pointer, v.message))
            })
            .collect();
        let applied = components.values().filter(|c| c.state == ComponentState::Applied).count();
        let unknown: Vec<&str> = components
            .iter()
            .filter(|(_, c)| c.state == ComponentState::UnknownComponent)
            .map(|(name, _)| name.as_str())
            .collect();
        let mut message = format!("merged into {applied} component(s)");
        if !unknown.is_empty() {
            message += &format!(
                "; ignored, because variant {} has no such component: {}",
                self.variant.name,
                unknown.join(", ")
            );
        }
        if !violations.is_empty() {
            message += &format!("; the chart's schema objects: {}", violations.join("; "));
            return Outcome::new("False", names::reason::INVALID_VALUES, message);
        }
        Outcome::new("True", names::reason::MERGED, message)
    }
}

/// Violations; a schema that cannot be used counts as one, so that `Enforce` never passes what nobody could check.
fn judged(chart: &Chart, values: &Value) -> Vec<Violation> {
    chart
        .violations(values)
        .unwrap_or_else(|error| vec![Violation { pointer: String::new(), message: error.to_string() }])
}

fn dependency(namespace: &str, name: &str) -> DependencyRef {
    DependencyRef {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        ..DependencyRef::default()
    }
}

/// `<PackageValues>@<generation>`, and the git revision where kustomize-controller recorded one.
fn values_from(layer: &PackageValues, revision: Option<&str>) -> String {
    let name = layer.metadata.name.as_deref().unwrap_or_default();
    let generation = layer.metadata.generation.unwrap_or_default();
    match revision {
        Some(revision) => format!("{name}@{generation} {revision}"),
        None => format!("{name}@{generation}"),
    }
}

/// Leaves out values when all of them together are too large for a status; the digests stay, and `ValuesMerged` says so.
pub(super) fn limit_effective_values(out: &mut PackageRender) {
    let values = out.effective_values.values().filter_map(|e| e.values.as_ref());
    let size: usize = values.map(|values| cozy_yaml::canonical_json(values).len()).sum();
    if size > names::MAX_EFFECTIVE_VALUES_BYTES {
        for effective in out.effective_values.values_mut() {
            effective.values = None;
        }
        out.values_left_out = true;
    }
    if let Some(merged) = out.values_merged.as_mut().filter(|_| out.values_left_out) {
        let told = "; effective values of more than 256 KiB are left out, their digests are not";
        if !merged.message.ends_with(told) {
            merged.message += told;
        }
    }
}
