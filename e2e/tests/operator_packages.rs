//! The operator on a real API server: what it writes, what it does not, and what it tells.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "tests")]

mod operator_support;
mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use cozy_operator::Config;
use futures::StreamExt;
use kube::api::{DeleteParams, Patch, PatchParams, PropagationPolicy};
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};

use operator_support::*;
use support::cluster;

/// Every PackageSource of the platform and every Package of a recorded cluster become what the Go operator made of
/// them; a second start writes nothing at all.
#[tokio::test(flavor = "multi_thread")]
async fn the_whole_platform_comes_out_as_recorded() {
    let Some(shared) = shared() else {
        eprintln!("skipped: the recorded objects are not there");
        return;
    };
    let cluster = cluster().await;
    let client = cluster.admin();
    prepare(&cluster).await;
    let case = shared.join("golden/real-isp-full");
    let recorded = |file: &str| -> Vec<Value> {
        serde_json::from_slice(&std::fs::read(case.join("output/01-all").join(file)).unwrap()).unwrap()
    };
    for (plural, file) in [("packagesources", "packagesources.json"), ("packages", "packages.json")] {
        for object in recorded(file) {
            let name = object["metadata"]["name"].as_str().unwrap();
            let metadata = json!({
                "labels": object["metadata"].get("labels").cloned().unwrap_or(json!({})),
                "annotations": object["metadata"].get("annotations").cloned().unwrap_or(json!({})),
            });
            put(&client, plural, "", name, json!({ "metadata": metadata, "spec": object["spec"] })).await;
        }
    }
    let operator = Operator::start(client.clone());
    operator.ready().await;
    let wanted = recorded("helmreleases.json");
    eventually("all HelmReleases", || async { list(&client, "helmreleases").await.len() == wanted.len() })
        .await;
    let writes = operator.quiet().await;
    eprintln!("{writes} writes for {} HelmReleases", wanted.len());

    let key = |object: &Value| {
        let text =
            |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        (text("/metadata/namespace"), text("/metadata/name"))
    };
    let found: BTreeMap<_, _> =
        list(&client, "helmreleases").await.into_iter().map(|o| (key(&o), o)).collect();
    for object in &wanted {
        let found = &found[&key(object)];
        assert!(cozy_yaml::canonical_eq(&found["spec"], &object["spec"]), "{:?}", key(object));
        assert_eq!(found["metadata"]["labels"], object["metadata"]["labels"]);
        assert_eq!(found["metadata"].get("annotations"), object["metadata"].get("annotations"));
        let managers: Vec<_> = found["metadata"]["managedFields"]
            .as_array()
            .unwrap()
            .iter()
            .map(|m| (m["manager"].as_str().unwrap(), m["operation"].as_str().unwrap()))
            .collect();
        assert_eq!(managers, [("cozystack-operator", "Update")]);
    }
    let generators: BTreeMap<_, _> =
        list(&client, "artifactgenerators").await.into_iter().map(|o| (key(&o), o)).collect();
    for object in recorded("artifactgenerators.json") {
        assert_eq!(generators[&key(&object)]["spec"], object["spec"]);
    }
    for object in recorded("namespaces.json") {
        let Some(found) = read(&client, "namespaces", "", object["metadata"]["name"].as_str().unwrap()).await
        else {
            continue;
        };
        if found["metadata"]["name"] != "cozy-system"
            || found["metadata"]["labels"].get("cozystack.io/system").is_some()
        {
            assert_eq!(
                found["metadata"]["labels"], object["metadata"]["labels"],
                "{}",
                found["metadata"]["name"]
            );
        }
    }
    for object in recorded("packages.json") {
        let name = object["metadata"]["name"].as_str().unwrap();
        let (status, reason, message) = condition(&client, "packages", name, "Ready").await.unwrap();
        let recorded =
            object["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Ready");
        let recorded = recorded.unwrap();
        assert_eq!(
            (json!(status), json!(reason), json!(message)),
            (recorded["status"].clone(), recorded["reason"].clone(), recorded["message"].clone()),
            "{name}"
        );
    }
    operator.stop().await;

    let operator = Operator::start(client.clone());
    operator.ready().await;
    operator.writes_nothing("a restart has to write nothing").await;
    // The HelmReleases' status is helm-controller's; it wakes nobody.
    let (namespace, name) = key(&wanted[0]);
    let status = json!({ "status": { "observedGeneration": 1 } });
    api(&client, "helmreleases", &namespace)
        .patch_status(&name, &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
    operator.writes_nothing("a HelmRelease's status has to cost nothing").await;
    operator.stop().await;
}

/// From a PackageValues to the HelmRelease and back, watched all the time.
#[tokio::test(flavor = "multi_thread")]
async fn overrides_are_in_force_from_the_first_generation_to_their_end() {
    let cluster = cluster().await;
    let client = cluster.admin();
    prepare(&cluster).await;
    put(&client, "packagesources", "", "p", source(json!([component("x", "ns-p"), component("y", "ns-p")])))
        .await;
    put(
        &client,
        "packagevalues",
        "",
        "p",
        json!({ "spec": { "components": { "x": { "values": { "a": { "over": 1 } } }, "z": { "values": {} } } } }),
    )
    .await;
    let operator = Operator::start(client.clone());
    operator.ready().await;
    wait_reason(&client, "packagevalues", "p", "PackageNotFound").await;

    put(
        &client,
        "packages",
        "",
        "p",
        json!({ "spec": { "components": { "x": { "values": { "a": { "base": 1 }, "l": [1, 2] } } } } }),
    )
    .await;
    wait_reason(&client, "packages", "p", "ReconciliationSucceeded").await;
    let message = wait_reason(&client, "packagevalues", "p", "Merged").await;
    assert!(message.contains('z'), "{message}");
    let release = read(&client, "helmreleases", "ns-p", "x").await.unwrap();
    assert_eq!(release["metadata"]["generation"], 1, "the first generation has the override already");
    assert_eq!(release["spec"]["values"], json!({ "a": { "base": 1, "over": 1 }, "l": [1, 2] }));
    assert_eq!(release["metadata"]["annotations"]["gitops.cozystack.io/values-from"], "p@1");
    let other = read(&client, "helmreleases", "ns-p", "y").await.unwrap();
    assert_eq!(other["spec"].get("values"), None);
    assert_eq!(other["metadata"].get("annotations"), None);
    let package = read(&client, "packages", "", "p").await.unwrap();
    assert_eq!(package["status"]["overrides"]["x"]["pointers"], json!(["/a/over"]));
    assert_eq!(
        package["status"]["effectiveValues"]["x"]["digest"],
        json!(cozy_yaml::digest(&release["spec"]["values"]))
    );
    assert_eq!(package["status"]["overrideSummary"], "x:/a/over");
    let values = read(&client, "packagevalues", "", "p").await.unwrap();
    assert_eq!(values["status"]["components"]["x"]["state"], "Applied");
    assert_eq!(values["status"]["components"]["z"]["state"], "UnknownComponent");

    // From here on every generation of the HelmRelease is looked at.
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let watched = api(&client, "helmreleases", "ns-p");
    let watch = tokio::spawn(async move {
        let mut events = std::pin::pin!(watcher::watcher(watched, watcher::Config::default()));
        let mut seen = 0;
        loop {
            tokio::select! {
                _ = &mut stopped => return seen,
                event = events.next() => if let Some(Ok(Event::Apply(object) | Event::InitApply(object))) = event
                    && object.metadata.name.as_deref() == Some("x")
                {
                    seen += 1;
                    assert!(object.data["spec"]["values"]["a"].get("over").is_some(), "{}", object.data);
                }
            }
        }
    });
    // The platform begins to set the field that is overridden.
    put(
        &client,
        "packages",
        "",
        "p",
        json!({ "spec": { "components": { "x": { "values": { "a": { "over": 9, "base": 2 } } } } } }),
    )
    .await;
    eventually("shadowing", || async {
        let package = read(&client, "packages", "", "p").await.unwrap();
        package["status"]["overrides"]["x"]["shadowing"] == json!(["/a/over"])
    })
    .await;
    // A user's edit is undone; suspend, foreign labels and annotations stay.
    patch(
        &client,
        "helmreleases",
        "ns-p",
        "x",
        json!({ "metadata": { "labels": { "mine": "1" } }, "spec": { "suspend": true, "values": { "a": { "over": 7 } } } }),
    )
    .await;
    eventually("the edit is undone", || async {
        let release = read(&client, "helmreleases", "ns-p", "x").await.unwrap();
        release["spec"]["values"] == json!({ "a": { "base": 2, "over": 1 } })
    })
    .await;
    let release = read(&client, "helmreleases", "ns-p", "x").await.unwrap();
    assert_eq!(release["spec"]["suspend"], true);
    assert_eq!(release["metadata"]["labels"]["mine"], "1");
    // A list rule that does not fit: the last good values stay.
    let broken = json!({ "spec": { "components": { "x": {
        "values": { "a": { "over": 3 }, "l": "no list" }, "lists": [{ "path": "/l", "type": "Append" }],
    } } } });
    put(&client, "packagevalues", "", "p", broken).await;
    wait_reason(&client, "packagevalues", "p", "InvalidList").await;
    let release = read(&client, "helmreleases", "ns-p", "x").await.unwrap();
    assert_eq!(release["spec"]["values"], json!({ "a": { "base": 2, "over": 1 } }));
    assert_eq!(release["metadata"]["annotations"]["gitops.cozystack.io/values-from"], "p@1");
    let package = read(&client, "packages", "", "p").await.unwrap();
    assert_eq!(
        package["status"]["effectiveValues"]["x"]["digest"],
        json!(cozy_yaml::digest(&release["spec"]["values"]))
    );
    // Also over a restart.
    operator.quiet().await;
    operator.stop().await;
    let operator = Operator::start(client.clone());
    operator.ready().await;
    operator.writes_nothing("a restart has to write nothing").await;
    // Two changes in a row, then the end.
    for over in [4, 5] {
        put(
            &client,
            "packagevalues",
            "",
            "p",
            json!({ "spec": { "components": { "x": { "values": { "a": { "over": over } } } } } }),
        )
        .await;
    }
    eventually("the second change", || async {
        let release = read(&client, "helmreleases", "ns-p", "x").await.unwrap();
        release["spec"]["values"] == json!({ "a": { "base": 2, "over": 5 } })
    })
    .await;
    stop.send(()).unwrap();
    assert!(tokio::time::timeout(LONG, watch).await.unwrap().unwrap() >= 4);

    patch(&client, "packagevalues", "", "p", json!({ "spec": { "suspend": true } })).await;
    wait_reason(&client, "packagevalues", "p", "Suspended").await;
    let release = read(&client, "helmreleases", "ns-p", "x").await.unwrap();
    assert_eq!(release["spec"]["values"], json!({ "a": { "base": 2, "over": 9 } }));
    assert_eq!(release["metadata"].get("annotations"), None);
    patch(&client, "packagevalues", "", "p", json!({ "spec": { "suspend": false } })).await;
    wait_reason(&client, "packagevalues", "p", "Merged").await;
    delete(&client, "packagevalues", "", "p").await;
    eventually("nothing is told of overrides", || async {
        let package = read(&client, "packages", "", "p").await.unwrap();
        package["status"].get("overrides").is_none() && package["status"].get("effectiveValues").is_none()
    })
    .await;
    let release = read(&client, "helmreleases", "ns-p", "x").await.unwrap();
    assert_eq!(release["spec"]["values"], json!({ "a": { "base": 2, "over": 9 } }));
    operator.stop().await;
}

/// What the Go operator does badly, one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_broken_is_told_and_stops_nobody() {
    let cluster = cluster().await;
    let client = cluster.admin();
    prepare(&cluster).await;
    let operator = Operator::start(client.clone());
    operator.ready().await;

    // Two Packages want one HelmRelease: the older has it, the newer is told, nobody loops.
    for name in ["c.old", "c.new"] {
        put(
            &client,
            "packagesources",
            "",
            name,
            source(json!([component("x", "ns-c"), component(name, "ns-c")])),
        )
        .await;
    }
    put(&client, "packages", "", "c.old", json!({ "spec": {} })).await;
    wait_reason(&client, "packages", "c.old", "ReconciliationSucceeded").await;
    // Ages are whole seconds.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    put(&client, "packages", "", "c.new", json!({ "spec": {} })).await;
    let message = wait_reason(&client, "packages", "c.new", "ReleaseConflict").await;
    assert!(message.contains("c.old"), "{message}");
    let label = |release: &Value| release["metadata"]["labels"]["cozystack.io/package"].clone();
    assert_eq!(label(&read(&client, "helmreleases", "ns-c", "x").await.unwrap()), "c.old");
    assert_eq!(label(&read(&client, "helmreleases", "ns-c", "c.new").await.unwrap()), "c.new");
    delete(&client, "packages", "", "c.old").await;
    wait_reason(&client, "packages", "c.new", "ReconciliationSucceeded").await;
    eventually("the newer one takes over", || async {
        read(&client, "helmreleases", "ns-c", "x").await.is_some_and(|release| label(&release) == "c.new")
    })
    .await;

    // Two components of one Package want one HelmRelease; a component without namespace: siblings go on.
    let twice = json!([
        { "name": "a", "path": "system/a", "install": { "namespace": "ns-t", "releaseName": "r" } },
        { "name": "b", "path": "system/b", "install": { "namespace": "ns-t", "releaseName": "r" } },
        { "name": "nowhere", "path": "system/n", "install": {} },
        component("fine", "ns-t"),
    ]);
    put(&client, "packagesources", "", "t", source(twice)).await;
    put(&client, "packages", "", "t", json!({ "spec": {} })).await;
    wait_reason(&client, "packages", "t", "ReleaseConflict").await;
    assert!(read(&client, "helmreleases", "ns-t", "fine").await.is_some());
    let release = read(&client, "helmreleases", "ns-t", "r").await.unwrap();
    assert_eq!(release["spec"]["chartRef"]["name"], "t-default-a");
    // Disabling what is broken helps.
    put(
        &client,
        "packages",
        "",
        "t",
        json!({ "spec": { "components": { "b": { "enabled": false }, "nowhere": { "enabled": false } } } }),
    )
    .await;
    wait_reason(&client, "packages", "t", "ReconciliationSucceeded").await;

    // An object that the schema lets through and our types do not take.
    put(&client, "packagesources", "", "odd", json!({ "spec": { "variants": [{ "name": "default" }] } }))
        .await;
    put(&client, "packages", "", "after", json!({ "spec": {} })).await;
    wait_reason(&client, "packages", "after", "PackageSourceNotFound").await;

    // Members of a cycle say so; one that is ignored breaks it.
    for (name, on) in [("cy.a", "cy.b"), ("cy.b", "cy.a")] {
        let mut source = source(json!([component(name, "ns-cy")]));
        source["spec"]["variants"][0]["dependsOn"] = json!([on]);
        put(&client, "packagesources", "", name, source).await;
        put(&client, "packages", "", name, json!({ "spec": {} })).await;
    }
    for name in ["cy.a", "cy.b"] {
        wait_reason(&client, "packages", name, "DependenciesNotReady").await;
        eventually("the cycle is told", || async {
            condition(&client, "packages", name, "Stalled").await.is_some_and(|(status, reason, message)| {
                status == "True" && reason == "DependencyCycle" && message.contains("cy.a -> cy.b")
                    || message.contains("cy.b -> cy.a")
            })
        })
        .await;
    }
    assert!(read(&client, "helmreleases", "ns-cy", "cy.a").await.is_none());
    put(&client, "packages", "", "cy.a", json!({ "spec": { "ignoreDependencies": ["cy.b"] } })).await;
    wait_reason(&client, "packages", "cy.a", "ReconciliationSucceeded").await;
    wait_reason(&client, "packages", "cy.b", "ReconciliationSucceeded").await;
    assert_eq!(condition(&client, "packages", "cy.b", "Stalled").await, None);

    // A dependency that was ready and is not any more freezes no update, and what depended on it keeps its order.
    let before = read(&client, "helmreleases", "ns-cy", "cy.b").await.unwrap();
    delete(&client, "packages", "", "cy.a").await;
    wait_reason(&client, "packages", "cy.b", "DependenciesNotReady").await;
    put(
        &client,
        "packages",
        "",
        "cy.b",
        json!({ "spec": { "components": { "cy.b": { "values": { "new": 1 } } } } }),
    )
    .await;
    eventually("the update goes on", || async {
        read(&client, "helmreleases", "ns-cy", "cy.b").await.unwrap()["spec"]["values"] == json!({ "new": 1 })
    })
    .await;
    let after = read(&client, "helmreleases", "ns-cy", "cy.b").await.unwrap();
    assert_eq!(after["spec"]["dependsOn"], before["spec"]["dependsOn"]);

    // No polling while nobody builds artifacts: nothing is written any more.
    let writes = operator.quiet().await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(operator.writes(None).await, writes);
    operator.stop().await;
}

