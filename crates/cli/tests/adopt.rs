//! `cozy-gitops adopt` against a real API server: the manifest, and the way back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use assert_cmd::Command;
use cozy_testenv::Cluster;
use cozy_testenv::cluster::apply_as;
use kube::api::PatchParams;
use serde_json::{Value, json};

const PACKAGE: &str = "cozystack.cozystack-platform";

/// Exit code, standard output and standard error.
fn adopt(cluster: &Cluster, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::cargo_bin("cozy-gitops")
        .unwrap()
        .env("KUBECONFIG", cluster.admin_kubeconfig().unwrap())
        .arg("adopt")
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

async fn package(cluster: &Cluster) -> Value {
    let text = cluster.kubectl(&["get", "package", PACKAGE, "-o", "json", "--show-managed-fields"]).await;
    serde_json::from_str(&text.unwrap()).unwrap()
}

fn managers(package: &Value) -> Vec<&str> {
    let entries = package["metadata"]["managedFields"].as_array().unwrap();
    entries.iter().map(|entry| entry["manager"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_package_is_adopted_and_given_back_as_it_was() {
    let cluster = Cluster::builder().without_controller_manager().start().await.unwrap();
    cluster.install_crds().await.unwrap();
    let by_hand = json!({
        "apiVersion": "cozystack.io/v1alpha1", "kind": "Package", "metadata": { "name": PACKAGE },
        "spec": { "variant": "isp-full", "components": { "platform": { "values": {
            "publishing": { "host": "example.org" }, "largest": 9_007_199_254_740_993_u64,
        } } } },
    });
    apply_as(&cluster.admin(), by_hand, &PatchParams::apply("hand")).await.unwrap();
    let before = package(&cluster).await;

    let (code, manifest, told) =
        adopt(&cluster, &["--field", "/spec/components/platform/values/publishing/host"]);
    assert_eq!(code, Some(0), "{told}");
    assert!(
        told.contains("adopts /spec/components/platform/values/publishing/host of hand (Apply)"),
        "{told}"
    );
    assert!(manifest.contains("host: example.org") && !manifest.contains("largest"), "{manifest}");

    // As kustomize-controller applies it.
    let value = cozy_yaml::parse_one(manifest.as_bytes(), &cozy_yaml::Limits::default()).unwrap().value;
    let flux = PatchParams::apply("kustomize-controller").force();
    apply_as(&cluster.admin(), value, &flux).await.unwrap();
    let adopted = package(&cluster).await;
    assert_eq!(adopted["spec"], before["spec"]);
    assert!(managers(&adopted).contains(&"kustomize-controller"));

    let (code, data, told) = adopt(&cluster, &["--give-back"]);
    assert_eq!((code, data.as_str()), (Some(0), ""), "{told}");
    assert!(told.contains("is given back"), "{told}");
    let given = package(&cluster).await;
    assert_eq!(given["spec"], before["spec"]);
    assert_eq!(given["metadata"]["generation"], before["metadata"]["generation"]);
    assert!(!managers(&given).contains(&"kustomize-controller"), "{:?}", managers(&given));

    // There is nothing more to give, and that is told.
    let (code, _, told) = adopt(&cluster, &["--give-back"]);
    assert_eq!(code, Some(1));
    assert!(told.contains("kustomize-controller owns none of its fields"), "{told}");
    assert_eq!(package(&cluster).await["metadata"], given["metadata"]);

    let (code, data, told) = adopt(&cluster, &["cozystack.no-such-package"]);
    assert_eq!((code, data.as_str()), (Some(1), ""));
    assert!(told.contains("cannot read Package cozystack.no-such-package"), "{told}");
}
