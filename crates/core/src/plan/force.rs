//! A Package in the repository that the platform chart owns: kustomize-controller takes its fields by force.

use serde_json::Value;

use super::finding::{Finding, FindingKind, Severity};
use super::source::Object;
use super::state::Applied;

/// The Package that is created by hand, so that a repository may own it.
const BOOTSTRAP: &str = "cozystack.cozystack-platform";

/// What a Package in the repository takes from the platform's Package of the same name.
pub(super) fn takes(object: &Object, owned: &Applied) -> Vec<Finding> {
    if object.name() == BOOTSTRAP {
        return Vec::new();
    }
    let mut out = Vec::new();
    let mut plain = Vec::new();
    let spec = object.value.get("spec").and_then(Value::as_object);
    for (field, value) in spec.into_iter().flatten() {
        match value.as_object().filter(|_| field == "components") {
            None => plain.push(format!("/spec/{}", cozy_yaml::escape_token(field))),
            Some(components) => {
                for (component, said) in components {
                    let mut pointer = "/spec/components".to_owned();
                    cozy_yaml::push_token(&mut pointer, component);
                    for (field, value) in said.as_object().into_iter().flatten() {
                        if field == "values" && value.as_object().is_some_and(|values| !values.is_empty()) {
                            out.push(values(object, owned, &pointer, component, value));
                        } else if field != "values" {
                            plain.push(format!("{pointer}/{}", cozy_yaml::escape_token(field)));
                        }
                    }
                }
            }
        }
    }
    for pointer in plain {
        let Some(chart) = owned.value.pointer(&pointer) else { continue };
        let message = format!(
            "the platform chart owns this field ({}); kustomize-controller takes it by force, and the chart's later changes of it are lost",
            super::shown(chart)
        );
        let hint = "leave it out of the repository and set it through the platform chart's values: PackageValues overrides values only";
        out.push(
            Finding::new(FindingKind::TakesPackageByForce, Severity::Warning, message)
                .at(object, pointer)
                .hint(hint),
        );
    }
    out
}

fn values(object: &Object, owned: &Applied, pointer: &str, component: &str, values: &Value) -> Finding {
    let pointer = format!("{pointer}/values");
    let nothing = Value::Object(serde_json::Map::new());
    let chart = owned.value.pointer(&pointer).unwrap_or(&nothing);
    let taken: Vec<String> = leaves(values)
        .into_iter()
        .filter_map(|leaf| {
            chart.pointer(&leaf).map(|value| format!("{leaf} (the chart sets {})", super::shown(value)))
        })
        .collect();
    let (severity, message) = if taken.is_empty() {
        let message = "the platform chart owns this Package; these values are not set by the chart today, but once it sets them the repository takes them by force";
        (Severity::Info, message.to_owned())
    } else {
        let message = format!(
            "the platform chart owns this Package; kustomize-controller takes these fields by force, and the chart's later changes of them are lost: {}",
            taken.join(", ")
        );
        (Severity::Warning, message)
    };
    let instead = serde_json::json!({
        "apiVersion": "cozystack.io/v1alpha1",
        "kind": "PackageValues",
        "metadata": { "name": object.name() },
        "spec": { "components": { component: { "values": values } } },
    });
    let hint = match cozy_yaml::to_yaml(&instead) {
        Ok(yaml) => format!("override it with a PackageValues instead:\n{}", yaml.trim_end()),
        Err(_) => "override it with a PackageValues of the same name instead".to_owned(),
    };
    Finding::new(FindingKind::TakesPackageByForce, severity, message).at(object, pointer).hint(hint)
}

/// Pointers of everything that is not a map.
fn leaves(value: &Value) -> Vec<String> {
    fn walk(value: &Value, pointer: &mut String, out: &mut Vec<String>) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                for (key, value) in map {
                    let length = pointer.len();
                    cozy_yaml::push_token(pointer, key);
                    walk(value, pointer, out);
                    pointer.truncate(length);
                }
            }
            _ => out.push(pointer.clone()),
        }
    }
    let mut out = Vec::new();
    walk(value, &mut String::new(), &mut out);
    out
}
