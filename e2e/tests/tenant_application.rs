//! The catalog application `GitOps` as Cozystack installs it: by Helm, in a tenant's namespace, for tenants who may only
//! look at Flux's objects. From its values to applications, through upgrades, to its end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod product;
mod surface;

use cozy_testenv::{GitServer, eventually};
use kube::api::PostParams;
use serde_json::{Value, json};

use product::{Product, Stage};
use surface::{Surface, api, bare, git_repository, helm, kustomization, make, refusal, repository};

fn redis(name: &str) -> String {
    format!("apiVersion: apps.cozystack.io/v1alpha1\nkind: Redis\nmetadata: {{name: {name}}}\nspec: {{}}\n")
}

async fn has(stage: &Stage, namespace: &str, name: &str, wanted: bool) {
    eventually(&format!("redis {namespace}/{name} to be there: {wanted}"), async || {
        Ok((stage.get("redis", namespace, name).await.is_some() == wanted).then_some(()))
    })
    .await
    .unwrap();
}

/// What helm-controller does with the application, whose name is `gitops` and whose release has the prefix.
fn install(stage: &Stage, namespace: &str, sources: &Value) {
    let values = stage.surface.cluster().dir().join("values.json");
    std::fs::write(&values, json!({ "sources": sources }).to_string()).unwrap();
    let chart = repository("packages/apps/gitops").display().to_string();
    let values = values.display().to_string();
    let run =
        ["upgrade", "--install", "gitops-gitops", &chart, "--namespace", namespace, "--values", &values];
    let kubeconfig = stage.surface.kubeconfig();
    tokio::task::block_in_place(|| helm(Some(&kubeconfig), &run)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_of_the_application_becomes_applications_and_ends_as_it_says() {
    let git = GitServer::start_plain().await.unwrap();
    let apps = git.repository("apps").await.unwrap();
    apps.push(&[("production/a.yaml", &redis("a")), ("staging/b.yaml", &redis("b"))]).await.unwrap();
    let mut stage = Stage::start(Surface::plain().await, &["tenant.fluxAccess=view"]).await;

    // The longest names that a tenant and a source can have, and a neighbour whose name begins with the other's.
    let longest = format!("tenant-{}", "a".repeat(56));
    let beside = format!("tenant-{}", "a".repeat(55));
    assert_eq!(longest.len(), 63);
    let name = "s".repeat(63);
    for namespace in [&longest, &beside] {
        stage.surface.cluster().create_namespace(namespace, &[]).await.unwrap();
    }
    stage.surface.bind("owner", "super-admin", &longest).await;
    let source = |name: &str, path: &str, more: Value| {
        let mut source = json!({ "name": name, "url": apps.url(), "interval": "3s", "ref": { "branch": "main" }, "path": path });
        surface::merge(&mut source, &more);
        source
    };
    let production = source(&name, "production", json!({}));
    let staging = source("staging", "./staging", json!({ "deletionPolicy": "Delete", "dependsOn": [name] }));
    install(&stage, &longest, &json!([production, staging]));
    for name in ["a", "b"] {
        has(&stage, &longest, name, true).await;
    }
    // With the same application, and nothing of it in the other's hands.
    install(&stage, &beside, &json!([source("apps", "staging", json!({}))]));
    has(&stage, &beside, "b", true).await;
    assert!(stage.get("redis", &beside, "a").await.is_none());
    let running = stage.kubelet.running().await;
    assert_eq!(running.len(), 2, "{running:?}");
    assert!(running.iter().all(|name| name.len() <= 63), "{running:?}");

    // Its owner looks, and changes neither the objects nor anything by others like them: values are all there is.
    let owner = stage.surface.user("owner").await;
    let kustomizations = api(&owner, "Kustomization", Some(&longest));
    eventually("the owner's right to look", async || Ok(kustomizations.list(&Default::default()).await.ok()))
        .await
        .unwrap();
    assert_eq!(kustomizations.list(&Default::default()).await.unwrap().items.len(), 2);
    for object in [
        kustomization(&longest, "own"),
        git_repository(&longest, "own"),
        bare("Secret", Some(&longest), "gitops-own"),
    ] {
        let objects = api(&owner, surface::kind(&object), Some(&longest));
        let refused = make(&objects, &PostParams::default(), &object).await.unwrap_err();
        assert_eq!(refusal(&refused).0, 403, "{refused}");
    }
    let refused = kustomizations.delete(&name, &Default::default()).await.unwrap_err();
    assert_eq!(refusal(&refused).0, 403, "{refused}");

    // The same values again change nothing, other values are followed, with the operator restarted in between.
    let seen = async || {
        let object = stage.get("kustomization", &longest, &name).await.unwrap();
        (object["metadata"]["generation"].clone(), object["spec"].clone())
    };
    let before = seen().await;
    install(&stage, &longest, &json!([production, staging]));
    assert_eq!(seen().await, before);
    stage.product.take().unwrap().stop(stage.surface.cluster()).await;
    stage.product = Some(Product::start(stage.surface.cluster(), product::tenants()).await);
    apps.push(&[("production/c.yaml", &redis("c"))]).await.unwrap();
    has(&stage, &longest, "c", true).await;

    // A source goes, as it says: Delete with what it applied; then the rest, which stays.
    install(&stage, &longest, &json!([production]));
    has(&stage, &longest, "b", false).await;
    install(&stage, &longest, &json!([]));
    eventually("everything of the operator to be gone", async || {
        let label = format!("gitops.cozystack.io/tenant={longest}");
        let kinds = "serviceaccounts,roles,rolebindings,resourcequotas,deployments,networkpolicies";
        let left = ["get", kinds, "-A", "-l", &label, "--no-headers", "-o", "name"];
        Ok(stage.surface.cluster().kubectl(&left).await?.is_empty().then_some(()))
    })
    .await
    .unwrap();
    for name in ["a", "c"] {
        assert!(stage.get("redis", &longest, name).await.is_some(), "Orphan keeps {name}");
    }
    // The neighbour never noticed.
    assert!(stage.get("redis", &beside, "b").await.is_some());
    assert_eq!(stage.kubelet.running().await.len(), 1);
    let kubeconfig = stage.surface.kubeconfig();
    tokio::task::block_in_place(|| {
        helm(Some(&kubeconfig), &["uninstall", "gitops-gitops", "--namespace", &beside])
    })
    .unwrap();
    eventually("its controller to go", async || Ok(stage.kubelet.running().await.is_empty().then_some(())))
        .await
        .unwrap();
    assert!(stage.get("redis", &beside, "b").await.is_some());
    stage.stop().await;
}
