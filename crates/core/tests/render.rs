//! Rendering with overrides, and where it is better than what the Go operator does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use cozy_api::packages::{ComponentState, Package, PackageSource, PackageValues};
use cozy_core::chart::Chart;
use cozy_core::render::{
    Dependencies, Gate, PackageRender, ProblemKind, RenderOptions, reachable, render_all, render_orphan,
    render_package,
};
use cozy_core::snapshot::Snapshot;
use serde_json::{Value, json};

fn source(name: &str, spec: Value) -> PackageSource {
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
}

fn package(name: &str, spec: Value) -> Package {
    serde_json::from_value(json!({"metadata": {"name": name, "uid": format!("uid-{name}")}, "spec": spec}))
        .unwrap()
}

fn values(name: &str, spec: Value) -> PackageValues {
    serde_json::from_value(json!({"metadata": {"name": name, "generation": 3}, "spec": spec})).unwrap()
}

/// One PackageSource `p` with components `a` and `b`.
fn two() -> Snapshot {
    let mut s = Snapshot::new();
    s.set_source(source(
        "p",
        json!({"variants": [{"name": "default", "components": [
            {"name": "a", "path": "system/a", "install": {"namespace": "ns"}},
            {"name": "b", "path": "system/b", "install": {"namespace": "ns"}},
            {"name": "lib", "path": "system/lib"},
        ]}]}),
    ));
    s.set_package(package("p", json!({"components": {"a": {"values": {"x": 1, "l": [1, 2]}}}})));
    s
}

fn render(s: &Snapshot, name: &str) -> PackageRender {
    render_package(s, name, &RenderOptions::default(), Dependencies::Observed).unwrap()
}

fn value_of<'r>(r: &'r PackageRender, component: &str) -> Option<&'r Value> {
    r.releases.iter().find(|r| r.component == component).unwrap().object.spec.values.as_ref()
}

fn annotation(r: &PackageRender, component: &str) -> Option<String> {
    let release = r.releases.iter().find(|r| r.component == component).unwrap();
    release.object.metadata.annotations.as_ref()?.get("gitops.cozystack.io/values-from").cloned()
}

#[test]
fn overrides_are_merged_and_told() {
    let mut s = two();
    s.set_values(values("p", json!({"components": {"a": {"values": {"x": 2, "y": {"z": true}}}, "nope": {"values": {"q": 1}}, "lib": {"values": {"q": 1}}}})));
    s.set_revision(
        "p",
        s.values("p").and_then(|values| values.metadata.generation),
        Some("main@sha1:abc".to_owned()),
    );
    let r = render(&s, "p");
    assert_eq!(value_of(&r, "a"), Some(&json!({"x": 2, "l": [1, 2], "y": {"z": true}})));
    assert_eq!(value_of(&r, "b"), None);
    assert_eq!(annotation(&r, "a").as_deref(), Some("p@3 main@sha1:abc"));
    s.set_revision("p", Some(2), Some("main@sha1:old".to_owned()));
    assert_eq!(annotation(&render(&s, "p"), "a").as_deref(), Some("p@3"), "another generation's revision");
    assert_eq!(annotation(&r, "b"), None, "no override, no annotation");
    let told = &r.overrides["a"];
    assert_eq!(
        (told.pointers.as_slice(), told.shadowing.as_slice()),
        (["/x".to_owned(), "/y/z".to_owned()].as_slice(), ["/x".to_owned()].as_slice())
    );
    assert_eq!(r.effective_values["a"].digest, cozy_yaml::digest(value_of(&r, "a").unwrap()));
    let status = r.package_values.unwrap();
    assert_eq!(status.components["a"].state, ComponentState::Applied);
    assert_eq!(status.components["nope"].state, ComponentState::UnknownComponent);
    assert_eq!(status.components["lib"].state, ComponentState::NotInstalled);
    assert_eq!((status.ready.status, status.ready.reason.as_str()), ("True", "Merged"));
    assert!(status.ready.message.contains("nope"), "{}", status.ready.message);
}

#[test]
fn without_an_effective_layer_nothing_differs() {
    let plain = render(&two(), "p");
    for spec in [
        json!({}),
        json!({"components": {}}),
        json!({"components": {"a": {}}}),
        json!({"components": {"a": {"values": {}}}}),
        json!({"suspend": true, "components": {"a": {"values": {"x": 9}}}}),
    ] {
        let mut s = two();
        s.set_values(values("p", spec.clone()));
        let r = render(&s, "p");
        assert_eq!(r.releases, plain.releases, "{spec}");
        assert_eq!(r.ready, plain.ready);
        assert!(r.overrides.is_empty() && r.effective_values.is_empty());
    }
}

#[test]
fn a_wrong_list_keeps_the_last_good_values_and_blocks_nobody() {
    let mut s = two();
    s.set_values(values(
        "p",
        json!({"components": {
            "a": {"values": {"l": [3]}, "lists": [{"path": "/nope", "type": "Append"}]},
            "b": {"values": {"ok": true}},
        }}),
    ));
    let r = render(&s, "p");
    assert!(r.releases.iter().find(|r| r.component == "a").unwrap().keep_values);
    assert_eq!(value_of(&r, "b"), Some(&json!({"ok": true})));
    assert_eq!(r.ready.status, "True", "the Package itself is fine");
    let ready = r.package_values.unwrap().ready;
    assert_eq!((ready.status, ready.reason.as_str()), ("False", "InvalidList"));
    assert!(ready.message.contains("lists[0]") && ready.message.contains("component a"), "{}", ready.message);
}

