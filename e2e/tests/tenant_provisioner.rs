//! What the operator makes for tenants: their repositories become applications in their own namespaces, by controllers of
//! their own; what is changed by hand is put back, and the end leaves nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod operator_support;

use cozy_operator::{Config, Tenants};
use cozy_testenv::{Cluster, Flux, GitServer, Kubelet, eventually};
use serde_json::{Value, json};

use operator_support::Operator;

/// A cluster with Flux, some applications, and a kubelet for the tenants' controllers.
async fn start() -> (Cluster, Flux, Kubelet) {
    let cluster = Cluster::start().await.unwrap();
    cluster.install_crds().await.unwrap();
    cluster.install_applications().await.unwrap();
    let flux = Flux::start(&cluster).await.unwrap();
    let kubelet = Kubelet::builder(&cluster, "cozy-fluxcd")
        .argument("--health-addr=127.0.0.1:0")
        .argument("--metrics-addr=127.0.0.1:0")
        .start();
    (cluster, flux, kubelet)
}

/// The operator with the rights that the chart gives it.
async fn start_operator(cluster: &Cluster, config: Config) -> Operator {
    let values = "operator.enabled=true,operator.mode=operator,tenant.enabled=true";
    let operator = Operator::with(operator_support::account(cluster, values).await, config);
    operator.ready().await;
    operator
}

fn config() -> Config {
    let mut tenants = Tenants::default();
    tenants.settings.image = "kustomize-controller".to_owned();
    Config { tenants: Some(tenants), ..Config::default() }
}

async fn get(cluster: &Cluster, arguments: &[&str]) -> Option<Value> {
    let text = cluster.kubectl(&[&["get", "-o", "json"], arguments].concat()).await.ok()?;
    serde_json::from_str(&text).ok()
}

fn redis(name: &str, replicas: u32) -> String {
    format!(
        "apiVersion: apps.cozystack.io/v1alpha1\nkind: Redis\nmetadata: {{name: {name}}}\nspec: {{replicas: {replicas}}}\n"
    )
}

/// What the application `GitOps` makes of a source.
async fn source(cluster: &Cluster, namespace: &str, url: &str, deletion: &str) {
    cluster
        .apply_value(json!({
            "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository",
            "metadata": { "name": "apps", "namespace": namespace },
            "spec": { "url": url, "interval": "2s", "ref": { "branch": "main" } },
        }))
        .await
        .unwrap();
    cluster
        .apply_value(json!({
            "apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization",
            "metadata": {
                "name": "apps", "namespace": namespace, "labels": { "sharding.fluxcd.io/key": namespace },
            },
            "spec": {
                "sourceRef": { "kind": "GitRepository", "name": "apps" }, "path": "./", "interval": "10s",
                "retryInterval": "2s", "prune": true, "serviceAccountName": format!("{namespace}-gitops"),
                "targetNamespace": namespace, "deletionPolicy": deletion,
            },
        }))
        .await
        .unwrap();
}

async fn replicas(cluster: &Cluster, namespace: &str, name: &str, wanted: Option<u64>) {
    eventually(&format!("redis {namespace}/{name} to have {wanted:?} replicas"), async || {
        let found = get(cluster, &["redis", "-n", namespace, name]).await;
        let found = found.and_then(|redis| redis["spec"]["replicas"].as_u64());
        if found == wanted {
            return Ok(Some(()));
        }
        let kustomization =
            get(cluster, &["kustomization", "-n", namespace, "apps"]).await.unwrap_or_default();
        anyhow::bail!("{found:?}; {}", kustomization["status"]["conditions"]);
    })
    .await
    .unwrap();
}

