//! What the cluster is told: the platform's objects with a repository's on top.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cozy_api::names;
use cozy_api::packages::{Package, PackageSource, PackageValues};
use serde::Deserialize;
use serde_json::Value;

use super::finding::{Finding, FindingKind, Severity};
use super::force;
use super::opaque;
use super::source::{Object, ObjectId, Place};
use super::structure;
use super::suggest;
use crate::snapshot::Snapshot;

/// Our three kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Package,
    PackageSource,
    PackageValues,
}

impl Kind {
    fn of(object: &Object) -> Option<Self> {
        if object.group() != names::COZYSTACK_GROUP {
            return None;
        }
        match object.kind() {
            "Package" => Some(Self::Package),
            "PackageSource" => Some(Self::PackageSource),
            "PackageValues" => Some(Self::PackageValues),
            _ => None,
        }
    }
}

/// An object as the API server would hold it, and the objects that were applied to make it, in order.
#[derive(Clone, Debug)]
pub(super) struct Applied {
    pub(super) value: Arc<Value>,
    pub(super) from: Vec<Object>,
}

impl Applied {
    /// Where the field stands that the pointer names: in the last object that says what holds now.
    pub(super) fn place(&self, pointer: &str) -> Option<Place> {
        let value = self.value.pointer(pointer)?;
        self.from.iter().rev().find_map(|object| {
            let said = object.value.pointer(pointer)?;
            cozy_yaml::canonical_eq(said, value).then(|| object.source.place(pointer, Some(said)))?
        })
    }
}

/// What is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layer {
    Platform,
    /// Applied by kustomize-controller, by force.
    Repository,
}

/// Names that a change of the state touches.
#[derive(Clone, Debug, Default)]
pub(super) struct Touched {
    pub(super) packages: BTreeSet<String>,
    pub(super) others: BTreeSet<ObjectId>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) snapshot: Snapshot,
    ours: HashMap<(Kind, String), Applied>,
    pub(super) others: BTreeMap<ObjectId, Applied>,
}

impl State {
    pub(super) fn ours(&self, kind: Kind, name: &str) -> Option<&Applied> {
        self.ours.get(&(kind, name.to_owned()))
    }

    /// The last of the objects that an object of ours was made from.
    pub(super) fn object(&self, kind: Kind, name: &str) -> Option<&Object> {
        self.ours(kind, name)?.from.last()
    }

    /// Applies one layer's objects.
    pub(super) fn apply(
        &mut self,
        objects: Vec<Object>,
        layer: Layer,
        findings: &mut Vec<Finding>,
    ) -> Touched {
        let mut touched = Touched::default();
        let mut seen: HashMap<ObjectId, Option<Place>> = HashMap::new();
        for object in objects {
            if let Err(finding) = well_formed(&object) {
                findings.push(*finding);
                continue;
            }
            let object = opaque::conceal(object);
            let id = object.id();
            if let Some(first) = seen.get(&id) {
                findings.push(duplicate(&object, first.as_ref()));
                continue;
            }
            seen.insert(id.clone(), object.source.start());
            match Kind::of(&object) {
                Some(kind) => self.apply_ours(kind, object, layer, &mut touched, findings),
                None => {
                    let applied = merge_applied(self.others.remove(&id), object);
                    self.others.insert(id.clone(), applied);
                    touched.others.insert(id);
                }
            }
        }
        touched
    }

    fn apply_ours(
        &mut self,
        kind: Kind,
        object: Object,
        layer: Layer,
        touched: &mut Touched,
        findings: &mut Vec<Finding>,
    ) {
        if object.api_version() != "cozystack.io/v1alpha1" {
            let message = format!(
                "there is no {} in {}: this version reads cozystack.io/v1alpha1",
                object.kind(),
                object.api_version()
            );
            findings
                .push(Finding::new(FindingKind::UnsupportedVersion, Severity::Error, message).on(&object));
            return;
        }
        let name = object.name().to_owned();
        let key = (kind, name.clone());
        let mut refused = Vec::new();
        if layer == Layer::Repository {
            refused = structure::check(&object);
            if kind == Kind::Package
                && let Some(owned) = self.ours.get(&key)
            {
                findings.extend(force::takes(&object, owned));
            }
        }
        let applied = merge_applied(self.ours.get(&key).cloned(), object);
        let read = match kind {
            Kind::Package => Package::deserialize(&*applied.value).map(|o| self.snapshot.set_package(o)),
            Kind::PackageSource => {
                PackageSource::deserialize(&*applied.value).map(|o| self.snapshot.set_source(o))
            }
            Kind::PackageValues => {
                PackageValues::deserialize(&*applied.value).map(|o| self.snapshot.set_values(o))
            }
        };
        match read {
            Ok(names) => {
                touched.packages.extend(names);
                touched.packages.insert(name);
                if let Some(object) = applied.from.last() {
                    if kind == Kind::PackageSource {
                        findings.extend(repeated_components(object));
                    }
                    findings.append(&mut refused);
                }
                self.ours.insert(key, applied);
            }
            Err(error) => {
                let Some(object) = applied.from.last() else { return };
                if refused.is_empty() {
                    refused = structure::check(object);
                }
                if refused.is_empty() {
                    let message = format!("cannot be read as a {}: {error}", object.kind());
                    refused
                        .push(Finding::new(FindingKind::InvalidObject, Severity::Error, message).on(object));
                }
                findings.append(&mut refused);
            }
        }
    }
}

