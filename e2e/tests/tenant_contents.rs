//! What a hostile repository can hold, against the real controllers: nothing of it is applied, nothing outside the tenant's
//! namespace is touched, the controller lives, and the innocent part of the same repository goes on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod product;
mod surface;

use cozy_testenv::{GitServer, Repository, eventually};
use kube::api::PostParams;
use serde_json::{Value, json};

use product::Stage;
use surface::{Surface, TENANT, api, kustomization, make, merge};

/// Directory, its files (name and text), and what the tenant is told.
type Directory = (&'static str, Vec<(&'static str, String)>, &'static str);

fn directories() -> Vec<Directory> {
    let object = |kind: &str, version: &str, name: &str, rest: &str| {
        format!("apiVersion: {version}\nkind: {kind}\nmetadata:\n  name: {name}\n{rest}")
    };
    let one = |text: String| vec![("a.yaml", text)];
    let apps = "apps.cozystack.io/v1alpha1";
    let rbac = "rbac.authorization.k8s.io/v1";
    let to_admin = "roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}\n\
                    subjects: [{kind: ServiceAccount, name: tenant-foo-gitops, namespace: tenant-foo}]\n";
    vec![
        ("secret", one(object("Secret", "v1", "x", "")), "secrets"),
        ("binding", one(object("RoleBinding", rbac, "x", to_admin)), "rolebindings"),
        ("cluster-binding", one(object("ClusterRoleBinding", rbac, "x", to_admin)), "clusterrolebindings"),
        ("namespace", one(object("Namespace", "v1", "tenant-mine", "")), "namespaces"),
        ("pod", one(object("Pod", "v1", "x", "spec: {containers: [{name: a, image: a}]}\n")), "pods"),
        (
            "release",
            one(object(
                "HelmRelease",
                "helm.toolkit.fluxcd.io/v2",
                "x",
                "spec: {interval: 5m, chartRef: {kind: OCIRepository, name: a}}\n",
            )),
            "helmreleases",
        ),
        (
            "hook",
            one(object("MutatingWebhookConfiguration", "admissionregistration.k8s.io/v1", "x", "webhooks: []\n")),
            "mutatingwebhookconfigurations",
        ),
        (
            "crd",
            one(object(
                "CustomResourceDefinition",
                "apiextensions.k8s.io/v1",
                "xs.example.org",
                "spec: {group: example.org, scope: Namespaced, names: {kind: X, plural: xs}, versions: [{name: v1, served: true, \
                 storage: true, schema: {openAPIV3Schema: {type: object}}}]}\n",
            )),
            "customresourcedefinitions",
        ),
        (
            "kustomization",
            one(object(
                "Kustomization",
                "kustomize.toolkit.fluxcd.io/v1",
                "x",
                "spec: {interval: 5m, prune: true, path: ./, sourceRef: {kind: GitRepository, name: apps}}\n",
            )),
            "kustomizations",
        ),
        (
            "repository",
            one(object(
                "GitRepository",
                "source.toolkit.fluxcd.io/v1",
                "x",
                "spec: {interval: 5m, url: 'http://169.254.169.254/x'}\n",
            )),
            "gitrepositories",
        ),
        ("gitops", one(object("GitOps", apps, "gitops", "spec: {}\n")), "[application-kind]"),
        // The namespace that an object names is overridden by the target: it becomes the tenant's own.
        ("foreign", one(object("Redis", apps, "foreign", "  namespace: tenant-bar\nspec: {}\n")), ""),
        ("package", one(object("PackageValues", "cozystack.io/v1alpha1", "cozystack.linstor", "spec: {}\n")), "packagevalues"),
        (
            "shard",
            one(object("Redis", apps, "shard", "  labels: {sharding.fluxcd.io/key: tenants}\nspec: {}\n")),
            "[application-metadata]",
        ),
        (
            "remote",
            vec![("kustomization.yaml", "resources: ['https://git.example.org/team/base?ref=main']\n".to_owned())],
            "accumulating resources",
        ),
        (
            "remote-file",
            vec![("kustomization.yaml", "resources: ['http://127.0.0.1:1/a.yaml']\n".to_owned())],
            "accumulating resources",
        ),
        ("upwards", vec![("kustomization.yaml", "resources: ['../../../../../../etc']\n".to_owned())], "path"),
        ("absolute", vec![("kustomization.yaml", "resources: ['/etc/passwd']\n".to_owned())], "path"),
        (
            "generator",
            vec![("kustomization.yaml", "configMapGenerator: [{name: x, files: [/etc/passwd]}]\n".to_owned())],
            "path",
        ),
        (
            "generator-upwards",
            vec![("kustomization.yaml", "secretGenerator: [{name: x, files: [../../../../../etc/passwd]}]\n".to_owned())],
            "path",
        ),
        (
            "plugin",
            vec![
                ("kustomization.yaml", "generators: [plugin.yaml]\n".to_owned()),
                (
                    "plugin.yaml",
                    "apiVersion: example.org/v1\nkind: Exec\nmetadata:\n  name: x\n  annotations:\n    config.kubernetes.io/function: \
                     |\n      exec: {path: /bin/sh}\n"
                        .to_owned(),
                ),
            ],
            "plugin",
        ),
        (
            "helm",
            vec![(
                "kustomization.yaml",
                "helmCharts:\n- {name: a, repo: 'https://charts.example.org', version: 1.0.0}\n".to_owned(),
            )],
            "helm",
        ),
        ("recursive", vec![("kustomization.yaml", "resources: ['.']\n".to_owned())], "cycl"),
        ("option", vec![("--as=admin.yaml", object("Redis", apps, "option", "spec: {}\n"))], ""),
    ]
}

