//! The real Flux controllers with a real git server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cozy_testenv::{Cluster, Flux, GitServer, Kubelet, eventually};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams};
use serde_json::json;

const CONFIG: &str =
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: from-git, namespace: default}\ndata: {version: '@'}\n";

async fn sync(cluster: &Cluster, url: &str, ca: &str, credentials: Option<(&str, &str)>) {
    // A failed fetch is tried again later and later; asking for it now does not wait.
    let requested = if credentials.is_some() { "2" } else { "1" };
    let mut data = json!({ "ca.crt": ca });
    if let Some((user, password)) = credentials {
        data["username"] = json!(user);
        data["password"] = json!(password);
    }
    for object in [
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "git", "namespace": "cozy-system"}, "stringData": data}),
        json!({"apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository",
               "metadata": {"name": "repo", "namespace": "cozy-system", "annotations": {"reconcile.fluxcd.io/requestedAt": requested}},
               "spec": {"url": url, "interval": "2s", "ref": {"branch": "main"}, "secretRef": {"name": "git"}}}),
        json!({"apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization",
               "metadata": {"name": "repo", "namespace": "cozy-system", "annotations": {"reconcile.fluxcd.io/requestedAt": requested}},
               "spec": {"interval": "1m", "path": "./", "prune": true, "sourceRef": {"kind": "GitRepository", "name": "repo"}}}),
    ] {
        cluster.apply_value(object).await.unwrap();
    }
}

#[tokio::test]
async fn a_push_becomes_an_object() {
    let cluster = Cluster::start().await.unwrap();
    cluster.install_crds().await.unwrap();
    let _flux = Flux::start(&cluster).await.unwrap();
    let git = GitServer::start_private("flux", "s3cret").await.unwrap();
    let repository = git.repository("config").await.unwrap();
    repository.push(&[("config.yaml", &CONFIG.replace('@', "one"))]).await.unwrap();
    let configs: Api<ConfigMap> = Api::namespaced(cluster.admin(), "default");
    let version = async || -> anyhow::Result<Option<String>> {
        let found = configs.get_opt("from-git").await?;
        Ok(found.and_then(|c| c.data?.get("version").cloned()))
    };

    // Without credentials the failure is on the GitRepository, and nothing is applied.
    sync(&cluster, repository.url(), git.ca_pem().unwrap(), None).await;
    eventually("the GitRepository to fail", async || {
        let shown = cluster
            .kubectl(&[
                "-n",
                "cozy-system",
                "get",
                "gitrepository",
                "repo",
                "-o",
                "jsonpath={.status.conditions}",
            ])
            .await?;
        Ok(shown.contains("authentication required").then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(version().await.unwrap(), None);

    sync(&cluster, repository.url(), git.ca_pem().unwrap(), Some(("flux", "s3cret"))).await;
    eventually("the first commit", async || Ok((version().await? == Some("one".to_owned())).then_some(())))
        .await
        .unwrap();
    repository.push(&[("config.yaml", &CONFIG.replace('@', "two"))]).await.unwrap();
    eventually("the second commit", async || Ok((version().await? == Some("two".to_owned())).then_some(())))
        .await
        .unwrap();
}

#[tokio::test]
async fn deployments_run_as_processes() {
    let cluster = Cluster::start().await.unwrap();
    cluster.install_crds().await.unwrap();
    let kubelet =
        Kubelet::start(&cluster, "cozy-fluxcd", &[("flux.cozy-fluxcd", "127.0.0.1")]).await.unwrap();
    cluster
        .apply(
            r#"
apiVersion: v1
kind: ServiceAccount
metadata: {name: runner, namespace: cozy-fluxcd}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: runner}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: runner, namespace: cozy-fluxcd}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: kustomize-controller-a, namespace: cozy-fluxcd}
spec:
  selector: {matchLabels: {app: a}}
  template:
    metadata: {labels: {app: a}}
    spec:
      serviceAccountName: runner
      containers:
      - name: manager
        image: ghcr.io/fluxcd/kustomize-controller:v1.9.6
        args: [--enable-leader-election=false, --events-addr=, "--health-addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0"]
        env:
        - {name: RUNTIME_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
"#,
        )
        .await
        .unwrap();
    let deployments: Api<Deployment> = Api::namespaced(cluster.admin(), "cozy-fluxcd");
    let ready = async || -> anyhow::Result<Option<()>> {
        let deployment = deployments.get("kustomize-controller-a").await?;
        Ok((deployment.status.and_then(|s| s.ready_replicas) == Some(1)).then_some(()))
    };
    eventually("the Deployment to be ready", ready).await.unwrap();
    eventually("the controller to work", async || {
        Ok(kubelet.log("kustomize-controller-a").await.contains("Starting workers").then_some(()))
    })
    .await
    .unwrap();
    kubelet.kill("kustomize-controller-a").await.unwrap();
    eventually("the process to be started again", async || {
        Ok((kubelet.restarts("kustomize-controller-a").await > 0).then_some(()))
    })
    .await
    .unwrap();
    eventually("the Deployment to be ready again", ready).await.unwrap();
    deployments.delete("kustomize-controller-a", &DeleteParams::default()).await.unwrap();
    eventually("the process to stop", async || Ok(kubelet.running().await.is_empty().then_some(())))
        .await
        .unwrap();
}
