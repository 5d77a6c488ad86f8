//! Overrides and charts on a real API server: default lists, schemas, unknown keys, large values, dependencies.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod operator_support;

use std::path::Path;

use cozy_testenv::{Cluster, SourceWatcher};
use serde_json::{Value, json};

use operator_support::{
    Operator, api, component, condition, delete, eventually, list, patch, prepare, put, read, source,
    wait_reason,
};

fn charts() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/charts/packages")
}

/// Copies the charts, so that a test may change them.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn charts_give_default_lists_schemas_and_known_keys() {
    let cluster = Cluster::start().await.unwrap();
    let client = cluster.admin();
    prepare(&cluster).await;
    let directory = cluster.dir().join("charts");
    copy(&charts(), &directory);
    let watcher = SourceWatcher::start(&cluster, &directory).await.unwrap();
    let operator = Operator::start(client.clone());
    operator.ready().await;
    let components = json!([component("images", "ns-i"), component("storage", "ns-i")]);
    put(&client, "packagesources", "", "c", source(components.clone())).await;
    put(&client, "packages", "", "c", json!({ "spec": {} })).await;
    wait_reason(&client, "packages", "c", "ReconciliationSucceeded").await;
    wait_reason(&client, "packagesources", "c", "Succeeded").await;

    // The chart's own list is the base: one changed, one taken away, one added, in order.
    let lists = json!([{ "path": "/images", "type": "Map", "keys": ["name"] }]);
    let values = json!({ "images": [
        { "name": "company", "url": "https://example.org/company.img" },
        { "name": "debian-12", "url": "https://example.org/debian.img" },
        { "name": "alpine-3.21", "$patch": "delete" },
    ] });
    put(
        &client,
        "packagevalues",
        "",
        "c",
        json!({ "spec": { "components": { "images": { "values": values, "lists": lists } } } }),
    )
    .await;
    wait_reason(&client, "packagevalues", "c", "Merged").await;
    let names = async || -> Vec<String> {
        let release = read(&client, "helmreleases", "ns-i", "images").await.unwrap();
        let images = release["spec"]["values"]["images"].as_array().cloned().unwrap_or_default();
        images.iter().map(|image| format!("{}={}", image["name"], image["url"]).replace('"', "")).collect()
    };
    assert_eq!(
        names().await,
        [
            "ubuntu-24.04=https://images.example.org/ubuntu-24.04.img",
            "debian-12=https://example.org/debian.img",
            "company=https://example.org/company.img",
        ]
    );

    // Another revision of the chart, another list.
    std::fs::write(
        directory.join("system/images/values.yaml"),
        "images:\n- {name: fedora-43, url: https://images.example.org/fedora.img}\n",
    )
    .unwrap();
    let mut renamed = source(components);
    renamed["spec"]["variants"][0]["components"][0]["valuesFiles"] = json!(["values.yaml"]);
    put(&client, "packagesources", "", "c", renamed).await;
    eventually("the new chart's list", || async {
        names().await.first().is_some_and(|first| first.starts_with("fedora-43"))
    })
    .await;
    assert_eq!(names().await.len(), 3, "{:?}", names().await);

    // A key that the chart does not know, a value that its schema refuses: told, and with Warn still applied.
    let layer = |validation: &str, replicas: Value| {
        json!({ "spec": { "validation": validation, "components": { "storage": { "values": {
            "replicas": replicas, "autoDiskfull": { "minutes": 5 },
        } } } } })
    };
    put(&client, "packagevalues", "", "c", layer("Warn", json!("three"))).await;
    eventually("the violation and the unknown key are told", || async {
        let told = read(&client, "packagevalues", "", "c").await.unwrap()["status"].to_string();
        told.contains("/replicas") && told.contains("/autoDiskfull")
    })
    .await;
    let replicas = async || {
        let release = read(&client, "helmreleases", "ns-i", "storage").await.unwrap();
        release["spec"]["values"]["replicas"].clone()
    };
    eventually("it is applied", || async { replicas().await == "three" }).await;
    // Enforced it is not, and the last good values stay.
    put(&client, "packagevalues", "", "c", layer("Enforce", json!(4))).await;
    eventually("a good value", || async { replicas().await == 4 }).await;
    put(&client, "packagevalues", "", "c", layer("Enforce", json!(0))).await;
    let message = wait_reason(&client, "packagevalues", "c", "InvalidValues").await;
    assert!(message.contains("/replicas"), "{message}");
    operator.quiet().await;
    assert_eq!(replicas().await, 4);
    // Also over a restart, and while nobody serves the chart any more: nothing passes unchecked.
    operator.stop().await;
    drop(watcher);
    let operator = Operator::start(client.clone());
    operator.ready().await;
    operator.quiet().await;
    assert_eq!(replicas().await, 4);
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_values_and_quick_changes_arrive_whole() {
    let cluster = Cluster::start().await.unwrap();
    let client = cluster.admin();
    prepare(&cluster).await;
    let operator = Operator::start(client.clone());
    operator.ready().await;
    put(&client, "packagesources", "", "l", source(json!([component("x", "ns-l")]))).await;
    put(&client, "packages", "", "l", json!({ "spec": {} })).await;
    wait_reason(&client, "packages", "l", "ReconciliationSucceeded").await;

    // As large as an object can be: the values of the API server's limit of 1.5 MiB per object.
    let large: Vec<String> = (0..1024).map(|line| format!("{line:04}{}ü", "x".repeat(1018))).collect();
    let layer = json!({ "spec": { "components": { "x": { "values": { "large": large } } } } });
    put(&client, "packagevalues", "", "l", layer).await;
    wait_reason(&client, "packagevalues", "l", "Merged").await;
    let release = read(&client, "helmreleases", "ns-l", "x").await.unwrap();
    assert_eq!(release["spec"]["values"]["large"], json!(large));
    eventually("the digest alone is told", || async {
        let package = read(&client, "packages", "", "l").await.unwrap();
        let told = &package["status"]["effectiveValues"]["x"];
        told["digest"] == json!(cozy_yaml::digest(&release["spec"]["values"])) && told.get("values").is_none()
    })
    .await;
    let (_, _, message) = condition(&client, "packages", "l", "ValuesMerged").await.unwrap();
    assert!(message.contains("256 KiB"), "{message}");

    // Changes within a second: the last one counts, and none is lost on the way to it.
    for value in 1..=20 {
        put(
            &client,
            "packagevalues",
            "",
            "l",
            json!({ "spec": { "components": { "x": { "values": { "n": value } } } } }),
        )
        .await;
    }
    eventually("the last change", || async {
        let release = read(&client, "helmreleases", "ns-l", "x").await.unwrap();
        let package = read(&client, "packages", "", "l").await.unwrap();
        release["spec"]["values"] == json!({ "n": 20 })
            && package["status"]["effectiveValues"]["x"]["values"] == json!({ "n": 20 })
    })
    .await;
    operator.stop().await;
}

