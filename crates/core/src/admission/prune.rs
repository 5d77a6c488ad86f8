//! What git no longer says goes: the rule that makes a tenant's repository authoritative.
//!
//! Cozystack's aggregated API keeps no managedFields, so a server-side apply never removes what an earlier one set or
//! somebody added: the API server finds no owner that gave it up. What the request itself brings does tell: the
//! managedFields of the object under admission hold the Apply entry of the request's manager, which are exactly the
//! fields that were applied. Everything else of `spec` is removed, and the API fills in its defaults.

use cozy_api::names::MANAGER_KUSTOMIZE;
use serde_json::{Map, Value};

use super::{Answer, Request, operation};

/// Prunes a server-side apply of a tenant's gitops account.
///
/// Nothing happens to requests of others, of other managers, on sub-resources, or when the fields cannot be told apart:
/// without an Apply entry, or with an Update entry of the same manager, whose fields were not applied. A step that
/// cannot be read keeps the whole of what it is in.
#[must_use]
pub fn prune(request: &Request) -> Answer {
    let manager = request.field_manager();
    if request.operation != "UPDATE"
        || !request.sub_resource.is_empty()
        || !request.is_of_tenant()
        || manager != MANAGER_KUSTOMIZE
        || request.user_info.username != request.gitops_account()
    {
        return Answer::Allow;
    }
    let Some(spec) = request.object.get("spec").filter(|spec| spec.is_object()) else { return Answer::Allow };
    let entries: Vec<Entry> = entries(&request.object).collect();
    let mut own = entries.iter().filter(|entry| entry.manager == manager);
    let (Some(applied), None) = (own.next(), own.next()) else { return Answer::Allow };
    if applied.operation != "Apply" {
        return Answer::Allow;
    }
    let others: Vec<&Value> = entries
        .iter()
        .filter(|entry| entry.manager != manager)
        .filter_map(|entry| entry.fields.get("f:spec"))
        .collect();
    let pruned = match applied.fields.get("f:spec") {
        Some(fields) => kept(spec, fields, &others),
        None => Value::Object(Map::new()),
    };
    if &pruned == spec { Answer::Allow } else { Answer::Patch(vec![operation("replace", "/spec", pruned)]) }
}

struct Entry<'o> {
    manager: &'o str,
    operation: &'o str,
    fields: &'o Value,
}

fn entries(object: &Value) -> impl Iterator<Item = Entry<'_>> {
    let all = object.pointer("/metadata/managedFields").and_then(Value::as_array);
    all.into_iter().flatten().filter_map(|entry| {
        let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default();
        text("subresource").is_empty().then_some(())?;
        Some(Entry { manager: text("manager"), operation: text("operation"), fields: entry.get("fieldsV1")? })
    })
}

/// Steps below a node of a FieldsV1 tree; `.` is the node itself.
fn steps(node: &Value) -> impl Iterator<Item = (&String, &Value)> {
    node.as_object().into_iter().flatten().filter(|(step, _)| *step != ".")
}

/// The part of `value` that `fields` names. `others` are the same node in other managers' entries.
fn kept(value: &Value, fields: &Value, others: &[&Value]) -> Value {
    if steps(fields).next().is_none() {
        // A scalar or an atomic value; or an empty map or list, in which others may have put something. The two are
        // written alike, but somebody owns the parts of the second.
        let of_parts =
            |is: fn(&str) -> bool| others.iter().any(|other| steps(other).any(|(step, _)| is(step)));
        return match value {
            Value::Object(_) if of_parts(|step| step.starts_with("f:")) => Value::Object(Map::new()),
            Value::Array(_) if of_parts(|step| !step.starts_with("f:")) => Value::Array(Vec::new()),
            _ => value.clone(),
        };
    }
    match value {
        Value::Object(map) if steps(fields).all(|(step, _)| step.starts_with("f:")) => map
            .iter()
            .filter_map(|(name, value)| {
                let step = format!("f:{name}");
                Some((name.clone(), kept(value, fields.get(&step)?, &below(others, &step))))
            })
            .collect(),
        Value::Array(items) => kept_items(items, fields, others).map_or_else(|| value.clone(), Value::Array),
        _ => value.clone(),
    }
}

fn below<'f>(nodes: &[&'f Value], step: &str) -> Vec<&'f Value> {
    nodes.iter().filter_map(|node| node.get(step)).collect()
}

/// The elements that `fields` names, in their order; none when a step cannot be read.
fn kept_items(items: &[Value], fields: &Value, others: &[&Value]) -> Option<Vec<Value>> {
    let mut wanted: Vec<(Wanted, &String, &Value)> = Vec::new();
    for (step, node) in steps(fields) {
        let (kind, rest) = step.split_once(':')?;
        let which = match kind {
            "k" => Wanted::Keys(serde_json::from_str(rest).ok()?),
            "v" => Wanted::Element(serde_json::from_str(rest).ok()?),
            "i" => Wanted::Index(rest.parse().ok()?),
            _ => return None,
        };
        wanted.push((which, step, node));
    }
    let found = items.iter().enumerate().filter_map(|(index, item)| {
        let (_, step, node) = wanted.iter().find(|(which, ..)| which.is(index, item))?;
        Some(kept(item, node, &below(others, step)))
    });
    Some(found.collect())
}

/// Which element of a list a step leads to.
enum Wanted {
    Keys(Map<String, Value>),
    Element(Value),
    Index(usize),
}

