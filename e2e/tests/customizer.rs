//! The admin's git surface: chart `customizer`, with the real source- and kustomize-controller, Helm and git.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod admin;
mod operator_support;

use admin::{NAME, SYSTEM};
use anyhow::Result;
use cozy_e2e::rights::{self, Asked};
use cozy_e2e::snapshot::expect;
use cozy_testenv::{Cluster, Flux, GitServer, eventually};
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

const VERBS: [&str; 8] = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

/// What the account is asked about: API group, resource with its sub-resource, namespace.
const RESOURCES: [(&str, &str, &str); 37] = [
    ("cozystack.io", "packages", ""),
    ("cozystack.io", "packages/status", ""),
    ("cozystack.io", "packagevalues", ""),
    ("cozystack.io", "packagevalues/status", ""),
    ("cozystack.io", "packagesources", ""),
    ("cozystack.io", "packagesources/status", ""),
    ("source.toolkit.fluxcd.io", "gitrepositories", "cozy-system"),
    ("source.toolkit.fluxcd.io", "gitrepositories", "tenant-foo"),
    ("source.toolkit.fluxcd.io", "ocirepositories", "cozy-system"),
    ("source.toolkit.fluxcd.io", "ocirepositories", "cozy-monitoring"),
    ("source.toolkit.fluxcd.io", "helmrepositories", "cozy-monitoring"),
    ("source.toolkit.fluxcd.io", "helmcharts", "cozy-monitoring"),
    ("source.toolkit.fluxcd.io", "buckets", "cozy-monitoring"),
    ("source.toolkit.fluxcd.io", "externalartifacts", "cozy-system"),
    ("source.toolkit.fluxcd.io", "externalartifacts", "cozy-monitoring"),
    ("helm.toolkit.fluxcd.io", "helmreleases", "cozy-system"),
    ("helm.toolkit.fluxcd.io", "helmreleases", "cozy-customizer"),
    ("helm.toolkit.fluxcd.io", "helmreleases", "cozy-monitoring"),
    ("helm.toolkit.fluxcd.io", "helmreleases", "tenant-foo"),
    ("kustomize.toolkit.fluxcd.io", "kustomizations", "cozy-system"),
    ("kustomize.toolkit.fluxcd.io", "kustomizations", "cozy-monitoring"),
    ("apps.cozystack.io", "postgreses", "tenant-foo"),
    ("", "secrets", "cozy-system"),
    ("", "secrets", "cozy-customizer"),
    ("", "secrets", "cozy-fluxcd"),
    ("", "secrets", "tenant-foo"),
    ("", "serviceaccounts/token", "cozy-system"),
    ("", "pods/exec", "cozy-fluxcd"),
    ("", "configmaps", "cozy-customizer"),
    ("", "namespaces", ""),
    ("", "nodes", ""),
    ("rbac.authorization.k8s.io", "roles", "cozy-customizer"),
    ("rbac.authorization.k8s.io", "clusterroles", ""),
    ("rbac.authorization.k8s.io", "clusterrolebindings", ""),
    ("apiextensions.k8s.io", "customresourcedefinitions", ""),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies", ""),
    ("cert-manager.io", "clusterissuers", ""),
];

async fn matrix(client: &Client) -> Result<String> {
    let about = RESOURCES.map(|(group, resource, namespace)| Asked { group, resource, namespace, name: "" });
    rights::matrix(client, &VERBS, &about).await
}