/// Everything with a tenant's label.
async fn made_for(cluster: &Cluster, tenant: &str) -> Vec<String> {
    let kinds = "serviceaccounts,roles,rolebindings,resourcequotas,deployments,networkpolicies";
    let label = format!("gitops.cozystack.io/tenant={tenant}");
    let found =
        cluster.kubectl(&["get", kinds, "-A", "-l", &label, "--no-headers", "-o", "name"]).await.unwrap();
    found.lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn repositories_become_applications_of_their_own_tenant_alone() {
    let (cluster, _flux, kubelet) = start().await;
    let git = GitServer::start_plain().await.unwrap();
    let operator = start_operator(&cluster, config()).await;
    let (one, two) = (git.repository("one").await.unwrap(), git.repository("two").await.unwrap());
    one.push(&[("cache.yaml", &redis("cache", 1))]).await.unwrap();
    two.push(&[("cache.yaml", &redis("cache", 2))]).await.unwrap();
    for namespace in ["tenant-one", "tenant-two", "tenant-idle"] {
        cluster.create_namespace(namespace, &[]).await.unwrap();
    }
    source(&cluster, "tenant-one", one.url(), "Orphan").await;
    source(&cluster, "tenant-two", two.url(), "Delete").await;
    replicas(&cluster, "tenant-one", "cache", Some(1)).await;
    replicas(&cluster, "tenant-two", "cache", Some(2)).await;
    assert_eq!(made_for(&cluster, "tenant-one").await.len(), 9);
    assert_eq!(made_for(&cluster, "tenant-idle").await, Vec::<String>::new());
    assert_eq!(
        kubelet.running().await,
        ["kustomize-controller-tenant-one", "kustomize-controller-tenant-two"]
    );
    // Applied as the tenant's account, by the tenant's own controller.
    let log = cluster.audit_log().unwrap();
    let writers: std::collections::BTreeSet<(String, String)> = log
        .iter()
        .filter(|event| {
            event["objectRef"]["resource"] == "redises" && event["objectRef"]["namespace"] == "tenant-one"
        })
        .filter(|event| event["verb"] == "patch")
        .map(|event| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            (text(&event["user"]["username"]), text(&event["impersonatedUser"]["username"]))
        })
        .collect();
    let wanted = (
        "system:serviceaccount:cozy-fluxcd:kustomize-controller-tenant-one".to_owned(),
        "system:serviceaccount:tenant-one:tenant-one-gitops".to_owned(),
    );
    assert_eq!(writers.into_iter().collect::<Vec<_>>(), [wanted]);
    // Nothing was refused to the controllers: their rights are those that they need.
    let refused: Vec<String> = log
        .iter()
        .filter(|event| event["responseStatus"]["code"] == 403 && event["objectRef"].is_object())
        .filter(|event| {
            event["user"]["username"].as_str().unwrap_or_default().contains("kustomize-controller-tenant")
        })
        .map(|event| format!("{} {}", event["verb"], event["objectRef"]))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");

    // A change follows, and what goes from git goes.
    one.push(&[("cache.yaml", &redis("cache", 3)), ("more.yaml", &redis("more", 1))]).await.unwrap();
    replicas(&cluster, "tenant-one", "cache", Some(3)).await;
    replicas(&cluster, "tenant-one", "more", Some(1)).await;
    one.remove(&["more.yaml"]).await.unwrap();
    replicas(&cluster, "tenant-one", "more", None).await;
    // What is not the tenant's stays closed: another namespace's, another kind's.
    let foreign = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: foreign}\n";
    one.push(&[("foreign.yaml", foreign)]).await.unwrap();
    eventually("it is refused, by name", async || {
        let told = get(&cluster, &["kustomization", "-n", "tenant-one", "apps"]).await.unwrap_or_default();
        Ok(told["status"]["conditions"].to_string().contains("tenant-one-gitops").then_some(()))
    })
    .await
    .unwrap();
    assert!(get(&cluster, &["configmap", "-n", "tenant-one", "foreign"]).await.is_none());
    one.remove(&["foreign.yaml"]).await.unwrap();

    // The Role follows what is referred to.
    let names = async || {
        let role =
            get(&cluster, &["role", "-n", "tenant-one", "kustomize-controller-tenant-one"]).await.unwrap();
        role["rules"]
            .as_array()
            .unwrap()
            .iter()
            .find(|r| r["resources"] == json!(["secrets"]))
            .map(|r| r["resourceNames"].clone())
    };
    assert_eq!(names().await, None);
    let decryption =
        json!({ "spec": { "decryption": { "provider": "sops", "secretRef": { "name": "gitops-age" } } } });
    let edit = ["patch", "kustomization", "apps", "-n", "tenant-one", "--type=merge", "-p"];
    cluster.kubectl(&[&edit[..], &[&decryption.to_string()]].concat()).await.unwrap();
    eventually("the Secret to be named", async || {
        Ok((names().await == Some(json!(["gitops-age"]))).then_some(()))
    })
    .await
    .unwrap();

    // What is edited by hand is put back, what is deleted comes back.
    for (kind, namespace, name, change) in [
        (
            "deployment",
            "cozy-fluxcd",
            "kustomize-controller-tenant-one",
            json!([{ "op": "replace", "path": "/spec/template/spec/containers/0/args/2", "value": "--no-cross-namespace-refs=false" }]),
        ),
        (
            "role",
            "tenant-one",
            "tenant-one-gitops",
            json!([{ "op": "add", "path": "/rules/-", "value": { "apiGroups": [""], "resources": ["secrets"], "verbs": ["*"] } }]),
        ),
        (
            "resourcequota",
            "tenant-one",
            "gitops-sources",
            json!([{ "op": "replace", "path": "/spec/hard/count~1kustomizations.kustomize.toolkit.fluxcd.io", "value": "1000" }]),
        ),
    ] {
        let spec = async || {
            let object = get(&cluster, &[kind, "-n", namespace, name]).await.unwrap();
            if kind == "role" { object["rules"].clone() } else { object["spec"].clone() }
        };
        let before = spec().await;
        cluster
            .kubectl(&["patch", kind, name, "-n", namespace, "--type=json", "-p", &change.to_string()])
            .await
            .unwrap();
        eventually(&format!("{kind} {name} to be put back"), async || {
            Ok((spec().await == before).then_some(()))
        })
        .await
        .unwrap();
    }
    cluster.kubectl(&["delete", "rolebinding", "-n", "tenant-one", "tenant-one-gitops"]).await.unwrap();
    eventually("the binding to come back", async || {
        Ok(get(&cluster, &["rolebinding", "-n", "tenant-one", "tenant-one-gitops"]).await)
    })
    .await
    .unwrap();
    operator.quiet().await;
    operator.stop().await;

    assert_eq!(operator_support::refused(&cluster, operator_support::ACCOUNT), Vec::<String>::new());

    // A restart changes nothing.
    let operator = start_operator(&cluster, config()).await;
    operator.writes_nothing("a restart has to write nothing").await;

    // The end: what was applied stays with Orphan and goes with Delete, and everything of ours is gone.
    for namespace in ["tenant-one", "tenant-two"] {
        cluster.kubectl(&["delete", "kustomization", "-n", namespace, "apps", "--wait=false"]).await.unwrap();
    }
    for namespace in ["tenant-one", "tenant-two"] {
        eventually(&format!("everything of {namespace} to be gone"), async || {
            let left = made_for(&cluster, namespace).await;
            anyhow::ensure!(left.is_empty(), "{left:?}");
            Ok(get(&cluster, &["kustomization", "-n", namespace, "apps"]).await.is_none().then_some(()))
        })
        .await
        .unwrap();
    }
    replicas(&cluster, "tenant-one", "cache", Some(3)).await;
    replicas(&cluster, "tenant-two", "cache", None).await;
    eventually("the controllers to be stopped", async || {
        Ok(kubelet.running().await.is_empty().then_some(()))
    })
    .await
    .unwrap();
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_limit_nothing_runs_and_rolling_is_bounded() {
    let (cluster, _flux, _kubelet) = start().await;
    let mut limited = config();
    limited.tenants.as_mut().unwrap().most = 2;
    let operator = start_operator(&cluster, limited.clone()).await;
    for name in ["a", "b", "c"] {
        let namespace = format!("tenant-{name}");
        cluster.create_namespace(&namespace, &[]).await.unwrap();
        source(&cluster, &namespace, "http://127.0.0.1:1/none.git", "Orphan").await;
        if name != "c" {
            eventually("its controller to be available", async || {
                let name = format!("kustomize-controller-{namespace}");
                let deployment = get(&cluster, &["deployment", "-n", "cozy-fluxcd", &name]).await;
                Ok(deployment.filter(|d| d["status"]["availableReplicas"] == 1).map(drop))
            })
            .await
            .unwrap();
        }
    }
    eventually("the limit to be told", async || {
        let events = get(&cluster, &["events", "-A"]).await.unwrap_or_default();
        Ok(events.to_string().contains("TenantLimit").then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(made_for(&cluster, "tenant-c").await, Vec::<String>::new());
    operator.quiet().await;
    operator.stop().await;

    // Other settings roll the controllers one after the other: never are two of them away.
    limited.tenants.as_mut().unwrap().rolling = 1;
    limited.tenants.as_mut().unwrap().settings.concurrency = 3;
    let operator = start_operator(&cluster, limited).await;
    eventually("both to be rolled", async || {
        let all = get(&cluster, &["deployments", "-n", "cozy-fluxcd"]).await.unwrap();
        let items = all["items"].as_array().unwrap();
        let rolled = |item: &Value| item["spec"].to_string().contains("--concurrent=3");
        let away = items.iter().filter(|item| {
            item["status"]["observedGeneration"] != item["metadata"]["generation"]
                || item["status"]["availableReplicas"].as_i64().unwrap_or(0) == 0
        });
        assert!(away.count() <= 1, "{all}");
        Ok(items.iter().all(rolled).then_some(()))
    })
    .await
    .unwrap();
    operator.stop().await;
}
