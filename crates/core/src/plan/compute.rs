//! The comparison itself.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use cozy_api::names;
use serde_json::Value;

use super::finding::{Finding, FindingKind, Severity};
use super::judge::Judge;
use super::opaque;
use super::source::{Object, ObjectId};
use super::state::{Applied, Kind, Layer, State, Touched};
use super::{ObjectChange, Origin, Plan, ReleaseChange, ValueChange, ValueLayer, What};
use crate::chart::Chart;
use crate::merge::diff_values;
use crate::render::{Dependencies, Gate, PackageRender, ReleaseRender, RenderOptions, render_package};
use crate::snapshot::{Snapshot, artifact_name};

/// Both states, read and indexed.
#[derive(Debug)]
pub struct Prepared {
    before: State,
    after: State,
    touched: Touched,
    findings: Vec<Finding>,
    charts_given: bool,
}

/// A chart that the plan would look at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WantedChart {
    /// Name of the ExternalArtifact that holds it in a cluster; what [`Prepared::set_chart`] wants.
    pub artifact: String,
    /// The component's `path`.
    pub path: String,
    /// The component's `valuesFiles`.
    pub values_files: Vec<String>,
}

impl Prepared {
    /// Reads the platform's objects, those of the repository and, for a comparison of two states of the repository,
    /// those of the repository as it was.
    ///
    /// `incomplete` says that parts of the repository could not be read. What is missing is then not taken for
    /// removed: objects of the base that the repository lacks stay as they were.
    #[must_use]
    pub fn new(
        platform: Vec<Object>,
        base: Option<Vec<Object>>,
        mut repository: Vec<Object>,
        incomplete: bool,
    ) -> Self {
        let mut findings = Vec::new();
        if incomplete && let Some(base) = &base {
            let there: HashSet<ObjectId> = repository.iter().map(Object::id).collect();
            repository.extend(base.iter().filter(|object| !there.contains(&object.id())).cloned());
        }
        let mut before = State::default();
        before.apply(platform, Layer::Platform, &mut findings);
        let mut after = before.clone();
        let mut touched = after.apply(repository, Layer::Repository, &mut findings);
        if let Some(base) = base {
            // What is wrong with what was is no fault of the change.
            let was = before.apply(base, Layer::Repository, &mut Vec::new());
            touched.packages.extend(was.packages);
            touched.others.extend(was.others);
        }
        Self { before, after, touched, findings, charts_given: false }
    }

    /// The charts that overrides are to be compared with.
    #[must_use]
    pub fn wanted_charts(&self) -> Vec<WantedChart> {
        let mut out = BTreeSet::new();
        for state in [&self.before, &self.after] {
            for name in state.snapshot.values_names() {
                wanted_of(&state.snapshot, name, &mut out);
            }
        }
        out.into_iter().collect()
    }

    /// Tells that charts are at hand, so that one that is missing is worth a word.
    pub fn set_charts_given(&mut self) {
        self.charts_given = true;
    }

    /// Gives a chart that was wanted.
    pub fn set_chart(&mut self, artifact: &str, chart: &Arc<Chart>) {
        for state in [&mut self.before, &mut self.after] {
            state.snapshot.set_chart(artifact.to_owned(), Arc::clone(chart));
        }
    }

    /// The objects that the repository's state is rendered from.
    #[must_use]
    pub fn snapshot(&self) -> &Snapshot {
        &self.after.snapshot
    }

