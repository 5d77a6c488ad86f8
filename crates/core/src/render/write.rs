//! What has to be written: the difference between what is rendered and what exists.
//!
//! Existing objects are JSON as the API server gave it, so that what our types do not know survives. Every
//! function returns `None`, or [`ReleaseWrite::Nothing`], when a write would change nothing.

use cozy_api::names;
use cozy_api::packages::{ComponentState, EffectiveValues};
use serde_json::{Map, Value, json};

use super::{Outcome, PackageRender, ReleaseRender, ValuesRender};

/// What has to be done about one HelmRelease.
#[derive(Clone, Debug, PartialEq)]
pub enum ReleaseWrite {
    /// It is as it should be, or goes away at the moment.
    Nothing,
    /// Create it.
    Create(Value),
    /// Replace it.
    Update(Value),
    /// Its override cannot be merged and there are no last good values: it has to wait.
    Hold,
    /// Another controller than a Package has it.
    Foreign(String),
}

/// Compares a HelmRelease with what exists.
///
/// Kept of an existing one are `spec.suspend`, labels and annotations of others, finalizers; with
/// [`ReleaseRender::keep_values`] its values and what they came from, with `keep_depends_on` its `spec.dependsOn` (a
/// dependency cannot be looked up at the moment). Our own stale labels and annotations go.
#[must_use]
pub fn release_write(
    existing: Option<&Value>,
    render: &ReleaseRender,
    keep_depends_on: bool,
) -> ReleaseWrite {
    let Ok(mut wanted) = serde_json::to_value(&render.object) else { return ReleaseWrite::Nothing };
    if let Some(values) = wanted.pointer_mut("/spec/values") {
        *values = cozy_yaml::normalize(values.take());
    }
    let Some(existing) = existing else {
        return if render.keep_values { ReleaseWrite::Hold } else { ReleaseWrite::Create(wanted) };
    };
    if existing.pointer("/metadata/deletionTimestamp").is_some() {
        return ReleaseWrite::Nothing;
    }
    if let Some(other) = foreign_controller(existing) {
        return ReleaseWrite::Foreign(other);
    }
    let Some(new_spec) = wanted.get_mut("spec").and_then(Value::as_object_mut) else {
        return ReleaseWrite::Nothing;
    };
    let old_spec = existing.get("spec").and_then(Value::as_object);
    let mut keep = |field: &str| match old_spec.and_then(|spec| spec.get(field)) {
        Some(value) => drop(new_spec.insert(field.to_owned(), value.clone())),
        None => drop(new_spec.remove(field)),
    };
    keep("suspend");
    if render.keep_values {
        keep("values");
    }
    if keep_depends_on {
        keep("dependsOn");
    }
    let new_spec = new_spec.clone();

    let mut labels = string_map(existing, "/metadata/labels");
    labels.remove(names::LABEL_PRIVILEGED);
    labels.extend(string_map(&wanted, "/metadata/labels"));
    let mut annotations = string_map(existing, "/metadata/annotations");
    annotations.remove(names::ANNOTATION_VALUES_FILES);
    if !render.keep_values {
        annotations.remove(names::ANNOTATION_VALUES_FROM);
    }
    annotations.extend(string_map(&wanted, "/metadata/annotations"));
    let owners = wanted.pointer("/metadata/ownerReferences").cloned().unwrap_or_default();

    let same = old_spec.is_some_and(|old| *old == new_spec)
        && labels == string_map(existing, "/metadata/labels")
        && annotations == string_map(existing, "/metadata/annotations")
        && existing.pointer("/metadata/ownerReferences") == Some(&owners);
    if same {
        return ReleaseWrite::Nothing;
    }
    let mut object = existing.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
        fields.insert("spec".to_owned(), Value::Object(new_spec));
        let metadata = fields.entry("metadata").or_insert_with(|| json!({}));
        if let Some(metadata) = metadata.as_object_mut() {
            set_or_remove(metadata, "labels", labels);
            set_or_remove(metadata, "annotations", annotations);
            metadata.insert("ownerReferences".to_owned(), owners);
        }
    }
    ReleaseWrite::Update(object)
}

fn set_or_remove(fields: &mut Map<String, Value>, name: &str, map: Map<String, Value>) {
    if map.is_empty() {
        fields.remove(name);
    } else {
        fields.insert(name.to_owned(), Value::Object(map));
    }
}

