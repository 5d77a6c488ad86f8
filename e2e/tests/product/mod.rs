//! One replica of the product on a cluster where Helm installed the chart: its operator and its webhook, in this process,
//! with the chart's account and no other rights.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use std::sync::atomic::Ordering;
use std::time::Duration;

use cozy_operator::{Beside, Config, Tenants};
use cozy_server::{Certificates, Own, Rotation, Server};
use cozy_testenv::{Cluster, Flux, Kubelet, eventually, free_ports};
use kube::Client;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A running replica.
pub(crate) struct Product {
    stop: watch::Sender<bool>,
    answering: JoinHandle<Result<(), cozy_server::Error>>,
    reconciling: JoinHandle<Result<(), cozy_operator::Error>>,
    /// Port of `/metrics`.
    pub(crate) metrics: u16,
    /// Port of the webhook.
    port: u16,
}

/// What the chart's values say, as far as tests change it.
pub(crate) fn tenants() -> Tenants {
    let mut tenants = Tenants::default();
    tenants.settings.resources = serde_json::json!({});
    tenants
}

impl Product {
    pub(crate) async fn start(cluster: &Cluster, tenants: Tenants) -> Self {
        let client = cluster.service_account_client("cozy-system", "cozy-gitops").await.unwrap();
        let [metrics, health] = free_ports().unwrap();
        let webhook = cozy_server::Config {
            bind: ([0, 0, 0, 0], 0).into(),
            certificates: Certificates::Own(Own {
                namespace: "cozy-system".to_owned(),
                service: "cozy-gitops".to_owned(),
                secret: SECRET.to_owned(),
                rotation: Rotation::default(),
            }),
        };
        let mut beside = Beside::default();
        let server = Server::bind(webhook, &mut beside.metrics).await.unwrap();
        beside.ready.push(server.ready());
        let port = server.address().port();
        cluster.map_endpoint("cozy-system", "cozy-gitops", "webhook", port).await.unwrap();
        let config = Config {
            metrics_bind_address: format!("127.0.0.1:{metrics}"),
            health_probe_bind_address: format!("127.0.0.1:{health}"),
            tenants: Some(tenants),
            ..Config::default()
        };
        let ready = server.ready();
        let (stop, stopped) = watch::channel(false);
        let shutdown = || {
            let mut stopped = stopped.clone();
            async move {
                let _ = stopped.wait_for(|stopped| *stopped).await;
            }
        };
        let answering = tokio::spawn(server.run(client.clone(), shutdown()));
        let reconciling = tokio::spawn(cozy_operator::run_beside(config, client, beside, shutdown()));
        let product = Self { stop, answering, reconciling, metrics, port };
        eventually("the product to be ready", async || {
            product.runs();
            Ok(ready.load(Ordering::SeqCst).then_some(()))
        })
        .await
        .unwrap();
        product
    }

    /// Fails when it ended by itself.
    pub(crate) fn runs(&self) {
        assert!(!self.answering.is_finished() && !self.reconciling.is_finished(), "it ended");
    }

    /// As a rolling update stops it: out of the endpoints first.
    pub(crate) async fn stop(self, cluster: &Cluster) {
        cluster.unmap_endpoint("cozy-system", "cozy-gitops", self.port).await.unwrap();
        let _ = self.stop.send(true);
        let both = async {
            self.answering.await.unwrap().unwrap();
            self.reconciling.await.unwrap().unwrap();
        };
        tokio::time::timeout(Duration::from_secs(60), both).await.unwrap();
    }
}

/// Where the webhook's certificates are.
pub(crate) const SECRET: &str = "cozy-gitops-webhook";

/// One replica's webhook without its operator.
pub(crate) struct Webhook {
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    task: JoinHandle<Result<(), cozy_server::Error>>,
    pub(crate) port: u16,
}

impl Webhook {
    pub(crate) async fn start(surface: &crate::surface::Surface, rotation: Rotation) -> Self {
        Self::start_at(surface, rotation, 0).await
    }

    pub(crate) async fn start_at(surface: &crate::surface::Surface, rotation: Rotation, port: u16) -> Self {
        let config = cozy_server::Config {
            bind: ([0, 0, 0, 0], port).into(),
            certificates: Certificates::Own(Own {
                namespace: "cozy-system".to_owned(),
                service: "cozy-gitops".to_owned(),
                secret: SECRET.to_owned(),
                rotation,
            }),
        };
        let server =
            Server::bind(config, &mut prometheus_client::registry::Registry::default()).await.unwrap();
        let (address, ready) = (server.address(), server.ready());
        // With the chart's account: a right that is missing shows here.
        let client = surface.cluster().service_account_client("cozy-system", "cozy-gitops").await.unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let task = tokio::spawn(server.run(client, async {
            let _ = stopped.await;
        }));
        crate::surface::eventually("the webhook has a certificate", || async {
            ready.load(Ordering::SeqCst)
        })
        .await;
        surface
            .cluster()
            .map_endpoint("cozy-system", "cozy-gitops", "webhook", address.port())
            .await
            .unwrap();
        Self { stop: Some(stop), task, port: address.port() }
    }