    /// What was found while reading the objects.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Compares the two states.
    #[must_use]
    pub fn plan(self, options: &RenderOptions) -> Plan {
        let mut findings = self.findings;
        let judge = Judge { state: &self.after, charts_given: self.charts_given };
        let mut before: BTreeMap<Key, Release<'_>> = BTreeMap::new();
        let mut after: BTreeMap<Key, Release<'_>> = BTreeMap::new();
        let mut held = HashSet::new();
        for name in self.after.snapshot.package_names() {
            let Some(render) = render_package(&self.after.snapshot, name, options, Dependencies::Assumed)
            else {
                continue;
            };
            judge.package(name, &render, &mut findings);
            if render.gate == Gate::Closed {
                held.insert(name);
            }
            if self.touched.packages.contains(name) {
                collect(name, render, &mut after);
            }
        }
        judge.orphans(&mut findings);
        for name in &self.touched.packages {
            if let Some(render) = render_package(&self.before.snapshot, name, options, Dependencies::Assumed)
            {
                collect(name, render, &mut before);
            }
        }
        let mut keys: BTreeSet<&Key> = before.keys().collect();
        keys.extend(after.keys());
        let releases = keys
            .into_iter()
            .filter_map(|key| {
                let (was, now) = (before.get(key), after.get(key));
                // Without source or variant the operator leaves alone what is there.
                if now.is_none() && was.is_some_and(|was| held.contains(was.package)) {
                    return None;
                }
                compare(&self.before, &self.after, was, now)
            })
            .collect();
        let objects: Vec<ObjectChange> = self
            .touched
            .others
            .iter()
            .filter_map(|id| compare_objects(id, self.before.others.get(id), self.after.others.get(id)))
            .collect();
        findings.extend(platform_values(&objects, &self.after));
        sort(&mut findings);
        Plan { releases, objects, findings }
    }
}

/// Errors first, then by place; the same thing is said once.
pub(super) fn sort(findings: &mut Vec<Finding>) {
    findings.sort_by(|a, b| {
        let key = |f: &Finding| (f.severity, f.place.clone(), f.object.clone(), f.kind, f.pointer.clone());
        key(a).cmp(&key(b))
    });
    findings.dedup();
}

fn wanted_of(snapshot: &Snapshot, name: &str, out: &mut BTreeSet<WantedChart>) {
    let (Some(values), Some(variant)) = (snapshot.values(name), snapshot.variant(name)) else { return };
    let overridden = values.spec.components.as_ref();
    for component in variant.components.iter().flatten() {
        if overridden.is_some_and(|overridden| overridden.contains_key(&component.name)) {
            out.insert(WantedChart {
                artifact: artifact_name(name, &variant.name, &component.name),
                path: component.path.clone(),
                values_files: component.values_files.clone().unwrap_or_default(),
            });
        }
    }
}

/// Namespace and name of a HelmRelease, as they are ordered.
type Key = (String, String);

/// A rendered HelmRelease and what it came from.
struct Release<'a> {
    package: &'a str,
    render: ReleaseRender,
    overridden: HashSet<String>,
}

fn collect<'a>(package: &'a str, render: PackageRender, out: &mut BTreeMap<Key, Release<'a>>) {
    for render in render.releases {
        let metadata = &render.object.metadata;
        let key = (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default());
        let overridden = render.overrides.iter().map(|o| o.pointer.clone()).collect();
        out.insert(key, Release { package, render, overridden });
    }
}

fn compare(
    before: &State,
    after: &State,
    was: Option<&Release<'_>>,
    now: Option<&Release<'_>>,
) -> Option<ReleaseChange> {
    let (shown, what) = match (was, now) {
        (None, Some(now)) => (now, What::Added),
        (Some(was), None) => (was, What::Removed),
        (Some(_), Some(now)) => (now, What::Changed),
        (None, None) => return None,
    };
    let (mut changes, mut fields) = (Vec::new(), Vec::new());
    if let Some(now) = now {
        let old = was.and_then(|was| was.render.object.spec.values.as_ref());
        let new = match was {
            // What cannot be merged leaves the values as they are.
            Some(_) if now.render.keep_values => old,
            _ => now.render.object.spec.values.as_ref(),
        };
        for change in diff_values(old, new) {
            let was = was
                .filter(|_| change.from.is_some())
                .map(|was| origin(before, was, &change.pointer))
                .unwrap_or_default();
            let now = change.to.as_ref().map(|_| origin(after, now, &change.pointer)).unwrap_or_default();
            changes.push(ValueChange { pointer: change.pointer, from: change.from, to: change.to, was, now });
        }
        if let Some(was) = was {
            fields = diff_values(Some(&frame(&was.render)), Some(&frame(&now.render)));
        }
    }
    if what == What::Changed && changes.is_empty() && fields.is_empty() {
        return None;
    }
    let metadata = &shown.render.object.metadata;
    Some(ReleaseChange {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        package: shown.package.to_owned(),
        component: shown.render.component.clone(),
        what,
        changes,
        fields,
    })
}

