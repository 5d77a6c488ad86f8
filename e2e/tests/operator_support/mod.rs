//! The operator in a test: started in this process, or as a process of its own that can be killed.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cozy_operator::Config;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Longest wait for anything, on a loaded machine.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// A running operator.
pub(crate) struct Operator {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), cozy_operator::Error>>,
    /// Port of `/metrics`.
    pub(crate) metrics: u16,
    /// Port of `/healthz` and `/readyz`.
    pub(crate) health: u16,
}

impl Operator {
    pub(crate) fn start(client: Client) -> Self {
        Self::with(client, Config::default())
    }

    pub(crate) fn with(client: Client, config: Config) -> Self {
        let [metrics, health] = cozy_testenv::free_ports().unwrap();
        let config = Config {
            metrics_bind_address: format!("127.0.0.1:{metrics}"),
            health_probe_bind_address: format!("127.0.0.1:{health}"),
            ..config
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(cozy_operator::run_with(config, client, async {
            let _ = stopped.await;
        }));
        Self { stop: Some(stop), task, metrics, health }
    }

    pub(crate) async fn ready(&self) {
        eventually("readyz", || async {
            assert!(!self.task.is_finished(), "the operator ended; Operator::outcome tells why");
            get(self.health, "/readyz").await.is_some_and(|(code, _)| code == 200)
        })
        .await;
    }

    pub(crate) async fn stop(mut self) {
        let _ = self.stop.take().unwrap().send(());
        tokio::time::timeout(LONG, self.task).await.unwrap().unwrap().unwrap();
    }

    /// Waits for its end by itself.
    pub(crate) async fn outcome(self) -> Result<(), cozy_operator::Error> {
        self.task.await.unwrap()
    }

    /// Write requests so far, of one kind or of all.
    pub(crate) async fn writes(&self, kind: Option<&str>) -> u64 {
        let (_, text) = get(self.metrics, "/metrics").await.unwrap();
        text.lines()
            .filter(|line| line.starts_with("cozy_gitops_writes_total{"))
            .filter(|line| kind.is_none_or(|kind| line.contains(&format!("kind=\"{kind}\""))))
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum()
    }

    /// Fails, and says which, when there are writes.
    pub(crate) async fn writes_nothing(&self, why: &str) {
        self.quiet().await;
        let (_, text) = get(self.metrics, "/metrics").await.unwrap();
        let writes: Vec<&str> =
            text.lines().filter(|line| line.starts_with("cozy_gitops_writes_total{")).collect();
        assert!(writes.is_empty(), "{why}: {writes:#?}");
    }

    /// Waits until nothing was written for two seconds; how many writes there were.
    pub(crate) async fn quiet(&self) -> u64 {
        let deadline = Instant::now() + LONG;
        let mut last = (self.writes(None).await, Instant::now());
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let now = self.writes(None).await;
            if now != last.0 {
                last = (now, Instant::now());
            } else if last.1.elapsed() > Duration::from_secs(2) {
                return now;
            }
            assert!(Instant::now() < deadline, "the operator goes on writing: {now} writes");
        }
    }
}

/// `GET` on a local port: status and body.
pub(crate) async fn get(port: u16, path: &str) -> Option<(u16, String)> {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.ok()?;
    let code = text.split(' ').nth(1)?.parse().ok()?;
    Some((code, text.split_once("\r\n\r\n")?.1.to_owned()))
}