#[test]
fn the_schema_warns_or_enforces() {
    let spec =
        |validation: &str| json!({"validation": validation, "components": {"b": {"values": {"n": "three"}}}});
    let chart = Arc::new(Chart {
        values: json!({"n": 1}),
        schema: Some(json!({"properties": {"n": {"type": "integer"}}})),
    });
    let mut s = two();
    s.set_chart("p-default-b".to_owned(), chart);
    s.set_values(values("p", spec("Warn")));
    let r = render(&s, "p");
    assert_eq!(value_of(&r, "b"), Some(&json!({"n": "three"})));
    assert_eq!(r.package_values.unwrap().ready.reason, "InvalidValues");
    s.set_values(values("p", spec("Enforce")));
    let r = render(&s, "p");
    assert!(r.releases.iter().find(|r| r.component == "b").unwrap().keep_values);
    assert!(matches!(&r.problems[0].kind, ProblemKind::Invalid { pointer, .. } if pointer == "/n"));
}

#[test]
fn enforcing_a_schema_that_cannot_be_used_keeps_the_last_good_values() {
    let mut s = two();
    s.set_chart(
        "p-default-b".to_owned(),
        Arc::new(Chart { values: json!({}), schema: Some(json!({"type": 5})) }),
    );
    s.set_values(values("p", json!({"validation": "Enforce", "components": {"b": {"values": {"n": 1}}}})));
    let r = render(&s, "p");
    assert!(r.releases.iter().find(|r| r.component == "b").unwrap().keep_values);
    assert!(r.package_values.unwrap().ready.message.contains("schema"), "it says why");
}

#[test]
fn list_rules_use_the_charts_own_list() {
    let mut s = two();
    s.set_values(values("p", json!({"components": {"b": {"values": {"images": [{"name": "new"}]}, "lists": [{"path": "/images", "type": "Map", "keys": ["name"]}]}}})));
    assert_eq!(
        render(&s, "p").package_values.unwrap().ready.reason,
        "InvalidList",
        "the chart is not known yet"
    );
    s.set_chart(
        "p-default-b".to_owned(),
        Arc::new(Chart { values: json!({"images": [{"name": "old"}]}), schema: None }),
    );
    assert_eq!(value_of(&render(&s, "p"), "b"), Some(&json!({"images": [{"name": "old"}, {"name": "new"}]})));
}

#[test]
fn large_values_leave_only_their_digest() {
    let mut s = two();
    s.set_values(values("p", json!({"components": {"a": {"values": {"big": "x".repeat(300 * 1024)}}}})));
    let r = render(&s, "p");
    assert_eq!(r.effective_values["a"].values, None);
    assert_eq!(r.effective_values["a"].digest, cozy_yaml::digest(value_of(&r, "a").unwrap()));
}

#[test]
fn an_orphan_is_loud() {
    let mut s = Snapshot::new();
    s.set_values(values("gone", json!({"components": {}})));
    assert_eq!(render_orphan(&s, "gone").unwrap().ready.reason, "PackageNotFound");
    assert_eq!(render_all(&s, &RenderOptions::default(), Dependencies::Assumed).orphans.len(), 1);
    s.set_package(package("gone", json!({})));
    assert_eq!(render(&s, "gone").package_values.unwrap().ready.reason, "PackageSourceNotFound");
    s.set_source(source("gone", json!({"variants": [{"name": "other"}]})));
    assert_eq!(render(&s, "gone").package_values.unwrap().ready.reason, "VariantNotFound");
}

#[test]
fn one_broken_component_never_blocks_its_siblings() {
    let mut s = Snapshot::new();
    s.set_source(source(
        "p",
        json!({"variants": [{"name": "default", "components": [
            {"name": "bare", "path": "x", "install": {}},
            {"name": "lost", "path": "x", "install": {"namespace": "ns", "dependsOn": ["nowhere"]}},
            {"name": "good", "path": "x", "install": {"namespace": "ns", "dependsOn": ["off"]}},
            {"name": "off", "path": "x", "install": {"namespace": "ns"}},
            {"name": "same", "path": "x", "install": {"namespace": "ns", "releaseName": "good"}},
        ]}]}),
    ));
    s.set_package(package("p", json!({"components": {"off": {"enabled": false}}})));
    let r = render(&s, "p");
    assert_eq!(r.releases.iter().map(|r| r.component.as_str()).collect::<Vec<_>>(), ["good"]);
    assert_eq!(r.releases[0].object.spec.depends_on, None, "a disabled component is not waited for");
    let kinds: Vec<_> = r.problems.iter().map(|p| p.component.as_str()).collect();
    assert_eq!(kinds, ["bare", "lost", "same"]);
    assert_eq!((r.ready.status, r.ready.reason.as_str()), ("False", "InvalidConfiguration"));
    for name in ["bare", "lost", "same"] {
        assert!(r.ready.message.contains(name), "{}", r.ready.message);
    }
}