/// The HelmRelease without its values and what says where they came from.
fn frame(render: &ReleaseRender) -> Value {
    let mut object = render.object.clone();
    object.spec.values = None;
    if let Some(annotations) = &mut object.metadata.annotations {
        annotations.remove(names::ANNOTATION_VALUES_FROM);
        if annotations.is_empty() {
            object.metadata.annotations = None;
        }
    }
    serde_json::to_value(object).unwrap_or_default()
}

fn origin(state: &State, release: &Release<'_>, pointer: &str) -> Origin {
    let mut below = "/spec/components".to_owned();
    cozy_yaml::push_token(&mut below, &release.render.component);
    below.push_str("/values");
    below.push_str(pointer);
    let kind = if is_overridden(&release.overridden, pointer) { Kind::PackageValues } else { Kind::Package };
    let applied = state.ours(kind, release.package);
    let layer = match kind {
        Kind::PackageValues => ValueLayer::PackageValues,
        _ => ValueLayer::Package,
    };
    Origin { layer: Some(layer), place: applied.and_then(|applied| place(applied, &below)) }
}

/// Where a leaf stands, or the closest thing above it that is there.
fn place(applied: &Applied, pointer: &str) -> Option<super::Place> {
    let mut pointer = pointer;
    loop {
        if applied.value.pointer(pointer).is_some() {
            return applied.place(pointer);
        }
        pointer = pointer.rsplit_once('/')?.0;
    }
}

/// Whether the pointer, or anything above it, is set by the override.
fn is_overridden(overridden: &HashSet<String>, pointer: &str) -> bool {
    let mut pointer = pointer;
    loop {
        if overridden.contains(pointer) {
            return true;
        }
        match pointer.rsplit_once('/') {
            Some((above, _)) => pointer = above,
            None => return false,
        }
    }
}

fn compare_objects(id: &ObjectId, was: Option<&Applied>, now: Option<&Applied>) -> Option<ObjectChange> {
    let what = match (was, now) {
        (None, Some(_)) => What::Added,
        (Some(_), None) => What::Removed,
        (Some(was), Some(now)) if cozy_yaml::canonical_eq(&was.value, &now.value) => return None,
        (Some(_), Some(_)) => What::Changed,
        (None, None) => return None,
    };
    let object = now.or(was)?.from.last()?;
    let mut pointers: Vec<String> = match (was, now) {
        (Some(was), Some(now)) => {
            diff_values(Some(&was.value), Some(&now.value)).into_iter().map(|c| c.pointer).collect()
        }
        _ => Vec::new(),
    };
    if opaque::is_secret(object) {
        // A key of a key is already data.
        for pointer in &mut pointers {
            let end = pointer.match_indices('/').nth(2).map_or(pointer.len(), |(end, _)| end);
            pointer.truncate(end);
        }
        pointers.dedup();
    }
    Some(ObjectChange {
        id: id.clone(),
        api_version: object.api_version().to_owned(),
        what,
        pointers,
        place: object.source.start(),
    })
}

/// The Secret that reaches the HelmReleases behind the operator's back.
fn platform_values(objects: &[ObjectChange], after: &State) -> Option<Finding> {
    let id = ObjectId {
        group: String::new(),
        kind: "Secret".to_owned(),
        namespace: names::SYSTEM_NAMESPACE.to_owned(),
        name: names::COZYSTACK_VALUES.to_owned(),
    };
    let change = objects.iter().find(|change| change.id == id)?;
    let message = format!(
        "{} reaches every HelmRelease of the platform through `valuesFrom`; what that changes in them is not part of this plan",
        change.id
    );
    let finding = Finding::new(FindingKind::PlatformValues, Severity::Info, message);
    Some(match after.others.get(&id).and_then(|applied| applied.from.last()) {
        Some(object) => finding.on(object),
        None => finding,
    })
}
