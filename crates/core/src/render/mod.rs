//! What Packages and PackageSources become: the one renderer behind the operator, `render` and `plan`.
//!
//! [`render_package`] turns a Package, its PackageSource and its PackageValues into HelmReleases, Namespaces and both
//! statuses; [`render_package_source`] turns a PackageSource into its ArtifactGenerator. Both look at a
//! [`Snapshot`] and nothing else. For healthy input and without a PackageValues the objects are those of the Go
//! operator, field by field (replayed from its recorded results in `tests/golden.rs`).

mod generator;
mod package;
pub mod recovery;
pub mod write;

use std::collections::{BTreeMap, BTreeSet};

use cozy_api::flux::HelmRelease;
use cozy_api::packages::{ComponentOverrides, ComponentState, EffectiveValues};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Value, json};

pub use generator::{GeneratorRender, render_package_source};
pub use package::render_package;

use crate::duration::GoDuration;
use crate::merge::{MergeError, Override};
use crate::snapshot::Snapshot;

/// What the operator's `--helmrelease-*` flags say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderOptions {
    /// How often helm-controller reconciles.
    pub interval: GoDuration,
    /// Time between two attempts of a failed action.
    pub retry_interval: GoDuration,
    /// Longest time of an installation.
    pub install_timeout: GoDuration,
    /// Longest time of an upgrade.
    pub upgrade_timeout: GoDuration,
    /// Revisions that Helm keeps; 0 keeps all.
    pub max_history: i64,
}

impl Default for RenderOptions {
    /// The Go operator's defaults.
    fn default() -> Self {
        Self {
            interval: GoDuration::from_secs(300),
            retry_interval: GoDuration::from_secs(30),
            install_timeout: GoDuration::from_secs(600),
            upgrade_timeout: GoDuration::from_secs(600),
            max_history: 5,
        }
    }
}

/// Which dependencies count as ready.
#[derive(Clone, Copy, Debug)]
pub enum Dependencies<'a> {
    /// All of them, also those that are not there: what a plan assumes.
    Assumed,
    /// These Packages.
    Ready(&'a BTreeSet<String>),
    /// Those whose Package has the condition Ready=True; what the operator sees.
    Observed,
}

/// A condition without its time: the caller knows the clock and what stood there before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// Reason in CamelCase.
    pub reason: String,
    /// For people.
    pub message: String,
}

impl Outcome {
    pub(crate) fn new(status: &'static str, reason: &str, message: impl Into<String>) -> Self {
        Self { status, reason: reason.to_owned(), message: message.into() }
    }
}

/// What a Package becomes.
#[derive(Clone, Debug, PartialEq)]
pub struct PackageRender {
    /// Namespaces to apply, ordered by name.
    pub namespaces: Vec<NamespaceRender>,
    /// HelmReleases, in the variant's order. Which of them to write depends on [`PackageRender::gate`].
    pub releases: Vec<ReleaseRender>,
    /// Components that could not be rendered; the others were all the same.
    pub problems: Vec<Problem>,
    /// Whether the HelmReleases may be written.
    pub gate: Gate,
    /// The condition `Ready`, provided that every write succeeds.
    pub ready: Outcome,
    /// Readiness of each dependency that is not ignored.
    pub dependencies: BTreeMap<String, bool>,
    /// The condition `ValuesMerged`; `None` without a PackageValues.
    pub values_merged: Option<Outcome>,
    /// Merged values by component.
    pub effective_values: BTreeMap<String, EffectiveValues>,
    /// The merged values are too large for a status: only their digests are told.
    pub values_left_out: bool,
    /// Who overrides what, by component.
    pub overrides: BTreeMap<String, ComponentOverrides>,
    /// Status of the PackageValues of the same name; `None` without one.
    pub package_values: Option<ValuesRender>,
}

/// Whether a Package's HelmReleases may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// All of them.
    Open,
    /// Those that exist are updated, none is created: a dependency is not ready yet.
    UpdatesOnly,
    /// None; those that exist stay as they are: without source or variant nothing is known about them.
    Closed,
}

/// A Namespace, as applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceRender {
    /// Its name.
    pub name: String,
    /// Whether it is the platform's (not a tenant's).
    pub system: bool,
    /// Whether it must allow privileged pods.
    pub privileged: bool,
}

impl NamespaceRender {
    /// The object to apply (field manager `cozystack-package-controller`).
    #[must_use]
    pub fn object(&self) -> Value {
        use cozy_api::names;
        let mut labels = serde_json::Map::new();
        if self.system {
            labels.insert(names::LABEL_SYSTEM.to_owned(), json!("true"));
        }
        if self.privileged {
            labels.insert(names::LABEL_POD_SECURITY_ENFORCE.to_owned(), json!("privileged"));
        }
        let mut metadata =
            json!({ "name": self.name, "annotations": { (names::ANNOTATION_RESOURCE_POLICY): "keep" } });
        if !labels.is_empty() {
            metadata["labels"] = Value::Object(labels);
        }
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata })
    }
}

/// One component's HelmRelease.
#[derive(Clone, Debug, PartialEq)]
pub struct ReleaseRender {
    /// The component.
    pub component: String,
    /// The object, without status.
    pub object: HelmRelease,
    /// Leaves that the PackageValues sets.
    pub overrides: Vec<Override>,
    /// The values could not be merged: the object carries the Package's own, and whoever writes it must keep the
    /// values that the existing HelmRelease has, and its `values-from` annotation.
    pub keep_values: bool,
}

