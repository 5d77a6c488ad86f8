//! The guard of Package fields that the platform's chart sets (chart `customizer`, value `guards.packageFields`).
//!
//! kustomize-controller applies with force: a manifest that names a field of helm-controller's takes it without a word,
//! and the chart's next change is undone again. The guard refuses that by `managedFields`, whoever the new owner says
//! it is, and tells the `PackageValues` to write instead. Fields that the chart does not set, and Packages that it did
//! not make, stay free.

use std::fmt::Write as _;

use cozy_api::names::MANAGER_HELM;
use serde_json::{Map, Value, json};

use crate::managed::{self, Path};

/// Fields that a message names; more are counted.
const NAMED: usize = 5;

/// A write that would take fields from the platform's chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// Name of the Package.
    pub package: String,
    /// The fields, in the order of the object's managedFields.
    pub fields: Vec<Path>,
    /// The `PackageValues` that says the same about the fields that are values of components; none when there are none.
    pub instead: Option<Value>,
}

impl std::error::Error for Refusal {}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut named = String::new();
        for (index, field) in self.fields.iter().take(NAMED).enumerate() {
            let _ = write!(named, "{}{field}", if index == 0 { "" } else { ", " });
        }
        if let Some(more) = self.fields.len().checked_sub(NAMED).filter(|more| *more > 0) {
            let _ = write!(named, " and {more} more");
        }
        write!(
            f,
            "Package {}: the platform's chart sets {named}; a manifest that names a field of the chart takes it by \
             force, and the chart's next change is lost. ",
            self.package
        )?;
        match &self.instead {
            Some(instead) => write!(f, "Override it with a PackageValues instead: {instead}"),
            None => f.write_str("No PackageValues can say this: change the platform's values instead"),
        }
    }
}

/// Whether the change from `old` (none on CREATE) to `new` takes a field of the platform's chart.
///
/// Both are Packages as the API server sends them for admission, `managedFields` already being those after the write.
///
/// # Errors
///
/// The fields taken: their value changes or goes, or somebody else owns them from now on too.
pub fn check(old: Option<&Value>, new: &Value) -> Result<(), Box<Refusal>> {
    let Some(old) = old else { return Ok(()) };
    let before = managed::owners(old);
    let after = managed::owners(new);
    // Who comes to own a field with this write. An owner it had before, by whatever operation, is no news.
    let held = |manager: &str, path: &Path| {
        before.iter().any(|owner| owner.manager == manager && owner.paths.contains(path))
    };
    let taken: Vec<&Path> = after
        .iter()
        .filter(|owner| owner.manager != MANAGER_HELM)
        .flat_map(|owner| owner.paths.iter().map(move |path| (owner, path)))
        .filter(|(owner, path)| !held(&owner.manager, path))
        .map(|(_, path)| path)
        .collect();
    let mut fields: Vec<Path> = Vec::new();
    for path in before.iter().filter(|owner| owner.manager == MANAGER_HELM).flat_map(|owner| &owner.paths) {
        // Something put into a map that the chart leaves empty is not the chart's.
        let taken = if path.of(old).is_some_and(|value| value == &json!({})) {
            !path.of(new).is_some_and(Value::is_object)
        } else {
            path.of(old) != path.of(new) || taken.iter().any(|taken| taken.overlaps(path))
        };
        if taken && !fields.contains(path) {
            fields.push(path.clone());
        }
    }
    if fields.is_empty() {
        return Ok(());
    }
    let name = |object: &Value| object.pointer("/metadata/name").and_then(Value::as_str).map(str::to_owned);
    let package = name(old).or_else(|| name(new)).unwrap_or_default();
    let instead = instead(&package, new, &fields);
    Err(Box::new(Refusal { package, fields, instead }))
}