/// Waits until it is true.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut is: impl FnMut() -> F) {
    let deadline = Instant::now() + LONG;
    while !is().await {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// How the API names a kind: `packages`, `helmreleases`, …
pub(crate) fn resource(plural: &str) -> ApiResource {
    let (group, version, kind) = match plural {
        "packages" => ("cozystack.io", "v1alpha1", "Package"),
        "packagesources" => ("cozystack.io", "v1alpha1", "PackageSource"),
        "packagevalues" => ("cozystack.io", "v1alpha1", "PackageValues"),
        "helmreleases" => ("helm.toolkit.fluxcd.io", "v2", "HelmRelease"),
        "artifactgenerators" => ("source.extensions.fluxcd.io", "v1beta1", "ArtifactGenerator"),
        "externalartifacts" => ("source.toolkit.fluxcd.io", "v1", "ExternalArtifact"),
        "namespaces" => ("", "v1", "Namespace"),
        "secrets" => ("", "v1", "Secret"),
        "events" => ("events.k8s.io", "v1", "Event"),
        "leases" => ("coordination.k8s.io", "v1", "Lease"),
        other => panic!("{other}"),
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

pub(crate) fn api(client: &Client, plural: &str, namespace: &str) -> Api<DynamicObject> {
    if namespace.is_empty() {
        Api::all_with(client.clone(), &resource(plural))
    } else {
        Api::namespaced_with(client.clone(), namespace, &resource(plural))
    }
}

pub(crate) async fn read(client: &Client, plural: &str, namespace: &str, name: &str) -> Option<Value> {
    let found = api(client, plural, namespace).get_opt(name).await.unwrap();
    found.map(|object| serde_json::to_value(object).unwrap())
}

pub(crate) async fn list(client: &Client, plural: &str) -> Vec<Value> {
    let found = api(client, plural, "").list(&kube::api::ListParams::default()).await.unwrap();
    found.items.into_iter().map(|object| serde_json::to_value(object).unwrap()).collect()
}

/// Creates or replaces the spec, labels and annotations, as a user does.
pub(crate) async fn put(client: &Client, plural: &str, namespace: &str, name: &str, fields: Value) {
    let api = api(client, plural, namespace);
    let resource = resource(plural);
    let mut object = json!({
        "apiVersion": resource.api_version, "kind": resource.kind, "metadata": { "name": name },
    });
    for (key, value) in fields.as_object().unwrap() {
        object[key] = value.clone();
    }
    object["metadata"]["name"] = json!(name);
    loop {
        let old = api.get_opt(name).await.unwrap();
        let outcome = match &old {
            None => {
                let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
                api.create(&PostParams::default(), &object).await
            }
            Some(old) => {
                let mut object = object.clone();
                object["metadata"]["resourceVersion"] = json!(old.metadata.resource_version);
                let object: DynamicObject = serde_json::from_value(object).unwrap();
                api.replace(name, &PostParams::default(), &object).await
            }
        };
        match outcome {
            Ok(_) => return,
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => panic!("{plural} {name}: {error}"),
        }
    }
}

pub(crate) async fn patch(client: &Client, plural: &str, namespace: &str, name: &str, change: Value) {
    let api = api(client, plural, namespace);
    let parameters = PatchParams { field_manager: Some("someone".to_owned()), ..PatchParams::default() };
    api.patch(name, &parameters, &Patch::Merge(change)).await.unwrap();
}

pub(crate) async fn delete(client: &Client, plural: &str, namespace: &str, name: &str) {
    api(client, plural, namespace).delete(name, &DeleteParams::default()).await.unwrap();
}

/// A PackageSource with one variant of these components.
pub(crate) fn source(components: Value) -> Value {
    json!({ "spec": {
        "sourceRef": { "kind": "OCIRepository", "name": "src", "namespace": "cozy-system", "path": "/" },
        "variants": [{ "name": "default", "components": components }],
    }})
}

/// A component that is installed in a namespace.
pub(crate) fn component(name: &str, namespace: &str) -> Value {
    json!({ "name": name, "path": format!("system/{name}"), "install": { "namespace": namespace } })
}

/// A condition's status, reason and message.
pub(crate) async fn condition(
    client: &Client,
    plural: &str,
    name: &str,
    kind: &str,
) -> Option<(String, String, String)> {
    let object = read(client, plural, "", name).await?;
    let conditions = object["status"]["conditions"].as_array()?.clone();
    let found = conditions.into_iter().find(|c| c["type"] == kind)?;
    // Nothing old is taken for an answer to something new.
    if found["observedGeneration"] != object["metadata"]["generation"] {
        return None;
    }
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason"), text("message")))
}

pub(crate) async fn wait_reason(client: &Client, plural: &str, name: &str, reason: &str) -> String {
    let deadline = Instant::now() + LONG;
    loop {
        let found = condition(client, plural, name, "Ready").await;
        if let Some((_, found, message)) = &found
            && found == reason
        {
            return message.clone();
        }
        assert!(Instant::now() < deadline, "{plural} {name} has {found:?}, not {reason}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Our CRDs, Flux's CRDs and the platform's namespace.
pub(crate) async fn prepare(cluster: &cozy_testenv::Cluster) {
    cluster.install_crds().await.unwrap();
    put(&cluster.admin(), "namespaces", "", "cozy-system", json!({})).await;
}

/// `<repository>/../shared/data`, where it is there.
pub(crate) fn shared() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    path.is_dir().then_some(path)
}

/// The operator's ServiceAccount, in `cozy-system`.
pub(crate) const ACCOUNT: &str = "cozy-gitops";

/// The chart as Helm renders it with these values (`--set`).
pub(crate) fn chart(values: &str) -> Vec<Value> {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packages/system/cozy-gitops");
    let output = std::process::Command::new(cozy_testenv::program("helm").unwrap())
        .args(["template", "cozy-gitops", "--namespace=cozy-system", "--set", values])
        .arg(chart)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    cozy_yaml::parse_bytes(&output.stdout, &cozy_yaml::Limits::default())
        .into_iter()
        .map(|document| document.unwrap().value)
        .filter(|object| !object.is_null())
        .collect()
}

/// A client with the rights that the chart gives the operator, and no others.
pub(crate) async fn account(cluster: &cozy_testenv::Cluster, values: &str) -> Client {
    let rights = ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount"];
    for object in chart(values) {
        if rights.iter().any(|kind| object["kind"] == *kind) {
            cluster.apply_value(object).await.unwrap();
        }
    }
    cluster.service_account_client("cozy-system", ACCOUNT).await.unwrap()
}

/// What an account in `cozy-system` was refused for want of a right.
pub(crate) fn refused(cluster: &cozy_testenv::Cluster, account: &str) -> Vec<String> {
    let user = format!("system:serviceaccount:cozy-system:{account}");
    let log = cluster.audit_log().unwrap();
    log.iter()
        .filter(|event| event["user"]["username"] == user && event["responseStatus"]["code"] == 403)
        .map(|event| {
            format!("{} {} {}", event["verb"], event["objectRef"], event["responseStatus"]["message"])
        })
        .collect()
}