/// Whom a component's fate, a variant or a dependency concerns.
#[tokio::test(flavor = "multi_thread")]
async fn packages_variants_components_and_dependencies_come_and_go() {
    let cluster = Cluster::start().await.unwrap();
    let client = cluster.admin();
    prepare(&cluster).await;
    let operator = Operator::start(client.clone());
    operator.ready().await;
    let layer =
        |component: &str| json!({ "spec": { "components": { component: { "values": { "over": 1 } } } } });
    put(&client, "packagevalues", "", "p", layer("x")).await;
    wait_reason(&client, "packagevalues", "p", "PackageNotFound").await;
    put(&client, "packages", "", "p", json!({ "spec": { "variant": "big" } })).await;
    wait_reason(&client, "packagevalues", "p", "PackageSourceNotFound").await;
    let variants = |second: &str| {
        let mut all = source(json!([component("x", "ns-d")]));
        let components = json!([component("x", "ns-d"), component("w", "ns-d")]);
        let other = json!({ "name": second, "components": components });
        all["spec"]["variants"].as_array_mut().unwrap().push(other);
        all
    };
    put(&client, "packagesources", "", "p", variants("small")).await;
    wait_reason(&client, "packagevalues", "p", "VariantNotFound").await;
    put(&client, "packagesources", "", "p", variants("big")).await;
    wait_reason(&client, "packagevalues", "p", "Merged").await;
    let over = async |release: &str| {
        let release = read(&client, "helmreleases", "ns-d", release).await;
        release.map(|release| release["spec"]["values"]["over"].clone())
    };
    assert_eq!(over("x").await, Some(json!(1)));

    // Disabled, renamed, back.
    let state = async |component: &str, wanted: &str| {
        eventually(wanted, || async {
            let told = read(&client, "packagevalues", "", "p").await.unwrap();
            told["status"]["components"][component]["state"] == wanted
        })
        .await;
    };
    put(
        &client,
        "packages",
        "",
        "p",
        json!({ "spec": { "variant": "big", "components": { "x": { "enabled": false } } } }),
    )
    .await;
    state("x", "Disabled").await;
    eventually("its release goes", || async { over("x").await.is_none() }).await;
    put(&client, "packages", "", "p", json!({ "spec": { "variant": "big" } })).await;
    state("x", "Applied").await;
    eventually("it comes back with its override", || async { over("x").await == Some(json!(1)) }).await;
    let mut renamed = variants("big");
    renamed["spec"]["variants"][1]["components"][0]["name"] = json!("y");
    put(&client, "packagesources", "", "p", renamed).await;
    state("x", "UnknownComponent").await;
    put(&client, "packagevalues", "", "p", layer("y")).await;
    state("y", "Applied").await;
    // Another variant has no such component, and what only the former one had goes.
    assert!(over("w").await.is_some());
    put(&client, "packages", "", "p", json!({ "spec": { "variant": "default" } })).await;
    state("y", "UnknownComponent").await;
    eventually("w goes", || async { over("w").await.is_none() }).await;
    delete(&client, "packages", "", "p").await;
    wait_reason(&client, "packagevalues", "p", "PackageNotFound").await;
    eventually("an orphan is an Event, too", || async {
        let events = list(&client, "events").await;
        events.iter().any(|event| event["reason"] == "PackageNotFound" && event["regarding"]["name"] == "p")
    })
    .await;
    let metrics = operator_support::get(operator.metrics, "/metrics").await.unwrap().1;
    assert!(metrics.contains(r#"cozy_gitops_packagevalues{reason="PackageNotFound"} 1"#), "{metrics}");

    // A dependency that is missing, then there: whoever waits goes on, once.
    for (name, on) in [("dep.c", "dep.b"), ("dep.b", "dep.a")] {
        let mut dependent = source(json!([component(name, "ns-dep")]));
        dependent["spec"]["variants"][0]["dependsOn"] = json!([on]);
        put(&client, "packagesources", "", name, dependent).await;
        put(&client, "packages", "", name, json!({ "spec": {} })).await;
    }
    for (name, on) in [("dep.c", "dep.b"), ("dep.b", "dep.a")] {
        wait_reason(&client, "packages", name, "DependenciesNotReady").await;
        let told = read(&client, "packages", "", name).await.unwrap()["status"]["dependencies"].clone();
        assert_eq!(told[on]["ready"], false, "{told}");
    }
    assert!(read(&client, "helmreleases", "ns-dep", "dep.b").await.is_none());
    put(&client, "packagesources", "", "dep.a", source(json!([component("dep.a", "ns-dep")]))).await;
    put(&client, "packages", "", "dep.a", json!({ "spec": {} })).await;
    for name in ["dep.a", "dep.b", "dep.c"] {
        wait_reason(&client, "packages", name, "ReconciliationSucceeded").await;
    }
    let release = read(&client, "helmreleases", "ns-dep", "dep.c").await.unwrap();
    assert_eq!(release["spec"]["dependsOn"], json!([{ "name": "dep.b", "namespace": "ns-dep" }]));

    // A HelmRelease that becomes ready wakes nobody: readiness of Packages does not come from it.
    operator.quiet().await;
    let before = operator.writes(None).await;
    let ready = json!({ "status": { "conditions": [{
        "type": "Ready", "status": "True", "reason": "InstallSucceeded", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }] } });
    api(&client, "helmreleases", "ns-dep")
        .patch_status("dep.a", &Default::default(), &kube::api::Patch::Merge(ready))
        .await
        .unwrap();
    operator.quiet().await;
    assert_eq!(operator.writes(None).await, before);

    // An annotation that nobody asked about changes nothing either.
    patch(&client, "packages", "", "dep.a", json!({ "metadata": { "annotations": { "a": "b" } } })).await;
    operator.quiet().await;
    assert_eq!(operator.writes(None).await, before);
    operator.stop().await;
}