fn string_map(object: &Value, pointer: &str) -> Map<String, Value> {
    object.pointer(pointer).and_then(Value::as_object).cloned().unwrap_or_default()
}

/// The controller of the object, unless it is a Package: `<kind> <name>`.
fn foreign_controller(object: &Value) -> Option<String> {
    let owners = object.pointer("/metadata/ownerReferences")?.as_array()?;
    let controller = owners.iter().find(|owner| owner.get("controller") == Some(&Value::Bool(true)))?;
    let text = |field: &str| controller.get(field).and_then(Value::as_str).unwrap_or_default();
    let ours = text("kind") == "Package" && text("apiVersion").starts_with("cozystack.io/");
    (!ours).then(|| format!("{} {}", text("kind"), text("name")))
}

/// Whether the object is provably that owner's: the label says so, and so does the controller reference.
#[must_use]
pub fn is_ours(object: &Value, label: &str, kind: &str, name: &str, uid: Option<&str>) -> bool {
    let labelled = object
        .pointer("/metadata/labels")
        .and_then(|labels| labels.get(label))
        .and_then(Value::as_str)
        .is_some_and(|value| value == name);
    let owned = object.pointer("/metadata/ownerReferences").and_then(Value::as_array).is_some_and(|owners| {
        owners.iter().any(|owner| {
            owner.get("controller") == Some(&Value::Bool(true))
                && owner.get("kind").and_then(Value::as_str) == Some(kind)
                && owner.get("name").and_then(Value::as_str) == Some(name)
                && owner.get("uid").and_then(Value::as_str) == uid
        })
    });
    labelled && owned
}

/// Sets a condition; its `lastTransitionTime` moves only when the status does.
pub fn set_condition(
    conditions: &mut Vec<Value>,
    kind: &str,
    outcome: &Outcome,
    generation: Option<i64>,
    now: &str,
) {
    let old = conditions.iter().position(|c| c.get("type").and_then(Value::as_str) == Some(kind));
    let since = old
        .and_then(|index| conditions.get(index))
        .filter(|c| c.get("status").and_then(Value::as_str) == Some(outcome.status))
        .and_then(|c| c.get("lastTransitionTime"))
        .and_then(Value::as_str)
        .unwrap_or(now);
    let mut condition = json!({
        "type": kind,
        "status": outcome.status,
        "reason": outcome.reason,
        "message": truncated(&outcome.message),
        "lastTransitionTime": since,
    });
    if let (Some(fields), Some(generation)) = (condition.as_object_mut(), generation) {
        fields.insert("observedGeneration".to_owned(), json!(generation));
    }
    match old.and_then(|index| conditions.get_mut(index)) {
        Some(old) => *old = condition,
        None => conditions.push(condition),
    }
}

/// The longest message that the API server takes, with room to spare.
fn truncated(message: &str) -> String {
    const MAX: usize = 8192;
    if message.len() <= MAX {
        return message.to_owned();
    }
    let mut end = MAX;
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", message.get(..end).unwrap_or_default())
}

fn conditions(status: &Map<String, Value>) -> Vec<Value> {
    status.get("conditions").and_then(Value::as_array).cloned().unwrap_or_default()
}

/// A condition of a status, as status, reason and message.
#[must_use]
pub fn condition_of(status: Option<&Value>, kind: &str) -> Option<(String, String, String)> {
    let conditions = status?.get("conditions")?.as_array()?;
    let found = conditions.iter().find(|c| c.get("type").and_then(Value::as_str) == Some(kind))?;
    let text = |field: &str| found.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    Some((text("status"), text("reason"), text("message")))
}

fn put(status: &mut Map<String, Value>, field: &str, value: Value) {
    let empty = match &value {
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Null => true,
        _ => false,
    };
    if empty {
        status.remove(field);
    } else {
        status.insert(field.to_owned(), value);
    }
}