/// Waits until the API server's copy of the RBAC objects answers so.
async fn until_allowed(
    client: &Client,
    verb: &str,
    group: &str,
    resource: &str,
    namespace: &str,
    wanted: bool,
) {
    let what = format!("the right to {verb} {resource} to be {wanted}");
    eventually(&what, async || {
        let asked = Asked { group, resource, namespace, name: "" };
        Ok((rights::can(client, verb, asked).await? == wanted).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn the_account_may_do_what_is_written_and_no_more() {
    let cluster = Cluster::builder().without_controller_manager().start().await.unwrap();
    cluster.install_crds().await.unwrap();
    cluster.create_namespace("tenant-foo", &[]).await.unwrap();
    let mut values = admin::quick("https://git.example.org/platform.git", "customizer-git");
    admin::enable(&cluster, &values).await.unwrap();
    let account = cluster.service_account_client(SYSTEM, NAME).await.unwrap();
    until_allowed(&account, "patch", "cozystack.io", "packages", "", true).await;
    until_allowed(&account, "delete", "", "secrets", "cozy-customizer", true).await;
    until_allowed(&account, "delete", "", "secrets", SYSTEM, true).await;
    expect("customizer-rights.txt", &matrix(&account).await.unwrap()).unwrap();

    // kubectl asks the same and is told the same.
    let user = format!("--as=system:serviceaccount:{SYSTEM}:{NAME}");
    let answer = |arguments: &'static [&'static str]| {
        let all: Vec<&str> = [&["auth", "can-i"], arguments, &[user.as_str()]].concat();
        let cluster = &cluster;
        async move {
            let all: Vec<String> = all.into_iter().map(str::to_owned).collect();
            let all: Vec<&str> = all.iter().map(String::as_str).collect();
            // can-i exits with 1 for no.
            cluster.kubectl(&all).await.is_ok_and(|text| text.trim() == "yes")
        }
    };
    assert!(answer(&["patch", "packages.cozystack.io"]).await);
    assert!(!answer(&["delete", "packages.cozystack.io"]).await);
    assert!(!answer(&["create", "packages.cozystack.io"]).await);
    assert!(answer(&["create", "packagevalues.cozystack.io"]).await);
    assert!(!answer(&["create", "clusterroles.rbac.authorization.k8s.io"]).await);

    // Nothing but what the chart names is there: no Secret was made, save Helm's own record of the release.
    let secrets: Api<Secret> = Api::namespaced(cluster.admin(), SYSTEM);
    let made: Vec<_> = secrets
        .list(&ListParams::default())
        .await
        .unwrap()
        .items
        .into_iter()
        .filter(|secret| secret.type_.as_deref() != Some("helm.sh/release.v1"))
        .collect();
    assert!(made.is_empty(), "{made:?}");

    // Further rules add just themselves.
    values["rbac"] = json!({"extraRules": [{
        "apiGroups": ["cert-manager.io"], "resources": ["clusterissuers"], "verbs": ["get", "list", "patch", "create"],
    }]});
    admin::enable(&cluster, &values).await.unwrap();
    until_allowed(&account, "patch", "cert-manager.io", "clusterissuers", "", true).await;
    expect("customizer-rights-extra.txt", &matrix(&account).await.unwrap()).unwrap();

    // cluster-admin is just that, and goes again.
    values["rbac"] = json!({"clusterAdmin": true});
    admin::enable(&cluster, &values).await.unwrap();
    until_allowed(&account, "delete", "", "nodes", "", true).await;
    expect("customizer-rights-cluster-admin.txt", &matrix(&account).await.unwrap()).unwrap();
    values["rbac"] = json!({"clusterAdmin": false});
    admin::enable(&cluster, &values).await.unwrap();
    until_allowed(&account, "delete", "", "nodes", "", false).await;
    until_allowed(&account, "patch", "cert-manager.io", "clusterissuers", "", false).await;
    expect("customizer-rights.txt", &matrix(&account).await.unwrap()).unwrap();

    supply_chain_guard(&cluster, &account, values).await.unwrap();
}

fn source(kind: &str, name: &str, namespace: &str, interval: &str) -> DynamicObject {
    let spec = match kind {
        "OCIRepository" => json!({"url": "oci://example.org/packages", "interval": interval}),
        _ => json!({"url": "https://git.example.org/packages.git", "interval": interval}),
    };
    serde_json::from_value(json!({
        "apiVersion": "source.toolkit.fluxcd.io/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }))
    .unwrap()
}

/// The guard of the platform's own sources, off and on, for create, update, delete, by name and by collection.
async fn supply_chain_guard(cluster: &Cluster, account: &Client, mut values: Value) -> Result<()> {
    const SOURCES: &str = "source.toolkit.fluxcd.io/v1";
    let post = PostParams::default();
    let patch = PatchParams::default();
    let change = |interval: &str| Patch::Merge(json!({"spec": {"interval": interval}}));
    let of = |client: &Client, kind: &str| admin::api(client.clone(), SOURCES, kind, SYSTEM);
    let (mine, oci) = (of(account, "GitRepository"), of(account, "OCIRepository"));
    let admins = of(&cluster.admin(), "OCIRepository");

    // Off: the account may do as it likes.
    oci.create(&post, &source("OCIRepository", "cozystack-packages", SYSTEM, "5m")).await?;
    oci.patch("cozystack-packages", &patch, &change("6m")).await?;
    oci.delete("cozystack-packages", &DeleteParams::default()).await?;

    // On: nothing of it. Policies take effect a moment after they are written.
    values["guards"] = json!({"supplyChain": {"enabled": true}});
    admin::enable(cluster, &values).await?;
    let refused = |result: Result<(), kube::Error>| match result {
        Err(kube::Error::Api(status)) if status.code == 403 => {
            status.message.contains("platform itself is installed from")
        }
        _ => false,
    };
    let candidate = source("OCIRepository", "cozystack-packages", SYSTEM, "5m");
    eventually("the guard to refuse", async || match oci.create(&post, &candidate).await {
        Ok(_) => {
            admins.delete("cozystack-packages", &DeleteParams::default()).await?;
            Ok(None)
        }
        other => Ok(refused(other.map(drop)).then_some(())),
    })
    .await?;
    // Everybody else may, the platform's own machinery above all.
    admins.create(&post, &candidate).await?;
    admins.patch("cozystack-packages", &patch, &change("7m")).await?;
    assert!(refused(oci.patch("cozystack-packages", &patch, &change("8m")).await.map(drop)));
    assert!(refused(
        oci.patch_metadata(
            "cozystack-packages",
            &patch,
            &Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}))
        )
        .await
        .map(drop)
    ));
    assert!(refused(
        oci.patch_status("cozystack-packages", &patch, &Patch::Merge(json!({"status": {}}))).await.map(drop)
    ));
    assert!(refused(oci.delete("cozystack-packages", &DeleteParams::default()).await.map(drop)));
    assert!(refused(oci.delete_collection(&DeleteParams::default(), &ListParams::default()).await.map(drop)));
    assert!(admins.get_opt("cozystack-packages").await?.is_some());
    // By another kind of source, and by server-side apply, which is what kustomize-controller does.
    assert!(refused(
        mine.create(&post, &source("GitRepository", "cozystack-platform", SYSTEM, "5m")).await.map(drop)
    ));
    let forced = PatchParams::apply("kustomize-controller").force();
    assert!(refused(oci.patch("cozystack-packages", &forced, &Patch::Apply(&candidate)).await.map(drop)));
    // Its own sources stay the admin's.
    mine.create(&post, &source("GitRepository", "mine", SYSTEM, "5m")).await?;
    mine.patch("mine", &patch, &change("6m")).await?;
    mine.delete("mine", &DeleteParams::default()).await?;
    let elsewhere = admin::api(account.clone(), SOURCES, "OCIRepository", "cozy-customizer");
    elsewhere.create(&post, &source("OCIRepository", "cozystack-packages", "cozy-customizer", "5m")).await?;

    // Off again.
    values["guards"] = json!({"supplyChain": {"enabled": false}});
    admin::enable(cluster, &values).await?;
    eventually("the guard to go", async || {
        Ok(oci.patch("cozystack-packages", &patch, &change("9m")).await.is_ok().then_some(()))
    })
    .await?;
    Ok(())
}

const ISSUERS: &str = r"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: clusterissuers.cert-manager.io}
spec:
  group: cert-manager.io
  names: {kind: ClusterIssuer, plural: clusterissuers, singular: clusterissuer, listKind: ClusterIssuerList}
  scope: Cluster
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
";

const ISSUER: &str = r"
apiVersion: cert-manager.io/v1
kind: ClusterIssuer
metadata:
  name: corporate
spec:
  selfSigned: {}
";

fn override_of(minutes: &str) -> String {
    format!(
        "apiVersion: cozystack.io/v1alpha1\nkind: PackageValues\nmetadata:\n  name: cozystack.linstor\nspec:\n  components:\n    \
         linstor:\n      values:\n        autoDiskful:\n          minutes: {minutes}\n"
    )
}

/// The platform's values, changed from git: with the two annotations that the documentation asks for.
const PLATFORM_VALUES: &str = r#"
apiVersion: v1
kind: Secret
metadata:
  name: cozystack-values
  namespace: cozy-system
  annotations:
    kustomize.toolkit.fluxcd.io/prune: disabled
    kustomize.toolkit.fluxcd.io/ssa: Merge
stringData:
  values.yaml: |
    _cluster:
      root-host: git.example.org
"#;

async fn minutes(cluster: &Cluster) -> Option<Value> {
    admin::get(&admin::package_values(cluster), "cozystack.linstor")
        .await
        .unwrap()
        .and_then(|object| object.pointer("/spec/components/linstor/values/autoDiskful/minutes").cloned())
}

#[tokio::test]
async fn the_repository_configures_the_platform() {
    let cluster = Cluster::start().await.unwrap();
    cluster.install_crds().await.unwrap();
    cluster.apply(ISSUERS).await.unwrap();
    cluster.wait_for_crds().await.unwrap();
    let _flux = Flux::start(&cluster).await.unwrap();
    let git = GitServer::start_private("admin", "correct horse").await.unwrap();
    let repository = git.repository("platform").await.unwrap();
    let first = repository
        .push(&[
            ("clusters/prod/linstor.yaml", &override_of("10")),
            ("clusters/prod/issuer.yaml", ISSUER),
            ("clusters/prod/values.yaml", PLATFORM_VALUES),
        ])
        .await
        .unwrap();
    // What the platform itself has made of its values.
    let platform = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "cozystack-values", "namespace": SYSTEM, "labels": {"reconcile.fluxcd.io/watch": "Enabled"}},
        "stringData": {"values.yaml": "_cluster:\n  root-host: example.org\n"},
    });
    let secrets: Api<Secret> = Api::namespaced(cluster.admin(), SYSTEM);
    let helm = PostParams { field_manager: Some("helm-controller".to_owned()), ..PostParams::default() };
    secrets.create(&helm, &serde_json::from_value(platform).unwrap()).await.unwrap();

    // Without credentials the GitRepository says so, and nothing is applied.
    let credentials = |user: &str| {
        let mut data = json!({"ca.crt": git.ca_pem().unwrap()});
        if !user.is_empty() {
            data["username"] = json!(user);
            data["password"] = json!("correct horse");
        }
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "customizer-git", "namespace": SYSTEM},
            "stringData": data,
        })
    };
    cluster.apply_value(credentials("")).await.unwrap();
    let mut values = admin::quick(repository.url(), "customizer-git");
    values["rbac"] = json!({"extraRules": [{
        "apiGroups": ["cert-manager.io"], "resources": ["clusterissuers"],
        "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
    }]});
    admin::enable(&cluster, &values).await.unwrap();
    let sources = admin::git_repositories(&cluster);
    let (reason, message) = eventually("the GitRepository to fail", async || {
        let Some(object) = admin::get(&sources, NAME).await? else { return Ok(None) };
        Ok(admin::ready(&object)
            .filter(|(status, ..)| status == "False")
            .map(|(_, reason, message)| (reason, message)))
    })
    .await
    .unwrap();
    assert_eq!(reason, "GitOperationFailed", "{message}");
    assert!(message.contains("authentication required"), "{message}");
    let kustomization = admin::get(&admin::kustomizations(&cluster), NAME).await.unwrap().unwrap();
    assert_eq!(kustomization.pointer("/status/lastAppliedRevision"), None);
    assert_eq!(minutes(&cluster).await, None);

    // With them everything is.
    cluster.apply_value(credentials("admin")).await.unwrap();
    let applied = admin::applied(&cluster, &first).await.unwrap();
    assert_eq!(minutes(&cluster).await, Some(json!(10)));
    let issuers = admin::api(cluster.admin(), "cert-manager.io/v1", "ClusterIssuer", "");
    assert!(issuers.get_opt("corporate").await.unwrap().is_some());
    assert_eq!(root_host(&secrets).await, "git.example.org");
    // As the account, not as the controller.
    let log = cluster.audit_log().unwrap();
    let writer = log
        .iter()
        .find(|event| event["objectRef"]["resource"] == "packagevalues" && event["verb"] == "patch")
        .unwrap();
    assert_eq!(writer["impersonatedUser"]["username"], format!("system:serviceaccount:{SYSTEM}:{NAME}"));
    // What is there of others stays: the label that the platform's chart put on its Secret.
    let secret = secrets.get("cozystack-values").await.unwrap();
    assert!(secret.metadata.labels.unwrap().contains_key("reconcile.fluxcd.io/watch"));
    assert_eq!(applied.pointer("/status/inventory/entries").and_then(Value::as_array).map(Vec::len), Some(3));

    // A change follows.
    let second = repository.push(&[("clusters/prod/linstor.yaml", &override_of("20"))]).await.unwrap();
    admin::applied(&cluster, &second).await.unwrap();
    assert_eq!(minutes(&cluster).await, Some(json!(20)));

    bad_commits(&cluster, &repository, &second).await;
    let good = repository.push(&[("clusters/prod/linstor.yaml", &override_of("40"))]).await.unwrap();
    admin::applied(&cluster, &good).await.unwrap();
    assert_eq!(minutes(&cluster).await, Some(json!(40)));

    // Switched off: what was applied stays, and so does the admin's namespace. Switched on again: the same objects,
    // taken over without a conflict.
    let before = admin::package_values(&cluster).get("cozystack.linstor").await.unwrap();
    admin::disable(&cluster).await.unwrap();
    eventually("the Kustomization to go", async || {
        Ok(admin::get(&admin::kustomizations(&cluster), NAME).await?.is_none().then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(minutes(&cluster).await, Some(json!(40)));
    assert!(issuers.get_opt("corporate").await.unwrap().is_some());
    assert!(cluster.kubectl(&["get", "namespace", "cozy-customizer"]).await.is_ok());
    let again = repository.push(&[("clusters/prod/linstor.yaml", &override_of("50"))]).await.unwrap();
    admin::enable(&cluster, &values).await.unwrap();
    admin::applied(&cluster, &again).await.unwrap();
    let all = admin::package_values(&cluster).list(&ListParams::default()).await.unwrap();
    assert_eq!(all.items.len(), 1);
    let after = &all.items[0];
    assert_eq!(after.metadata.uid, before.metadata.uid);
    assert_eq!(after.data.pointer("/spec/components/linstor/values/autoDiskful/minutes"), Some(&json!(50)));
    let managers: Vec<_> = after
        .metadata
        .managed_fields
        .iter()
        .flatten()
        .filter(|entry| entry.subresource.is_none())
        .map(|entry| (entry.manager.clone().unwrap_or_default(), entry.operation.clone().unwrap_or_default()))
        .collect();
    assert_eq!(managers, [("kustomize-controller".to_owned(), "Apply".to_owned())]);

    // What goes from git goes from the cluster.
    let pruned = repository.remove(&["clusters/prod/issuer.yaml"]).await.unwrap();
    admin::applied(&cluster, &pruned).await.unwrap();
    assert!(issuers.get_opt("corporate").await.unwrap().is_none());

    teardown(&cluster, &mut values).await;
    assert_eq!(root_host(&secrets).await, "git.example.org", "the platform's own Secret must survive");
}

async fn root_host(secrets: &Api<Secret>) -> String {
    let secret = secrets.get("cozystack-values").await.unwrap();
    let text = String::from_utf8(secret.data.unwrap()["values.yaml"].0.clone()).unwrap();
    text.trim().rsplit(' ').next().unwrap().to_owned()
}

/// Each of these commits changes the override as well; it must not get through.
async fn bad_commits(cluster: &Cluster, repository: &cozy_testenv::Repository, good: &str) {
    let unknown = "apiVersion: example.org/v1\nkind: Unheard\nmetadata:\n  name: of\n";
    let forbidden = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata:\n  name: more\nroleRef: \
                     {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}\nsubjects:\n- \
                     {kind: ServiceAccount, name: cozystack-customizer, namespace: cozy-system}\n";
    let elsewhere = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: mine\n  namespace: kube-system\n";
    let refused_by_schema = "apiVersion: cozystack.io/v1alpha1\nkind: PackageValues\nmetadata:\n  name: cozystack.velero\nspec:\n  components: 5\n";
    for (what, content, told) in [
        ("broken YAML", "a: [\n", "bad.yaml"),
        ("a kind that there is not", unknown, "Unheard"),
        (
            "an object that the account may not write",
            forbidden,
            "clusterrolebindings.rbac.authorization.k8s.io",
        ),
        ("an object of a namespace that is not the account's", elsewhere, "kube-system"),
        ("an object that its schema refuses", refused_by_schema, "cozystack.velero"),
    ] {
        let commit = repository
            .push(&[("clusters/prod/bad.yaml", content), ("clusters/prod/linstor.yaml", &override_of("30"))])
            .await
            .unwrap();
        let (object, reason, message) = admin::refused(cluster, &commit).await.unwrap();
        eprintln!("{what}: {reason}: {message}");
        assert!(message.contains(told), "{what}: {reason}: {message}");
        assert_eq!(minutes(cluster).await, Some(json!(20)), "{what}");
        let applied = object.pointer("/status/lastAppliedRevision").and_then(Value::as_str).unwrap();
        assert!(applied.ends_with(good), "{what}: {applied}");
    }
    std::fs::remove_file(repository.work_tree().join("clusters/prod/bad.yaml")).unwrap();
}

/// As docs/admin-surface.md says.
async fn teardown(cluster: &Cluster, values: &mut Value) {
    values["kustomization"]["deletionPolicy"] = json!("WaitForTermination");
    admin::enable(cluster, values).await.unwrap();
    cluster
        .kubectl(&[
            "-n",
            SYSTEM,
            "delete",
            "kustomizations.kustomize.toolkit.fluxcd.io",
            NAME,
            "--wait",
            "--timeout=120s",
        ])
        .await
        .unwrap();
    assert_eq!(minutes(cluster).await, None);
    admin::disable(cluster).await.unwrap();
    cluster.kubectl(&["delete", "namespace", "cozy-customizer", "--wait", "--timeout=120s"]).await.unwrap();
    cluster.kubectl(&["-n", SYSTEM, "delete", "secret", "customizer-git"]).await.unwrap();
    let kinds = "gitrepositories.source.toolkit.fluxcd.io,kustomizations.kustomize.toolkit.fluxcd.io,packagevalues,serviceaccounts,\
                 secrets,roles,rolebindings,clusterroles,clusterrolebindings,namespaces,validatingadmissionpolicies,\
                 validatingadmissionpolicybindings,validatingwebhookconfigurations";
    for label in ["app.kubernetes.io/instance=customizer", "owner=helm,name=customizer"] {
        let left = cluster.kubectl(&["get", kinds, "-A", "-o", "name", "-l", label]).await.unwrap();
        assert_eq!(left.trim(), "", "{label}");
    }
}

const LINSTOR: &str = r"
apiVersion: cozystack.io/v1alpha1
kind: PackageSource
metadata: {name: cozystack.linstor}
spec:
  sourceRef: {kind: OCIRepository, name: cozystack-packages, namespace: cozy-system, path: /}
  variants:
  - name: default
    components:
    - name: linstor
      path: system/linstor
      install: {namespace: cozy-linstor}
";

#[tokio::test]
async fn an_override_in_git_reaches_the_helmrelease_and_the_package_tells() {
    let cluster = Cluster::start().await.unwrap();
    cluster.install_crds().await.unwrap();
    let _flux = Flux::start(&cluster).await.unwrap();
    let git = GitServer::start_plain().await.unwrap();
    let repository = git.repository("platform").await.unwrap();
    let operator = operator_support::Operator::start(cluster.admin());
    cluster.apply(LINSTOR).await.unwrap();
    let spec =
        json!({"components": {"linstor": {"values": {"autoDiskful": {"enabled": true, "minutes": 30}}}}});
    admin::package_of_the_chart(&cluster, "cozystack.linstor", &spec).await.unwrap();

    let releases = admin::api(cluster.admin(), "helm.toolkit.fluxcd.io/v2", "HelmRelease", "cozy-linstor");
    let packages = admin::packages(cluster.admin());
    // The effective values are told where there are overrides.
    let settled = async |minutes: u64, overridden: bool| {
        eventually(&format!("the release and the status to say {minutes} minutes"), async || {
            let Some(release) = admin::get(&releases, "linstor").await? else { return Ok(None) };
            let Some(package) = admin::get(&packages, "cozystack.linstor").await? else { return Ok(None) };
            let there = release.pointer("/spec/values/autoDiskful/minutes") == Some(&json!(minutes));
            let told = package.pointer("/status/effectiveValues/linstor/values/autoDiskful/minutes").cloned();
            let told = told == overridden.then(|| json!(minutes));
            anyhow::ensure!(there && told, "{} {}", release["spec"]["values"], package["status"]);
            Ok(Some((release, package)))
        })
        .await
        .unwrap()
    };
    settled(30, false).await;

    let commit = repository.push(&[("clusters/prod/linstor.yaml", &override_of("10"))]).await.unwrap();
    admin::enable(&cluster, &admin::quick(repository.url(), "")).await.unwrap();
    admin::applied(&cluster, &commit).await.unwrap();
    let (release, package) = settled(10, true).await;
    assert_eq!(release["spec"]["values"], json!({"autoDiskful": {"enabled": true, "minutes": 10}}));
    let says = async |generation: u64, commit: &str| {
        let wanted = json!(format!("cozystack.linstor@{generation} main@sha1:{commit}"));
        eventually("the release to name the commit", async || {
            let release = admin::get(&releases, "linstor").await?.unwrap();
            let told = release["metadata"]["annotations"]["gitops.cozystack.io/values-from"].clone();
            anyhow::ensure!(told == wanted, "{told} and not {wanted}");
            Ok(Some(release["metadata"]["generation"].clone()))
        })
        .await
        .unwrap()
    };
    let generation = says(1, &commit).await;
    assert_eq!(generation, release["metadata"]["generation"], "the commit's name is metadata");
    let overrides = package.pointer("/status/overrides").unwrap().to_string();
    assert!(overrides.contains("/autoDiskful/minutes"), "{overrides}");
    // What is said in the PackageValues stays there: the Package's spec is the chart's.
    assert_eq!(package["spec"], spec);

    let commit = repository.push(&[("clusters/prod/linstor.yaml", &override_of("20"))]).await.unwrap();
    admin::applied(&cluster, &commit).await.unwrap();
    settled(20, true).await;
    says(2, &commit).await;
    let introduced = commit;
    // A commit that changes something else is not this override's.
    let other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other, namespace: cozy-customizer}\n";
    let commit = repository.push(&[("clusters/prod/other.yaml", other)]).await.unwrap();
    admin::applied(&cluster, &commit).await.unwrap();
    operator.quiet().await;
    says(2, &introduced).await;

    // What breaks in git leaves the override in force.
    let bad = repository.push(&[("clusters/prod/broken.yaml", "{{ no yaml")]).await.unwrap();
    admin::refused(&cluster, &bad).await.unwrap();
    settled(20, true).await;

    // What goes from git goes from the release.
    let gone = repository.remove(&["clusters/prod/broken.yaml", "clusters/prod/linstor.yaml"]);
    let empty = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: base, namespace: cozy-customizer}\n";
    gone.await.unwrap();
    let commit = repository.push(&[("clusters/prod/base.yaml", empty)]).await.unwrap();
    admin::applied(&cluster, &commit).await.unwrap();
    let (release, _) = settled(30, false).await;
    assert_eq!(release.pointer("/metadata/annotations/gitops.cozystack.io~1values-from"), None);
    operator.stop().await;
}
