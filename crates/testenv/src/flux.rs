//! Flux's main controllers, as Cozystack runs them.

use std::path::PathBuf;
use std::process::Command;

use crate::cluster::Cluster;
use crate::process::{Process, free_ports, program};

/// What Cozystack passes to its main controllers: whatever carries the shard label is somebody else's.
const SELECTOR: &str = "--watch-label-selector=!sharding.fluxcd.io/key";

/// A running source-controller and main kustomize-controller in `cozy-fluxcd`, both with the rights of
/// cluster-admin, as in Cozystack.
pub struct Flux {
    source_controller: Process,
    kustomize_controller: Process,
    artifacts: u16,
}

impl Flux {
    /// Starts both controllers; the CRDs must be installed.
    ///
    /// # Errors
    /// When a controller cannot be started.
    pub async fn start(cluster: &Cluster) -> anyhow::Result<Self> {
        cluster.apply(ACCOUNTS).await?;
        let [artifacts] = free_ports()?;
        let source_controller = spawn(
            cluster,
            "source-controller",
            &[
                SELECTOR.to_owned(),
                format!("--storage-path={}", storage(cluster)?.display()),
                format!("--storage-addr=127.0.0.1:{artifacts}"),
                format!("--storage-adv-addr=127.0.0.1:{artifacts}"),
            ],
        )
        .await?;
        let kustomize_controller = spawn(cluster, "kustomize-controller", &[SELECTOR.to_owned()]).await?;
        Ok(Self { source_controller, kustomize_controller, artifacts })
    }

    /// The source-controller.
    pub fn source_controller(&mut self) -> &mut Process {
        &mut self.source_controller
    }

    /// The main kustomize-controller.
    pub fn kustomize_controller(&mut self) -> &mut Process {
        &mut self.kustomize_controller
    }

    /// `host:port` that artifacts are served at.
    #[must_use]
    pub fn artifact_address(&self) -> String {
        format!("127.0.0.1:{}", self.artifacts)
    }
}

fn storage(cluster: &Cluster) -> anyhow::Result<PathBuf> {
    let path = cluster.dir().join("artifacts");
    std::fs::create_dir_all(&path)?;
    Ok(path)
}

async fn spawn(cluster: &Cluster, name: &str, arguments: &[String]) -> anyhow::Result<Process> {
    let token = cluster.service_account_token("cozy-fluxcd", name).await?;
    let kubeconfig = cluster.kubeconfig(name, &token)?;
    let temp = cluster.dir().join(format!("{name}-tmp"));
    std::fs::create_dir_all(&temp)?;
    cluster.supervisor().spawn(
        name,
        Command::new(program(name)?)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &temp)
            .env("TMPDIR", &temp)
            .env("KUBECONFIG", &kubeconfig)
            .env("RUNTIME_NAMESPACE", "cozy-fluxcd")
            .args(arguments)
            .args([
                "--events-addr=",
                "--health-addr=127.0.0.1:0",
                "--metrics-addr=127.0.0.1:0",
                "--enable-leader-election=false",
                "--log-level=info",
                "--watch-all-namespaces=true",
            ]),
    )
}

const ACCOUNTS: &str = r"
apiVersion: v1
kind: ServiceAccount
metadata: {name: source-controller, namespace: cozy-fluxcd}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: kustomize-controller, namespace: cozy-fluxcd}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: flux-main}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects:
- {kind: ServiceAccount, name: source-controller, namespace: cozy-fluxcd}
- {kind: ServiceAccount, name: kustomize-controller, namespace: cozy-fluxcd}
";
