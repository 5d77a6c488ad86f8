//! What a change of a repository does to the cluster's HelmReleases, told without a cluster.
//!
//! A plan compares two states of what the operator is told and renders both with the operator's own renderer:
//! - without a base: the platform's objects alone, and with the repository's on top;
//! - with one: the platform's objects with the repository as it was, and as it is.
//!
//! Nothing here reads files: [`Object`]s come in with their places ([`Source`]), a [`Plan`] comes out.

mod compute;
mod finding;
mod force;
mod json;
mod judge;
mod opaque;
mod source;
mod state;
mod structure;
pub mod suggest;

use serde_json::Value;

pub use compute::{Prepared, WantedChart};
pub use finding::{Finding, FindingKind, Severity};
pub use json::FORMAT;
pub use opaque::{ENCRYPTED, conceal, is_secret};
pub use source::{Object, ObjectId, Place, Source, Text};

/// What a change of a repository does.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// HelmReleases that change, ordered by namespace and name.
    pub releases: Vec<ReleaseChange>,
    /// Other objects of the repository that change, ordered by group, kind, namespace and name.
    pub objects: Vec<ObjectChange>,
    /// What else there is to say: errors first.
    pub findings: Vec<Finding>,
}

impl Plan {
    /// Whether anything in the cluster would change.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        !self.releases.is_empty() || !self.objects.is_empty()
    }

    /// Adds what was found while reading files.
    pub fn add_findings(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.findings.extend(findings);
        compute::sort(&mut self.findings);
    }

    /// How many findings are of that severity.
    #[must_use]
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }
}

/// What happens to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// It is new.
    Added,
    /// It changes.
    Changed,
    /// It goes.
    Removed,
}

/// Which layer a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub enum ValueLayer {
    /// The Package.
    Package,
    /// The override.
    PackageValues,
}

/// Where a value comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The layer; `None` when neither sets it, so that the chart's default holds.
    pub layer: Option<ValueLayer>,
    /// File and line, where known.
    pub place: Option<Place>,
}

/// What happens to one HelmRelease.
#[derive(Clone, Debug)]
pub struct ReleaseChange {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The Package that it is rendered from.
    pub package: String,
    /// The Package's component.
    pub component: String,
    /// What happens to it.
    pub what: What,
    /// Leaves of `spec.values` that change; of a removed HelmRelease none.
    pub changes: Vec<ValueChange>,
    /// Everything else of it that changes; of an added or removed HelmRelease none.
    pub fields: Vec<crate::merge::Change>,
}

/// One leaf of a HelmRelease's values that changes.
#[derive(Clone, Debug)]
pub struct ValueChange {
    /// RFC 6901 pointer in `spec.values`.
    pub pointer: String,
    /// What was there; `None` when nothing was, so that the chart's default held.
    pub from: Option<Value>,
    /// What is there now; `None` when nothing is.
    pub to: Option<Value>,
    /// Where `from` comes from.
    pub was: Origin,
    /// Where `to` comes from.
    pub now: Origin,
}

/// What happens to another object of the repository.
#[derive(Clone, Debug)]
pub struct ObjectChange {
    /// The object.
    pub id: ObjectId,
    /// Its `apiVersion`.
    pub api_version: String,
    /// What happens to it.
    pub what: What,
    /// Pointers of what changes in it; of a Secret only its keys. Never values.
    pub pointers: Vec<String>,
    /// Where it stands; for a removed one, where it stood.
    pub place: Option<Place>,
}

/// A value in a few words, for messages.
fn shown(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = value.to_string();
    if text.chars().count() <= LONGEST {
        return text;
    }
    match value {
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(map) => format!("a map of {}", map.len()),
        _ => format!("{}…", text.chars().take(LONGEST).collect::<String>()),
    }
}
