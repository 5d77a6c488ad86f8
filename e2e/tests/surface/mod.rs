//! The tenant surface on a real API server: the chart installed by Helm, Cozystack's tenant roles, two tenants, and
//! the accounts that act in the tests.

#![allow(dead_code, clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Client, Error};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use cozy_core::tenant::{References, Settings, desired};
use cozy_testenv::Cluster;

/// Longest time that the control plane may need on a loaded machine.
pub(crate) const LONG: Duration = Duration::from_secs(120);
/// The tenant that acts in most tests.
pub(crate) const TENANT: &str = "tenant-foo";

/// The surface, as a cluster without Cilium takes it.
const ON: &str = "operator.enabled=true,operator.mode=operator,tenant.enabled=true,network.cilium.enabled=false,\
                  network.networkPolicy.enabled=true";

/// A file or directory of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// The documents of a YAML text.
pub(crate) fn documents(text: &[u8]) -> Vec<Value> {
    cozy_yaml::parse_bytes(text, &cozy_yaml::Limits::default())
        .into_iter()
        .map(|document| document.unwrap().value)
        .filter(|value| !value.is_null())
        .collect()
}

/// Runs Helm; standard output, or what it says on standard error.
pub(crate) fn helm(kubeconfig: Option<&Path>, arguments: &[&str]) -> Result<String, String> {
    let mut command = std::process::Command::new(cozy_testenv::program("helm").unwrap());
    command.args(arguments).env("HELM_NO_PLUGINS", "1");
    if let Some(kubeconfig) = kubeconfig {
        command.env("KUBECONFIG", kubeconfig);
    }
    let output = command.output().unwrap();
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// How a kind is served.
pub(crate) fn resource(kind: &str) -> ApiResource {
    let (group, version, plural) = match kind {
        "Kustomization" => ("kustomize.toolkit.fluxcd.io", "v1", "kustomizations"),
        "GitRepository" => ("source.toolkit.fluxcd.io", "v1", "gitrepositories"),
        "Bucket" => ("source.toolkit.fluxcd.io", "v1", "buckets"),
        "OCIRepository" => ("source.toolkit.fluxcd.io", "v1", "ocirepositories"),
        "HelmChart" => ("source.toolkit.fluxcd.io", "v1", "helmcharts"),
        "ExternalArtifact" => ("source.toolkit.fluxcd.io", "v1", "externalartifacts"),
        "HelmRelease" => ("helm.toolkit.fluxcd.io", "v2", "helmreleases"),
        "GitOps" => ("apps.cozystack.io", "v1alpha1", "gitopses"),
        "Redis" => ("apps.cozystack.io", "v1alpha1", "redises"),
        "Tenant" => ("apps.cozystack.io", "v1alpha1", "tenants"),
        "Package" => ("cozystack.io", "v1alpha1", "packages"),
        "PackageValues" => ("cozystack.io", "v1alpha1", "packagevalues"),
        "Secret" => ("", "v1", "secrets"),
        "ConfigMap" => ("", "v1", "configmaps"),
        "ServiceAccount" => ("", "v1", "serviceaccounts"),
        "ResourceQuota" => ("", "v1", "resourcequotas"),
        "Namespace" => ("", "v1", "namespaces"),
        "Pod" => ("", "v1", "pods"),
        "Deployment" => ("apps", "v1", "deployments"),
        "Job" => ("batch", "v1", "jobs"),
        "Role" => ("rbac.authorization.k8s.io", "v1", "roles"),
        "RoleBinding" => ("rbac.authorization.k8s.io", "v1", "rolebindings"),
        "ClusterRole" => ("rbac.authorization.k8s.io", "v1", "clusterroles"),
        "ClusterRoleBinding" => ("rbac.authorization.k8s.io", "v1", "clusterrolebindings"),
        "NetworkPolicy" => ("networking.k8s.io", "v1", "networkpolicies"),
        "CustomResourceDefinition" => ("apiextensions.k8s.io", "v1", "customresourcedefinitions"),
        "ValidatingAdmissionPolicy" => ("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies"),
        "ValidatingAdmissionPolicyBinding" => {
            ("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings")
        }
        "MutatingAdmissionPolicy" => ("admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies"),
        "MutatingAdmissionPolicyBinding" => {
            ("admissionregistration.k8s.io", "v1", "mutatingadmissionpolicybindings")
        }
        "MutatingWebhookConfiguration" => {
            ("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations")
        }
        "ValidatingWebhookConfiguration" => {
            ("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations")
        }
        other => panic!("{other}: add it to the table of kinds"),
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

/// A kind in a namespace, or in the cluster when there is none.
pub(crate) fn api(client: &Client, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource(kind)),
        None => Api::all_with(client.clone(), &resource(kind)),
    }
}

/// Creates an object as a client of the field does: see [`counted`].
pub(crate) async fn make(
    api: &Api<DynamicObject>,
    parameters: &PostParams,
    object: &Value,
) -> kube::Result<DynamicObject> {
    let object = typed(object);
    counted(|| api.create(parameters, &object)).await
}

/// Writes by server-side apply as a client of the field does: see [`counted`].
pub(crate) async fn apply(
    api: &Api<DynamicObject>,
    parameters: &PatchParams,
    object: &Value,
) -> kube::Result<DynamicObject> {
    let name = object["metadata"]["name"].as_str().unwrap();
    let object = Patch::Apply(object);
    counted(|| api.patch(name, parameters, &object)).await
}

/// Writes again while the API server could not count the write: its quota admission answers with a conflict about
/// the ResourceQuota when the quota's own controller kept writing the same count, which says nothing of the object.
async fn counted<F: Future<Output = kube::Result<DynamicObject>>>(
    write: impl Fn() -> F,
) -> kube::Result<DynamicObject> {
    let begin = Instant::now();
    loop {
        match write().await {
            Err(Error::Api(status))
                if status.code == 409
                    && status.details.as_ref().is_some_and(|details| details.kind == "resourcequotas")
                    && begin.elapsed() < LONG =>
            {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            answer => return answer,
        }
    }
}

/// A Kustomization that breaks no rule.
pub(crate) fn kustomization(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization",
        "metadata": { "name": name, "namespace": namespace, "labels": { "sharding.fluxcd.io/key": namespace } },
        "spec": {
            "interval": "5m", "prune": true, "path": "./apps",
            "sourceRef": { "kind": "GitRepository", "name": "apps" },
            "serviceAccountName": format!("{namespace}-gitops"),
            "targetNamespace": namespace, "deletionPolicy": "Orphan",
        },
    })
}