/// The status that a Package should have; `None` when it has it.
///
/// `stalled` is the condition of that name, for what does not go away by waiting, such as a cycle.
#[must_use]
pub fn package_status(
    existing: Option<&Value>,
    generation: Option<i64>,
    render: &PackageRender,
    stalled: Option<&Outcome>,
    now: &str,
) -> Option<Value> {
    let mut status = existing.and_then(Value::as_object).cloned().unwrap_or_default();
    let mut conditions = conditions(&status);
    set_condition(&mut conditions, names::CONDITION_READY, &render.ready, generation, now);
    for (kind, outcome) in
        [(names::CONDITION_VALUES_MERGED, render.values_merged.as_ref()), (names::CONDITION_STALLED, stalled)]
    {
        match outcome {
            Some(outcome) => set_condition(&mut conditions, kind, outcome, generation, now),
            None => conditions.retain(|c| c.get("type").and_then(Value::as_str) != Some(kind)),
        }
    }
    status.insert("conditions".to_owned(), Value::Array(conditions));
    let dependencies: Map<String, Value> =
        render.dependencies.iter().map(|(name, ready)| (name.clone(), json!({ "ready": ready }))).collect();
    put(&mut status, "dependencies", Value::Object(dependencies));
    put(&mut status, "effectiveValues", serde_json::to_value(&render.effective_values).unwrap_or_default());
    put(&mut status, "overrides", serde_json::to_value(&render.overrides).unwrap_or_default());
    put(&mut status, "overrideSummary", Value::String(summary(render)));
    changed(existing, status)
}

fn changed(existing: Option<&Value>, status: Map<String, Value>) -> Option<Value> {
    let status = Value::Object(status);
    (existing != Some(&status)).then_some(status)
}

