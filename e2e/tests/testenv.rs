//! The test environment itself.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use cozy_testenv::Cluster;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, DeleteParams, ListParams, PostParams};

#[tokio::test]
async fn a_cluster_starts_serves_and_goes() {
    let started = std::time::Instant::now();
    let cluster = Cluster::start().await.unwrap();
    eprintln!("control plane ready after {:?}", started.elapsed());
    cluster.install_crds().await.unwrap();

    // RBAC is on.
    let nobody = cluster.client_as("nobody", &[]).unwrap();
    let refused =
        Api::<ConfigMap>::namespaced(nobody, "default").list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 403));

    // Namespaces really go: the controllers work.
    cluster.create_namespace("gone", &[]).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(cluster.admin());
    namespaces.delete("gone", &DeleteParams::default()).await.unwrap();
    cozy_testenv::eventually("the namespace to go", async || {
        Ok(namespaces.get_opt("gone").await?.is_none().then_some(()))
    })
    .await
    .unwrap();

    // Service accounts have real tokens.
    cluster
        .apply("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: robot, namespace: default}")
        .await
        .unwrap();
    let robot = cluster.service_account_client("default", "robot").await.unwrap();
    let review: k8s_openapi::api::authentication::v1::SelfSubjectReview =
        Api::all(robot).create(&PostParams::default(), &Default::default()).await.unwrap();
    assert_eq!(
        review.status.unwrap().user_info.unwrap().username.as_deref(),
        Some("system:serviceaccount:default:robot")
    );

    // Writes are in the audit log.
    let log = cluster.audit_log().unwrap();
    assert!(log.iter().any(|e| e["verb"] == "delete" && e["objectRef"]["name"] == "gone"));

    // The API server goes and comes back with its data.
    cluster.stop_apiserver();
    assert!(namespaces.get("default").await.is_err());
    cluster.start_apiserver().await.unwrap();
    assert!(namespaces.get("cozy-system").await.is_ok());
    assert!(cluster.kubectl(&["get", "namespace", "cozy-fluxcd"]).await.unwrap().contains("Active"));

    let dir = cluster.dir().to_path_buf();
    drop(cluster);
    assert!(!dir.exists(), "{} is left behind", dir.display());
}

#[tokio::test]
async fn several_clusters_live_side_by_side() {
    let (a, b) = tokio::join!(
        Cluster::builder().without_controller_manager().start(),
        Cluster::builder().without_controller_manager().start()
    );
    let (a, b) = (a.unwrap(), b.unwrap());
    a.create_namespace("only-a", &[]).await.unwrap();
    assert!(Api::<Namespace>::all(b.admin()).get_opt("only-a").await.unwrap().is_none());
}

#[tokio::test]
async fn a_part_that_does_not_start_is_told_with_its_log() {
    let error = Cluster::builder().argument("--no-such-flag").start().await.err().expect("it cannot start");
    let text = format!("{error:#}");
    assert!(text.contains("kube-apiserver") && text.contains("no-such-flag"), "{text}");
}
