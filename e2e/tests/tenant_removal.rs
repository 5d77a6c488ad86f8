//! Namespaces, instances and parts of the surface deleted in every order: nothing hangs, nothing is left.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod product;
mod surface;

use std::time::{Duration, Instant};

use cozy_testenv::{GitServer, Kubelet, eventually};
use serde_json::json;

use product::{Product, Stage, source, tenants};
use surface::Surface;

/// The contract's.
const SOON: Duration = Duration::from_secs(60);

fn redis(name: &str) -> String {
    format!("apiVersion: apps.cozystack.io/v1alpha1\nkind: Redis\nmetadata: {{name: {name}}}\nspec: {{}}\n")
}

/// A tenant with two sources, one of each deletion policy, both applied.
async fn tenant(stage: &Stage, namespace: &str, url: &str) {
    stage.surface.cluster().create_namespace(namespace, &[]).await.unwrap();
    for (name, policy) in [("kept", "Orphan"), ("deleted", "Delete")] {
        let of_kustomization = json!({ "deletionPolicy": policy, "path": name });
        source(&stage.surface.admin, namespace, name, url, [json!({}), of_kustomization]).await;
    }
    for name in ["kept", "deleted"] {
        stage.says(namespace, name, "True", "Applied").await;
    }
}

/// What is left of a tenant: its namespace, and what was made for it elsewhere.
async fn left(stage: &Stage, namespace: &str) -> String {
    let cluster = stage.surface.cluster();
    let kinds = "serviceaccounts,roles,rolebindings,resourcequotas,deployments,networkpolicies";
    let label = format!("gitops.cozystack.io/tenant={namespace}");
    let made =
        cluster.kubectl(&["get", kinds, "-A", "-l", &label, "--no-headers", "-o", "name"]).await.unwrap();
    let there =
        cluster.kubectl(&["get", "namespace", namespace, "-o", "jsonpath={.status.conditions}"]).await;
    format!("{made}{}", there.unwrap_or_default())
}

async fn delete(stage: &Stage, arguments: &[&str]) {
    stage.surface.cluster().kubectl(&[&["delete", "--wait=false"], arguments].concat()).await.unwrap();
}

/// Waits until the namespaces are gone; how long that took.
async fn gone(stage: &Stage, namespaces: &[&str], why: &str) {
    let begin = Instant::now();
    for namespace in namespaces {
        eventually(&format!("{namespace} to end: {why}"), async || {
            let there = stage.get("namespace", "default", namespace).await;
            anyhow::ensure!(there.is_none(), "{}", there.unwrap()["status"]);
            Ok(Some(()))
        })
        .await
        .unwrap();
    }
    eprintln!("{why}: {:?}", begin.elapsed());
    assert!(begin.elapsed() < SOON, "{why}: {:?}", begin.elapsed());
}

async fn nothing(stage: &Stage, namespaces: &[&str], why: &str) {
    for namespace in namespaces {
        eventually(&format!("nothing of {namespace} to be left: {why}"), async || {
            let left = left(stage, namespace).await;
            anyhow::ensure!(left.is_empty(), "{left}");
            Ok(Some(()))
        })
        .await
        .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_every_order_everything_goes() {
    let git = GitServer::start_plain().await.unwrap();
    let repository = git.repository("apps").await.unwrap();
    repository.push(&[("kept/a.yaml", &redis("a")), ("deleted/b.yaml", &redis("b"))]).await.unwrap();
    let mut stage = Stage::start(Surface::plain().await, &[]).await;
    let url = repository.url();

    // The namespaces alone, several at once; the operator runs.
    let some = ["tenant-a", "tenant-b", "tenant-c"];
    for namespace in some {
        tenant(&stage, namespace, url).await;
    }
    for namespace in some {
        delete(&stage, &["namespace", namespace]).await;
    }
    gone(&stage, &some, "namespace first").await;
    nothing(&stage, &some, "namespace first").await;

    // The sources and the account go at the same moment as the namespace; everything in one call.
    tenant(&stage, "tenant-d", url).await;
    delete(&stage, &["serviceaccount", "tenant-d-gitops", "-n", "tenant-d"]).await;
    delete(&stage, &["kustomizations,gitrepositories", "--all", "-n", "tenant-d"]).await;
    delete(&stage, &["namespace", "tenant-d"]).await;
    gone(&stage, &["tenant-d"], "account, sources, namespace").await;
    nothing(&stage, &["tenant-d"], "account, sources, namespace").await;

    // The operator is gone first. Its controllers are not, and their rights stay until they are done.
    let some = ["tenant-e", "tenant-f", "tenant-g", "tenant-h"];
    for namespace in some {
        tenant(&stage, namespace, url).await;
    }
    // Of one tenant the sources go, and come back to nothing when the operator does.
    tenant(&stage, "tenant-i", url).await;
    stage.product.take().unwrap().stop(stage.surface.cluster()).await;
    for namespace in some {
        delete(&stage, &["namespace", namespace]).await;
    }
    delete(&stage, &["kustomizations,gitrepositories", "--all", "-n", "tenant-i"]).await;
    gone(&stage, &some, "operator first").await;
    eventually("the sources to be gone without the operator", async || {
        let left = ["get", "kustomizations", "-n", "tenant-i", "-o", "name"];
        Ok(stage.surface.cluster().kubectl(&left).await?.is_empty().then_some(()))
    })
    .await
    .unwrap();
    assert!(stage.get("redis", "tenant-i", "a").await.is_some(), "Orphan keeps");
    assert!(stage.get("redis", "tenant-i", "b").await.is_none(), "Delete removes");
    stage.product = Some(Product::start(stage.surface.cluster(), tenants()).await);
    nothing(&stage, &some, "operator first").await;
    delete(&stage, &["namespace", "tenant-i"]).await;
    gone(&stage, &["tenant-i"], "sources first, then the operator").await;
    nothing(&stage, &["tenant-i"], "sources first, then the operator").await;

    // The controllers are gone first, and never come back: the operator lets go of what they hold.
    tenant(&stage, "tenant-j", url).await;
    let nobody = Kubelet::builder(stage.surface.cluster(), "default").start();
    drop(std::mem::replace(&mut stage.kubelet, nobody));
    delete(&stage, &["namespace", "tenant-j"]).await;
    gone(&stage, &["tenant-j"], "controller first").await;
    nothing(&stage, &["tenant-j"], "controller first").await;
    stage.stop().await;
}