impl Wanted {
    fn is(&self, index: usize, item: &Value) -> bool {
        match self {
            Self::Keys(keys) => keys.iter().all(|(key, value)| item.get(key) == Some(value)),
            Self::Element(value) => item == value,
            Self::Index(wanted) => index == *wanted,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(spec: &Value, applied: &Value, before: &Value) -> Request {
        serde_json::from_value(json!({
            "operation": "UPDATE", "namespace": "tenant-foo",
            "userInfo": {"username": "system:serviceaccount:tenant-foo:tenant-foo-gitops"},
            "options": {"kind": "UpdateOptions", "fieldManager": "kustomize-controller"},
            "object": {
                "metadata": {"managedFields": [
                    {"manager": "kustomize-controller", "operation": "Apply", "fieldsV1": {"f:spec": applied}},
                    {"manager": "before-first-apply", "operation": "Update", "fieldsV1": {"f:spec": before}},
                ]},
                "spec": spec,
            },
        }))
        .unwrap()
    }

    /// The spec afterwards; none when it stays.
    fn pruned(request: &Request) -> Option<Value> {
        match prune(request) {
            Answer::Allow => None,
            Answer::Patch(patch) => {
                assert_eq!(patch.len(), 1);
                assert_eq!(patch[0]["path"], "/spec");
                Some(patch[0]["value"].clone())
            }
            Answer::Deny(why) => panic!("{why}"),
        }
    }

    #[test]
    fn what_was_not_applied_goes() {
        let request = request(
            &json!({"size": 1, "locking": true, "users": {"alice": {}, "bob": {"admin": true}}}),
            &json!({"f:size": {}, "f:users": {".": {}, "f:bob": {}}}),
            &json!({".": {}, "f:locking": {}, "f:users": {".": {}, "f:alice": {}}}),
        );
        assert_eq!(pruned(&request), Some(json!({"size": 1, "users": {"bob": {"admin": true}}})));
    }

    #[test]
    fn lists_go_by_keys_by_value_or_whole() {
        let request = request(
            &json!({
                "ports": [{"name": "a", "n": 1, "x": 2}, {"name": "b"}],
                "set": ["x", "y"], "atomic": [1, 2], "indexed": [1, 2],
            }),
            &json!({
                "f:ports": {"k:{\"name\":\"a\"}": {".": {}, "f:name": {}, "f:n": {}}},
                "f:set": {"v:\"y\"": {}}, "f:atomic": {}, "f:indexed": {"i:1": {}},
            }),
            &json!({}),
        );
        assert_eq!(
            pruned(&request),
            Some(json!({"ports": [{"name": "a", "n": 1}], "set": ["y"], "atomic": [1, 2], "indexed": [2]}))
        );
    }

    #[test]
    fn an_empty_map_in_git_empties_a_map_whose_parts_have_owners_and_an_atomic_one_is_kept_whole() {
        let spec = json!({"users": {"alice": {}}, "nodes": [{"name": "a"}], "atomic": {"a": 1}, "list": [1]});
        let request = request(
            &spec,
            &json!({"f:users": {}, "f:nodes": {}, "f:atomic": {}, "f:list": {}}),
            &json!({
                "f:users": {".": {}, "f:alice": {}}, "f:nodes": {"k:{\"name\":\"a\"}": {".": {}}},
                "f:atomic": {}, "f:list": {},
            }),
        );
        assert_eq!(
            pruned(&request),
            Some(json!({"users": {}, "nodes": [], "atomic": {"a": 1}, "list": [1]}))
        );
    }

    #[test]
    fn a_manifest_without_spec_empties_it() {
        let mut request = request(&json!({"a": 1}), &json!({}), &json!({"f:a": {}}));
        request.object["metadata"]["managedFields"][0]["fieldsV1"] = json!({"f:metadata": {}});
        assert_eq!(pruned(&request), Some(json!({})));
    }

    #[test]
    fn a_step_that_cannot_be_read_keeps_what_it_is_in() {
        let spec = json!({"list": [1, 2], "map": {"a": 1, "b": 2}, "gone": 1});
        let request =
            request(&spec, &json!({"f:list": {"k:{": {}}, "f:map": {"z:?": {}}}), &json!({"f:gone": {}}));
        assert_eq!(pruned(&request), Some(json!({"list": [1, 2], "map": {"a": 1, "b": 2}})));
    }

    #[test]
    fn others_are_left_alone() {
        let one = request(&json!({"a": 1, "b": 2}), &json!({"f:a": {}}), &json!({"f:b": {}}));
        assert_eq!(pruned(&one), Some(json!({"a": 1})));
        let change = |change: fn(&mut Request)| {
            let mut request = one.clone();
            change(&mut request);
            assert_eq!(prune(&request), Answer::Allow);
        };
        change(|r| r.operation = "CREATE".into());
        change(|r| r.sub_resource = "status".into());
        change(|r| r.namespace = "cozy-system".into());
        // Another tenant's account, in this one's namespace.
        change(|r| r.user_info.username = "system:serviceaccount:tenant-bar:tenant-bar-gitops".into());
        change(|r| r.user_info.username = "admin".into());
        change(|r| r.options["fieldManager"] = json!("kubectl"));
        change(|r| r.options = Value::Null);
        change(|r| r.object["metadata"]["managedFields"] = json!([]));
        change(|r| r.object["metadata"]["managedFields"][0]["operation"] = json!("Update"));
        change(|r| r.object["metadata"]["managedFields"][1]["manager"] = json!("kustomize-controller"));
        change(|r| r.object["spec"] = json!("odd"));
        change(|r| r.object = Value::Null);
        // A status entry of the same manager says nothing about the spec.
        let mut with_status = one.clone();
        let entries = with_status.object["metadata"]["managedFields"].as_array_mut().unwrap();
        entries.push(json!({
            "manager": "kustomize-controller", "operation": "Update", "subresource": "status",
            "fieldsV1": {"f:status": {}},
        }));
        assert_eq!(pruned(&with_status), Some(json!({"a": 1})));
    }
}
