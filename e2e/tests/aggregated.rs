//! Git is authoritative on an API that keeps no managedFields and carries dry runs out, as Cozystack's does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod product;
mod surface;

use std::time::Duration;

use cozy_testenv::{AggregatedApi, GitServer, eventually};
use serde_json::{Value, json};

use product::{Stage, source};
use surface::{Surface, TENANT};

const BUCKETS: &str = "buckets.apps.cozystack.io";

fn bucket(users: &[&str]) -> String {
    let users: String = users.iter().map(|user| format!("    {user}: {{}}\n")).collect();
    let users = if users.is_empty() { String::new() } else { format!("  users:\n{users}") };
    format!(
        "apiVersion: apps.cozystack.io/v1alpha1\nkind: Bucket\nmetadata: {{name: b}}\nspec:\n  locking: true\n{users}"
    )
}

async fn users(stage: &Stage) -> Vec<String> {
    let bucket = stage.get(BUCKETS, TENANT, "b").await.unwrap_or_default();
    let mut users: Vec<String> =
        bucket["spec"]["users"].as_object().into_iter().flatten().map(|(user, _)| user.clone()).collect();
    users.sort();
    users
}

async fn has(stage: &Stage, wanted: &[&str]) {
    eventually(&format!("the users to be {wanted:?}"), async || {
        let users = users(stage).await;
        let told = stage.get("kustomization", TENANT, "apps").await.unwrap_or_default();
        anyhow::ensure!(users == wanted, "{users:?} {}", told["status"]["conditions"]);
        Ok(Some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_from_git_goes_from_the_application_and_what_others_add_too() {
    let surface = Surface::without_applications().await;
    let mut applications = AggregatedApi::start(surface.cluster()).await.unwrap();
    let git = GitServer::start_plain().await.unwrap();
    let repository = git.repository("apps").await.unwrap();
    repository.push(&[("b.yaml", &bucket(&["alice", "bob"]))]).await.unwrap();
    let stage = Stage::start(surface, &[]).await;
    let cluster = stage.surface.cluster();
    let tenant = stage.surface.user("tenant").await;
    source(&tenant, TENANT, "apps", repository.url(), [json!({}), json!({})]).await;
    has(&stage, &["alice", "bob"]).await;
    // The API is what the rule is for.
    let made = stage.get(BUCKETS, TENANT, "b").await.unwrap();
    let shown = cluster.kubectl(&["get", BUCKETS, "-n", TENANT, "b", "-o", "json", "--show-managed-fields"]);
    assert!(!shown.await.unwrap().contains("managedFields"));
    assert_eq!(made["spec"]["storagePool"], "", "defaults are filled in: {made}");
    assert_eq!(made["spec"]["locking"], true);

    // Removed in git.
    repository.push(&[("b.yaml", &bucket(&["bob"]))]).await.unwrap();
    has(&stage, &["bob"]).await;
    // Added in the dashboard: gone with the next reconciliation, unlike what is no field of the spec.
    let theirs = json!({
        "metadata": { "annotations": { "note": "kept" } },
        "spec": { "users": { "carol": {} }, "storagePool": "slow" },
    });
    cluster
        .kubectl(&["patch", BUCKETS, "b", "-n", TENANT, "--type=merge", "-p", &theirs.to_string()])
        .await
        .unwrap();
    has(&stage, &["bob"]).await;
    let object = stage.get(BUCKETS, TENANT, "b").await.unwrap();
    assert_eq!(object["spec"], json!({ "locking": true, "storagePool": "", "users": { "bob": {} } }));
    assert_eq!(object["metadata"]["annotations"]["note"], "kept");
    // Then nothing is written any more, though it is reconciled again and again.
    let version =
        || async { stage.get(BUCKETS, TENANT, "b").await.unwrap()["metadata"]["resourceVersion"].clone() };
    let before = version().await;
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(version().await, before);
    applications.process().check().unwrap();

    // Dry runs would be carried out, so they are refused, whoever asks: create, patch, delete.
    let redis = "apiVersion: apps.cozystack.io/v1alpha1\nkind: Redis\nmetadata: {name: dry, namespace: tenant-foo}\nspec: {}\n";
    let file = cluster.dir().join("dry.yaml");
    std::fs::write(&file, redis).unwrap();
    let file = file.display().to_string();
    for user in ["--as=tenant", "--as=admin"] {
        for arguments in [
            &["create", "-f", &file][..],
            &["apply", "--server-side", "-f", &file],
            &["delete", BUCKETS, "b", "-n", TENANT],
            &["patch", BUCKETS, "b", "-n", TENANT, "--type=merge", "-p", "{\"spec\":{\"locking\":false}}"],
        ] {
            let groups: &[&str] = if user == "--as=admin" { &["--as-group=system:masters"] } else { &[] };
            let all = [arguments, &["--dry-run=server", user], groups].concat();
            let refused = cluster.kubectl(&all).await.unwrap_err().to_string();
            assert!(refused.contains("[dry-run]"), "{user} {arguments:?}: {refused}");
        }
    }
    assert!(stage.get("redises.apps.cozystack.io", TENANT, "dry").await.is_none());
    assert_eq!(version().await, before);
    // A tenant's own writes by hand go on.
    cluster.kubectl(&["create", "-f", &file, "--as=tenant"]).await.unwrap();

    // Without the rule it is as it is without cozy-gitops: the field stays, and nobody is told.
    let off = ["admission.mutation=webhook", product::LOOPBACK, "admission.webhook.prune.enabled=false"];
    stage.surface.install(&off).await.unwrap();
    // Its own watch of the configuration is behind.
    tokio::time::sleep(Duration::from_secs(3)).await;
    repository
        .push(&[("b.yaml", &bucket(&[])), ("c.yaml", &bucket(&["dora"]).replace("name: b", "name: c"))])
        .await
        .unwrap();
    eventually("the commit to be applied", async || Ok(stage.get(BUCKETS, TENANT, "c").await)).await.unwrap();
    stage.says(TENANT, "apps", "True", "Applied").await;
    assert_eq!(users(&stage).await, ["bob"]);
    stage.stop().await;
}

/// Without the webhook nothing from git is changed by halves: an application waits, everything else goes on.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_webhook_an_application_from_git_waits_and_others_do_not() {
    let surface = Surface::without_applications().await;
    let _applications = AggregatedApi::start(surface.cluster()).await.unwrap();
    let git = GitServer::start_plain().await.unwrap();
    let repository = git.repository("apps").await.unwrap();
    repository.push(&[("b.yaml", &bucket(&["alice"]))]).await.unwrap();
    let mut stage = Stage::start(surface, &[]).await;
    let tenant = stage.surface.user("tenant").await;
    source(&tenant, TENANT, "apps", repository.url(), [json!({}), json!({})]).await;
    has(&stage, &["alice"]).await;
    let cluster = stage.surface.cluster();
    stage.product.take().unwrap().stop(stage.surface.cluster()).await;
    repository.push(&[("b.yaml", &bucket(&["alice", "bob"]))]).await.unwrap();
    eventually("the tenant to be told", async || {
        let told = cluster.kubectl(&["get", "kustomization", "-n", TENANT, "apps", "-o", "json"]).await?;
        let told: Value = serde_json::from_str(&told)?;
        Ok(told.to_string().contains("applications.gitops.cozystack.io").then_some(()))
    })
    .await
    .unwrap();
    // By hand, as the tenant: no webhook is asked.
    let by_hand = json!({ "spec": { "users": { "carol": {} } } }).to_string();
    let patch = ["patch", BUCKETS, "b", "-n", TENANT, "--type=merge", "-p", &by_hand, "--as=tenant"];
    cluster.kubectl(&patch).await.unwrap();
    // Back again, git has the last word.
    stage.product = Some(product::Product::start(cluster, product::tenants()).await);
    has(&stage, &["alice", "bob"]).await;
    stage.stop().await;
}
