//! The admin's git surface on a real control plane: chart `customizer` installed by Helm, as helm-controller does.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use cozy_testenv::{Cluster, eventually, program, tail};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};

/// Namespace of the surface's objects.
pub(crate) const SYSTEM: &str = "cozy-system";
/// Name of the surface's GitRepository, Kustomization and account.
pub(crate) const NAME: &str = "cozystack-customizer";

/// The chart's directory.
pub(crate) fn chart() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../packages/system/customizer")
}

/// Objects of a kind, in a namespace or, when it is empty, cluster-wide.
pub(crate) fn api(client: Client, api_version: &str, kind: &str, namespace: &str) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    if namespace.is_empty() {
        Api::all_with(client, &resource)
    } else {
        Api::namespaced_with(client, namespace, &resource)
    }
}

/// `PackageValues`.
pub(crate) fn package_values(cluster: &Cluster) -> Api<DynamicObject> {
    // Its plural is its singular, which a guess would miss.
    let mut resource =
        ApiResource::from_gvk(&GroupVersionKind::gvk("cozystack.io", "v1alpha1", "PackageValues"));
    resource.plural = "packagevalues".to_owned();
    Api::all_with(cluster.admin(), &resource)
}

/// Packages.
pub(crate) fn packages(client: Client) -> Api<DynamicObject> {
    api(client, "cozystack.io/v1alpha1", "Package", "")
}

/// Kustomizations of the platform's namespace.
pub(crate) fn kustomizations(cluster: &Cluster) -> Api<DynamicObject> {
    api(cluster.admin(), "kustomize.toolkit.fluxcd.io/v1", "Kustomization", SYSTEM)
}

/// GitRepositories of the platform's namespace.
pub(crate) fn git_repositories(cluster: &Cluster) -> Api<DynamicObject> {
    api(cluster.admin(), "source.toolkit.fluxcd.io/v1", "GitRepository", SYSTEM)
}

/// An object as plain JSON.
pub(crate) async fn get(api: &Api<DynamicObject>, name: &str) -> Result<Option<Value>> {
    Ok(api.get_opt(name).await?.map(|object| serde_json::to_value(object).expect("objects are JSON")))
}

async fn helm(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    let home = cluster.dir().join("helm");
    let output = tokio::process::Command::new(program("helm")?)
        .arg(format!("--kubeconfig={}", cluster.admin_kubeconfig()?.display()))
        .args(["--namespace", SYSTEM])
        .args(arguments)
        .env("HELM_CONFIG_HOME", home.join("config"))
        .env("HELM_CACHE_HOME", home.join("cache"))
        .env("HELM_DATA_HOME", home.join("data"))
        .output()
        .await?;
    if !output.status.success() {
        bail!("helm {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Installs the surface, or changes its values.
pub(crate) async fn enable(cluster: &Cluster, values: &Value) -> Result<()> {
    let file = cluster.dir().join("customizer-values.json");
    std::fs::write(&file, values.to_string())?;
    let (chart, file) = (chart().display().to_string(), file.display().to_string());
    helm(cluster, &["upgrade", "--install", "customizer", &chart, "--values", &file]).await.map(drop)
}

/// Removes it.
pub(crate) async fn disable(cluster: &Cluster) -> Result<()> {
    helm(cluster, &["uninstall", "customizer", "--wait"]).await.map(drop)
}

/// Values with which everything happens within seconds.
pub(crate) fn quick(url: &str, secret: &str) -> Value {
    json!({
        "source": {"url": url, "ref": {"branch": "main"}, "secretRef": secret, "interval": "2s", "timeout": "30s"},
        "kustomization": {"path": "./clusters/prod", "interval": "5s", "retryInterval": "2s", "timeout": "60s"},
    })
}

/// The condition Ready of an object: its status, reason and message. None while it is absent or older than the spec.
pub(crate) fn ready(object: &Value) -> Option<(String, String, String)> {
    let generation = object.pointer("/metadata/generation");
    let condition = object
        .pointer("/status/conditions")?
        .as_array()?
        .iter()
        .find(|condition| condition["type"] == "Ready")
        .filter(|condition| condition.get("observedGeneration") == generation)?;
    let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason"), text("message")))
}

/// Waits until the Kustomization has applied a commit and is ready.
pub(crate) async fn applied(cluster: &Cluster, commit: &str) -> Result<Value> {
    let api = kustomizations(cluster);
    let last = std::cell::RefCell::new(Value::Null);
    let what = format!("commit {commit} to be applied");
    eventually(&what, async || {
        let Some(object) = get(&api, NAME).await? else { return Ok(None) };
        let revision = object
            .pointer("/status/lastAppliedRevision")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let done = revision.ends_with(commit) && ready(&object).is_some_and(|(status, ..)| status == "True");
        last.replace(object.clone());
        Ok(done.then_some(object))
    })
    .await
    .with_context(|| {
        let log = std::fs::read(cluster.dir().join("source-controller.log")).unwrap_or_default();
        let end = tail(&String::from_utf8_lossy(&log));
        format!("status: {}\nsource-controller says in the end:\n{end}", last.borrow()["status"])
    })
}

/// Waits until the Kustomization has failed on a commit; gives reason and message.
pub(crate) async fn refused(cluster: &Cluster, commit: &str) -> Result<(Value, String, String)> {
    let api = kustomizations(cluster);
    let what = format!("commit {commit} to be refused");
    eventually(&what, async || {
        let Some(object) = get(&api, NAME).await? else { return Ok(None) };
        let attempted = object
            .pointer("/status/lastAttemptedRevision")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let Some((status, reason, message)) = ready(&object) else { return Ok(None) };
        let done = attempted.ends_with(commit) && status == "False" && reason != "DependencyNotReady";
        Ok(done.then_some((object, reason, message)))
    })
    .await
}

/// A Package as the platform's chart makes it: created and owned by helm-controller.
pub(crate) async fn package_of_the_chart(cluster: &Cluster, name: &str, spec: &Value) -> Result<()> {
    let package: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "cozystack.io/v1alpha1",
        "kind": "Package",
        "metadata": {
            "name": name,
            "labels": {"app.kubernetes.io/managed-by": "Helm"},
            "annotations": {"helm.sh/resource-policy": "keep", "meta.helm.sh/release-name": "cozystack-platform"},
        },
        "spec": spec,
    }))?;
    let parameters =
        kube::api::PostParams { field_manager: Some("helm-controller".to_owned()), ..Default::default() };
    packages(cluster.admin()).create(&parameters, &package).await?;
    Ok(())
}
