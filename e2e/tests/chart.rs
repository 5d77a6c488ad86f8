//! The chart on a real API server by the real Helm: what installing grants, what upgrading keeps, what uninstalling
//! leaves.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use cozy_api::flux::{HelmRelease, HelmReleaseSpec};
use cozy_api::names::LABEL_PACKAGE;
use cozy_api::packages::{Package, PackageSpec, PackageValues, PackageValuesSpec};
use cozy_testenv::Cluster;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Client, CustomResourceExt, Resource};
use serde_json::json;

const NAMESPACE: &str = "cozy-system";
const OURS: &str = "app=cozy-gitops";
const LONG: Duration = Duration::from_secs(120);

fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packages/system/cozy-gitops")
}

async fn helm(cluster: &Cluster, arguments: &[&str]) {
    let output = tokio::process::Command::new(cozy_testenv::program("helm").unwrap())
        .args(arguments)
        .args(["--namespace", NAMESPACE])
        .env("KUBECONFIG", cluster.admin_kubeconfig().unwrap())
        .env("HELM_NO_PLUGINS", "1")
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "helm {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

async fn upgrade(cluster: &Cluster, values: &[&str]) {
    let chart = chart();
    let mut arguments = vec!["upgrade".to_owned(), "--install".to_owned(), "cozy-gitops".to_owned()];
    arguments.push(chart.display().to_string());
    for file in values {
        arguments.extend(["--values".to_owned(), chart.join(file).display().to_string()]);
    }
    helm(cluster, &arguments.iter().map(String::as_str).collect::<Vec<_>>()).await;
}

async fn namespace(client: &Client, name: &str) {
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": name, "labels": { "pod-security.kubernetes.io/enforce": "restricted" } },
    });
    let api: Api<Namespace> = Api::all(client.clone());
    api.patch(name, &PatchParams::apply("test"), &Patch::Apply(namespace)).await.unwrap();
}

/// Waits until the control plane has filled an aggregated role with a rule for the verb.
async fn aggregated(client: &Client, name: &str, verb: &str) {
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let filled = |role: Option<&ClusterRole>| {
        role.and_then(|role| role.rules.as_ref())
            .is_some_and(|rules| rules.iter().any(|rule| rule.verbs.iter().any(|found| found == verb)))
    };
    tokio::time::timeout(LONG, await_condition(roles, name, filled)).await.unwrap().unwrap();
}

async fn bind(client: &Client, role: &str, user: &str) {
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": user },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
    });
    let api: Api<ClusterRoleBinding> = Api::all(client.clone());
    api.patch(user, &PatchParams::apply("test"), &Patch::Apply(binding)).await.unwrap();
}