/// An object on top of what is there, as a server-side apply by force does it: maps are merged, anything else
/// replaces.
fn merge_applied(below: Option<Applied>, object: Object) -> Applied {
    match below {
        None => Applied { value: Arc::clone(&object.value), from: vec![object] },
        Some(mut below) => {
            let mut value = Arc::unwrap_or_clone(below.value);
            overlay(&mut value, &object.value);
            below.from.push(object);
            Applied { value: value.into(), from: below.from }
        }
    }
}

fn overlay(target: &mut Value, over: &Value) {
    match (target, over) {
        (Value::Object(target), Value::Object(over)) => {
            for (key, value) in over {
                match target.get_mut(key) {
                    Some(below) => overlay(below, value),
                    None => {
                        target.insert(key.clone(), value.clone());
                    }
                }
            }
        }
        (target, over) => *target = over.clone(),
    }
}

fn well_formed(object: &Object) -> Result<(), Box<Finding>> {
    let invalid = |message: &str| {
        let mut finding = Finding::new(FindingKind::InvalidObject, Severity::Error, message);
        finding.place = object.source.start();
        if !object.kind().is_empty() {
            finding.object = Some(object.id().to_string());
        }
        Err(Box::new(finding))
    };
    if !object.value.is_object() {
        return invalid("not a Kubernetes object: the document is not a map");
    }
    if object.api_version().is_empty() || object.kind().is_empty() {
        return invalid("not a Kubernetes object: `apiVersion` and `kind` must be set, as text");
    }
    if object.name().is_empty() {
        return match object.value.pointer("/metadata/generateName") {
            Some(_) => {
                invalid("`metadata.generateName` cannot be applied; give the object a `metadata.name`")
            }
            None => invalid("`metadata.name` must be set, as text"),
        };
    }
    Ok(())
}

fn duplicate(object: &Object, first: Option<&Place>) -> Finding {
    let elsewhere = first.map(|place| format!(" at {place}")).unwrap_or_default();
    let message =
        format!("{} is already defined{elsewhere}; that one is used, remove one of them", object.id());
    Finding::new(FindingKind::Duplicate, Severity::Error, message).on(object)
}

/// Components that a variant lists twice: only one of them could be meant.
fn repeated_components(object: &Object) -> Vec<Finding> {
    let mut out = Vec::new();
    let variants = object.value.pointer("/spec/variants").and_then(Value::as_array);
    for (v, variant) in variants.into_iter().flatten().enumerate() {
        let mut seen = BTreeSet::new();
        let components = variant.get("components").and_then(Value::as_array);
        for (c, component) in components.into_iter().flatten().enumerate() {
            let Some(name) = component.get("name").and_then(Value::as_str) else { continue };
            if !seen.insert(name) {
                let variant = variant.get("name").and_then(Value::as_str).unwrap_or_default();
                let message = format!("variant {variant} lists component {name} twice; rename or remove one");
                let pointer = format!("/spec/variants/{v}/components/{c}");
                out.push(Finding::new(FindingKind::Duplicate, Severity::Error, message).at(object, pointer));
            }
        }
    }
    out
}

/// `, did you mean …?` as a hint.
pub(super) fn did_you_mean<'n>(wanted: &str, names: impl IntoIterator<Item = &'n str>) -> Option<String> {
    suggest::closest(wanted, names).map(|name| format!("did you mean {name:?}?"))
}
