//! The controllers of cozy-gitops: what [`cozy_core::render`] decides, done on an API server.
//!
//! Watches fill a [`store`]; whatever a change concerns is queued ([`queue`]) and reconciled by a few workers
//! ([`reconcile`]). Nothing is reconciled before every cache is filled, so no HelmRelease is ever written without
//! its override, and nothing is written that would change nothing. See `docs/operator-internals.md`.

mod boot;
mod charts;
mod client;
mod compact;
mod config;
mod events;
mod grant;
mod http;
mod lease;
mod metrics;
mod queue;
mod reconcile;
mod store;
mod tenant;
mod watch;
mod write;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch as signal;
use tracing::{error, info};

pub use client::client;
pub use config::{Config, PlatformSource, Tenants, bind_address};

use crate::lease::Leader;
use crate::queue::Queue;
use crate::reconcile::Context;

/// Why the operator stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A flag makes no sense.
    #[error("{0}")]
    Config(String),
    /// No connection to the API server could be set up.
    #[error("the API server cannot be reached: {0}; check KUBECONFIG or the pod's ServiceAccount")]
    Client(String),
    /// A port could not be opened.
    #[error("cannot listen on {address}: {source}; choose another address or 0 for none")]
    Listen {
        /// The address.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// A step before the controllers failed.
    #[error("{step}: {reason}")]
    Boot {
        /// The step.
        step: String,
        /// Why.
        reason: String,
    },
    /// Another replica leads now. The process has to end, so that it holds nothing from before.
    #[error("lost the Lease {0}; another replica leads now")]
    LeaseLost(String),
}

/// Runs the operator with the client that the environment describes (`KUBECONFIG`, or the pod's ServiceAccount),
/// until `shutdown` is done.
///
/// # Errors
/// When a flag makes no sense, the API server or a port cannot be had, or the lease is lost.
pub async fn run(config: Config, shutdown: impl Future<Output = ()> + Send) -> Result<(), Error> {
    let client_config = kube::Config::infer().await.map_err(|error| Error::Client(error.to_string()))?;
    run_with(config, client(client_config)?, shutdown).await
}

/// [`run`] with a client of the caller's.
///
/// # Errors
/// As [`run`].
pub async fn run_with(
    config: Config,
    client: kube::Client,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Error> {
    run_beside(config, client, Beside::default(), shutdown).await
}

/// What runs in the same process and shares the operator's endpoints.
pub struct Beside {
    /// Where `/metrics` finds the metrics of all; their names begin with `cozy_gitops`.
    pub metrics: prometheus_client::registry::Registry,
    /// What has to be true, too, for `/readyz`.
    pub ready: Vec<Arc<AtomicBool>>,
}

impl Default for Beside {
    fn default() -> Self {
        Self { metrics: prometheus_client::registry::Registry::with_prefix("cozy_gitops"), ready: Vec::new() }
    }
}

/// [`run_with`], sharing the endpoints with others.
///
/// # Errors
/// As [`run`].
pub async fn run_beside(
    config: Config,
    client: kube::Client,
    beside: Beside,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Error> {
    config.check().map_err(Error::Config)?;
    let config = Arc::new(config);
    let metrics = Arc::new(metrics::Metrics::new(beside.metrics));
    let synced = Arc::new(AtomicBool::new(false));
    let waiting = Arc::new(AtomicBool::new(false));
    let probes =
        Arc::new(http::Probes { synced: synced.clone(), waiting: waiting.clone(), beside: beside.ready });
    let (stop, stopped) = signal::channel(false);

    let mut tasks = tokio::task::JoinSet::new();
    for address in [&config.health_probe_bind_address, &config.metrics_bind_address] {
        let Some(address) = bind_address(address).map_err(Error::Config)? else { continue };
        let listener = tokio::net::TcpListener::bind(address)
            .await
            .map_err(|source| Error::Listen { address: address.to_string(), source })?;
        tasks.spawn(http::serve(listener, metrics.clone(), probes.clone(), stopped.clone()));
    }
    tokio::pin!(shutdown);

    let leader = Leader::new(client.clone(), &config);
    let mut lost: Option<tokio::task::JoinHandle<()>> = None;
    if config.leader_elect {
        info!(lease = %config.lease_name, identity = %config.identity, "waiting for the lease");
        waiting.store(true, Ordering::SeqCst);
        tokio::select! {
            () = &mut shutdown => return Ok(()),
            () = leader.acquire() => {}
        }
        waiting.store(false, Ordering::SeqCst);
        info!(lease = %config.lease_name, "leading");
        let keeper = leader.clone();
        lost = Some(tokio::spawn(async move { keeper.keep().await }));
    }
    metrics.leader.set(1);

    let work = async {
        boot::run(&config, &client, &leader).await?;
        let context = Arc::new(Context::new(config.clone(), client.clone(), leader.clone(), metrics.clone()));
        let queue = Arc::new(Queue::new(metrics.clone()));
        let mut tasks = watch::start(&context, &queue, &synced, &stopped);
        wait_for(&synced).await;
        info!("caches are filled");
        for _ in 0..config.workers.max(1) {
            let (context, queue) = (context.clone(), queue.clone());
            tasks.spawn(async move { reconcile::work(&context, &queue).await });
        }
        // They end only by being dropped, or by a panic: without one of them the operator is deaf to its kind.
        while let Some(done) = tasks.join_next().await {
            if let Err(error) = done {
                error!(%error, "a task of the operator ended");
                break;
            }
        }
        Ok::<(), Error>(())
    };
    let outcome = tokio::select! {
        outcome = work => outcome,
        () = &mut shutdown => Ok(()),
        () = async {
            match &mut lost {
                Some(keeper) => while !keeper.is_finished() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                },
                None => std::future::pending().await,
            }
        } => Err(Error::LeaseLost(config.lease_name.clone())),
    };
    synced.store(false, Ordering::SeqCst);
    let _ = stop.send(true);
    metrics.leader.set(0);
    if let Some(keeper) = lost {
        // Before the lease is given back, or it would be taken again.
        keeper.abort();
        let _ = keeper.await;
    }
    if config.leader_elect && outcome.is_ok() {
        leader.release().await;
    }
    tasks.shutdown().await;
    outcome
}

async fn wait_for(flag: &AtomicBool) {
    while !flag.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