async fn fill(repository: &Repository) {
    for (directory, files, _) in directories() {
        for (name, text) in files {
            let path = repository.work_tree().join(directory).join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }
    let good = "apiVersion: apps.cozystack.io/v1alpha1\nkind: Redis\nmetadata: {name: good}\nspec: {}\n";
    let work = repository.work_tree();
    std::fs::create_dir_all(work.join("good")).unwrap();
    std::fs::write(work.join("good/a.yaml"), good).unwrap();
    for (name, target) in [("link-out", "/etc"), ("link-up", "../../../../.."), ("link-loop", "link-loop")] {
        std::os::unix::fs::symlink(target, work.join(name)).unwrap();
    }
    std::fs::create_dir_all(work.join("link-file")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", work.join("link-file/a.yaml")).unwrap();
    repository.commit().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_in_a_repository_reaches_further_than_the_tenants_own_applications() {
    let git = GitServer::start_plain().await.unwrap();
    let repository = git.repository("apps").await.unwrap();
    fill(&repository).await;
    let stage = Stage::start(Surface::plain().await, &[]).await;
    let tenant = stage.surface.user("tenant").await;
    let links = [("link-out", "path"), ("link-up", "path"), ("link-loop", "path"), ("link-file", "")];
    let cases: Vec<(&str, &str)> =
        directories().into_iter().map(|(name, _, told)| (name, told)).chain(links).collect();
    let mut source = surface::git_repository(TENANT, "apps");
    merge(
        &mut source,
        &json!({ "spec": { "url": repository.url(), "interval": "2s", "ref": { "branch": "main" } } }),
    );
    let sources = api(&tenant, "GitRepository", Some(TENANT));
    make(&sources, &PostParams::default(), &source).await.unwrap();
    let kustomizations = api(&tenant, "Kustomization", Some(TENANT));
    for (name, _) in cases.iter().chain([&("good", "")]) {
        let mut object = kustomization(TENANT, name);
        merge(
            &mut object,
            &json!({ "spec": { "path": format!("./{name}"), "interval": "10s", "retryInterval": "10s", "timeout": "20s" } }),
        );
        make(&kustomizations, &PostParams::default(), &object).await.unwrap();
    }
    eventually("the repository to be fetched", async || {
        let told = stage.get("gitrepository", TENANT, "apps").await.unwrap_or_default();
        anyhow::ensure!(!told["status"]["artifact"].is_null(), "{}", told["status"]["conditions"]);
        Ok(Some(()))
    })
    .await
    .unwrap();
    stage.says(TENANT, "good", "True", "Applied").await;
    let mut wrong = Vec::new();
    for (name, told) in &cases {
        let (status, message) = eventually(&format!("{name} to be judged"), async || {
            let object = stage.get("kustomization", TENANT, name).await.unwrap_or_default();
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let ready = conditions.iter().find(|condition| condition["type"] == "Ready").cloned();
            Ok(ready
                .filter(|ready| ready["status"] != "Unknown" && ready["reason"] != "DependencyNotReady")
                .map(|ready| {
                    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                    (text(&ready["status"]), text(&ready["message"]))
                }))
        })
        .await
        .unwrap();
        let expected = if told.is_empty() { "True" } else { "False" };
        if status != expected || !message.contains(told) {
            wrong.push(format!("{name}: expected {expected} {told:?}, {status} {message}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Nothing but applications of the tenant came of it.
    assert!(stage.get("redis", TENANT, "foreign").await.is_some());
    for (kind, namespace, name) in [
        ("redis", "tenant-bar", "foreign"),
        ("secret", TENANT, "x"),
        ("rolebinding", TENANT, "x"),
        ("clusterrolebinding", "", "x"),
        ("namespace", "", "tenant-mine"),
        ("kustomization", TENANT, "x"),
        ("gitrepository", TENANT, "x"),
        ("packagevalues", "", "cozystack.linstor"),
    ] {
        assert!(stage.get(kind, namespace, name).await.is_none(), "{kind} {namespace}/{name}");
    }
    let controller = format!("kustomize-controller-{TENANT}");
    assert_eq!(stage.kubelet.restarts(&controller).await, 0);
    let log = stage.kubelet.log(&controller).await;
    assert!(!log.contains("root:x:0"), "a file of the node is in the log");
    // And it works on.
    let good =
        "apiVersion: apps.cozystack.io/v1alpha1\nkind: Redis\nmetadata: {name: good}\nspec: {replicas: 7}\n";
    repository.push(&[("good/a.yaml", good)]).await.unwrap();
    eventually("the innocent part to go on", async || {
        let redis = stage.get("redis", TENANT, "good").await.unwrap_or_default();
        Ok((redis["spec"]["replicas"] == 7).then_some(()))
    })
    .await
    .unwrap();
    stage.stop().await;
}