/// A GitRepository that breaks no rule.
pub(crate) fn git_repository(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository",
        "metadata": { "name": name, "namespace": namespace },
        "spec": { "interval": "5m", "url": "https://git.example.com/team/apps.git" },
    })
}

/// An object of any other kind, with nothing in it.
pub(crate) fn bare(kind: &str, namespace: Option<&str>, name: &str) -> Value {
    let resource = resource(kind);
    let mut object = json!({
        "apiVersion": resource.api_version, "kind": kind, "metadata": { "name": name },
    });
    if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = namespace.into();
    }
    if kind == "HelmRelease" {
        object["spec"] = json!({ "interval": "5m", "chartRef": { "kind": "OCIRepository", "name": "a" } });
    }
    object
}

/// JSON merge patch (RFC 7396).
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let target = target.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// What the API server answered a refused request.
pub(crate) fn refusal(error: &Error) -> (u16, String) {
    match error {
        Error::Api(status) => (status.code, status.message.clone()),
        other => panic!("no answer of the API server: {other}"),
    }
}

/// Waits for something to become true.
pub(crate) async fn eventually<F, R>(what: &str, mut check: F)
where
    F: FnMut() -> R,
    R: Future<Output = bool>,
{
    let deadline = Instant::now() + LONG;
    while !check().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// What the chart renders with the surface on.
pub(crate) fn template(values: &[&str]) -> Vec<Value> {
    let chart = repository("packages/system/cozy-gitops").display().to_string();
    let mut arguments = vec!["template", "cozy-gitops", &chart, "--namespace", "cozy-system", "--set", ON];
    for value in values {
        arguments.extend(["--set", value]);
    }
    documents(helm(None, &arguments).unwrap().as_bytes())
}

/// One at a time: each is several processes.
static ONE: Mutex<()> = Mutex::const_new(());

/// A cluster with the tenant surface.
pub(crate) struct Surface {
    // Dropped before the turn passes on.
    cluster: Cluster,
    _one: MutexGuard<'static, ()>,
    /// All rights.
    pub(crate) admin: Client,
}

impl Surface {
    /// As [`Surface::plain`], with the tenants' accounts.
    pub(crate) async fn bare() -> Self {
        let surface = Self::plain().await;
        for namespace in [TENANT, "tenant-bar", "tenant-foo-b"] {
            surface.accounts(namespace).await;
        }
        surface
    }

    /// As [`Surface::without_applications`], with some applications that take any spec.
    pub(crate) async fn plain() -> Self {
        let surface = Self::without_applications().await;
        // These kinds are served by programs that the tests do not have; here it is the admission that counts.
        for kind in ["GitOps", "Redis", "Tenant"] {
            surface.install_crd(&open_crd(&resource(kind))).await;
        }
        surface
    }

    /// A cluster with Flux's kinds, Cozystack's tenant roles, and the tenants `tenant-foo`, its child `tenant-foo-b`,
    /// and `tenant-bar`; no surface yet.
    pub(crate) async fn without_applications() -> Self {
        let one = ONE.lock().await;
        let cluster = Cluster::start().await.unwrap();
        let admin = cluster.admin();
        let surface = Self { cluster, _one: one, admin };
        surface.cluster.install_crds().await.unwrap();
        for namespace in ["cozy-system", "cozy-fluxcd", TENANT, "tenant-bar", "tenant-foo-b"] {
            surface.apply(&bare("Namespace", None, namespace)).await;
        }
        for role in documents(include_bytes!("../../fixtures/cozystack-tenant-roles.yaml")) {
            surface.apply(&role).await;
        }
        for (user, role, namespace) in [
            ("viewer", "view", TENANT),
            ("user", "use", TENANT),
            ("admin-of-tenant", "admin", TENANT),
            ("tenant", "super-admin", TENANT),
            // A parent's rights reach into its children on purpose.
            ("tenant", "super-admin", "tenant-foo-b"),
            ("other-tenant", "super-admin", "tenant-bar"),
        ] {
            surface.bind(user, role, namespace).await;
        }
        surface
    }

    /// The same with the chart installed and the rights granted. The mutation is a MutatingAdmissionPolicy.
    pub(crate) async fn start(values: &[&str]) -> Self {
        let surface = Self::bare().await;
        surface.install(values).await.unwrap();
        surface.enforced().await;
        surface.grant().await;
        surface
    }

    /// The control plane.
    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The kubeconfig with all rights.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.cluster.admin_kubeconfig().unwrap()
    }

    /// Installs or upgrades the chart with the surface on.
    pub(crate) async fn install(&self, values: &[&str]) -> Result<String, String> {
        let chart = repository("packages/system/cozy-gitops").display().to_string();
        let mut arguments =
            vec!["upgrade", "--install", "cozy-gitops", &chart, "--namespace", "cozy-system", "--set", ON];
        for value in values {
            arguments.extend(["--set", value]);
        }
        let kubeconfig = self.kubeconfig();
        tokio::task::block_in_place(|| helm(Some(&kubeconfig), &arguments))
    }

    /// Waits until every policy is in force: the API server takes a moment to compile them.
    pub(crate) async fn enforced(&self) {
        for probe in self.probes() {
            eventually("the policies are in force", || async {
                self.dry_create(&probe).await.is_err_and(|(_, message)| message.contains("denied request"))
            })
            .await;
        }
    }

    /// Waits until no policy is in force any more.
    pub(crate) async fn unenforced(&self) {
        for probe in self.probes() {
            eventually("the policies are gone", || async { self.dry_create(&probe).await.is_ok() }).await;
        }
    }

    /// One object per policy that it refuses even from an administrator.
    fn probes(&self) -> [Value; 3] {
        let mut kustomization = kustomization("tenant-bar", "probe");
        merge(&mut kustomization, &json!({ "spec": { "kubeConfig": { "secretRef": { "name": "x" } } } }));
        let mut repository = git_repository("tenant-bar", "probe");
        merge(&mut repository, &json!({ "spec": { "provider": "azure" } }));
        [kustomization, repository, bare("GitOps", Some("tenant-bar"), "probe")]
    }

    async fn dry_create(&self, object: &Value) -> Result<DynamicObject, (u16, String)> {
        let parameters = PostParams { dry_run: true, field_manager: None };
        let api = api(&self.admin, kind(object), namespace(object));
        make(&api, &parameters, object).await.map_err(|error| refusal(&error))
    }

    /// Labels the roles, which is the operator's part once it has seen the enforcement, and waits for the effect.
    pub(crate) async fn grant(&self) {
        let roles = api(&self.admin, "ClusterRole", None);
        for name in ["cozy:tenant-gitops:edit", "cozy:tenant-gitops:view"] {
            let Some(role) = roles.get_opt(name).await.unwrap() else { continue };
            let label = &role.metadata.annotations.unwrap()["gitops.cozystack.io/grant-to"];
            let patch = json!({ "metadata": { "labels": { label: "true" } } });
            roles.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        }
        self.granted().await;
    }

    /// Waits until the tenants' rights are in force.
    pub(crate) async fn granted(&self) {
        let roles = api(&self.admin, "ClusterRole", None);
        eventually("the roles are aggregated", || async {
            let role = roles.get("cozy:tenant:super-admin").await.unwrap();
            role.data["rules"].to_string().contains("kustomizations")
        })
        .await;
        // The authorizer follows the role by a watch of its own.
        let viewer = self.user("viewer").await;
        eventually("the rights are in force", || async {
            api(&viewer, "Kustomization", Some(TENANT)).list(&Default::default()).await.is_ok()
        })
        .await;
    }

    /// Applies an object with all rights.
    pub(crate) async fn apply(&self, object: &Value) {
        let api = api(&self.admin, kind(object), namespace(object));
        apply(&api, &PatchParams::apply("test").force(), object).await.unwrap();
    }

    /// Creates an object with all rights.
    pub(crate) async fn create(&self, object: &Value) -> DynamicObject {
        let api = api(&self.admin, kind(object), namespace(object));
        make(&api, &PostParams::default(), object).await.unwrap()
    }

    /// Deletes an object with all rights, if it is there.
    pub(crate) async fn delete(&self, kind: &str, namespace: Option<&str>, name: &str) {
        match api(&self.admin, kind, namespace).delete(name, &DeleteParams::default()).await {
            Ok(_) => {}
            Err(Error::Api(status)) if status.code == 404 => {}
            Err(error) => panic!("{kind} {name}: {error}"),
        }
    }

    /// Somebody else, by name; service accounts by their user name.
    pub(crate) async fn user(&self, name: &str) -> Client {
        self.cluster.client_as(name, &[]).unwrap()
    }

    async fn install_crd(&self, crd: &Value) {
        let crds: Api<CustomResourceDefinition> = Api::all(self.admin.clone());
        let name = crd["metadata"]["name"].as_str().unwrap();
        crds.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(crd)).await.unwrap();
        let established = await_condition(crds, name, conditions::is_crd_established());
        tokio::time::timeout(LONG, established).await.unwrap().unwrap();
    }

    /// Gives a user one of Cozystack's tenant roles in a namespace.
    pub(crate) async fn bind(&self, user: &str, role: &str, namespace: &str) {
        let mut binding = bare("RoleBinding", Some(namespace), user);
        merge(
            &mut binding,
            &json!({
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                    "name": format!("cozy:tenant:{role}"),
                },
                "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
            }),
        );
        self.apply(&binding).await;
    }

    /// What the operator makes for a tenant, without the operator; no controller runs.
    async fn accounts(&self, namespace: &str) {
        let mut references = References::default();
        references.secrets.insert("gitops-age".to_owned());
        for object in desired(&Settings::default(), namespace, &references) {
            if object["kind"] != "Deployment" {
                self.apply(&object).await;
            }
        }
    }
}

/// The kind of an object.
pub(crate) fn kind(object: &Value) -> &str {
    object["kind"].as_str().unwrap()
}

/// The namespace of an object.
pub(crate) fn namespace(object: &Value) -> Option<&str> {
    object["metadata"]["namespace"].as_str()
}

/// An object as the client takes it.
pub(crate) fn typed(object: &Value) -> DynamicObject {
    serde_json::from_value(object.clone()).unwrap()
}

/// A CRD that takes anything.
fn open_crd(resource: &ApiResource) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{}.{}", resource.plural, resource.group) },
        "spec": {
            "group": resource.group, "scope": "Namespaced",
            "names": { "kind": resource.kind, "plural": resource.plural },
            "versions": [{
                "name": resource.version, "served": true, "storage": true,
                "schema": { "openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                } },
            }],
        },
    })
}
