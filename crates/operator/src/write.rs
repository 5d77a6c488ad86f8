//! Requests that change something: behind the lease's fence, bounded in number, counted, and their answers put into
//! the store at once.

use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use cozy_api::names;

use crate::lease::NotLeader;
use crate::queue::Queue;
use crate::reconcile::Context;
use crate::store::Kind;
use crate::watch::value;

const ADMISSION: &str = "admissionregistration.k8s.io";

/// Why a write failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    #[error("{0}")]
    Api(String, u16),
}

impl WriteError {
    /// Someone else changed the object meanwhile, or it is there (or gone) already: look again.
    pub(crate) fn is_stale(&self) -> bool {
        matches!(self, Self::Api(_, 409 | 404))
    }

    /// The API server's status code.
    pub(crate) fn code(&self) -> u16 {
        match self {
            Self::NotLeader(_) => 0,
            Self::Api(_, code) => *code,
        }
    }
}

impl From<kube::Error> for WriteError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Api(status.message.clone(), status.code),
            other => Self::Api(other.to_string(), 0),
        }
    }
}

/// How the API names a kind.
pub(crate) fn resource(kind: Kind) -> ApiResource {
    let of = |group: &str, version: &str, plural: &str| {
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind.name()), plural)
    };
    match kind {
        Kind::Package => of("cozystack.io", "v1alpha1", "packages"),
        Kind::Source => of("cozystack.io", "v1alpha1", "packagesources"),
        Kind::Values => of("cozystack.io", "v1alpha1", "packagevalues"),
        Kind::Release => of("helm.toolkit.fluxcd.io", "v2", "helmreleases"),
        Kind::Generator => of("source.extensions.fluxcd.io", "v1beta1", "artifactgenerators"),
        Kind::Namespace => of("", "v1", "namespaces"),
        Kind::Secret => of("", "v1", "secrets"),
        Kind::Artifact => of("source.toolkit.fluxcd.io", "v1", "externalartifacts"),
        Kind::Kustomization => of("kustomize.toolkit.fluxcd.io", "v1", "kustomizations"),
        Kind::Account => of("", "v1", "serviceaccounts"),
        Kind::Role => of("rbac.authorization.k8s.io", "v1", "roles"),
        Kind::Binding => of("rbac.authorization.k8s.io", "v1", "rolebindings"),
        Kind::Quota => of("", "v1", "resourcequotas"),
        Kind::Deployment => of("apps", "v1", "deployments"),
        Kind::Network => of("networking.k8s.io", "v1", "networkpolicies"),
        Kind::Policy => of(ADMISSION, "v1", "validatingadmissionpolicies"),
        Kind::PolicyBinding => of(ADMISSION, "v1", "validatingadmissionpolicybindings"),
        Kind::Mutation => of(ADMISSION, "v1", "mutatingadmissionpolicies"),
        Kind::MutationBinding => of(ADMISSION, "v1", "mutatingadmissionpolicybindings"),
        Kind::Webhook => of(ADMISSION, "v1", "mutatingwebhookconfigurations"),
        Kind::Grant => of("rbac.authorization.k8s.io", "v1", "clusterroles"),
    }
}

impl Context {
    /// The objects of a kind that are watched.
    pub(crate) fn watched(&self, kind: Kind) -> Api<DynamicObject> {
        let resource = resource(kind);
        match kind {
            Kind::Deployment | Kind::Network => {
                Api::namespaced_with(self.client.clone(), names::FLUX_NAMESPACE, &resource)
            }
            Kind::Generator | Kind::Artifact => {
                Api::namespaced_with(self.client.clone(), names::SYSTEM_NAMESPACE, &resource)
            }
            _ => Api::all_with(self.client.clone(), &resource),
        }
    }

    fn api(&self, kind: Kind, namespace: &str) -> Api<DynamicObject> {
        let resource = resource(kind);
        if namespace.is_empty() {
            Api::all_with(self.client.clone(), &resource)
        } else {
            Api::namespaced_with(self.client.clone(), namespace, &resource)
        }
    }

    async fn counted<T>(
        &self,
        kind: Kind,
        verb: &'static str,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, WriteError> {
        // The semaphore is never closed.
        let _permit = self.requests.acquire().await;
        // After the wait, so that nothing lies between the fence and the request.
        self.leader.check()?;
        let outcome = request.await;
        self.metrics.wrote(kind.name(), verb, outcome.is_ok());
        Ok(outcome?)
    }

