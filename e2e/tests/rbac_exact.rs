//! The chart's rights are what the operator uses, verb by verb: a run that uses everything, and the audit log of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod operator_support;

use std::collections::BTreeSet;
use std::path::Path;

use cozy_e2e::rbac::{differences, granted, used};
use cozy_operator::{Beside, Config, PlatformSource};
use cozy_server::{Certificates, Own, Rotation, Server};
use cozy_testenv::{Cluster, SourceWatcher, free_ports};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use operator_support::{
    account, api, chart, component, delete, eventually, get, list, patch, put, read, refused, source,
    wait_reason,
};

const ACCOUNT: &str = operator_support::ACCOUNT;
const VALUES: &str =
    "operator.enabled=true,operator.mode=operator,operator.platformSource.url=oci://example.org/packages";

fn rules(object: &Value) -> Vec<PolicyRule> {
    serde_json::from_value(object["rules"].clone()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_rights_are_those_that_it_uses() {
    let cluster = Cluster::start().await.unwrap();
    cluster.install_crds().await.unwrap();
    let mut grants = BTreeSet::new();
    for object in chart(VALUES) {
        let kind = object["kind"].as_str().unwrap_or_default();
        let of_the_operator = object["metadata"]["name"] == ACCOUNT;
        match kind {
            "ClusterRole" if of_the_operator => grants.extend(granted(&rules(&object), "")),
            "Role" if of_the_operator => grants.extend(granted(&rules(&object), "cozy-system")),
            _ => {}
        }
    }
    assert!(grants.len() > 20, "{grants:?}");

    // With the rights of the chart alone; the CRDs are there to be applied, one of them is not.
    delete_crd(&cluster).await;
    let client = account(&cluster, VALUES).await;
    let [health, metrics] = free_ports().unwrap();
    let config = Config {
        install_crds: true,
        leader_elect: true,
        platform_source: Some(PlatformSource {
            url: "oci://example.org/packages".to_owned(),
            reference: String::new(),
            secret: None,
        }),
        health_probe_bind_address: format!("127.0.0.1:{health}"),
        metrics_bind_address: format!("127.0.0.1:{metrics}"),
        ..Config::default()
    };
    let webhook = cozy_server::Config {
        bind: ([127, 0, 0, 1], 0).into(),
        certificates: Certificates::Own(Own {
            namespace: "cozy-system".to_owned(),
            service: "cozy-gitops".to_owned(),
            secret: "cozy-gitops-webhook".to_owned(),
            rotation: Rotation { serving: std::time::Duration::from_secs(6), ..Rotation::default() },
        }),
    };
    let mut beside = Beside::default();
    let server = Server::bind(webhook, &mut beside.metrics).await.unwrap();
    beside.ready.push(server.ready());
    let answering = tokio::spawn(server.run(client.clone(), std::future::pending()));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let first = cozy_operator::run_beside(config.clone(), client.clone(), beside, async {
        let _ = stopped.await;
    });
    let first = tokio::spawn(first);
    eventually("readyz", || async { get(health, "/readyz").await.is_some_and(|(code, _)| code == 200) })
        .await;

    // Whatever is not done in the end is due to a right that is missing, most often.
    let outcome = tokio::time::timeout(operator_support::LONG / 2, exercise(&cluster)).await;
    let user = format!("system:serviceaccount:cozy-system:{ACCOUNT}");
    assert!(outcome.is_ok(), "{:#?}", refused(&cluster, ACCOUNT));

    // What was changed by hand is put back at the next start.
    let _ = stop.send(());
    first.await.unwrap().unwrap();
    let theirs = json!({ "spec": { "url": "oci://example.org/theirs" } });
    let edit = ["patch", "ocirepository", "cozystack-platform", "-n", "cozy-system", "--type=merge", "-p"];
    cluster.kubectl(&[&edit[..], &[&theirs.to_string()]].concat()).await.unwrap();
    let reconciling = tokio::spawn(cozy_operator::run_with(config, client, std::future::pending()));

    // Every grant is used in the end, or the run shows which is not.
    let deadline = std::time::Instant::now() + operator_support::LONG;
    loop {
        let differences = differences(&grants, &used(&cluster.audit_log().unwrap(), &user));
        if differences.is_empty() {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{}", differences.join("\n"));
        assert!(!answering.is_finished() && !reconciling.is_finished());
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    assert_eq!(refused(&cluster, ACCOUNT), Vec::<String>::new());
    answering.abort();
    reconciling.abort();
}

async fn delete_crd(cluster: &Cluster) {
    cluster.kubectl(&["delete", "crd", "packagevalues.cozystack.io", "--wait=true"]).await.unwrap();
}

/// Something of everything that the operator does.
async fn exercise(cluster: &Cluster) {
    let client = cluster.admin();
    let charts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/charts/packages");
    let watcher = SourceWatcher::start(cluster, &charts).await.unwrap();

    // A release that is made, changed, overridden from git and no longer wanted.
    let storage = || component("storage", "ns-a");
    put(&client, "packagesources", "", "r", source(json!([storage(), component("images", "ns-a")]))).await;
    put(&client, "packages", "", "r", json!({ "spec": {} })).await;
    wait_reason(&client, "packages", "r", "ReconciliationSucceeded").await;
    let labels = json!({
        "kustomize.toolkit.fluxcd.io/name": "customizer", "kustomize.toolkit.fluxcd.io/namespace": "cozy-system",
    });
    let values = json!({
        "metadata": { "labels": labels },
        "spec": { "components": { "storage": { "values": { "replicas": 5 } } } },
    });
    put(&client, "packagevalues", "", "r", values).await;
    wait_reason(&client, "packagevalues", "r", "Merged").await;
    put(
        &client,
        "packages",
        "",
        "r",
        json!({ "spec": { "components": { "images": { "enabled": false } } } }),
    )
    .await;
    eventually("a release goes", || async {
        read(&client, "helmreleases", "ns-a", "images").await.is_none()
    })
    .await;

    // The same condition comes and goes, which is one Event counted up.
    for variant in ["none", "default", "none"] {
        put(&client, "packages", "", "r", json!({ "spec": { "variant": variant } })).await;
        let reason = if variant == "none" { "VariantNotFound" } else { "ReconciliationSucceeded" };
        wait_reason(&client, "packages", "r", reason).await;
    }

    // Copies of the platform's values: made, put back, removed.
    let secret = |value: &str| json!({ "type": "Opaque", "data": { "values.yaml": value } });
    put(&client, "secrets", "cozy-system", "cozystack-values", secret("YTogMQ==")).await;
    eventually("a copy", || async { read(&client, "secrets", "ns-a", "cozystack-values").await.is_some() })
        .await;
    put(&client, "secrets", "cozy-system", "cozystack-values", secret("YTogMg==")).await;
    eventually("it follows", || async {
        let copy = read(&client, "secrets", "ns-a", "cozystack-values").await.unwrap();
        copy["data"]["values.yaml"] == "YTogMg=="
    })
    .await;
    delete(&client, "secrets", "cozy-system", "cozystack-values").await;
    eventually("it goes", || async { read(&client, "secrets", "ns-a", "cozystack-values").await.is_none() })
        .await;

    // An ArtifactGenerator that source-watcher lost, and one that nothing is built from any more.
    put(&client, "packagesources", "", "lost", source(json!([component("ingress", "ns-b")]))).await;
    wait_reason(&client, "packagesources", "lost", "Succeeded").await;
    drop(watcher);
    let generators = api(&client, "artifactgenerators", "cozy-system");
    let generator = read(&client, "artifactgenerators", "cozy-system", "lost").await.unwrap();
    let lost = json!({ "status": {
        "observedSourcesDigest": "sha256:0",
        "inventory": [{ "name": "a", "namespace": "cozy-system", "digest": "sha256:0", "filename": "0.tar.gz" }],
        "conditions": [{
            "type": "Ready", "status": "Unknown", "reason": "Progressing", "message": "",
            "observedGeneration": generator["metadata"]["generation"],
            "lastTransitionTime": "2020-01-01T00:00:00Z",
        }],
    } });
    generators.patch_status("lost", &PatchParams::default(), &Patch::Merge(lost)).await.unwrap();
    wait_reason(&client, "packagesources", "lost", "AwaitingSourceWatcherRecovery").await;
    let mut empty = source(json!([]));
    empty["spec"]["variants"] = json!([{ "name": "default" }]);
    put(&client, "packagesources", "", "lost", empty).await;
    eventually("nothing is built from it", || async {
        read(&client, "artifactgenerators", "cozy-system", "lost").await.is_none()
    })
    .await;

    // Two webhook configurations that lead to the operator.
    for (kind, name) in [
        ("MutatingWebhookConfiguration", "cozy-gitops-tenant"),
        ("ValidatingWebhookConfiguration", "cozystack-customizer-package-fields"),
    ] {
        cluster
            .apply_value(json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
                "metadata": { "name": name, "labels": { "gitops.cozystack.io/webhook": "cozy-gitops" } },
                "webhooks": [{
                    "name": "a.gitops.cozystack.io", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                    "rules": [{
                        "apiGroups": ["example.org"], "apiVersions": ["*"], "operations": ["CREATE"],
                        "resources": ["nothing"],
                    }],
                    "clientConfig": { "service": { "namespace": "cozy-system", "name": "cozy-gitops" } },
                }],
            }))
            .await
            .unwrap();
    }
    assert!(!list(&client, "leases").await.is_empty());
    patch(&client, "packages", "", "r", json!({ "spec": { "variant": "default" } })).await;
}
