//! Admission decisions: stamping, pruning, guards.
//!
//! A decision reads a [`Request`] and gives an [`Answer`]; how both travel is `cozy-server`'s.

pub mod package_guard;
pub mod prune;
pub mod stamp;

use serde::Deserialize;
use serde_json::{Value, json};

/// What the API server asks: the parts of `admission.k8s.io/v1` AdmissionRequest that decisions read.
///
/// Objects stay as they were sent, managedFields in them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Request {
    /// Names the request; the answer repeats it.
    pub uid: String,
    /// The kind that was asked for, converted to a version that the webhook is registered for.
    pub kind: Kind,
    /// Name of the object; empty when the server makes it up.
    pub name: String,
    /// Namespace of the object; empty for kinds of cluster scope.
    pub namespace: String,
    /// Sub-resource; empty for the object itself.
    pub sub_resource: String,
    /// `CREATE`, `UPDATE`, `DELETE` or `CONNECT`.
    pub operation: String,
    /// Who asks.
    pub user_info: UserInfo,
    /// The object as it will be; null on DELETE.
    pub object: Value,
    /// The object as it is; null on CREATE.
    pub old_object: Value,
    /// The request's options, such as `UpdateOptions`.
    pub options: Value,
}

/// Group, version and kind.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: String,
    /// Version.
    pub version: String,
    /// Kind.
    pub kind: String,
}

/// Who asks.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct UserInfo {
    /// Name, as the API server authenticated it.
    pub username: String,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// It goes on as it is.
    Allow,
    /// It goes on, changed by this JSON patch (RFC 6902).
    Patch(Vec<Value>),
    /// It ends here; the text says which rule, which field and what would pass.
    Deny(String),
}

impl Request {
    /// Whether the namespace is a tenant's. By its name, which nobody can change.
    #[must_use]
    pub fn is_of_tenant(&self) -> bool {
        self.namespace.starts_with(cozy_api::names::TENANT_NAMESPACE_PREFIX)
    }

    /// The account that applies the repositories of the request's namespace, as the API server names it.
    #[must_use]
    pub fn gitops_account(&self) -> String {
        format!("system:serviceaccount:{0}:{0}-gitops", self.namespace)
    }

    fn field_manager(&self) -> &str {
        self.options.get("fieldManager").and_then(Value::as_str).unwrap_or_default()
    }
}

/// One operation of a JSON patch.
fn operation(op: &str, path: &str, value: Value) -> Value {
    let mut operation = json!({ "op": op, "path": path });
    operation["value"] = value;
    operation
}
