//! The server over real TLS connections: what it answers, and what it takes without harm.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine as _;
use cozy_server::{Certificates, Config, Server};
use prometheus_client::registry::Registry;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A certificate of a directory; gives its DER.
fn certificate(directory: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(directory.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    std::fs::write(directory.join("tls.crt"), made.cert.pem()).unwrap();
    made.cert.der().clone()
}

struct Running {
    address: SocketAddr,
    trusted: CertificateDer<'static>,
    directory: tempfile::TempDir,
    stop: Option<oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<Result<(), cozy_server::Error>>,
    registry: Registry,
}

async fn start() -> Running {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let directory = tempfile::tempdir().unwrap();
    let trusted = certificate(directory.path());
    let config = Config {
        bind: ([127, 0, 0, 1], 0).into(),
        certificates: Certificates::Directory(directory.path().to_path_buf()),
    };
    let mut registry = Registry::default();
    let server = Server::bind(config, &mut registry).await.unwrap();
    let (address, ready) = (server.address(), server.ready());
    // With certificates from a directory the API server is not asked.
    let nobody = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let client = kube::Client::try_from(nobody).unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(server.run(client, async {
        let _ = stopped.await;
    }));
    while !ready.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Running { address, trusted, directory, stop: Some(stop), task, registry }
}

fn review(request: &Value) -> String {
    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request }).to_string()
}

/// The response in the answer to a review.
fn answer(code: u16, body: &str, uid: &Value) -> Value {
    assert_eq!(code, 200, "{body}");
    let answer: Value = serde_json::from_str(body).unwrap();
    assert_eq!(answer["kind"], "AdmissionReview");
    assert_eq!(&answer["response"]["uid"], uid);
    answer["response"].clone()
}

impl Running {
    async fn connect(&self, trusted: &CertificateDer<'static>) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(trusted.clone()).unwrap();
        let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let stream = TcpStream::connect(self.address).await?;
        TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
    }