/// `<component>:<pointer>` of the first overrides, and how many more there are.
fn summary(render: &PackageRender) -> String {
    const SHOWN: usize = 3;
    let mut pointers = render
        .overrides
        .iter()
        .flat_map(|(component, o)| o.pointers.iter().map(move |pointer| format!("{component}:{pointer}")));
    let shown: Vec<String> = pointers.by_ref().take(SHOWN).collect();
    match pointers.count() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The status that a PackageValues should have; `None` when it has it.
#[must_use]
pub fn values_status(existing: Option<&Value>, render: &ValuesRender, now: &str) -> Option<Value> {
    let mut status = existing.and_then(Value::as_object).cloned().unwrap_or_default();
    let mut conditions = conditions(&status);
    set_condition(&mut conditions, names::CONDITION_READY, &render.ready, render.generation, now);
    status.insert("conditions".to_owned(), Value::Array(conditions));
    put(&mut status, "observedGeneration", json!(render.generation));
    let components: Map<String, Value> = render
        .components
        .iter()
        .map(|(name, component)| {
            let mut told = json!({ "state": component.state });
            if let (Some(fields), Some(unknown)) =
                (told.as_object_mut(), component.unknown_keys.as_ref().filter(|keys| !keys.is_empty()))
            {
                fields.insert("unknownKeys".to_owned(), json!(unknown));
            }
            (name.clone(), told)
        })
        .collect();
    put(&mut status, "components", Value::Object(components));
    changed(existing, status)
}

/// The status that a PackageSource should have; `None` when it has it.
#[must_use]
pub fn source_status(
    existing: Option<&Value>,
    generation: Option<i64>,
    variants: &str,
    ready: &Outcome,
    now: &str,
) -> Option<Value> {
    let mut status = existing.and_then(Value::as_object).cloned().unwrap_or_default();
    let mut conditions = conditions(&status);
    set_condition(&mut conditions, names::CONDITION_READY, ready, generation, now);
    status.insert("conditions".to_owned(), Value::Array(conditions));
    put(&mut status, "variants", Value::String(variants.to_owned()));
    changed(existing, status)
}

impl PackageRender {
    /// Makes what is told about values true of what the HelmReleases carry: `existing` gives the one of a component.
    ///
    /// Where the last good values are kept, digest and values are theirs, and who overrides what stays as the
    /// Package's status (`old`) has it; a component without a HelmRelease is not `Applied`.
    pub fn settle<'v>(
        &mut self,
        old: Option<&Value>,
        existing: impl Fn(&ReleaseRender) -> Option<&'v Value>,
    ) {
        for release in &self.releases {
            let live = existing(release);
            if let Some(component) =
                self.package_values.as_mut().and_then(|v| v.components.get_mut(&release.component))
                && live.is_none()
                && component.state == ComponentState::Applied
            {
                component.state = ComponentState::NotInstalled;
            }
            if !release.keep_values {
                continue;
            }
            let overridden = live
                .and_then(|live| live.pointer("/metadata/annotations"))
                .is_some_and(|annotations| annotations.get(names::ANNOTATION_VALUES_FROM).is_some());
            let told = old
                .and_then(|status| status.pointer("/overrides"))
                .and_then(|overrides| overrides.get(&release.component))
                .and_then(|told| serde_json::from_value(told.clone()).ok());
            if let (true, Some(live), Some(told)) = (overridden, live, told) {
                let values = live.pointer("/spec/values").cloned().unwrap_or_default();
                let effective = EffectiveValues { digest: cozy_yaml::digest(&values), values: Some(values) };
                self.effective_values.insert(release.component.clone(), effective);
                self.overrides.insert(release.component.clone(), told);
            }
        }
        super::package::limit_effective_values(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cozy_api::flux::{HelmRelease, HelmReleaseSpec};

    fn render() -> ReleaseRender {
        let mut object = HelmRelease::new(
            "ns",
            "x",
            HelmReleaseSpec { values: Some(json!({"a": 1})), ..HelmReleaseSpec::default() },
        );
        object.metadata.labels = Some([(names::LABEL_PACKAGE.to_owned(), "p".to_owned())].into());
        object.metadata.owner_references = Some(vec![super::super::owner("Package", "p", Some("u"))]);
        ReleaseRender { component: "x".to_owned(), object, overrides: Vec::new(), keep_values: false }
    }

    #[test]
    fn what_is_as_it_should_be_is_not_written() {
        let ReleaseWrite::Create(object) = release_write(None, &render(), false) else { panic!() };
        assert_eq!(release_write(Some(&object), &render(), false), ReleaseWrite::Nothing);
    }

    #[test]
    fn what_others_set_stays_and_our_stale_marks_go() {
        let ReleaseWrite::Create(mut object) = release_write(None, &render(), false) else { panic!() };
        object["metadata"]["labels"]["theirs"] = json!("1");
        object["metadata"]["labels"][names::LABEL_PRIVILEGED] = json!("true");
        object["metadata"]["annotations"] = json!({ names::ANNOTATION_VALUES_FILES: "values.yaml" });
        object["spec"]["suspend"] = json!(true);
        object["spec"]["timeout"] = json!("1m");
        let ReleaseWrite::Update(object) = release_write(Some(&object), &render(), false) else { panic!() };
        assert_eq!(object["metadata"]["labels"], json!({ "theirs": "1", names::LABEL_PACKAGE: "p" }));
        assert_eq!(object["metadata"].get("annotations"), None);
        assert_eq!(object["spec"], json!({ "suspend": true, "values": { "a": 1 } }));
    }

    #[test]
    fn values_that_cannot_be_merged_leave_the_last_good_ones() {
        let ReleaseWrite::Create(mut object) = release_write(None, &render(), false) else { panic!() };
        object["spec"]["values"] = json!({ "a": 1, "over": true });
        object["metadata"]["annotations"] = json!({ names::ANNOTATION_VALUES_FROM: "p@1" });
        let kept = ReleaseRender { keep_values: true, ..render() };
        assert_eq!(release_write(Some(&object), &kept, false), ReleaseWrite::Nothing);
        assert_eq!(release_write(None, &kept, false), ReleaseWrite::Hold);
    }

    #[test]
    fn another_controllers_release_is_left_alone() {
        let ReleaseWrite::Create(mut object) = release_write(None, &render(), false) else { panic!() };
        object["metadata"]["ownerReferences"] =
            json!([{ "apiVersion": "x/v1", "kind": "X", "name": "y", "uid": "z", "controller": true }]);
        assert_eq!(release_write(Some(&object), &render(), false), ReleaseWrite::Foreign("X y".to_owned()));
    }

    #[test]
    fn a_condition_keeps_its_time_until_its_status_changes() {
        let mut conditions = Vec::new();
        let outcome = |status, message: &str| Outcome::new(status, "R", message);
        set_condition(&mut conditions, "Ready", &outcome("True", "a"), Some(1), "t1");
        set_condition(&mut conditions, "Ready", &outcome("True", "b"), Some(2), "t2");
        assert_eq!(conditions[0]["lastTransitionTime"], "t1");
        assert_eq!(conditions[0]["observedGeneration"], 2);
        set_condition(&mut conditions, "Ready", &outcome("False", "b"), Some(2), "t3");
        assert_eq!(conditions[0]["lastTransitionTime"], "t3");
    }
}