/// A component that could not be rendered as wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// The component.
    pub component: String,
    /// What is wrong.
    pub kind: ProblemKind,
}

/// What is wrong with a component.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProblemKind {
    /// `install` without namespace.
    #[error("component {0} has empty namespace in Install section")]
    NoNamespace(String),
    /// `install.dependsOn` names what cannot be depended on. The text is the Go operator's.
    #[error("Failed to build DependsOn for component {component}: {reason}")]
    DependsOn {
        /// The component.
        component: String,
        /// Why.
        reason: String,
    },
    /// Another, older Package has the HelmRelease.
    #[error(
        "HelmRelease {namespace}/{release} of component {component} already belongs to the older Package {owner}; rename one of them with install.releaseName"
    )]
    Taken {
        /// The component.
        component: String,
        /// Namespace of the HelmRelease.
        namespace: String,
        /// Its name.
        release: String,
        /// The Package that has it.
        owner: String,
    },
    /// An earlier component of the same variant has the HelmRelease.
    #[error(
        "HelmRelease {namespace}/{release} of component {component} is already component {first}'s; rename one of them with install.releaseName"
    )]
    Twice {
        /// The component.
        component: String,
        /// Namespace of the HelmRelease.
        namespace: String,
        /// Its name.
        release: String,
        /// The component that has it.
        first: String,
    },
    /// The override cannot be merged; the HelmRelease keeps its last good values.
    #[error("component {component}: {error}")]
    Merge {
        /// The component.
        component: String,
        /// Why.
        error: MergeError,
    },
    /// `validation: Enforce` and the values break the chart's schema; the HelmRelease keeps its last good values.
    #[error("component {component}: {pointer}: {message}")]
    Invalid {
        /// The component.
        component: String,
        /// The offending value.
        pointer: String,
        /// What is wrong with it.
        message: String,
    },
}

/// Status of a PackageValues.
#[derive(Clone, Debug, PartialEq)]
pub struct ValuesRender {
    /// Generation that it speaks of.
    pub generation: Option<i64>,
    /// The condition `Ready`.
    pub ready: Outcome,
    /// By component.
    pub components: BTreeMap<String, ComponentRender>,
}

/// What became of one component's overrides.
#[derive(Clone, Debug, PartialEq)]
pub struct ComponentRender {
    /// Whether they are in force.
    pub state: ComponentState,
    /// Keys that the chart does not know; `None` when the chart is not known.
    pub unknown_keys: Option<Vec<String>>,
    /// Violations of the chart's schema.
    pub violations: Vec<crate::chart::Violation>,
}

/// Everything that a snapshot becomes.
#[derive(Clone, Debug, Default)]
pub struct RenderedAll {
    /// By Package.
    pub packages: BTreeMap<String, PackageRender>,
    /// By PackageSource.
    pub sources: BTreeMap<String, GeneratorRender>,
    /// PackageValues without a Package.
    pub orphans: BTreeMap<String, ValuesRender>,
}

/// Renders every object of a snapshot.
#[must_use]
pub fn render_all(
    snapshot: &Snapshot,
    options: &RenderOptions,
    dependencies: Dependencies<'_>,
) -> RenderedAll {
    RenderedAll {
        packages: snapshot
            .package_names()
            .filter_map(|name| {
                Some((name.to_owned(), render_package(snapshot, name, options, dependencies)?))
            })
            .collect(),
        sources: snapshot
            .source_names()
            .filter_map(|name| Some((name.to_owned(), render_package_source(snapshot.source(name)?))))
            .collect(),
        orphans: snapshot
            .values_names()
            .filter(|name| snapshot.package(name).is_none())
            .filter_map(|name| Some((name.to_owned(), render_orphan(snapshot, name)?)))
            .collect(),
    }
}

/// Status of a PackageValues whose Package does not exist; `None` when the Package does, or the PackageValues does not.
#[must_use]
pub fn render_orphan(snapshot: &Snapshot, name: &str) -> Option<ValuesRender> {
    if snapshot.package(name).is_some() {
        return None;
    }
    package::values_without_package(snapshot, name)
}

/// Packages that become ready when everything that is rendered is also installed: those whose source, variant and
/// dependencies are there and free of cycles.
#[must_use]
pub fn reachable(snapshot: &Snapshot) -> BTreeSet<String> {
    let mut waiting: BTreeMap<&str, usize> = BTreeMap::new();
    let mut ready = BTreeSet::new();
    let mut queue = Vec::new();
    for name in snapshot.package_names() {
        let Some(variant) = snapshot.variant(name) else { continue };
        let needs: BTreeSet<&str> = package::needed(snapshot, name, variant).collect();
        if needs.is_empty() {
            queue.push(name);
        } else {
            waiting.insert(name, needs.len());
        }
    }
    while let Some(name) = queue.pop() {
        ready.insert(name.to_owned());
        for dependent in snapshot.dependents(name) {
            let ignored = snapshot
                .variant(dependent)
                .is_none_or(|v| !package::needed(snapshot, dependent, v).any(|n| n == name));
            if ignored {
                continue;
            }
            if let Some(left) = waiting.get_mut(dependent) {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    queue.push(dependent);
                }
            }
        }
    }
    ready
}

/// The owner reference of everything that a Package or PackageSource makes: `controller`, and no
/// `blockOwnerDeletion`, like the Go operator's.
fn owner(kind: &str, name: &str, uid: Option<&str>) -> OwnerReference {
    OwnerReference {
        api_version: "cozystack.io/v1alpha1".to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: uid.unwrap_or_default().to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}
