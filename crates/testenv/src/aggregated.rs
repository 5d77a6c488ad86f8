//! `apps.cozystack.io` as an aggregated API, with the habits of Cozystack's.

use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use serde_json::{Map, Value, json};

use crate::applications::crds;
use crate::cluster::Cluster;
use crate::eventually;
use crate::pki::Ca;
use crate::process::{Process, free_ports, program};

/// A running aggregated API server. It runs admission itself, carries out dry runs, drops managedFields, fills in the
/// defaults of the kinds' schemas and keeps unknown fields: what Cozystack's was measured to do. It keeps its objects in
/// memory.
pub struct AggregatedApi {
    process: Process,
}

impl AggregatedApi {
    /// Serves the kinds that [`Cluster::install_applications`] installs, in their place.
    ///
    /// # Errors
    /// When it does not come up, with the tail of its log.
    pub async fn start(cluster: &Cluster) -> anyhow::Result<Self> {
        let kinds: Vec<Value> = crds()?
            .iter()
            .map(|crd| {
                json!({
                    "kind": crd["spec"]["names"]["kind"], "plural": crd["spec"]["names"]["plural"],
                    "defaults": defaults(&crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]),
                })
            })
            .collect();
        let ca = Ca::new("cozy-gitops test, applications")?;
        let leaf = ca.leaf("applications-api", &["applications-api.cozy-system.svc"], &[])?;
        let write = |name: &str, text: &str| -> anyhow::Result<String> {
            let path = cluster.dir().join(name);
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            Ok(path.display().to_string())
        };
        let [port] = free_ports()?;
        let mut process = cluster.supervisor().spawn(
            "applications-api",
            Command::new(program("applications-api")?).args([
                format!("--kubeconfig={}", cluster.admin_kubeconfig()?.display()),
                format!("--tls-cert-file={}", write("applications-api.crt", &leaf.certificate)?),
                format!("--tls-private-key-file={}", write("applications-api.key", &leaf.key)?),
                format!("--kinds={}", write("applications-api-kinds.json", &json!(kinds).to_string())?),
                format!("--port={port}"),
            ]),
        )?;
        cluster.map_service("cozy-system", "applications-api", 443, port).await?;
        cluster
            .apply_value(json!({
                "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
                "metadata": { "name": "v1alpha1.apps.cozystack.io" },
                "spec": {
                    "group": "apps.cozystack.io", "version": "v1alpha1", "groupPriorityMinimum": 1000, "versionPriority": 15,
                    "service": { "namespace": "cozy-system", "name": "applications-api", "port": 443 },
                    "caBundle": base64::engine::general_purpose::STANDARD.encode(ca.pem()),
                },
            }))
            .await?;
        eventually("the aggregated API to be available", async || {
            process.check()?;
            let list = ["get", "--raw", "/apis/apps.cozystack.io/v1alpha1"];
            Ok(cluster.kubectl(&list).await.is_ok().then_some(()))
        })
        .await
        .with_context(|| process.log_tail())?;
        // Its own view of the policies and webhooks comes by watches.
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(Self { process })
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// The defaults of a schema's fields.
fn defaults(schema: &Value) -> Map<String, Value> {
    let mut out = Map::new();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let Some(mut default) = field.get("default").cloned() else { continue };
        if let Value::Object(default) = &mut default {
            for (name, value) in defaults(field) {
                default.entry(name).or_insert(value);
            }
        }
        out.insert(name.clone(), default);
    }
    out
}