/// Whether the API server's own authorizer lets the user do it; `resource` may have a subresource.
async fn may(client: &Client, user: &str, verb: &str, resource: &str, name: &str) -> bool {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            resource_attributes: Some(ResourceAttributes {
                group: Some("cozystack.io".to_owned()),
                verb: Some(verb.to_owned()),
                resource: Some(resource.to_owned()),
                subresource: Some(subresource.to_owned()),
                name: Some(name.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let api: Api<SubjectAccessReview> = Api::all(client.clone());
    api.create(&PostParams::default(), &review).await.unwrap().status.unwrap().allowed
}

/// Waits until the authorizer has seen a binding: its cache lags a little behind.
async fn may_soon(client: &Client, user: &str, verb: &str, resource: &str, name: &str) {
    let deadline = tokio::time::Instant::now() + LONG;
    while !may(client, user, verb, resource, name).await {
        assert!(tokio::time::Instant::now() < deadline, "{user} may not {verb} {resource} {name}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn ours<K>(client: &Client) -> Vec<String>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + k8s_openapi::serde::de::DeserializeOwned,
{
    let list = Api::<K>::all(client.clone()).list(&ListParams::default().labels(OURS)).await.unwrap();
    list.items.iter().map(|object| object.meta().name.clone().unwrap()).collect()
}

/// Waits until none of the chart's objects of a kind is left.
async fn gone<K>(client: &Client)
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + k8s_openapi::serde::de::DeserializeOwned,
{
    let deadline = tokio::time::Instant::now() + LONG;
    loop {
        let left = ours::<K>(client).await;
        if left.is_empty() {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{} {left:?} stayed", K::kind(&()));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn the_chart_grants_nothing_unasked_and_leaves_every_object_behind() {
    let cluster = support::cluster().await;
    let client = cluster.admin();
    namespace(&client, NAMESPACE).await;

    // A CRD that is there already, Cozystack's own, is left as it is.
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut theirs = serde_json::to_value(Package::crd()).unwrap();
    theirs["metadata"]["labels"] = json!({ "installed-by": "cozystack-operator" });
    let apply = PatchParams::apply("cozystack-operator");
    crds.patch(Package::crd_name(), &apply, &Patch::Apply(theirs)).await.unwrap();

    // Without values: the CRDs, and roles that are bound to nobody.
    upgrade(&cluster, &[]).await;
    for name in [Package::crd_name(), PackageValues::crd_name(), "packagesources.cozystack.io"] {
        let established = await_condition(crds.clone(), name, conditions::is_crd_established());
        tokio::time::timeout(LONG, established).await.unwrap().unwrap();
    }
    let labels = crds.get(Package::crd_name()).await.unwrap().metadata.labels.unwrap_or_default();
    assert_eq!(labels.get("installed-by").map(String::as_str), Some("cozystack-operator"));
    assert!(ours::<ClusterRoleBinding>(&client).await.is_empty());
    assert!(ours::<RoleBinding>(&client).await.is_empty());
    assert!(ours::<ServiceAccount>(&client).await.is_empty());
    assert!(ours::<Deployment>(&client).await.is_empty());
    aggregated(&client, "cozy:packagevalues:edit", "create").await;
    aggregated(&client, "cozy:packagevalues:view", "watch").await;
    rights(&client).await;

    // With the operator: its pods pass the strictest Pod Security level, and the roles stay filled.
    for values in ["values-overlay.yaml", "values-operator.yaml"] {
        upgrade(&cluster, &[values]).await;
        admitted_as_restricted(&client).await;
        for role in ["cozy:packagevalues:edit", "cozy:packagevalues:view"] {
            let role = Api::<ClusterRole>::all(client.clone()).get(role).await.unwrap();
            assert!(
                !role.rules.unwrap_or_default().is_empty(),
                "the upgrade emptied {:?}",
                role.metadata.name
            );
        }
    }

    secrets_are_confined(&client).await;

    // Uninstalled: the operator and its rights are gone, what the users made is not.
    let packages: Api<Package> = Api::all(client.clone());
    let values: Api<PackageValues> = Api::all(client.clone());
    let package =
        packages.create(&PostParams::default(), &Package::new("a", PackageSpec::default())).await.unwrap();
    let value = values
        .create(&PostParams::default(), &PackageValues::new("a", PackageValuesSpec::default()))
        .await
        .unwrap();
    cluster.install_crds().await.unwrap();
    support::served(&client).await;
    let releases: Api<HelmRelease> = Api::namespaced(client.clone(), NAMESPACE);
    let release = releases.create(&PostParams::default(), &release_of(&package)).await.unwrap();
    helm(&cluster, &["uninstall", "cozy-gitops"]).await;
    gone::<ClusterRoleBinding>(&client).await;
    gone::<ClusterRole>(&client).await;
    gone::<RoleBinding>(&client).await;
    gone::<ServiceAccount>(&client).await;
    gone::<Deployment>(&client).await;
    assert_eq!(packages.get("a").await.unwrap().metadata.uid, package.metadata.uid);
    assert_eq!(values.get("a").await.unwrap().metadata.uid, value.metadata.uid);
    let kept = releases.get("a").await.unwrap();
    assert_eq!((kept.metadata.uid, kept.spec), (release.metadata.uid, release.spec));
    for crd in crds.list(&ListParams::default()).await.unwrap() {
        assert_eq!(crd.metadata.deletion_timestamp, None);
    }
}

/// A HelmRelease as the operator makes it for the Package.
fn release_of(package: &Package) -> HelmRelease {
    let spec = json!({
        "interval": "5m0s",
        "chartRef": { "kind": "ExternalArtifact", "name": "a-default-a", "namespace": NAMESPACE },
        "values": { "a": 1 },
    });
    let spec: HelmReleaseSpec = serde_json::from_value(spec).unwrap();
    let mut release = HelmRelease::new(NAMESPACE, "a", spec);
    release.metadata.labels = Some([(LABEL_PACKAGE.to_owned(), "a".to_owned())].into());
    release.metadata.owner_references = package.controller_owner_ref(&()).map(|owner| vec![owner]);
    release
}

async fn rights(client: &Client) {
    for (role, user) in [
        ("cozy:packagevalues:edit", "editor"),
        ("cozy:packagevalues:view", "viewer"),
        ("admin", "kubernetes-admin-role"),
        ("edit", "kubernetes-edit-role"),
        ("view", "kubernetes-view-role"),
    ] {
        bind(client, role, user).await;
    }
    may_soon(client, "editor", "create", "packagevalues", "").await;
    may_soon(client, "viewer", "list", "packagevalues", "").await;
    for verb in ["get", "list", "watch", "update", "patch", "delete"] {
        assert!(may(client, "editor", verb, "packagevalues", "a").await, "{verb}");
    }
    for resource in ["packages", "packagesources", "packagevalues"] {
        for user in ["editor", "viewer"] {
            assert!(may(client, user, "get", resource, "a").await, "{user} {resource}");
        }
        for verb in ["create", "update", "patch", "delete"] {
            assert!(!may(client, "viewer", verb, resource, "a").await, "{verb} {resource}");
        }
    }
    for resource in ["packages", "packagesources", "packages/status", "packagevalues/status"] {
        for verb in ["create", "update", "patch", "delete", "deletecollection"] {
            assert!(!may(client, "editor", verb, resource, "a").await, "{verb} {resource}");
        }
    }
    for user in ["kubernetes-admin-role", "kubernetes-edit-role", "kubernetes-view-role"] {
        for verb in ["create", "update", "patch", "delete", "get", "list"] {
            assert!(!may(client, user, verb, "packagevalues", "a").await, "{user} {verb}");
        }
    }

    // One package delegated, as the documentation says.
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "linstor-values" },
        "rules": [{
            "apiGroups": ["cozystack.io"], "resources": ["packagevalues"], "resourceNames": ["cozystack.linstor"],
            "verbs": ["get", "update", "patch", "delete"],
        }],
    });
    let roles: Api<ClusterRole> = Api::all(client.clone());
    roles.patch("linstor-values", &PatchParams::apply("test"), &Patch::Apply(role)).await.unwrap();
    bind(client, "linstor-values", "storage").await;
    may_soon(client, "storage", "patch", "packagevalues", "cozystack.linstor").await;
    assert!(!may(client, "storage", "patch", "packagevalues", "cozystack.cilium").await);
}

/// The operator, in operator mode the last, lists the platform's values in all namespaces and no other Secret.
async fn secrets_are_confined(client: &Client) {
    let deadline = tokio::time::Instant::now() + LONG;
    while as_operator(client, "/api/v1/secrets?fieldSelector=metadata.name%3Dcozystack-values").await != 200 {
        assert!(tokio::time::Instant::now() < deadline, "the platform's values cannot be listed");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for path in [
        "/api/v1/secrets",
        "/api/v1/secrets?fieldSelector=metadata.name%3Dother",
        "/api/v1/namespaces/cozy-system/secrets",
        "/api/v1/namespaces/cozy-system/secrets/other",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    ] {
        assert_eq!(as_operator(client, path).await, 403, "{path}");
    }
}

/// HTTP status of a GET as the operator's ServiceAccount.
async fn as_operator(client: &Client, path: &str) -> u16 {
    let request = http::Request::get(path)
        .header("Impersonate-User", format!("system:serviceaccount:{NAMESPACE}:cozy-gitops"))
        .body(Vec::new())
        .unwrap();
    match client.request_text(request).await {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("no answer of the API server: {error}"),
    }
}

/// The Deployment's pod, made by hand since no controller runs it here, in a namespace that enforces `restricted`.
async fn admitted_as_restricted(client: &Client) {
    let deployment =
        Api::<Deployment>::namespaced(client.clone(), NAMESPACE).get("cozy-gitops").await.unwrap();
    let template = deployment.spec.unwrap().template;
    let mut pod = Pod { metadata: template.metadata.unwrap(), spec: template.spec, ..Pod::default() };
    pod.metadata.name = Some("probe".to_owned());
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    // The ServiceAccount's admission waits for its cache.
    let deadline = tokio::time::Instant::now() + LONG;
    loop {
        match pods.create(&dry_run, &pod).await {
            Ok(_) => return,
            Err(kube::Error::Api(status)) if status.message.contains("violates PodSecurity") => {
                panic!("{}", status.message)
            }
            Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
