//! The real control plane for tests and for `cozy-dev`: etcd, kube-apiserver and kube-controller-manager, Flux's
//! source- and kustomize-controller, a smart-HTTP git server, and a stand-in for the kubelet.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use cozy_testenv::{Cluster, Flux, GitServer};
//!
//! let cluster = Cluster::start().await?;               // a fresh API server, RBAC on, in a few seconds
//! cluster.install_crds().await?;                       // Cozystack's kinds and Flux's
//! cluster.install_applications().await?;               // some of apps.cozystack.io
//! let flux = Flux::start(&cluster).await?;             // the main controllers, with Cozystack's selector
//! let git = GitServer::start().await?;                 // https on loopback
//! let tenant = cluster.client_as("alice", &["tenant-foo-admin"])?;
//! let account = cluster.service_account_client("cozy-system", "cozystack-customizer").await?;
//! # let _ = (flux, git, tenant, account); Ok(()) }
//! ```
//!
//! The programs come out of the cache that `make peers` fills ([`program`]). Everything runs on loopback on free
//! ports, so several clusters live side by side. Nothing is left behind: a watchdog process of each cluster kills
//! its processes and removes its directory when the test process ends, however it ends ([`process`]).
//!
//! A part that does not come up is reported with the tail of its log.

mod aggregated;
mod applications;
pub mod cluster;
mod flux;
mod git;
mod kubelet;
mod pki;
mod process;
mod source_watcher;

pub use aggregated::AggregatedApi;
pub use applications::application_crd;
pub use cluster::{Cluster, ClusterBuilder};
pub use flux::Flux;
pub use git::{GitServer, Repository};
pub use kubelet::{Kubelet, KubeletBuilder};
pub use process::{Process, Supervisor, cache, free_ports, program, tail};
pub use source_watcher::SourceWatcher;

use std::time::Duration;

/// Longest time that anything is waited for: far above what a loaded machine of two cores needs.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Polls until the condition gives a value.
///
/// # Errors
/// After [`PATIENCE`], naming what was waited for and the last error.
pub async fn eventually<T, F>(what: &str, mut condition: F) -> anyhow::Result<T>
where
    F: AsyncFnMut() -> anyhow::Result<Option<T>>,
{
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let last = match condition().await {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => None,
            Err(error) => Some(error),
        };
        if tokio::time::Instant::now() > deadline {
            let why = last.map(|e| format!(": {e:#}")).unwrap_or_default();
            anyhow::bail!("waited {} s in vain for {what}{why}", PATIENCE.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
