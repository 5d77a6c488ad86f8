//! What the tests of the API and the chart share beside `cozy-testenv`.

#![allow(dead_code, clippy::unwrap_used, reason = "helpers of tests")]

use std::ops::Deref;

use cozy_testenv::{Cluster, eventually};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard};

/// One control plane at a time per test binary: each is several processes.
static ONE: Mutex<()> = Mutex::const_new(());

/// A cluster that no other test of this binary runs beside.
pub(crate) struct Alone {
    cluster: Cluster,
    _one: MutexGuard<'static, ()>,
}

impl Deref for Alone {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

/// Starts a cluster once the one before it is gone.
pub(crate) async fn cluster() -> Alone {
    let one = ONE.lock().await;
    Alone { cluster: Cluster::start().await.unwrap(), _one: one }
}

/// Installs our CRDs.
pub(crate) async fn install_our_crds(client: &Client) {
    let crds: Vec<_> = cozy_api::crds().iter().map(|crd| serde_json::to_value(crd).unwrap()).collect();
    install(client, &crds).await;
}

/// Applies CRDs as the operators do, and waits until their kinds are served.
pub(crate) async fn install(client: &Client, crds: &[Value]) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in crds {
        let name = crd["metadata"]["name"].as_str().unwrap();
        api.patch(name, &PatchParams::apply("cozystack-operator").force(), &Patch::Apply(crd)).await.unwrap();
    }
    served(client).await;
}

/// Waits until the kinds of all CRDs are served: a little after the CRDs are established.
pub(crate) async fn served(client: &Client) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in api.list(&ListParams::default()).await.unwrap() {
        let (group, plural) = (&crd.spec.group, &crd.spec.names.plural);
        for version in crd.spec.versions.iter().filter(|version| version.served) {
            let path = format!("/apis/{group}/{}/{plural}?limit=1", version.name);
            eventually(&path, async || {
                let request = http::Request::get(&path).body(Vec::new())?;
                Ok(Some(client.request_text(request).await?))
            })
            .await
            .unwrap();
        }
    }
}
