//! 500 admission reviews a second over TLS: how long an answer takes beside an API server that is idle and one that is busy,
//! and the memory of the webhook.
//!
//! `cargo bench -p cozy-bench --bench webhook`. The webhook runs in a process of its own; the time of a review counts from
//! the moment at which it was due, so that one that waits for another is not left out.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cozy_server::{Certificates, Config, Server};
use cozy_testenv::Cluster;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use prometheus_client::registry::Registry;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, Semaphore};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const DIRECTORY: &str = "COZY_BENCH_WEBHOOK";
const A_SECOND: u32 = 500;
const SECONDS: u32 = 20;
/// Connections that an API server would hold.
const CONNECTIONS: usize = 16;
const WRITERS: u32 = 8;

fn main() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    if let Ok(directory) = std::env::var(DIRECTORY) {
        runtime.block_on(serve(Path::new(&directory)));
        return;
    }
    // `cargo test --benches` runs it too, to see that it builds.
    if std::env::args().any(|argument| argument == "--bench") {
        runtime.block_on(measure());
    }
}

/// The webhook; its address is in a file once it answers.
async fn serve(directory: &Path) {
    let config = Config {
        bind: ([127, 0, 0, 1], 0).into(),
        certificates: Certificates::Directory(directory.to_path_buf()),
    };
    let server = Server::bind(config, &mut Registry::default()).await.unwrap();
    std::fs::write(directory.join("address.new"), server.address().to_string()).unwrap();
    std::fs::rename(directory.join("address.new"), directory.join("address")).unwrap();
    // With certificates from a directory the API server is not asked.
    let nobody = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    server.run(kube::Client::try_from(nobody).unwrap(), std::future::pending()).await.unwrap();
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// MB of memory at most so far.
    fn peak(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
        peak.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
    }
}

async fn measure() {
    let cluster = Cluster::start().await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(directory.path().join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    std::fs::write(directory.path().join("tls.crt"), made.cert.pem()).unwrap();
    let child =
        Command::new(std::env::current_exe().unwrap()).env(DIRECTORY, directory.path()).spawn().unwrap();
    let process = Process(child);
    let address: SocketAddr = loop {
        if let Ok(text) = std::fs::read_to_string(directory.path().join("address")) {
            break text.parse().unwrap();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let mut connections = VecDeque::new();
    for _ in 0..CONNECTIONS {
        let connection = loop {
            match connect(address, made.cert.der()).await {
                Ok(connection) => break connection,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        connections.push_back(connection);
    }
    let connections = Arc::new(Mutex::new(connections));
    println!(
        "| API server | reviews/s | p50 ms | p99 ms | slowest ms | peak MB |\n|---|---|---|---|---|---|"
    );
    print("idle", load(&connections).await, &process);
    // As many writes as reviews, which is what that many reviews come from; then as many as the API server takes.
    for pace in [Some(A_SECOND), None] {
        let (over, writes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| {
                let pause = pace.map(|pace| Duration::from_secs(1) * WRITERS / pace);
                tokio::spawn(write(cluster.admin(), number, pause, over.clone(), writes.clone()))
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (before, begin) = (writes.load(Ordering::SeqCst), Instant::now());
        let times = load(&connections).await;
        let done = writes.load(Ordering::SeqCst) - before;
        let busy = format!("{} writes/s", done / begin.elapsed().as_secs().max(1));
        print(&busy, times, &process);
        over.store(true, Ordering::SeqCst);
        for writer in writers {
            writer.await.unwrap();
        }
    }
}

fn print(server: &str, mut times: Vec<Duration>, process: &Process) {
    times.sort();
    let at = |part: usize| times[(times.len() * part / 1000).min(times.len() - 1)].as_secs_f64() * 1000.0;
    println!(
        "| {server} | {A_SECOND} | {:.2} | {:.2} | {:.1} | {:.0} |",
        at(500),
        at(990),
        at(1000),
        process.peak()
    );
}

/// ConfigMaps: one every so often, or as fast as they are taken.
async fn write(
    client: kube::Client,
    number: u32,
    pause: Option<Duration>,
    over: Arc<AtomicBool>,
    writes: Arc<AtomicU64>,
) {
    let mut pace = pause.map(tokio::time::interval);
    while !over.load(Ordering::SeqCst) {
        if let Some(pace) = &mut pace {
            pace.tick().await;
        }
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "generateName": format!("load-{number}-") },
            "data": { "a": "x".repeat(1000) },
        });
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
        let maps = Api::<DynamicObject>::namespaced_with(client.clone(), "default", &resource);
        maps.create(&PostParams::default(), &object).await.unwrap();
        writes.fetch_add(1, Ordering::SeqCst);
    }
}

async fn connect(
    address: SocketAddr,
    trusted: &CertificateDer<'static>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
}

/// The times of all reviews, each from when it was due.
async fn load(connections: &Arc<Mutex<VecDeque<TlsStream<TcpStream>>>>) -> Vec<Duration> {
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    let begin = Instant::now();
    let mut tasks = Vec::new();
    for number in 0..A_SECOND * SECONDS {
        let due = begin + Duration::from_secs(1) * number / A_SECOND;
        tokio::time::sleep_until(due.into()).await;
        let (connections, free) = (connections.clone(), free.clone());
        tasks.push(tokio::spawn(async move {
            let _permit = free.acquire().await.unwrap();
            // In turn: the server closes those that nobody uses for a while.
            let mut connection = connections.lock().await.pop_front().unwrap();
            review(&mut connection, number).await;
            let took = due.elapsed();
            connections.lock().await.push_back(connection);
            took
        }));
    }
    let mut times = Vec::new();
    for task in tasks {
        times.push(task.await.unwrap());
    }
    times
}

/// One review of a tenant's Kustomization on a connection that stays open.
async fn review(connection: &mut TlsStream<TcpStream>, number: u32) {
    let body = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": number.to_string(), "operation": "CREATE", "namespace": "tenant-foo", "name": "apps",
            "kind": { "group": "kustomize.toolkit.fluxcd.io", "version": "v1", "kind": "Kustomization" },
            "userInfo": { "username": "tenant", "groups": ["system:authenticated"] },
            "object": {
                "apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization",
                "metadata": { "name": "apps", "namespace": "tenant-foo" },
                "spec": {
                    "path": "./", "interval": "5m", "prune": true,
                    "sourceRef": { "kind": "GitRepository", "name": "apps" },
                },
            },
            "oldObject": null,
        },
    })
    .to_string();
    let request = format!(
        "POST /mutate/kustomizations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: \
         {}\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    connection.flush().await.unwrap();
    let (mut answer, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let read = connection.read(&mut part).await.unwrap();
        assert!(read > 0, "closed");
        answer.extend_from_slice(&part[..read]);
        let text = String::from_utf8_lossy(&answer);
        if let Some((head, rest)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
            if rest.len() >= length.unwrap_or(0_usize) {
                assert!(rest.contains("\"allowed\":true") && rest.contains("patch"), "{text}");
                return;
            }
        }
    }
}