    /// Sends a text and gives status and body.
    async fn raw(&self, request: &[u8]) -> (u16, String) {
        let mut stream = self.connect(&self.trusted).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        // A server that has answered may close before everything was sent.
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        (code, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
    }

    async fn post(&self, path: &str, body: &[u8]) -> (u16, String) {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        self.raw(&[head.as_bytes(), body].concat()).await
    }

    async fn review(&self, path: &str, request: &Value) -> Value {
        let (code, body) = self.post(path, review(request).as_bytes()).await;
        answer(code, &body, &request["uid"])
    }

    /// It still does what it is there for.
    async fn works(&self) {
        let answer = self.review("/mutate/kustomizations", &kustomization()).await;
        assert_eq!(answer["allowed"], true);
        let patch =
            base64::engine::general_purpose::STANDARD.decode(answer["patch"].as_str().unwrap()).unwrap();
        let patch = String::from_utf8(patch).unwrap();
        assert!(patch.contains("tenant-foo-gitops"), "{patch}");
    }

    async fn stop(mut self) {
        let _ = self.stop.take().unwrap().send(());
        self.task.await.unwrap().unwrap();
    }
}

fn kustomization() -> Value {
    json!({
        "uid": "1", "operation": "CREATE", "namespace": "tenant-foo", "name": "apps",
        "kind": {"group": "kustomize.toolkit.fluxcd.io", "version": "v1", "kind": "Kustomization"},
        "userInfo": {"username": "tenant"},
        "object": {"metadata": {"name": "apps"}, "spec": {"path": "./"}}, "oldObject": null,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn reviews_are_answered() {
    let server = start().await;
    server.works().await;
    let mut elsewhere = kustomization();
    elsewhere["namespace"] = json!("cozy-system");
    let answer = server.review("/mutate/kustomizations", &elsewhere).await;
    assert_eq!(answer, json!({ "uid": "1", "allowed": true }));

    let package = |replicas: u64, manager: &str| {
        json!({
            "metadata": {"name": "cozystack.linstor", "managedFields": [{
                "manager": manager, "operation": "Update",
                "fieldsV1": {"f:spec": {"f:components": {"f:linstor": {"f:values": {"f:replicas": {}}}}}},
            }]},
            "spec": {"components": {"linstor": {"values": {"replicas": replicas}}}},
        })
    };
    let taken = json!({
        "uid": "2", "operation": "UPDATE",
        "oldObject": package(3, "helm-controller"), "object": package(5, "kustomize-controller"),
    });
    let answer = server.review("/validate/package-guard", &taken).await;
    assert_eq!(answer["allowed"], false);
    assert_eq!(answer["status"]["code"], 403);
    let message = answer["status"]["message"].as_str().unwrap();
    assert!(
        message.contains("/spec/components/linstor/values/replicas") && message.contains("PackageValues")
    );
    let created = json!({ "uid": "3", "operation": "CREATE", "object": package(5, "kustomize-controller") });
    assert_eq!(server.review("/validate/package-guard", &created).await["allowed"], true);

    assert_eq!(server.raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.0, 200);
    assert_eq!(server.post("/mutate/nothing", b"{}").await.0, 404);
    let get = b"GET /mutate/kustomizations HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    assert_eq!(server.raw(get).await.0, 405);

    let mut metrics = String::new();
    prometheus_client::encoding::text::encode(&mut metrics, &server.registry).unwrap();
    for line in [
        r#"admission_reviews_total{path="/mutate/kustomizations",verdict="patch"} 1"#,
        r#"admission_reviews_total{path="/validate/package-guard",verdict="deny"} 1"#,
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_an_answer() {
    let server = start().await;
    let path = "/mutate/kustomizations";
    let deep = format!(
        r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"1","object":{}1{}}}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    for (body, why) in [
        (&b""[..], "AdmissionReview"),
        (b"{", "AdmissionReview"),
        (b"\xff\xfe\x00", "AdmissionReview"),
        (b"[]", "AdmissionReview"),
        (b"null", "AdmissionReview"),
        (b"{}", "admission.k8s.io/v1"),
        (br#"{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview"}"#, "v1beta1"),
        (br#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}"#, "no request"),
        (br#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{}}"#, "no request"),
        (br#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":7}"#, "AdmissionReview"),
        (deep.as_bytes(), "recursion"),
    ] {
        let (code, told) = server.post(path, body).await;
        assert_eq!(code, 400, "{told}");
        assert!(told.contains(why), "{told}");
    }
    // Odd objects in a good review are no error: the kind's schema judges them.
    for odd in [json!(null), json!([]), json!(1), json!({"spec": []}), json!({"metadata": 1, "spec": {}})] {
        let mut request = kustomization();
        request["object"] = odd;
        assert_eq!(server.review(path, &request).await["allowed"], true);
    }

    let head = |more: &str| format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}\r\n");
    assert_eq!(server.raw(head("Content-Type: text/plain\r\nContent-Length: 2\r\n").as_bytes()).await.0, 415);
    let chunked = head("Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n");
    assert_eq!(server.raw(chunked.as_bytes()).await.0, 411);
    let huge = head("Content-Type: application/json\r\nContent-Length: 9000000\r\n");
    assert_eq!(server.raw(huge.as_bytes()).await.0, 413);
    let lying = head("Content-Type: application/json\r\nContent-Length: 99999999999999999999999\r\n");
    assert!((400..500).contains(&server.raw(lying.as_bytes()).await.0));
    server.works().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_connections_are_in_nobodys_way() {
    let server = start().await;
    // No TLS, half a handshake, half a request: they stay open while others are served.
    let mut open = Vec::new();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x16\x03\x01", b""] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        open.push(stream);
    }
    let mut half = server.connect(&server.trusted).await.unwrap();
    half.write_all(b"POST /mutate/kustomizations HTTP/1.1\r\nContent-Len").await.unwrap();
    let mut slow = server.connect(&server.trusted).await.unwrap();
    let head = "POST /mutate/kustomizations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
                Content-Length: 8000000\r\n\r\n{";
    slow.write_all(head.as_bytes()).await.unwrap();
    server.works().await;

    // Large reviews, many at once: all are answered.
    let mut large = kustomization();
    large["object"]["spec"]["path"] = json!("x".repeat(3_000_000));
    let text = review(&large);
    let deadline = tokio::time::Instant::now() + Duration::from_mins(2);
    let reviews = (0..16).map(|_| async {
        loop {
            let (code, body) = server.post("/mutate/kustomizations", text.as_bytes()).await;
            // A machine that has much else to do cannot send so much in the time that the server gives a body.
            let busy = code == 503 && body.contains("took longer than");
            if !busy || tokio::time::Instant::now() > deadline {
                return (code, body);
            }
        }
    });
    for (code, body) in futures::future::join_all(reviews).await {
        assert_eq!(answer(code, &body, &large["uid"])["allowed"], true);
    }
    server.works().await;
    // Nobody who waits is waited for.
    drop((half, slow, open));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_certificate_is_shown_and_an_unreadable_one_is_not() {
    let server = start().await;
    let mut open = server.connect(&server.trusted).await.unwrap();
    std::fs::write(server.directory.path().join("tls.crt"), "no certificate").unwrap();
    tokio::time::sleep(Duration::from_secs(11)).await;
    server.works().await;
    let second = certificate(server.directory.path());
    let deadline = tokio::time::Instant::now() + Duration::from_mins(1);
    while server.connect(&second).await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "the new certificate is not shown");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(server.connect(&server.trusted).await.is_err(), "the old one is shown still");
    // What was open goes on.
    open.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    let _ = open.read_to_string(&mut answer).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server.stop().await;
}
