//! What a plan has to say beside the changes themselves.

use serde::Serialize;

use super::source::{Object, Place};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something cannot be read, or will be refused; the command fails, the rest is planned all the same.
    Error,
    /// Probably not what is meant.
    Warning,
    /// Good to know.
    Info,
}

/// What was found. The names are part of the output's contract; see `docs/plan.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[non_exhaustive]
pub enum FindingKind {
    /// A file that cannot or must not be read.
    UnreadableFile,
    /// A document that is not YAML or JSON as Kubernetes reads it.
    InvalidYaml,
    /// A document that is not a Kubernetes object, or one that the API server refuses.
    InvalidObject,
    /// A field that the API does not have.
    UnknownField,
    /// An `apiVersion` of our kinds that does not exist.
    UnsupportedVersion,
    /// Two objects of one name, or two components of one name.
    Duplicate,
    /// kustomize is not there, or failed.
    KustomizeFailed,
    /// A kustomization refers to something outside the repository.
    RemoteBase,
    /// A file that Flux leaves out.
    IgnoredFile,
    /// A Package without the PackageSource of its name.
    PackageSourceNotFound,
    /// A Package whose PackageSource has no such variant.
    VariantNotFound,
    /// A component that cannot become a HelmRelease.
    InvalidConfiguration,
    /// Two components with the same HelmRelease.
    ReleaseConflict,
    /// A PackageValues without a Package.
    OrphanPackageValues,
    /// A PackageValues names a component that the variant does not have.
    UnknownComponent,
    /// A PackageValues names a component that the Package disables.
    DisabledComponent,
    /// A PackageValues names a component that is not installed.
    NotInstalled,
    /// A PackageValues that is suspended.
    Suspended,
    /// A key that the chart does not know.
    UnknownKey,
    /// A list that replaces another one and drops entries of it.
    ListReplaced,
    /// A list rule that does not fit.
    InvalidList,
    /// A `$patch: delete` that matches nothing.
    UnmatchedDelete,
    /// Values that the chart's schema refuses.
    SchemaViolation,
    /// A chart that is not below `--charts`, or cannot be read.
    ChartNotFound,
    /// Something that only the chart can tell.
    NeedsCharts,
    /// A Package in the repository takes fields from the platform chart.
    TakesPackageByForce,
    /// The platform's values Secret, which reaches every HelmRelease.
    PlatformValues,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was found.
    pub kind: FindingKind,
    /// How bad it is.
    pub severity: Severity,
    /// The object, `Kind/name` or `Kind/namespace/name`.
    pub object: Option<String>,
    /// RFC 6901 pointer in the object.
    pub pointer: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub hint: Option<String>,
    /// Where.
    pub place: Option<Place>,
}

impl Finding {
    /// A finding about no object in particular.
    #[must_use]
    pub fn new(kind: FindingKind, severity: Severity, message: impl Into<String>) -> Self {
        Self { kind, severity, object: None, pointer: None, message: message.into(), hint: None, place: None }
    }

    /// About this object as a whole.
    #[must_use]
    pub fn on(mut self, object: &Object) -> Self {
        self.object = Some(object.id().to_string());
        self.place = object.source.start();
        self
    }

    /// About a field of this object.
    #[must_use]
    pub fn at(mut self, object: &Object, pointer: impl Into<String>) -> Self {
        let pointer = pointer.into();
        self.object = Some(object.id().to_string());
        self.place = closest(object, &pointer).or_else(|| object.source.start());
        self.pointer = Some(pointer);
        self
    }

    /// With advice.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// At a place.
    #[must_use]
    pub fn place(mut self, place: Place) -> Self {
        self.place = Some(place);
        self
    }
}

/// The place of a field, or of the closest field above it whose place is known.
fn closest(object: &Object, pointer: &str) -> Option<Place> {
    let mut pointer = pointer;
    loop {
        let found = object.value.pointer(pointer).and_then(|value| object.source.place(pointer, Some(value)));
        if found.is_some() || pointer.is_empty() {
            return found;
        }
        pointer = pointer.rsplit_once('/').map_or("", |(above, _)| above);
    }
}
