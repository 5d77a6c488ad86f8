//! What the operator does before its controllers start: CRDs, Flux's manifests, the platform's source.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod operator_support;

use std::path::Path;

use cozy_operator::{Config, PlatformSource};
use cozy_testenv::{Cluster, Kubelet};
use kube::api::PatchParams;
use serde_json::{Value, json};

use operator_support::{Operator, eventually, patch, put, read};

async fn object(cluster: &Cluster, arguments: &[&str]) -> Option<Value> {
    let text = cluster.kubectl(&[&["get", "-o", "json"], arguments].concat()).await.ok()?;
    serde_json::from_str(&text).ok()
}

fn platform(url: &str, reference: &str) -> Config {
    Config {
        install_crds: true,
        platform_source: Some(PlatformSource {
            url: url.to_owned(),
            reference: reference.to_owned(),
            secret: Some("pull".to_owned()),
        }),
        ..Config::default()
    }
}

/// An empty cluster becomes one with the platform's source, from the flags alone.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_cluster_is_installed_from_flags() {
    let cluster = Cluster::start().await.unwrap();
    let client = cluster.admin();
    // Flux's CRDs are in the manifests of a distribution, with its controllers: one Deployment stands for them.
    let manifests = cluster.dir().join("flux");
    std::fs::create_dir_all(&manifests).unwrap();
    for part in ["source-controller", "kustomize-controller", "crds"] {
        for file in std::fs::read_dir(cozy_testenv::cache().join("crds").join(part)).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), manifests.join(file.file_name())).unwrap();
        }
    }
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "flux", "namespace": "cozy-fluxcd" },
        "spec": {
            "selector": { "matchLabels": { "app": "flux" } },
            "template": {
                "metadata": { "labels": { "app": "flux" } },
                "spec": { "serviceAccountName": "flux", "containers": [{
                    "name": "manager", "image": "kustomize-controller", "args": [
                        "--events-addr=", "--enable-leader-election=false", "--watch-all-namespaces=true",
                        "--health-addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0",
                    ],
                    "env": [{ "name": "RUNTIME_NAMESPACE", "value": "cozy-fluxcd" }],
                }] },
            },
        },
    });
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "flux", "namespace": "cozy-fluxcd" },
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "flux" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [{ "kind": "ServiceAccount", "name": "flux", "namespace": "cozy-fluxcd" }],
    });
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": [deployment, account, binding] });
    std::fs::write(manifests.join("flux.json"), list.to_string()).unwrap();
    let _kubelet = Kubelet::start(&cluster, "cozy-fluxcd", &[]).await.unwrap();

    let config = Config {
        flux_manifests: Some(manifests.clone()),
        ..platform("oci://example.org/packages", "tag=v1.0.0,digest=sha256:00")
    };
    let operator = Operator::with(client.clone(), config.clone());
    operator.ready().await;
    let flux = object(&cluster, &["deployment", "-n", "cozy-fluxcd", "flux"]).await.unwrap();
    assert_eq!(flux["status"]["availableReplicas"], 1, "it is waited for");
    let source =
        object(&cluster, &["ocirepository", "-n", "cozy-system", "cozystack-platform"]).await.unwrap();
    assert_eq!(source["spec"]["url"], "oci://example.org/packages");
    assert_eq!(source["spec"]["ref"], json!({ "tag": "v1.0.0", "digest": "sha256:00" }));
    assert_eq!(source["spec"]["secretRef"], json!({ "name": "pull" }));
    assert_eq!(source["spec"]["interval"], "5m0s");
    let platform_source = read(&client, "packagesources", "", "cozystack.cozystack-platform").await.unwrap();
    let variants: Vec<&str> = platform_source["spec"]["variants"]
        .as_array()
        .unwrap()
        .iter()
        .map(|variant| variant["name"].as_str().unwrap())
        .collect();
    assert_eq!(variants, ["default", "isp-full", "isp-hosted", "isp-full-generic"]);
    assert_eq!(
        platform_source["metadata"]["annotations"]["operator.cozystack.io/skip-cozystack-values"],
        "true"
    );
    put(
        &client,
        "packages",
        "",
        "cozystack.cozystack-platform",
        json!({ "spec": { "variant": "isp-full" } }),
    )
    .await;
    eventually("the platform's release", || async {
        read(&client, "helmreleases", "cozy-system", "cozystack-platform").await.is_some_and(|release| {
            release["metadata"]["annotations"]["cozyhr.cozystack.io/values-files"]
                == "values.yaml,values-isp-full.yaml"
                && release["spec"].get("valuesFrom").is_none()
        })
    })
    .await;
    operator.quiet().await;
    operator.stop().await;

    // The next start changes nothing, keeps what others added, and puts back what is its own.
    patch(
        &client,
        "packagesources",
        "",
        "cozystack.cozystack-platform",
        json!({ "metadata": { "labels": { "mine": "1" } } }),
    )
    .await;
    let version = source["metadata"]["resourceVersion"].clone();
    let operator = Operator::with(client.clone(), config.clone());
    operator.ready().await;
    let again =
        object(&cluster, &["ocirepository", "-n", "cozy-system", "cozystack-platform"]).await.unwrap();
    assert_eq!(again["metadata"]["resourceVersion"], version);
    let log = cluster.audit_log().unwrap();
    let writes = log.iter().filter(|event| {
        let verb = event["verb"].as_str().unwrap_or_default();
        event["objectRef"]["resource"] == "ocirepositories" && ["create", "update", "patch"].contains(&verb)
    });
    assert_eq!(writes.count(), 1, "one creation and nothing else");
    operator.stop().await;
    let theirs =
        json!({ "metadata": { "labels": { "mine": "1" } }, "spec": { "url": "oci://example.org/theirs" } });
    cluster
        .kubectl(&[
            "patch",
            "ocirepository",
            "cozystack-platform",
            "-n",
            "cozy-system",
            "--type=merge",
            "-p",
            &theirs.to_string(),
        ])
        .await
        .unwrap();
    let operator = Operator::with(client.clone(), config);
    operator.ready().await;
    let back = object(&cluster, &["ocirepository", "-n", "cozy-system", "cozystack-platform"]).await.unwrap();
    assert_eq!(back["spec"]["url"], "oci://example.org/packages");
    assert_eq!(back["metadata"]["labels"]["mine"], "1", "labels of others stay");
    let platform_source = read(&client, "packagesources", "", "cozystack.cozystack-platform").await.unwrap();
    assert_eq!(platform_source["metadata"]["labels"]["mine"], "1");
    operator.stop().await;
}

