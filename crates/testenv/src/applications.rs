//! Some of Cozystack's Applications as CustomResourceDefinitions: its aggregated API is not served as a module.

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::cluster::Cluster;

/// The definitions as Cozystack ships them, cut to what the API is made of.
const DEFINITIONS: [(&str, &str); 5] = [
    ("bucket", include_str!("../fixtures/applications/bucket.yaml")),
    ("postgres", include_str!("../fixtures/applications/postgres.yaml")),
    ("redis", include_str!("../fixtures/applications/redis.yaml")),
    ("tenant", include_str!("../fixtures/applications/tenant.yaml")),
    ("virtualprivatecloud", include_str!("../fixtures/applications/virtualprivatecloud.yaml")),
];

/// The catalog's own application of the tenants' surface.
const GITOPS: &str = include_str!("../../../packages/system/gitops-rd/cozyrds/gitops.yaml");

impl Cluster {
    /// Installs `apps.cozystack.io` with Bucket, `GitOps`, Postgres, Redis, Tenant and `VirtualPrivateCloud`, each with
    /// the schema of its definition, and waits until they are served.
    ///
    /// As in Cozystack, fields of `spec` that the schema does not know are kept. Unlike there, managedFields are kept
    /// too and dry runs store nothing, since a CRD is behind it.
    ///
    /// # Errors
    /// When one is refused.
    pub async fn install_applications(&self) -> anyhow::Result<()> {
        for crd in crds()? {
            self.apply_value(crd).await?;
        }
        self.wait_for_crds().await
    }
}

/// One of every kind that there is.
pub(crate) fn crds() -> anyhow::Result<Vec<Value>> {
    DEFINITIONS
        .iter()
        .chain([&("gitops", GITOPS)])
        .map(|(name, text)| application_crd(text).with_context(|| format!("application {name}")))
        .collect()
}

/// The CustomResourceDefinition that serves what an ApplicationDefinition describes.
///
/// # Errors
/// When the text is no ApplicationDefinition.
pub fn application_crd(definition: &str) -> anyhow::Result<Value> {
    let definition = cozy_yaml::parse_documents(definition, &cozy_yaml::Limits::default())
        .into_iter()
        .next()
        .context("it is empty")??
        .value;
    let application = &definition["spec"]["application"];
    let text =
        |key: &str| application[key].as_str().with_context(|| format!("spec.application.{key} is missing"));
    let mut spec: Value = serde_json::from_str(text("openAPISchema")?).context("openAPISchema")?;
    legal(&mut spec);
    spec["x-kubernetes-preserve-unknown-fields"] = json!(true);
    let open = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    Ok(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{}.apps.cozystack.io", text("plural")?) },
        "spec": {
            "group": "apps.cozystack.io", "scope": "Namespaced",
            "names": {
                "kind": text("kind")?, "listKind": format!("{}List", text("kind")?),
                "plural": text("plural")?, "singular": text("singular")?,
            },
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "properties": {
                        "apiVersion": { "type": "string" }, "kind": { "type": "string" },
                        "metadata": { "type": "object" }, "spec": spec, "status": open,
                    },
                } },
            }],
        },
    }))
}

/// Takes away what a CRD refuses and Cozystack's API allows: hints for its dashboard, and defaults of objects that lack
/// what the object requires.
fn legal(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            let lacks =
                |default: &Value, key: &Value| key.as_str().is_some_and(|key| default.get(key).is_none());
            let incomplete = match (map.get("default"), map.get("required")) {
                (Some(default @ Value::Object(_)), Some(Value::Array(keys))) => {
                    keys.iter().any(|key| lacks(default, key))
                }
                _ => false,
            };
            map.retain(|key, _| !(key.starts_with("x-cozystack-") || incomplete && key == "default"));
            map.values_mut().for_each(legal);
        }
        Value::Array(items) => items.iter_mut().for_each(legal),
        _ => {}
    }
}
