//! Whether the API server would take an object of our kinds as it stands.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::{Map, Value};

use super::finding::{Finding, FindingKind, Severity};
use super::source::Object;
use super::suggest;

/// The schema of a kind, as the CRD has it.
struct Schema {
    schema: Value,
    validator: Option<jsonschema::Validator>,
}

fn schemas() -> &'static BTreeMap<String, Schema> {
    static SCHEMAS: OnceLock<BTreeMap<String, Schema>> = OnceLock::new();
    SCHEMAS.get_or_init(|| {
        cozy_api::crds()
            .into_iter()
            .filter_map(|crd| {
                let version = crd.spec.versions.into_iter().find(|v| v.name == "v1alpha1")?;
                let schema = serde_json::to_value(version.schema?.open_api_v3_schema?).ok()?;
                // The rest of an object is Kubernetes' own.
                let schema = schema.pointer("/properties/spec")?.clone();
                let validator = jsonschema::validator_for(&schema).ok();
                Some((crd.spec.names.kind, Schema { schema, validator }))
            })
            .collect()
    })
}

/// What the API server or kustomize-controller would refuse of an object's `spec`.
pub(super) fn check(object: &Object) -> Vec<Finding> {
    let mut out = Vec::new();
    let Some(found) = schemas().get(object.kind()) else { return out };
    let Some(spec) = object.value.get("spec") else { return out };
    let mut spec = spec.clone();
    let mut unknown = Vec::new();
    prune(&mut spec, &found.schema, &mut "/spec".to_owned(), &mut unknown);
    for (pointer, known) in unknown {
        let name = pointer.rsplit('/').next().map(cozy_yaml::unescape_token).unwrap_or_default();
        let mut finding = Finding::new(
            FindingKind::UnknownField,
            Severity::Error,
            format!("{} has no field {name:?} here; kustomize-controller refuses the object", object.kind()),
        )
        .at(object, pointer);
        if let Some(meant) = suggest::closest(&name, known.iter().map(String::as_str)) {
            finding = finding.hint(format!("did you mean {meant:?}?"));
        }
        out.push(finding);
    }
    if let Some(validator) = &found.validator {
        for error in validator.iter_errors(&spec) {
            let pointer = format!("/spec{}", error.instance_path());
            let message = format!("the API server refuses this: {}", error.masked());
            out.push(Finding::new(FindingKind::InvalidObject, Severity::Error, message).at(object, pointer));
        }
    }
    out
}

/// Drops what the API server drops (`null` in a typed map, unknown fields) and lists the unknown fields with the
/// names that are known at that place.
fn prune(value: &mut Value, schema: &Value, pointer: &mut String, unknown: &mut Vec<(String, Vec<String>)>) {
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true)) {
        return;
    }
    let length = pointer.len();
    match value {
        Value::Object(map) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let others = schema.get("additionalProperties").filter(|others| others.is_object());
            if properties.is_none() && others.is_none() {
                return;
            }
            let nothing = Map::new();
            let properties = properties.unwrap_or(&nothing);
            map.retain(|key, value| {
                cozy_yaml::push_token(pointer, key);
                let below = properties.get(key).or(others);
                if below.is_none() {
                    unknown.push((pointer.clone(), properties.keys().cloned().collect()));
                }
                let keep = below.is_some_and(|below| {
                    prune(value, below, pointer, unknown);
                    !value.is_null() || below.get("nullable") == Some(&Value::Bool(true))
                });
                pointer.truncate(length);
                keep
            });
        }
        Value::Array(list) => {
            let Some(items) = schema.get("items") else { return };
            for (index, item) in list.iter_mut().enumerate() {
                cozy_yaml::push_token(pointer, &index.to_string());
                prune(item, items, pointer, unknown);
                pointer.truncate(length);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plan::Source;

    fn found(spec: Value) -> Vec<(FindingKind, String, Option<String>)> {
        let value = json!({"apiVersion": "cozystack.io/v1alpha1", "kind": "PackageValues", "metadata": {"name": "a"}, "spec": spec});
        let object = Object { value: value.into(), source: Source::Unknown };
        check(&object).into_iter().map(|f| (f.kind, f.pointer.unwrap(), f.hint)).collect()
    }

    #[test]
    fn what_the_crd_knows_passes_whatever_the_values_are() {
        let spec = json!({"suspend": null, "components": {"c": {"values": {"any": [{"thing": null}]}, "lists": [{"path": "/any", "type": "Append"}]}}});
        assert_eq!(found(spec), []);
    }

    #[test]
    fn a_mistyped_field_is_named_with_its_right_name() {
        let hint = |name: &str| Some(format!("did you mean {name:?}?"));
        assert_eq!(
            found(json!({"component": {"c": {}}})),
            [(FindingKind::UnknownField, "/spec/component".to_owned(), hint("components"))]
        );
        assert_eq!(
            found(json!({"components": {"c": {"value": {}}}})),
            [(FindingKind::UnknownField, "/spec/components/c/value".to_owned(), hint("values"))]
        );
    }

    #[test]
    fn a_wrong_type_is_found_at_its_pointer() {
        let kinds: Vec<_> =
            found(json!({"components": {"c": {"values": "text"}}})).into_iter().map(|f| (f.0, f.1)).collect();
        assert_eq!(kinds, [(FindingKind::InvalidObject, "/spec/components/c/values".to_owned())]);
        assert_eq!(found(json!({"components": []})).len(), 1);
        assert_eq!(found(json!({"validation": "Strict"})).len(), 1);
    }
}
