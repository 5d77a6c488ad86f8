//! What has to be in force before a tenant gets rights.
#![allow(clippy::unwrap_used)]

use cozy_core::enforcement::{ENFORCED_BY, GRANT_TO, Grant};
use serde_json::{Value, json};

fn role() -> Value {
    json!({ "metadata": {
        "name": "cozy:tenant-gitops:edit",
        "annotations": {
            GRANT_TO: "rbac.cozystack.io/aggregate-to-tenant-super-admin",
            ENFORCED_BY: "ValidatingAdmissionPolicy/a, MutatingWebhookConfiguration/w,MutatingAdmissionPolicy/m",
        },
        "labels": { "app": "cozy-gitops" },
    } })
}

/// Everything as the chart and the API server have it.
fn objects() -> Vec<(&'static str, Value)> {
    vec![
        (
            "ValidatingAdmissionPolicy",
            json!({
                "metadata": { "name": "a", "generation": 2 }, "spec": { "failurePolicy": "Fail" },
                "status": { "observedGeneration": 2 },
            }),
        ),
        (
            "ValidatingAdmissionPolicyBinding",
            json!({
                "metadata": { "name": "other-name" },
                "spec": {
                    "policyName": "a", "validationActions": ["Deny", "Audit"],
                    "matchResources": { "matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {} },
                },
            }),
        ),
        ("MutatingAdmissionPolicy", json!({ "metadata": { "name": "m" }, "spec": {} })),
        (
            "MutatingAdmissionPolicyBinding",
            json!({ "metadata": { "name": "m" }, "spec": { "policyName": "m" } }),
        ),
        (
            "MutatingWebhookConfiguration",
            json!({ "metadata": { "name": "w" }, "webhooks": [
                { "name": "one", "failurePolicy": "Fail", "clientConfig": { "caBundle": "QQ==" } },
                { "name": "two", "clientConfig": { "caBundle": "QQ==" } },
            ] }),
        ),
    ]
}

fn look(objects: &[(&'static str, Value)]) -> (Vec<String>, Vec<String>) {
    let found = Grant::of(&role()).enforcement(objects.iter().map(|(kind, object)| (*kind, object)));
    (found.missing, found.pending)
}

#[test]
fn everything_there_and_seen_is_in_force() {
    assert_eq!(look(&objects()), (vec![], vec![]));
    let grant = Grant::of(&role());
    assert_eq!(grant.label.as_deref(), Some("rbac.cozystack.io/aggregate-to-tenant-super-admin"));
    assert_eq!(grant.given, Vec::<String>::new());
}

#[test]
fn whatever_loosens_it_is_missing_and_named() {
    for (at, pointer, value, names) in [
        (0, "/spec/failurePolicy", json!("Ignore"), "ValidatingAdmissionPolicy a"),
        (0, "/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"), "ValidatingAdmissionPolicy a"),
        (0, "/metadata/name", json!("b"), "ValidatingAdmissionPolicy a"),
        (1, "/spec/policyName", json!("b"), "ValidatingAdmissionPolicy a"),
        (1, "/spec/validationActions", json!(["Audit", "Warn"]), "ValidatingAdmissionPolicy a"),
        (1, "/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"), "ValidatingAdmissionPolicy a"),
        (
            1,
            "/spec/matchResources/namespaceSelector/matchLabels",
            json!({ "a": "b" }),
            "ValidatingAdmissionPolicy a",
        ),
        (1, "/spec/matchResources/excludeResourceRules", json!([{}]), "ValidatingAdmissionPolicy a"),
        (2, "/spec/failurePolicy", json!("Ignore"), "MutatingAdmissionPolicy m"),
        (3, "/spec/policyName", json!("x"), "MutatingAdmissionPolicy m"),
        (4, "/webhooks/1/failurePolicy", json!("Ignore"), "MutatingWebhookConfiguration w (two"),
        (4, "/webhooks", json!([]), "MutatingWebhookConfiguration w"),
    ] {
        let mut objects = objects();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        let parent = objects[at].1.pointer_mut(parent).unwrap();
        match parent {
            Value::Array(items) => items[field.parse::<usize>().unwrap()] = value,
            other => other[field] = value,
        }
        let (missing, _) = look(&objects);
        assert_eq!(missing.len(), 1, "{pointer}: {missing:?}");
        assert!(missing[0].starts_with(names), "{pointer}: {missing:?}");
    }
    for at in 0..objects().len() {
        let mut objects = objects();
        let (kind, _) = objects.remove(at);
        assert_eq!(look(&objects).0.len(), 1, "without {kind}");
    }
}

#[test]
fn what_is_on_its_way_is_waited_for_and_takes_nothing_away() {
    let mut waits = objects();
    waits[0].1["metadata"]["generation"] = json!(3);
    waits[4].1["webhooks"][0]["clientConfig"] = json!({});
    let (missing, pending) = look(&waits);
    assert_eq!((missing.len(), pending.len()), (0, 2), "{missing:?} {pending:?}");
    waits[0].1["status"] = Value::Null;
    assert_eq!(look(&waits).1.len(), 2);
}

#[test]
fn a_role_that_names_nothing_is_never_given_and_no_other_label_is_set() {
    let grant = Grant::of(&json!({ "metadata": { "annotations": { GRANT_TO: "admin" }, "labels": {
        "rbac.authorization.k8s.io/aggregate-to-edit": "true", "rbac.cozystack.io/aggregate-to-tenant-use": "true",
    } } }));
    assert_eq!(grant.label, None);
    assert_eq!(grant.given.len(), 2);
    assert!(!grant.enforcement([]).holds());
}