    fn took(&self, queue: &Queue, kind: Kind, object: DynamicObject) {
        let keys = self.store_mut(|store| store.apply(kind, value(object)));
        if !keys.is_empty() {
            queue.add(keys);
        }
    }

    fn post() -> PostParams {
        PostParams { field_manager: Some(names::MANAGER_OPERATOR.to_owned()), ..PostParams::default() }
    }

    /// Creates an object.
    pub(crate) async fn create(
        &self,
        queue: &Queue,
        kind: Kind,
        namespace: &str,
        object: &Value,
    ) -> Result<(), WriteError> {
        let object: DynamicObject = parse(object)?;
        let api = self.api(kind, namespace);
        let answer = self.counted(kind, "create", api.create(&Self::post(), &object)).await?;
        self.took(queue, kind, answer);
        Ok(())
    }

    /// Replaces an object, provided that its resource version is still the one in `object`.
    pub(crate) async fn replace(
        &self,
        queue: &Queue,
        kind: Kind,
        namespace: &str,
        name: &str,
        object: &Value,
    ) -> Result<(), WriteError> {
        let object: DynamicObject = parse(object)?;
        let api = self.api(kind, namespace);
        let answer = self.counted(kind, "update", api.replace(name, &Self::post(), &object)).await?;
        self.took(queue, kind, answer);
        Ok(())
    }

    /// Deletes exactly the object that was looked at, and only as it was.
    pub(crate) async fn delete(
        &self,
        queue: &Queue,
        kind: Kind,
        namespace: &str,
        object: &Value,
    ) -> Result<(), WriteError> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let name = text("/metadata/name").unwrap_or_default();
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: text("/metadata/uid"),
                resource_version: text("/metadata/resourceVersion"),
            }),
            ..DeleteParams::default()
        };
        let api = self.api(kind, namespace);
        match self.counted(kind, "delete", api.delete(&name, &params)).await {
            Ok(answer) => {
                // Until the watch tells of the end, the object is known to go away.
                if let Some(object) = answer.left() {
                    self.took(queue, kind, object);
                }
                Ok(())
            }
            Err(error) if error.code() == 404 => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Server-side apply.
    pub(crate) async fn apply(
        &self,
        queue: &Queue,
        kind: Kind,
        namespace: &str,
        object: &Value,
        manager: &str,
        force: bool,
    ) -> Result<(), WriteError> {
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let params = PatchParams { force, ..PatchParams::apply(manager) };
        let api = self.api(kind, namespace);
        let answer = self.counted(kind, "apply", api.patch(name, &params, &Patch::Apply(object))).await?;
        self.took(queue, kind, answer);
        Ok(())
    }

    /// A JSON patch, of the status or of the rest.
    pub(crate) async fn patch(
        &self,
        queue: &Queue,
        kind: Kind,
        namespace: &str,
        name: &str,
        operations: Value,
        of_status: bool,
    ) -> Result<(), WriteError> {
        let patch: Patch<()> = Patch::Json(
            serde_json::from_value(operations).map_err(|error| WriteError::Api(error.to_string(), 0))?,
        );
        let params =
            PatchParams { field_manager: Some(names::MANAGER_OPERATOR.to_owned()), ..PatchParams::default() };
        let api = self.api(kind, namespace);
        let answer = if of_status {
            self.counted(kind, "status", api.patch_status(name, &params, &patch)).await?
        } else {
            self.counted(kind, "patch", api.patch(name, &params, &patch)).await?
        };
        self.took(queue, kind, answer);
        Ok(())
    }

    /// Replaces the status, provided that the object is still of that version.
    pub(crate) async fn write_status(
        &self,
        queue: &Queue,
        kind: Kind,
        name: &str,
        version: &str,
        status: &Value,
    ) -> Result<(), WriteError> {
        let operations = json!([
            { "op": "add", "path": "/metadata/resourceVersion", "value": version },
            { "op": "add", "path": "/status", "value": status },
        ]);
        self.patch(queue, kind, "", name, operations, true).await
    }
}

fn parse(object: &Value) -> Result<DynamicObject, WriteError> {
    use serde::Deserialize;
    DynamicObject::deserialize(object).map_err(|error| WriteError::Api(error.to_string(), 0))
}
