//! The stamp on Kustomizations in tenant namespaces: whose controller takes them, as whom, and where to.
//!
//! The same rule as the chart's MutatingAdmissionPolicy `cozy-gitops-stamp`. What it sets passes the policy
//! `cozy-gitops-kustomizations`, which judges everything else.

use cozy_api::names::LABEL_SHARD;
use serde_json::{Value, json};

use super::{Answer, Request, operation};

/// Stamps a Kustomization that is created or changed.
///
/// Label and account are set whatever they were, since nobody may have others; `targetNamespace` and `deletionPolicy`
/// where there are none. A write that changes metadata alone is left alone, so that finalizers are never in a
/// controller's way; so is one outside tenant namespaces.
#[must_use]
pub fn stamp(request: &Request) -> Answer {
    let Some(spec) = request.object.get("spec").filter(|spec| spec.is_object()) else {
        // The kind's own schema refuses it.
        return Answer::Allow;
    };
    if !request.is_of_tenant() || !request.sub_resource.is_empty() || !changed(request) {
        return Answer::Allow;
    }
    let namespace = request.namespace.as_str();
    let account = format!("{namespace}-gitops");
    let mut patch = Vec::new();
    let labels = request.object.pointer("/metadata/labels").filter(|labels| labels.is_object());
    if labels.is_none() {
        patch.push(operation("add", "/metadata/labels", json!({ LABEL_SHARD: namespace })));
    } else if labels.and_then(|labels| labels.get(LABEL_SHARD)) != Some(&json!(namespace)) {
        let path = format!("/metadata/labels/{}", cozy_yaml::escape_token(LABEL_SHARD));
        patch.push(operation("add", &path, json!(namespace)));
    }
    let mut set = |field: &str, value: &str, always: bool| {
        let given = spec.get(field).filter(|given| !given.is_null());
        if given.is_none() || always && given != Some(&json!(value)) {
            patch.push(operation("add", &format!("/spec/{field}"), json!(value)));
        }
    };
    set("serviceAccountName", &account, true);
    set("targetNamespace", namespace, false);
    set("deletionPolicy", "Orphan", false);
    if patch.is_empty() { Answer::Allow } else { Answer::Patch(patch) }
}

/// Whether more than metadata is written. An absent label is another thing than an empty one: Flux's own controllers
/// take the objects without it.
fn changed(request: &Request) -> bool {
    let shard = |object: &Value| {
        object.pointer("/metadata/labels").and_then(|labels| labels.get(LABEL_SHARD)).cloned()
    };
    request.operation != "UPDATE"
        || request.object.get("spec") != request.old_object.get("spec")
        || shard(&request.object) != shard(&request.old_object)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(operation: &str, object: &Value, old: &Value) -> Request {
        Request {
            operation: operation.to_owned(),
            namespace: "tenant-foo".to_owned(),
            object: object.clone(),
            old_object: old.clone(),
            ..Request::default()
        }
    }

    /// The object after the patch.
    fn stamped(object: &Value) -> Value {
        let mut out = object.clone();
        if let Answer::Patch(patch) = stamp(&request("CREATE", object, &Value::Null)) {
            let patch: json_patch::Patch = serde_json::from_value(json!(patch)).unwrap();
            json_patch::patch(&mut out, &patch).unwrap();
        }
        out
    }

    #[test]
    fn sets_label_account_target_and_policy() {
        let out = stamped(&json!({"metadata": {"name": "a"}, "spec": {"path": "./"}}));
        assert_eq!(
            out,
            json!({
                "metadata": {"name": "a", "labels": {"sharding.fluxcd.io/key": "tenant-foo"}},
                "spec": {
                    "path": "./", "serviceAccountName": "tenant-foo-gitops",
                    "targetNamespace": "tenant-foo", "deletionPolicy": "Orphan",
                },
            })
        );
        assert_eq!(stamped(&out), out, "once is enough");
    }

    #[test]
    fn what_nobody_may_choose_is_replaced_and_what_one_may_stays() {
        let out = stamped(&json!({
            "metadata": {"labels": {"sharding.fluxcd.io/key": "tenants", "team": "a"}},
            "spec": {"serviceAccountName": "", "targetNamespace": "tenant-bar", "deletionPolicy": "Delete"},
        }));
        assert_eq!(out["metadata"]["labels"], json!({"sharding.fluxcd.io/key": "tenant-foo", "team": "a"}));
        assert_eq!(out["spec"]["serviceAccountName"], "tenant-foo-gitops");
        // The policy refuses it, with a message.
        assert_eq!(out["spec"]["targetNamespace"], "tenant-bar");
        assert_eq!(out["spec"]["deletionPolicy"], "Delete");
    }

    #[test]
    fn null_is_absent() {
        let out = stamped(&json!({
            "metadata": {"labels": null},
            "spec": {"serviceAccountName": null, "targetNamespace": null, "deletionPolicy": null},
        }));
        assert_eq!(out["metadata"]["labels"]["sharding.fluxcd.io/key"], "tenant-foo");
        assert_eq!(out["spec"]["targetNamespace"], "tenant-foo");
        assert_eq!(out["spec"]["deletionPolicy"], "Orphan");
    }

    #[test]
    fn metadata_alone_is_left_alone() {
        let lying_there = json!({"metadata": {"finalizers": ["a"]}, "spec": {"path": "./"}});
        let without = json!({"metadata": {}, "spec": {"path": "./"}});
        assert_eq!(stamp(&request("UPDATE", &without, &lying_there)), Answer::Allow);
        let changed = json!({"metadata": {}, "spec": {"path": "./b"}});
        assert!(matches!(stamp(&request("UPDATE", &changed, &lying_there)), Answer::Patch(_)));
    }

    #[test]
    fn a_label_that_goes_comes_back() {
        let spec = json!({"serviceAccountName": "tenant-foo-gitops", "targetNamespace": "tenant-foo", "deletionPolicy": "Orphan"});
        let old = json!({"metadata": {"labels": {"sharding.fluxcd.io/key": "tenant-foo"}}, "spec": spec});
        let new = json!({"metadata": {}, "spec": spec});
        assert!(matches!(stamp(&request("UPDATE", &new, &old)), Answer::Patch(patch) if patch.len() == 1));
    }

    #[test]
    fn other_namespaces_sub_resources_and_odd_objects_are_left_alone() {
        let object = json!({"metadata": {}, "spec": {}});
        let elsewhere =
            Request { namespace: "cozy-system".into(), ..request("CREATE", &object, &Value::Null) };
        assert_eq!(stamp(&elsewhere), Answer::Allow);
        let status = Request { sub_resource: "status".into(), ..request("UPDATE", &object, &json!({})) };
        assert_eq!(stamp(&status), Answer::Allow);
        for odd in [json!(null), json!([]), json!({}), json!({"spec": 1}), json!({"spec": null})] {
            assert_eq!(stamp(&request("CREATE", &odd, &Value::Null)), Answer::Allow, "{odd}");
        }
    }
}
