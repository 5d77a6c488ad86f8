//! HTTPS for the API server: the admission webhook.
//!
//! Decisions are [`cozy_core::admission`]'s; here is how they travel. The server makes, renews and publishes its own
//! certificates, or reads them from a directory that cert-manager fills. It takes bounded memory however much is asked
//! of it, and what it cannot read is an answer and never its end. See `docs/webhook.md`.

mod directory;
mod keeper;
mod listen;
mod metrics;
mod reviews;
mod rotation;

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::watch as signal;

pub use rotation::Rotation;

use crate::listen::Identity;
use crate::metrics::Metrics;

/// Label of the webhook configurations whose `caBundle` the server keeps; its value is [`CONFIGURATION`].
pub const LABEL_WEBHOOK: &str = "gitops.cozystack.io/webhook";
/// Value of [`LABEL_WEBHOOK`].
pub const CONFIGURATION: &str = "cozy-gitops";

/// What the server is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it listens.
    pub bind: SocketAddr,
    /// Where its certificate comes from.
    pub certificates: Certificates,
}

/// Where the server's certificate comes from.
#[derive(Clone, Debug)]
pub enum Certificates {
    /// Its own authority, in a Secret that all replicas share.
    Own(Own),
    /// `tls.crt` and `tls.key` in a directory, read again when they change. Whoever fills it keeps `caBundle`.
    Directory(PathBuf),
}

/// The server's own authority.
#[derive(Clone, Debug)]
pub struct Own {
    /// Namespace of the Secret and of the Service.
    pub namespace: String,
    /// Name of the Service that the API server asks; the certificate is for its name.
    pub service: String,
    /// Name of the Secret.
    pub secret: String,
    /// How long certificates last.
    pub rotation: Rotation,
}

impl Own {
    /// The names that the certificate is for.
    fn names(&self) -> Vec<String> {
        let (service, namespace) = (&self.service, &self.namespace);
        vec![format!("{service}.{namespace}.svc"), format!("{service}.{namespace}")]
    }
}

/// Why the server cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The port could not be opened.
    #[error("cannot listen on {address}: {source}; choose another --webhook-bind-address, or 0 for none")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// TLS could not be set up.
    #[error("TLS: {0}")]
    Tls(String),
}

/// A server that listens and answers nothing yet.
pub struct Server {
    config: Config,
    listener: TcpListener,
    address: SocketAddr,
    identity: Arc<Identity>,
    metrics: Metrics,
    ready: Arc<AtomicBool>,
}

impl Server {
    /// Opens the port and registers the metrics.
    ///
    /// # Errors
    /// When the port cannot be opened.
    pub async fn bind(config: Config, registry: &mut Registry) -> Result<Self, Error> {
        let failed = |source| Error::Listen { address: config.bind, source };
        let listener = TcpListener::bind(config.bind).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self {
            config,
            listener,
            address,
            identity: Arc::default(),
            metrics: Metrics::register(registry),
            ready: Arc::default(),
        })
    }

    /// Where it listens; tells the port when the one that was asked for was 0.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Turns true once there is a certificate: from then on requests are answered.
    #[must_use]
    pub fn ready(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.ready)
    }

    /// Answers until `shutdown` is done; requests under way are finished.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub async fn run(
        self,
        client: kube::Client,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), Error> {
        let tls = listen::tls(Arc::clone(&self.identity))?;
        let (stop, stopped) = signal::channel(false);
        let published =
            listen::Published { identity: self.identity, ready: self.ready, metrics: self.metrics.clone() };
        let certificates = async {
            match &self.config.certificates {
                Certificates::Own(own) => keeper::run(own, client, &published).await,
                Certificates::Directory(directory) => directory::run(directory, &published).await,
            }
        };
        let serve = listen::serve(self.listener, tls, reviews::router(self.metrics), stopped);
        tokio::pin!(serve);
        tokio::select! {
            () = &mut serve => return Ok(()),
            () = certificates => {}
            () = shutdown => {}
        }
        let _ = stop.send(true);
        serve.await;
        Ok(())
    }
}
