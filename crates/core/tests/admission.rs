//! Pruning on recorded reviews of Cozystack's API, and on generated ones.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use std::path::{Path, PathBuf};

use cozy_core::admission::prune::prune;
use cozy_core::admission::{Answer, Request};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// The object after a decision.
fn after(request: &Request) -> Value {
    let mut object = request.object.clone();
    if let Answer::Patch(patch) = prune(request) {
        let patch: json_patch::Patch = serde_json::from_value(json!(patch)).unwrap();
        json_patch::patch(&mut object, &patch).unwrap();
    }
    object
}

/// Recorded reviews, by file name; none, and a line that says so, where they are not.
fn recorded() -> Vec<(String, Request)> {
    let dir: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/admission");
    let Ok(entries) = std::fs::read_dir(&dir) else {
        println!("skipped: {} is not there", dir.display());
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    assert!(!files.is_empty(), "{} is empty", dir.display());
    let read = |path: &PathBuf| {
        let review: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, serde_json::from_value(review["request"].clone()).unwrap())
    };
    files.iter().map(read).collect()
}

#[test]
fn recorded_applies_lose_what_git_does_not_say_and_nothing_else_changes() {
    let reviews = recorded();
    let mut pruned = 0;
    for (name, request) in &reviews {
        let out = after(request);
        let changed = out != request.object;
        pruned += usize::from(changed);
        let (mut without, mut before) = (out.clone(), request.object.clone());
        for object in [&mut without, &mut before] {
            object.as_object_mut().map(|object| object.remove("spec"));
        }
        assert_eq!(without, before, "{name}: outside spec");
        if name.contains("UPDATE-buckets-b1-tenant") {
            // Git says bob; alice, the defaults and what an admin added are somebody else's.
            assert_eq!(out["spec"], json!({"users": {"bob": {}}}), "{name}");
        }
        if request.operation != "UPDATE" || name.contains("admin") {
            assert!(!changed, "{name}");
        }
    }
    assert!(reviews.is_empty() || pruned > 0);
}

/// Maps, scalars and atomic lists.
fn tree() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<i8>().prop_map(|n| json!(n)),
        "[a-zé/~.]{0,4}".prop_map(Value::String),
        any::<bool>().prop_map(Value::Bool),
        prop::collection::vec(any::<u8>(), 0..3).prop_map(|list| json!(list)),
        Just(json!({})),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop::collection::btree_map("[a-dé/~.]{1,2}", inner, 0..4)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
    })
}

fn spec() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[a-d]", tree(), 0..4)
        .prop_map(|map| Value::Object(map.into_iter().collect()))
}

/// What the API server writes into managedFields for a value.
fn fields(value: &Value) -> Value {
    let Value::Object(map) = value else { return json!({}) };
    map.iter().map(|(key, value)| (format!("f:{key}"), fields(value))).collect()
}

/// What a server-side apply makes of the object that is there.
fn applied(base: &Value, over: &Value) -> Value {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            let mut out: Map<String, Value> = base.clone();
            for (key, value) in over {
                let merged = applied(base.get(key).unwrap_or(&Value::Null), value);
                out.insert(key.clone(), merged);
            }
            Value::Object(out)
        }
        _ => over.clone(),
    }
}

fn review(git: &Value, stored: &Value) -> Request {
    let labels = json!({"kustomize.toolkit.fluxcd.io/name": "apps"});
    serde_json::from_value(json!({
        "operation": "UPDATE", "namespace": "tenant-foo", "name": "db",
        "userInfo": {"username": "system:serviceaccount:tenant-foo:tenant-foo-gitops"},
        "options": {"fieldManager": "kustomize-controller"},
        "oldObject": {"metadata": {"labels": labels}, "spec": stored},
        "object": {
            "metadata": {"labels": labels, "managedFields": [
                {"manager": "before-first-apply", "operation": "Update", "fieldsV1": {"f:spec": fields(stored)}},
                {"manager": "kustomize-controller", "operation": "Apply", "fieldsV1": {"f:spec": fields(git)}},
            ]},
            "spec": applied(stored, git), "status": {"kept": true},
        },
    }))
    .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_result_is_what_was_applied(git in spec(), stored in spec()) {
        let request = review(&git, &stored);
        let out = after(&request);
        prop_assert_eq!(&out["spec"], &git);
        prop_assert_eq!(&out["metadata"], &request.object["metadata"]);
        prop_assert_eq!(&out["status"], &request.object["status"]);
        // Once is enough.
        let again = Request { object: out.clone(), ..request };
        prop_assert_eq!(prune(&again), Answer::Allow);
    }

    #[test]
    fn other_users_and_managers_are_never_touched(git in spec(), stored in spec(), user in "[a-z:-]{0,40}", manager in "[a-z-]{0,12}") {
        let mut by_user = review(&git, &stored);
        by_user.user_info.username = user;
        prop_assert_eq!(prune(&by_user), Answer::Allow);
        let mut by_manager = review(&git, &stored);
        by_manager.options["fieldManager"] = json!(manager);
        prop_assert_eq!(prune(&by_manager), Answer::Allow);
    }
}