    /// As a node takes it along: no word, and its endpoint stays.
    pub(crate) async fn die(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    /// As a rolling update stops it: out of the endpoints first.
    pub(crate) async fn stop(mut self, cluster: &Cluster) {
        cluster.unmap_endpoint("cozy-system", "cozy-gitops", self.port).await.unwrap();
        let _ = self.stop.take().unwrap().send(());
        self.task.await.unwrap().unwrap();
    }
}

/// Waits until kube-controller-manager counts Flux's kinds for quotas: it learns of new kinds every 30 s.
pub(crate) async fn counted(cluster: &Cluster) {
    let hard = json!({
        "count/gitrepositories.source.toolkit.fluxcd.io": "1", "count/kustomizations.kustomize.toolkit.fluxcd.io": "1",
    });
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "probe", "namespace": "default" },
        "spec": { "hard": hard },
    });
    cluster.apply_value(quota).await.unwrap();
    eventually("Flux's kinds to be counted", async || {
        let used = ["get", "resourcequota", "probe", "-n", "default", "-o", "jsonpath={.status.used}"];
        let used: Value = serde_json::from_str(&cluster.kubectl(&used).await?).unwrap_or_default();
        Ok((used.as_object().map_or(0, serde_json::Map::len) == 2).then_some(()))
    })
    .await
    .unwrap();
}

/// `GET` on a local port: status and body.
pub(crate) async fn get(port: u16, path: &str) -> Option<(u16, String)> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.ok()?;
    let code = text.split(' ').nth(1)?.parse().ok()?;
    Some((code, text.split_once("\r\n\r\n")?.1.to_owned()))
}

/// Values for repositories of the tests' own git server, looked at often.
pub(crate) const LOOPBACK: &str = "tenant.sources.schemes={http,https},tenant.sources.allowedHosts={127.0.0.1},\
                                   tenant.bounds.minInterval=1s";

/// Everything that a tenant's repository needs to become applications, running.
pub(crate) struct Stage {
    /// None: it is stopped.
    pub(crate) product: Option<Product>,
    pub(crate) kubelet: Kubelet,
    pub(crate) flux: Flux,
    pub(crate) surface: crate::surface::Surface,
}

impl Stage {
    /// The chart with these values, installed and running, and the tenants' rights granted.
    pub(crate) async fn start(surface: crate::surface::Surface, values: &[&str]) -> Self {
        Self::with(surface, values, tenants()).await
    }

    pub(crate) async fn with(surface: crate::surface::Surface, values: &[&str], tenants: Tenants) -> Self {
        let values = [&["admission.mutation=webhook", LOOPBACK], values].concat();
        surface.install(&values).await.unwrap();
        let cluster = surface.cluster();
        let flux = Flux::start(cluster).await.unwrap();
        let kubelet = Kubelet::builder(cluster, "cozy-fluxcd")
            .argument("--health-addr=127.0.0.1:0")
            .argument("--metrics-addr=127.0.0.1:0")
            .start();
        counted(cluster).await;
        let product = Product::start(cluster, tenants).await;
        surface.enforced().await;
        surface.granted().await;
        Self { product: Some(product), kubelet, flux, surface }
    }

    /// Waits until a Kustomization's condition Ready says that; the error shows what it says instead.
    pub(crate) async fn says(&self, namespace: &str, name: &str, status: &str, contains: &str) -> Value {
        let what = format!("Kustomization {namespace}/{name} to be {status}: {contains}");
        eventually(&what, async || {
            let object = self.get("kustomization", namespace, name).await.unwrap_or_default();
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let fits = conditions.iter().any(|condition| {
                condition["type"] == "Ready"
                    && condition["status"] == status
                    && condition["message"].as_str().is_some_and(|message| message.contains(contains))
            });
            anyhow::ensure!(fits, "{}", json!(conditions));
            Ok(Some(object))
        })
        .await
        .unwrap()
    }

    /// An object as an administrator sees it.
    pub(crate) async fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let cluster = self.surface.cluster();
        let text = cluster.kubectl(&["get", kind, "-n", namespace, name, "-o", "json"]).await.ok()?;
        serde_json::from_str(&text).ok()
    }

    pub(crate) async fn stop(self) {
        if let Some(product) = self.product {
            product.runs();
            product.stop(self.surface.cluster()).await;
        }
    }
}

/// What a tenant writes: a GitRepository and a Kustomization of one name, as little as there has to be.
pub(crate) async fn source(client: &Client, namespace: &str, name: &str, url: &str, changes: [Value; 2]) {
    use crate::surface::{api, kind, make, merge};
    let [of_repository, of_kustomization] = changes;
    let mut repository = json!({
        "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository",
        "metadata": { "name": name, "namespace": namespace },
        "spec": { "url": url, "interval": "2s", "ref": { "branch": "main" } },
    });
    merge(&mut repository, &json!({ "spec": of_repository }));
    let mut kustomization = json!({
        "apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization",
        "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "sourceRef": { "kind": "GitRepository", "name": name }, "path": "./", "interval": "5s", "retryInterval": "2s",
            "prune": true,
        },
    });
    merge(&mut kustomization, &json!({ "spec": of_kustomization }));
    for object in [repository, kustomization] {
        let kind = kind(&object);
        let objects = api(client, kind, Some(namespace));
        make(&objects, &PostParams::default(), &object).await.unwrap_or_else(|e| panic!("{kind}: {e}"));
    }
}