/// The `PackageValues` that sets component values among `fields` to what `new` has there.
fn instead(package: &str, new: &Value, fields: &[Path]) -> Option<Value> {
    let mut components = Value::Null;
    for path in fields {
        let names: Vec<&str> = path.fields().collect();
        let ["spec", "components", below @ ..] = names.as_slice() else { continue };
        let [_, "values", ..] = below else { continue };
        // A path that ends in a list is given as the whole list: PackageValues replaces lists.
        let whole = names.iter().try_fold(new, |value, name| value.get(name));
        // What the manifest removes is nulled, which takes the chart's default away as well.
        let value = whole.cloned().unwrap_or(Value::Null);
        put(&mut components, below, value);
    }
    components.is_object().then(|| {
        json!({
            "apiVersion": "cozystack.io/v1alpha1",
            "kind": "PackageValues",
            "metadata": {"name": package},
            "spec": {"components": components},
        })
    })
}

/// Sets what is below `at` by these names, making the maps on the way. As deep as an object that the API server parsed.
fn put(at: &mut Value, names: &[&str], value: Value) {
    let [name, rest @ ..] = names else {
        *at = value;
        return;
    };
    if !at.is_object() {
        *at = Value::Object(Map::new());
    }
    if let Some(map) = at.as_object_mut() {
        put(map.entry((*name).to_owned()).or_insert(Value::Null), rest, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(values: &Value, managers: &[(&str, &str, Value)]) -> Value {
        let entries: Vec<_> = managers
            .iter()
            .map(|(manager, operation, values)| {
                json!({"manager": manager, "operation": operation, "fieldsV1": {
                    "f:spec": {"f:components": {"f:linstor": {"f:values": values}}},
                }})
            })
            .collect();
        json!({
            "metadata": {"name": "cozystack.linstor", "managedFields": entries},
            "spec": {"components": {"linstor": {"values": values}}},
        })
    }

    fn chart_owned() -> Value {
        package(&json!({"replicas": 3}), &[("helm-controller", "Update", json!({"f:replicas": {}}))])
    }

    #[test]
    fn a_new_package_has_no_field_of_the_chart() {
        let new =
            package(&json!({"replicas": 5}), &[("kustomize-controller", "Apply", json!({"f:replicas": {}}))]);
        assert_eq!(check(None, &new), Ok(()));
    }

    #[test]
    fn a_field_that_the_chart_does_not_set_is_free() {
        let new = package(
            &json!({"replicas": 3, "other": true}),
            &[
                ("helm-controller", "Update", json!({"f:replicas": {}})),
                ("kustomize-controller", "Apply", json!({"f:other": {}})),
            ],
        );
        assert_eq!(check(Some(&chart_owned()), &new), Ok(()));
    }

    #[test]
    fn a_field_taken_by_force_is_refused_with_the_override_to_write() {
        let new =
            package(&json!({"replicas": 5}), &[("kustomize-controller", "Apply", json!({"f:replicas": {}}))]);
        let refusal = check(Some(&chart_owned()), &new).unwrap_err();
        assert_eq!(refusal.fields[0].to_string(), "/spec/components/linstor/values/replicas");
        assert_eq!(
            refusal.instead.clone().unwrap(),
            json!({
                "apiVersion": "cozystack.io/v1alpha1",
                "kind": "PackageValues",
                "metadata": {"name": "cozystack.linstor"},
                "spec": {"components": {"linstor": {"values": {"replicas": 5}}}},
            })
        );
        let message = refusal.to_string();
        assert!(message.contains("Package cozystack.linstor"), "{message}");
        assert!(message.contains("PackageValues"), "{message}");
    }

    #[test]
    fn a_field_named_with_the_same_value_is_refused_since_the_next_difference_is_forced() {
        let new = package(
            &json!({"replicas": 3}),
            &[
                ("helm-controller", "Update", json!({"f:replicas": {}})),
                ("kustomize-controller", "Apply", json!({"f:replicas": {}})),
            ],
        );
        assert!(check(Some(&chart_owned()), &new).is_err());
    }

    #[test]
    fn a_manager_that_calls_itself_helm_controller_is_told_by_the_value() {
        let new =
            package(&json!({"replicas": 5}), &[("helm-controller", "Apply", json!({"f:replicas": {}}))]);
        assert!(check(Some(&chart_owned()), &new).is_err());
    }

    #[test]
    fn a_field_that_goes_is_refused() {
        let new = package(&json!({}), &[]);
        let refusal = check(Some(&chart_owned()), &new).unwrap_err();
        assert_eq!(
            refusal.instead.unwrap().pointer("/spec/components/linstor/values"),
            Some(&json!({"replicas": null}))
        );
    }

    #[test]
    fn a_map_of_the_chart_replaced_by_a_list_is_refused_and_so_is_a_list_by_a_map() {
        let old = package(
            &json!({"a": {"b": 1}, "l": [1]}),
            &[("helm-controller", "Update", json!({"f:a": {"f:b": {}}, "f:l": {}}))],
        );
        let new = package(
            &json!({"a": [], "l": {"x": 1}}),
            &[("kustomize-controller", "Apply", json!({"f:a": {}, "f:l": {"f:x": {}}}))],
        );
        let refusal = check(Some(&old), &new).unwrap_err();
        assert_eq!(refusal.fields.len(), 2);
        assert_eq!(
            refusal.instead.unwrap().pointer("/spec/components/linstor/values/l"),
            Some(&json!({"x": 1}))
        );
    }

    #[test]
    fn a_map_that_the_chart_leaves_empty_may_be_filled_but_not_replaced() {
        let old = package(&json!({"a": {}}), &[("helm-controller", "Update", json!({"f:a": {}}))]);
        let filled = package(
            &json!({"a": {"b": 1}}),
            &[
                ("helm-controller", "Update", json!({"f:a": {}})),
                ("kustomize-controller", "Apply", json!({"f:a": {"f:b": {}}})),
            ],
        );
        assert_eq!(check(Some(&old), &filled), Ok(()));
        let replaced = package(&json!({"a": 1}), &[("kustomize-controller", "Apply", json!({"f:a": {}}))]);
        assert!(check(Some(&old), &replaced).is_err());
    }

    #[test]
    fn what_was_taken_before_the_guard_stays_taken() {
        let old =
            package(&json!({"replicas": 5}), &[("kustomize-controller", "Apply", json!({"f:replicas": {}}))]);
        let new =
            package(&json!({"replicas": 7}), &[("kustomize-controller", "Apply", json!({"f:replicas": {}}))]);
        assert_eq!(check(Some(&old), &new), Ok(()));
    }

    #[test]
    fn a_shared_field_left_alone_is_no_new_taking() {
        let shared = [
            ("helm-controller", "Update", json!({"f:replicas": {}})),
            ("kustomize-controller", "Apply", json!({"f:replicas": {}})),
        ];
        let old = package(&json!({"replicas": 3}), &shared);
        let new = package(&json!({"replicas": 3}), &shared);
        assert_eq!(check(Some(&old), &new), Ok(()));
    }

    #[test]
    fn the_variant_has_no_override() {
        let object = |variant: &str, manager: &str| {
            json!({
                "metadata": {"name": "cozystack.linstor", "managedFields": [
                    {"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": {"f:variant": {}}}},
                ]},
                "spec": {"variant": variant},
            })
        };
        let refusal =
            check(Some(&object("default", "helm-controller")), &object("other", "kustomize-controller"))
                .unwrap_err();
        assert_eq!(refusal.instead, None);
        assert!(refusal.to_string().contains("platform's values"), "{refusal}");
    }

    #[test]
    fn many_fields_are_counted() {
        let keys: Vec<String> = (0..9).map(|n| format!("k{n}")).collect();
        let values: Value = keys.iter().map(|key| (key.clone(), json!(1))).collect();
        let fields: Value = keys.iter().map(|key| (format!("f:{key}"), json!({}))).collect();
        let old = package(&values, &[("helm-controller", "Update", fields)]);
        let refusal = check(Some(&old), &package(&json!({}), &[])).unwrap_err();
        assert!(refusal.to_string().contains("and 4 more"), "{refusal}");
    }
}