/// What goes is cleaned up when it is provably ours, and only then.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_stale_goes_and_what_is_not_ours_stays() {
    let cluster = cluster().await;
    let client = cluster.admin();
    prepare(&cluster).await;
    let operator = Operator::start(client.clone());
    operator.ready().await;

    // Privileged: label on the namespace and on the HelmRelease; both go with the reason for them.
    let mut privileged = component("x", "ns-v");
    privileged["install"]["privileged"] = json!(true);
    privileged["valuesFiles"] = json!(["values.yaml"]);
    put(&client, "packagesources", "", "v", source(json!([privileged, component("y", "ns-v")]))).await;
    put(&client, "packages", "", "v", json!({ "spec": {} })).await;
    wait_reason(&client, "packages", "v", "ReconciliationSucceeded").await;
    let enforce = |namespace: &Value| {
        namespace["metadata"]["labels"].get("pod-security.kubernetes.io/enforce").cloned()
    };
    let namespace = read(&client, "namespaces", "", "ns-v").await.unwrap();
    assert_eq!(enforce(&namespace), Some(json!("privileged")));
    put(&client, "packagesources", "", "v", source(json!([component("x", "ns-v"), component("y", "ns-v")])))
        .await;
    eventually("the marks go", || async {
        let namespace = read(&client, "namespaces", "", "ns-v").await.unwrap();
        let release = read(&client, "helmreleases", "ns-v", "x").await.unwrap();
        enforce(&namespace).is_none()
            && release["metadata"]["labels"].get("cozystack.io/privileged").is_none()
            && release["metadata"].get("annotations").is_none()
    })
    .await;

    // A component that is disabled loses its HelmRelease; one that merely carries the label is not ours.
    put(
        &client,
        "helmreleases",
        "ns-v",
        "foreign",
        json!({ "metadata": { "labels": { "cozystack.io/package": "v" } }, "spec": { "interval": "5m", "chartRef": { "kind": "ExternalArtifact", "name": "x" } } }),
    )
    .await;
    put(&client, "packages", "", "v", json!({ "spec": { "components": { "y": { "enabled": false } } } }))
        .await;
    eventually("y goes", || async { read(&client, "helmreleases", "ns-v", "y").await.is_none() }).await;
    assert!(read(&client, "helmreleases", "ns-v", "foreign").await.is_some());

    // Another controller's HelmRelease is not taken over.
    put(&client, "namespaces", "", "ns-o", json!({})).await;
    // The owner is there, or the garbage collector takes the HelmRelease away.
    let owner = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "else", "namespace": "ns-o" } });
    let owner = cluster.apply_value(owner).await.unwrap().metadata.uid;
    put(
        &client,
        "helmreleases",
        "ns-o",
        "x",
        json!({
            "metadata": { "ownerReferences": [{ "apiVersion": "v1", "kind": "ConfigMap", "name": "else", "uid": owner, "controller": true }] },
            "spec": { "interval": "5m", "chartRef": { "kind": "ExternalArtifact", "name": "x" } },
        }),
    )
    .await;
    put(&client, "packagesources", "", "o", source(json!([component("x", "ns-o")]))).await;
    put(&client, "packages", "", "o", json!({ "spec": {} })).await;
    let message = wait_reason(&client, "packages", "o", "HelmReleaseFailed").await;
    assert!(message.contains("ConfigMap else"), "{message}");

    // Nothing to build: the ArtifactGenerator goes.
    assert!(read(&client, "artifactgenerators", "cozy-system", "v").await.is_some());
    let mut empty = source(json!([]));
    empty["spec"]["variants"] = json!([{ "name": "default" }]);
    put(&client, "packagesources", "", "empty", source(json!([component("x", "ns-e")]))).await;
    eventually("it is made", || async {
        read(&client, "artifactgenerators", "cozy-system", "empty").await.is_some()
    })
    .await;
    put(&client, "packagesources", "", "empty", empty).await;
    eventually("it goes", || async {
        read(&client, "artifactgenerators", "cozy-system", "empty").await.is_none()
    })
    .await;
    wait_reason(&client, "packagesources", "empty", "ArtifactGeneratorNotFound").await;

    // Someone else has a field of the ArtifactGenerator: told, not fought over.
    put(&client, "packagesources", "", "fought", source(json!([component("x", "ns-f")]))).await;
    eventually("it is made", || async {
        read(&client, "artifactgenerators", "cozy-system", "fought").await.is_some()
    })
    .await;
    patch(
        &client,
        "artifactgenerators",
        "cozy-system",
        "fought",
        json!({ "spec": { "sources": [{ "alias": "src", "kind": "OCIRepository", "name": "theirs", "namespace": "cozy-system" }] } }),
    )
    .await;
    let message = wait_reason(&client, "packagesources", "fought", "ArtifactGeneratorConflict").await;
    assert!(message.contains("someone"), "{message}");

    // The values Secret: copied, restored, and gone with the label.
    put(
        &client,
        "secrets",
        "cozy-system",
        "cozystack-values",
        json!({ "type": "Opaque", "data": { "values.yaml": "YTogMQ==" } }),
    )
    .await;
    eventually("copied", || async { read(&client, "secrets", "ns-v", "cozystack-values").await.is_some() })
        .await;
    patch(&client, "secrets", "ns-v", "cozystack-values", json!({ "data": { "values.yaml": "Yg==" } })).await;
    eventually("restored", || async {
        read(&client, "secrets", "ns-v", "cozystack-values").await.unwrap()["data"]["values.yaml"]
            == "YTogMQ=="
    })
    .await;
    put(
        &client,
        "namespaces",
        "",
        "other",
        json!({ "metadata": { "labels": { "cozystack.io/system": "true" } } }),
    )
    .await;
    eventually("copied", || async { read(&client, "secrets", "other", "cozystack-values").await.is_some() })
        .await;
    patch(
        &client,
        "namespaces",
        "",
        "other",
        json!({ "metadata": { "labels": { "cozystack.io/system": null } } }),
    )
    .await;
    eventually("gone with the label", || async {
        read(&client, "secrets", "other", "cozystack-values").await.is_none()
    })
    .await;
    put(&client, "secrets", "other", "cozystack-values", json!({ "type": "Opaque" })).await;

    // A Package that is deleted with its dependents orphaned leaves them; one that waits for a finalizer makes nothing.
    patch(&client, "packages", "", "v", json!({ "metadata": { "finalizers": ["example.org/wait"] } })).await;
    delete(&client, "packages", "", "v").await;
    delete(&client, "helmreleases", "ns-v", "x").await;
    operator.quiet().await;
    assert!(read(&client, "helmreleases", "ns-v", "x").await.is_none());
    patch(&client, "packages", "", "v", json!({ "metadata": { "finalizers": null } })).await;
    eventually("v is gone", || async { read(&client, "packages", "", "v").await.is_none() }).await;
    put(&client, "packagesources", "", "orphan", source(json!([component("x", "ns-or")]))).await;
    put(&client, "packages", "", "orphan", json!({ "spec": {} })).await;
    wait_reason(&client, "packages", "orphan", "ReconciliationSucceeded").await;
    let orphan =
        DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    api(&client, "packages", "").delete("orphan", &orphan).await.unwrap();
    eventually("the Package is gone", || async { read(&client, "packages", "", "orphan").await.is_none() })
        .await;
    operator.quiet().await;
    let release = read(&client, "helmreleases", "ns-or", "x").await.unwrap();
    assert_eq!(release["metadata"].get("ownerReferences"), None);
    assert_eq!(release["metadata"].get("deletionTimestamp"), None);

    assert!(
        read(&client, "secrets", "other", "cozystack-values").await.is_some(),
        "a user's own Secret stays"
    );
    operator.stop().await;
}

