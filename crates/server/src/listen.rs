//! TLS connections: accepted, bounded, finished.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch as signal};
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use crate::Error;
use crate::metrics::Metrics;

/// Connections at the same time; an API server keeps one or a few open.
const CONNECTIONS: usize = 256;
const HANDSHAKE: Duration = Duration::from_secs(10);
/// From the beginning of a request's head to its end.
const HEAD: Duration = Duration::from_secs(10);
/// For requests under way when the server stops.
const FINISH: Duration = Duration::from_secs(10);

/// The certificate that is shown; replaced while the server runs.
#[derive(Debug, Default)]
pub(crate) struct Identity(RwLock<Option<Arc<CertifiedKey>>>);

impl ResolvesServerCert for Identity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().ok()?.clone()
    }
}

impl Identity {
    /// Shows another certificate from now on; connections that are open go on.
    pub(crate) fn show(&self, certificates: &str, key: &str) -> Result<(), String> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificates.as_bytes()).collect();
        let chain = chain.map_err(|error| format!("the certificate cannot be read: {error}"))?;
        // The key's text is in no error.
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| {
            "the private key cannot be read: PKCS#8, PKCS#1 or SEC1 in PEM is needed".to_owned()
        })?;
        let certified = CertifiedKey::from_der(chain, key, &rustls::crypto::ring::default_provider())
            .map_err(|error| format!("certificate and key do not fit: {error}"))?;
        if let Ok(mut shown) = self.0.write() {
            *shown = Some(Arc::new(certified));
        }
        Ok(())
    }
}

/// Where a certificate is published in the process.
pub(crate) struct Published {
    pub(crate) identity: Arc<Identity>,
    pub(crate) ready: Arc<AtomicBool>,
    pub(crate) metrics: Metrics,
}

impl Published {
    /// Shows a certificate; from the first one on the server is ready. `not_after` is 0 when it is not known.
    pub(crate) fn show(&self, certificates: &str, key: &str, not_after: u64) -> Result<(), String> {
        self.identity.show(certificates, key)?;
        self.metrics.expires(not_after);
        self.ready.store(true, Ordering::SeqCst);
        Ok(())
    }
}

pub(crate) fn tls(identity: Arc<Identity>) -> Result<TlsAcceptor, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Tls(error.to_string()))?
        .with_no_client_auth()
        .with_cert_resolver(identity);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Answers until `stopped`, then finishes what is under way.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: TlsAcceptor,
    router: axum::Router,
    mut stopped: signal::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = tokio::task::JoinSet::new();
    loop {
        // Beyond the limit the kernel's queue holds them.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|stopped| *stopped) => break,
        };
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = accepted else {
            // No file descriptors left, for instance: not a reason to spin.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (tls, router, stopped) = (tls.clone(), router.clone(), stopped.clone());
        connections.spawn(async move {
            connection(stream, &tls, router, stopped).await;
            drop(place);
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(FINISH, async { while connections.join_next().await.is_some() {} }).await;
}

async fn connection(
    stream: TcpStream,
    tls: &TlsAcceptor,
    router: axum::Router,
    mut stopped: signal::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return debug!(%error, "TLS handshake"),
        Err(_) => return debug!("TLS handshake took too long"),
    };
    let mut builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(64 * 1024);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(128).max_header_list_size(64 * 1024);
    // Who sends nothing for long has gone.
    builder.http2().keep_alive_interval(Duration::from_mins(1));
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    let stop = async {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    tokio::select! {
        ended = connection.as_mut() => {
            if let Err(error) = ended {
                debug!(%error, "connection");
            }
        }
        () = stop => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}