#[test]
fn the_older_package_keeps_a_release() {
    let mut s = Snapshot::new();
    let variants = json!({"variants": [{"name": "default", "components": [{"name": "x", "path": "x", "install": {"namespace": "ns"}}]}]});
    for (name, created) in [("a-new", "2026-02-01T00:00:00Z"), ("b-old", "2026-01-01T00:00:00Z")] {
        s.set_source(source(name, variants.clone()));
        let mut p = package(name, json!({}));
        p.metadata.creation_timestamp = serde_json::from_value(json!(created)).unwrap();
        s.set_package(p);
    }
    assert_eq!(render(&s, "b-old").ready.status, "True");
    let newer = render(&s, "a-new");
    assert_eq!((newer.ready.reason.as_str(), newer.releases.len()), ("ReleaseConflict", 0));
    assert!(newer.ready.message.contains("b-old"));
    let touched = s.remove_package("b-old");
    assert!(touched.contains("a-new"), "the one that waited is told: {touched:?}");
    assert_eq!(render(&s, "a-new").ready.status, "True");
}

#[test]
fn a_dependency_gates_creation_but_not_updates() {
    let mut s = two();
    s.set_source(source("q", json!({"variants": [{"name": "default", "dependsOn": ["p", "missing"], "components": [{"name": "x", "path": "x", "install": {"namespace": "ns"}}]}]})));
    s.set_package(package("q", json!({})));
    let r = render(&s, "q");
    assert_eq!(r.gate, Gate::UpdatesOnly);
    assert_eq!(r.releases.len(), 1, "rendered all the same, for what exists already");
    assert_eq!(r.ready.reason, "DependenciesNotReady");
    assert_eq!(r.dependencies, [("missing".to_owned(), false), ("p".to_owned(), false)].into());
    assert!(!reachable(&s).contains("q"), "`missing` never comes");
    s.set_package(package("q", json!({"ignoreDependencies": ["missing"]})));
    assert!(reachable(&s).contains("q"));
    assert_eq!(s.dependents("p").collect::<Vec<_>>(), ["q"]);
}

#[test]
fn cycles_never_become_ready() {
    let mut s = Snapshot::new();
    for (name, on) in [("a", "b"), ("b", "a"), ("self", "self"), ("free", "")] {
        let on: Vec<&str> = if on.is_empty() { vec![] } else { vec![on] };
        s.set_source(source(name, json!({"variants": [{"name": "default", "dependsOn": on}]})));
        s.set_package(package(name, json!({})));
    }
    assert_eq!(reachable(&s).into_iter().collect::<Vec<_>>(), ["free"]);
    assert_eq!(s.cycle("a").unwrap(), ["a", "b", "a"]);
    assert_eq!(s.cycle("b").unwrap(), ["b", "a", "b"]);
    assert_eq!(s.cycle("self").unwrap(), ["self", "self"]);
    assert_eq!(s.cycle("free"), None);
}

#[test]
fn a_change_touches_only_whom_it_concerns() {
    let mut s = Snapshot::new();
    for name in ["a", "b", "c"] {
        let on: Vec<&str> = if name == "b" { vec!["a"] } else { vec![] };
        s.set_source(source(name, json!({"variants": [{"name": "default", "dependsOn": on, "components": [{"name": name, "path": "x", "install": {"namespace": format!("ns-{name}")}}]}]})));
        s.set_package(package(name, json!({})));
    }
    // Nothing that matters to others changed.
    assert_eq!(s.set_package(package("a", json!({}))).into_iter().collect::<Vec<_>>(), ["a"]);
    // Becoming ready, and no longer having a HelmRelease, concerns dependents.
    let ready = json!({"conditions": [{"type": "Ready", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    let mut a = package("a", json!({}));
    a.status = serde_json::from_value(ready).unwrap();
    assert_eq!(s.set_package(a).into_iter().collect::<Vec<_>>(), ["a", "b"]);
    let disabled = json!({"components": {"a": {"enabled": false}}});
    assert_eq!(s.set_package(package("a", disabled)).into_iter().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(s.set_package(package("b", json!({}))).into_iter().collect::<Vec<_>>(), ["b"]);
    assert_eq!(s.set_values(values("c", json!({}))).into_iter().collect::<Vec<_>>(), ["c"]);
    // Becoming privileged concerns everybody in the namespace.
    s.set_source(source("d", json!({"variants": [{"name": "default", "components": [{"name": "d", "path": "x", "install": {"namespace": "ns-c", "privileged": true}}]}]})));
    let touched = s.set_package(package("d", json!({})));
    assert_eq!(touched.into_iter().collect::<Vec<_>>(), ["c", "d"]);
    assert!(render(&s, "c").namespaces[0].privileged);
    assert_eq!(s.remove_package("d").into_iter().collect::<Vec<_>>(), ["c", "d"]);
    assert!(!render(&s, "c").namespaces[0].privileged);
}
