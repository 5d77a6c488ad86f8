//! The operator as its user starts it, on a real API server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::Command;

use cozy_testenv::{Cluster, eventually};
use serde_json::{Value, json};

const PLATFORM: &str = "
apiVersion: cozystack.io/v1alpha1
kind: PackageSource
metadata: {name: cozystack.storage}
spec:
  sourceRef: {kind: OCIRepository, name: cozystack-packages, namespace: cozy-system, path: /}
  variants:
  - name: default
    components:
    - {name: storage, path: system/storage, install: {namespace: cozy-storage}}
---
apiVersion: cozystack.io/v1alpha1
kind: Package
metadata: {name: cozystack.storage}
spec: {components: {storage: {values: {replicas: 3, keep: true}}}}
---
apiVersion: cozystack.io/v1alpha1
kind: PackageValues
metadata: {name: cozystack.storage}
spec: {components: {storage: {values: {replicas: 5}}}}
";

#[tokio::test]
async fn overrides_reach_the_helmrelease_and_a_signal_ends_it() {
    let cluster = Cluster::start().await.unwrap();
    cluster.install_crds().await.unwrap();
    cluster.apply(PLATFORM).await.unwrap();
    let mut operator = cluster
        .supervisor()
        .spawn(
            "operator",
            Command::new(assert_cmd::cargo::cargo_bin("cozy-gitops"))
                .env("KUBECONFIG", cluster.admin_kubeconfig().unwrap())
                .args(["operator", "--leader-elect", "--install-crds=true", "--log-format=json"])
                .args(["--metrics-bind-address=0", "--health-probe-bind-address=0"]),
        )
        .unwrap();
    let release = async || -> anyhow::Result<Value> {
        let shown =
            cluster.kubectl(&["-n", "cozy-storage", "get", "helmrelease", "storage", "-o", "json"]).await?;
        Ok(serde_json::from_str(&shown)?)
    };
    let waited = eventually("the HelmRelease with its override", async || {
        let release = release().await?;
        Ok((release["spec"]["values"] == json!({"keep": true, "replicas": 5})).then_some(release))
    })
    .await;
    let release = waited.unwrap_or_else(|error| panic!("{error:#}\n{}", operator.log_tail()));
    assert_eq!(release["metadata"]["annotations"]["gitops.cozystack.io/values-from"], "cozystack.storage@1");
    let shown = eventually("the OVERRIDES column", async || {
        let shown = cluster.kubectl(&["get", "packages"]).await?;
        Ok(shown.contains("/replicas").then_some(shown))
    });
    assert!(shown.await.unwrap().contains("OVERRIDES"));
    operator.signal("TERM").unwrap();
    assert!(operator.wait().unwrap().success(), "{}", operator.log_tail());
}