/// Two replicas: one leads, the other waits and takes over. Both are ready, so that a rolling update can end.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_replicas_one_leads() {
    let cluster = cluster().await;
    let client = cluster.admin();
    prepare(&cluster).await;
    let config =
        |identity: &str| Config { leader_elect: true, identity: identity.to_owned(), ..Config::default() };
    let first = Operator::with(client.clone(), config("first"));
    first.ready().await;
    let second = Operator::with(client.clone(), config("second"));
    eventually("healthz", || async { get(second.health, "/healthz").await.is_some() }).await;
    second.ready().await;
    let metrics = get(second.metrics, "/metrics").await.unwrap().1;
    assert!(metrics.contains("cozy_gitops_leader 0"), "{metrics}");
    put(&client, "packagesources", "", "p", source(json!([component("x", "ns-l")]))).await;
    put(&client, "packages", "", "p", json!({ "spec": {} })).await;
    wait_reason(&client, "packages", "p", "ReconciliationSucceeded").await;
    assert_eq!(second.writes(None).await, 0);
    first.stop().await;
    eventually("the second one leads", || async {
        let lease = read(&client, "leases", "cozy-system", "cozystack-operator.cozystack.io").await.unwrap();
        lease["spec"]["holderIdentity"] == "second"
    })
    .await;
    put(&client, "packages", "", "p", json!({ "spec": { "components": { "x": { "values": { "a": 1 } } } } }))
        .await;
    eventually("the second one works", || async {
        read(&client, "helmreleases", "ns-l", "x").await.unwrap()["spec"].get("values").is_some()
    })
    .await;
    // Someone takes the lease away: the former leader ends, and writes no more.
    patch(
        &client,
        "leases",
        "cozy-system",
        "cozystack-operator.cozystack.io",
        json!({ "spec": { "holderIdentity": "thief", "renewTime": "2999-01-01T00:00:00.000000Z" } }),
    )
    .await;
    let outcome = tokio::time::timeout(LONG, second.outcome()).await.unwrap();
    assert!(matches!(outcome, Err(cozy_operator::Error::LeaseLost(_))), "{outcome:?}");
}
