//! `/metrics`, `/healthz` and `/readyz`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch as signal;

use crate::metrics::Metrics;

/// Longest request that is read; probes and scrapers send far less.
const MAX_REQUEST: usize = 8 * 1024;
const TIMEOUT: Duration = Duration::from_secs(10);

/// What `/readyz` asks.
pub(crate) struct Probes {
    /// The caches of the leading replica are filled.
    pub(crate) synced: Arc<AtomicBool>,
    /// Another replica leads. Whoever waits is ready: it takes over and answers admission requests, and a rolling
    /// update, which waits for the new replica before it stops the old one, would never end otherwise.
    pub(crate) waiting: Arc<AtomicBool>,
    /// What else the process does.
    pub(crate) beside: Vec<Arc<AtomicBool>>,
}

impl Probes {
    fn ready(&self) -> bool {
        let set = |flag: &Arc<AtomicBool>| flag.load(Ordering::SeqCst);
        (set(&self.synced) || set(&self.waiting)) && self.beside.iter().all(set)
    }
}

/// Answers until `stopped`.
pub(crate) async fn serve(
    listener: TcpListener,
    metrics: Arc<Metrics>,
    probes: Arc<Probes>,
    mut stopped: signal::Receiver<bool>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|stopped| *stopped) => return,
        };
        let Ok((stream, _)) = accepted else {
            // No file descriptors left, for instance: not a reason to spin.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (metrics, probes) = (metrics.clone(), probes.clone());
        tokio::spawn(async move {
            let _ = tokio::time::timeout(TIMEOUT, answer(stream, &metrics, &probes)).await;
        });
    }
}

async fn answer(mut stream: TcpStream, metrics: &Metrics, probes: &Probes) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = stream.read(&mut buffer).await?;
        if read == 0 || request.len() > MAX_REQUEST {
            return Ok(());
        }
        request.extend_from_slice(buffer.get(..read).unwrap_or_default());
    }
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (status, kind, body) = match (method, path.split('?').next().unwrap_or_default()) {
        ("GET", "/healthz") => ("200 OK", "text/plain", "ok".to_owned()),
        ("GET", "/readyz") if probes.ready() => ("200 OK", "text/plain", "ok".to_owned()),
        ("GET", "/readyz") => (
            "503 Service Unavailable",
            "text/plain",
            "the caches are not filled yet, or the webhook has no certificate yet".to_owned(),
        ),
        ("GET", "/metrics") => {
            ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", metrics.text())
        }
        ("GET", _) => ("404 Not Found", "text/plain", "not found".to_owned()),
        _ => ("405 Method Not Allowed", "text/plain", "GET alone".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}