/// The CRDs over the Go operator's: every object stays.
#[tokio::test(flavor = "multi_thread")]
async fn crds_are_put_over_what_is_there_and_every_object_stays() {
    let cluster = Cluster::start().await.unwrap();
    let client = cluster.admin();
    let theirs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/cozystack/crds");
    if theirs.is_dir() {
        let by_go = PatchParams::apply("cozystack-operator").force();
        for file in std::fs::read_dir(&theirs).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            for document in cozy_yaml::parse_documents(&text, &cozy_yaml::Limits::default()) {
                let crd = document.unwrap().value;
                if crd["kind"] == "CustomResourceDefinition" {
                    cozy_testenv::cluster::apply_as(&client, crd, &by_go).await.unwrap();
                }
            }
        }
        cluster.wait_for_crds().await.unwrap();
    } else {
        println!("skipped in part: {} is not there, so ours are put over ours", theirs.display());
        cluster.install_crds().await.unwrap();
    }
    put(&client, "packages", "", "kept", json!({ "spec": { "variant": "default", "components": { "a": { "values": { "n": 9_007_199_254_740_993_u64 } } } } })).await;
    let before = read(&client, "packages", "", "kept").await.unwrap();

    for part in ["source-controller", "kustomize-controller", "crds"] {
        cluster.apply_dir(&cozy_testenv::cache().join("crds").join(part)).await.unwrap();
    }
    let operator = Operator::with(client.clone(), Config { install_crds: true, ..Config::default() });
    operator.ready().await;
    let after = read(&client, "packages", "", "kept").await.unwrap();
    assert_eq!(after["spec"], before["spec"]);
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    // The new kind is served.
    put(&client, "packagevalues", "", "kept", json!({ "spec": {} })).await;
    let shown = cluster.kubectl(&["get", "packages"]).await.unwrap();
    assert!(shown.contains("OVERRIDES"), "{shown}");
    operator.stop().await;
}

/// What cannot be done before the start is told, with the flag's name.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_says_which_flag_and_why() {
    let cluster = Cluster::builder().without_controller_manager().start().await.unwrap();
    let client = cluster.admin();
    let fails = async |config: Config, words: &[&str]| {
        let error = Operator::with(client.clone(), config).outcome().await.unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{word:?} is not in: {error}");
        }
    };
    let missing = cluster.dir().join("nothing");
    let flux =
        |directory: &Path| Config { flux_manifests: Some(directory.to_path_buf()), ..Config::default() };
    fails(flux(&missing), &["--install-flux", "nothing"]).await;
    let broken = cluster.dir().join("broken");
    std::fs::create_dir_all(&broken).unwrap();
    std::fs::write(broken.join("a.yaml"), "{ no yaml").unwrap();
    fails(flux(&broken), &["--install-flux", "a.yaml"]).await;
    std::fs::write(
        broken.join("a.yaml"),
        "apiVersion: example.org/v1\nkind: Nothing\nmetadata: {name: thing}",
    )
    .unwrap();
    fails(flux(&broken), &["--install-flux", "Nothing thing"]).await;
    fails(platform("ftp://example.org", ""), &["--platform-source-url", "ftp://"]).await;
    fails(
        platform("oci://example.org/p", "branch=main"),
        &["--platform-source-ref", "branch=main", "digest"],
    )
    .await;
}
