//! The test environment itself.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cozy_testenv::{Cluster, eventually};
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

/// Where the child below says that its cluster runs.
const CHILD: &str = "COZY_GITOPS_TEST_CHILD";

/// Not a test: the process that the test below ends.
#[tokio::test]
#[ignore = "only as a child process of nothing_is_left_behind_however_it_ends"]
async fn holds_a_cluster() {
    let Some(file) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let cluster = Cluster::start().await.unwrap();
    std::fs::write(file.with_extension("new"), cluster.dir().display().to_string()).unwrap();
    std::fs::rename(file.with_extension("new"), &file).unwrap();
    assert!(!file.ends_with("panic"), "as asked");
    std::future::pending::<()>().await;
}

/// Processes that work in a directory.
fn working_in(dir: &Path) -> Vec<String> {
    let commands = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let command = std::fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&command).replace('\0', " "))
    });
    commands.filter(|command| command.contains(&dir.display().to_string())).collect()
}

#[tokio::test]
async fn nothing_is_left_behind_however_it_ends() {
    let scratch = cozy_testenv::Supervisor::new("ends").unwrap();
    for end in ["panic", "KILL", "INT", "TERM"] {
        let file = scratch.dir().join(end);
        // A shell that runs this in the background has it ignore SIGINT, and a child inherits that.
        let mut child = Command::new("env")
            .arg("--default-signal=INT,TERM")
            .arg(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "holds_a_cluster"])
            .env(CHILD, &file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let dir = eventually("the child's cluster", async || {
            anyhow::ensure!(end == "panic" || child.try_wait()?.is_none(), "the child ended by itself");
            Ok(std::fs::read_to_string(&file).ok().map(PathBuf::from))
        })
        .await
        .unwrap();
        if end != "panic" {
            let running = working_in(&dir);
            assert!(running.iter().any(|command| command.contains("kube-apiserver")), "{running:?}");
            assert!(running.iter().any(|command| command.contains("etcd")), "{running:?}");
            Command::new("kill").args([&format!("-{end}"), &child.id().to_string()]).status().unwrap();
        }
        let ended = eventually("the child to end", async || Ok(child.try_wait()?)).await.unwrap();
        assert!(!ended.success());
        eventually(&format!("everything to be gone after {end}"), async || {
            let left = working_in(&dir);
            anyhow::ensure!(left.is_empty(), "still there: {left:?}");
            Ok((!dir.exists()).then_some(()))
        })
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn applications_have_the_schemas_of_their_definitions() {
    let cluster = Cluster::builder().without_controller_manager().start().await.unwrap();
    cluster.install_applications().await.unwrap();
    let application = |spec: &str| {
        format!(
            "apiVersion: apps.cozystack.io/v1alpha1\nkind: Redis\nmetadata: {{name: cache, namespace: default}}\nspec: {spec}"
        )
    };
    cluster.apply(&application("{size: 1Gi, unknownToTheSchema: true}")).await.unwrap();
    let stored = cluster.kubectl(&["get", "redis", "cache", "-o", "jsonpath={.spec}"]).await.unwrap();
    // Defaults are filled in, and what the schema does not know is kept.
    assert!(stored.contains("\"replicas\":2") && stored.contains("unknownToTheSchema"), "{stored}");
    let refused = cluster.apply(&application("{replicas: many}")).await.unwrap_err();
    assert!(format!("{refused:#}").contains("replicas"), "{refused:#}");

    // The definitions are Cozystack's own.
    let real =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/cozystack/applicationdefinitions");
    if !real.exists() {
        eprintln!("skipped: {} is not there, the definitions are not compared", real.display());
        return;
    }
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/testenv/fixtures/applications");
    for entry in std::fs::read_dir(fixtures).unwrap() {
        let path = entry.unwrap().path();
        let read = |path: &Path| {
            cozy_testenv::application_crd(&std::fs::read_to_string(path).unwrap()).unwrap().to_string()
        };
        let name = path.file_name().unwrap();
        assert_eq!(read(&path), read(&real.join(name)), "{}", path.display());
    }
}
