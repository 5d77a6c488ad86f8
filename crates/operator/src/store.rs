//! What the watches have seen: the renderer's [`Snapshot`] and the objects as they exist.
//!
//! Synchronous and without I/O. Every change returns the keys that it concerns. Answers to our own writes are put in
//! as well, so that the next look does not wait for the watch; an older event that comes after is ignored.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use cozy_api::names;
use cozy_api::packages::{Package, PackageSource, PackageValues};
use cozy_core::snapshot::{ReleaseKey, Snapshot};
use cozy_core::tenant::{LABEL_TENANT, is_tenant};
use serde_json::Value;

use crate::compact::Compact;
use crate::queue::Key;

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Package,
    Source,
    Values,
    Release,
    Generator,
    Namespace,
    Secret,
    Artifact,
    Kustomization,
    Account,
    Role,
    Binding,
    Quota,
    Deployment,
    Network,
    Policy,
    PolicyBinding,
    Mutation,
    MutationBinding,
    Webhook,
    Grant,
}

impl Kind {
    /// What is watched for the tenants' git surface, beside namespaces.
    pub(crate) const TENANT: [Self; 7] = [
        Self::Kustomization,
        Self::Account,
        Self::Role,
        Self::Binding,
        Self::Quota,
        Self::Deployment,
        Self::Network,
    ];

    /// What has to be in force before tenants get rights, and the roles that they get.
    pub(crate) const ENFORCEMENT: [Self; 6] = [
        Self::Policy,
        Self::PolicyBinding,
        Self::Webhook,
        Self::Grant,
        Self::Mutation,
        Self::MutationBinding,
    ];

    /// Those that a Kubernetes before 1.36 does not have.
    pub(crate) const MUTATION: [Self; 2] = [Self::Mutation, Self::MutationBinding];

    pub(crate) const ALL: [Self; 8] = [
        Self::Package,
        Self::Source,
        Self::Values,
        Self::Release,
        Self::Generator,
        Self::Namespace,
        Self::Secret,
        Self::Artifact,
    ];

    /// The API's name of the kind.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Package => "Package",
            Self::Source => "PackageSource",
            Self::Values => "PackageValues",
            Self::Release => "HelmRelease",
            Self::Generator => "ArtifactGenerator",
            Self::Namespace => "Namespace",
            Self::Secret => "Secret",
            Self::Artifact => "ExternalArtifact",
            Self::Kustomization => "Kustomization",
            Self::Account => "ServiceAccount",
            Self::Role => "Role",
            Self::Binding => "RoleBinding",
            Self::Quota => "ResourceQuota",
            Self::Deployment => "Deployment",
            Self::Network => "NetworkPolicy",
            Self::Policy => "ValidatingAdmissionPolicy",
            Self::PolicyBinding => "ValidatingAdmissionPolicyBinding",
            Self::Mutation => "MutatingAdmissionPolicy",
            Self::MutationBinding => "MutatingAdmissionPolicyBinding",
            Self::Webhook => "MutatingWebhookConfiguration",
            Self::Grant => "ClusterRole",
        }
    }
}

/// Namespace (empty for cluster-scoped kinds) and name.
pub(crate) type Id = (String, String);

/// The parts of a Package, PackageSource or PackageValues that the renderer's types leave out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live {
    pub(crate) uid: Option<String>,
    pub(crate) generation: Option<i64>,
    pub(crate) resource_version: String,
    status: Option<Compact>,
    pub(crate) deleting: bool,
    /// Why our types cannot read it.
    pub(crate) broken: Option<String>,
}

impl Live {
    /// Its status as it was last seen.
    pub(crate) fn status(&self) -> Option<Value> {
        self.status.as_ref().map(Compact::value)
    }
}

/// An object as it was last seen.
#[derive(Debug)]
struct Seen {
    resource_version: String,
    object: Compact,
}

impl Seen {
    fn new(object: &Value) -> Self {
        Self {
            resource_version: text(object, "/metadata/resourceVersion").to_owned(),
            object: Compact::new(object),
        }
    }

    fn value(&self) -> Arc<Value> {
        Arc::new(self.object.value())
    }
}

/// What matters of a namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NamespaceFacts {
    resource_version: String,
    pub(crate) labels: serde_json::Map<String, Value>,
    kept: bool,
    /// Fields that server-side apply gave to the package controller.
    owns_system: bool,
    owns_enforce: bool,
    owns_keep: bool,
    pub(crate) terminating: bool,
}

impl NamespaceFacts {
    fn of(object: &Value) -> Self {
        let mut facts = Self {
            resource_version: text(object, "/metadata/resourceVersion").to_owned(),
            labels: map(object, "/metadata/labels"),
            kept: map(object, "/metadata/annotations").get(names::ANNOTATION_RESOURCE_POLICY)
                == Some(&Value::from("keep")),
            terminating: object.pointer("/metadata/deletionTimestamp").is_some(),
            ..Self::default()
        };
        for entry in object.pointer("/metadata/managedFields").and_then(Value::as_array).into_iter().flatten()
        {
            if text(entry, "/manager") != names::MANAGER_PACKAGE || text(entry, "/operation") != "Apply" {
                continue;
            }
            let owns = |part: &str, name: &str| {
                entry
                    .pointer(&format!("/fieldsV1/f:metadata/f:{part}"))
                    .is_some_and(|fields| fields.get(format!("f:{name}")).is_some())
            };
            facts.owns_system |= owns("labels", names::LABEL_SYSTEM);
            facts.owns_enforce |= owns("labels", names::LABEL_POD_SECURITY_ENFORCE);
            facts.owns_keep |= owns("annotations", names::ANNOTATION_RESOURCE_POLICY);
        }
        facts
    }

    fn label(&self, name: &str) -> &str {
        self.labels.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// Whether an apply with these would change nothing.
    pub(crate) fn is(&self, system: bool, privileged: bool) -> bool {
        let system = if system {
            self.owns_system && self.label(names::LABEL_SYSTEM) == "true"
        } else {
            !self.owns_system
        };
        let privileged = if privileged {
            self.owns_enforce && self.label(names::LABEL_POD_SECURITY_ENFORCE) == "privileged"
        } else {
            !self.owns_enforce
        };
        system && privileged && self.owns_keep && self.kept
    }

    /// Whether it still allows privileged pods because of us.
    pub(crate) fn was_made_privileged(&self) -> bool {
        self.owns_enforce
    }
}

/// A copy, or the source, of the values Secret.
#[derive(Clone, Debug)]
pub(crate) struct SecretCopy {
    pub(crate) object: Arc<Value>,
    /// The operator wrote it: only then may it be deleted.
    pub(crate) ours: bool,
}

/// What is known of a tenant namespace.
#[derive(Debug, Default)]
pub(crate) struct Tenant {
    /// Its Kustomizations, by name: what they refer to.
    kustomizations: HashMap<String, Seen>,
    /// What carries its label, in both namespaces.
    objects: HashMap<(Kind, Id), Seen>,
}

impl Tenant {
    /// How many Kustomizations there are; those that are going away count until they are gone.
    pub(crate) fn kustomizations(&self) -> Vec<Value> {
        self.kustomizations.values().map(|seen| seen.object.value()).collect()
    }

    /// Whether there is any.
    pub(crate) fn has_kustomizations(&self) -> bool {
        !self.kustomizations.is_empty()
    }

    /// What was made for it.
    pub(crate) fn objects(&self) -> HashMap<(Kind, Id), Value> {
        self.objects.iter().map(|(key, seen)| (key.clone(), seen.object.value())).collect()
    }
}

/// Whether a Deployment is not on the way to what it was told last any more. One that fails after it has run, as a
/// tenant's repository can make it, must not keep the others' upgrades waiting, and one that never ran does so no longer
/// than its `progressDeadlineSeconds`.
fn is_rolled_out(deployment: &Value) -> bool {
    let number = |pointer: &str| deployment.pointer(pointer).and_then(Value::as_i64).unwrap_or_default();
    let conditions = deployment.pointer("/status/conditions").and_then(Value::as_array);
    let reason = conditions
        .and_then(|all| all.iter().find(|condition| condition["type"] == "Progressing"))
        .and_then(|condition| condition["reason"].as_str());
    number("/status/observedGeneration") == number("/metadata/generation")
        && number("/status/updatedReplicas") > 0
        && (number("/status/availableReplicas") > 0
            || matches!(reason, Some("NewReplicaSetAvailable" | "ProgressDeadlineExceeded")))
}

/// Which tenants have a controller. Kept with every change, so that a look at one tenant does not read those of all.
#[derive(Debug, Default)]
struct Controllers {
    /// All of them.
    there: HashSet<String>,
    /// Those that are on the way to what they were told last.
    rolling: HashSet<String>,
}

/// What other tenants take up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Beside {
    /// The tenant has a controller itself.
    pub(crate) has_controller: bool,
    /// Others that have one.
    pub(crate) controllers: usize,
    /// The tenant's own controller is being rolled, so that rolling it takes nothing more away.
    pub(crate) is_rolling: bool,
    /// Others whose controller is being rolled.
    pub(crate) rolling: usize,
}

/// Where the chart of an ExternalArtifact is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Artifact {
    pub(crate) url: String,
    pub(crate) digest: String,
}

/// Everything that is known.
#[derive(Default)]
pub(crate) struct Store {
    pub(crate) snapshot: Snapshot,
    pub(crate) packages: HashMap<String, Live>,
    pub(crate) sources: HashMap<String, Live>,
    pub(crate) values: HashMap<String, Live>,
    releases: HashMap<ReleaseKey, Seen>,
    labelled: HashMap<String, BTreeSet<ReleaseKey>>,
    generators: HashMap<String, Seen>,
    pub(crate) namespaces: HashMap<String, NamespaceFacts>,
    pub(crate) secrets: HashMap<String, SecretCopy>,
    pub(crate) artifacts: HashMap<String, Artifact>,
    /// Packages whose overrides want to know the chart, by artifact.
    pub(crate) chart_users: HashMap<String, BTreeSet<String>>,
    secret_source: String,
    /// Tenant namespaces that have Kustomizations, or something that was made for them.
    pub(crate) tenants: HashMap<String, Tenant>,
    /// Whose tenant an object was made for.
    tenant_of: HashMap<(Kind, Id), String>,
    controllers: Controllers,
    /// What confines tenants, and the roles that wait for it, by kind and name.
    enforcement: BTreeMap<(Kind, String), Seen>,
    gone: Gone,
    /// Generation of a PackageValues whose git revision the snapshot knows, or whose lack of one.
    revisions: HashMap<String, Option<i64>>,
}

/// What was deleted lately, so that the answer to a write of ours that the watch has overtaken does not bring it back.
#[derive(Default)]
struct Gone {
    versions: HashMap<(Kind, Id), String>,
    order: VecDeque<(Kind, Id)>,
}

impl Gone {
    /// An answer is never so late that more deletions than these lie between.
    const MOST: usize = 4096;

    fn note(&mut self, kind: Kind, id: &Id, version: &str) {
        let key = (kind, id.clone());
        if self.versions.insert(key.clone(), version.to_owned()).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > Self::MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.versions.remove(&oldest);
        }
    }

    /// Whether that version is one from before the deletion.
    fn is_gone(&self, kind: Kind, id: &Id, version: &str) -> bool {
        self.versions.get(&(kind, id.clone())).is_some_and(|gone| gone == version || is_newer(gone, version))
    }
}

fn text<'v>(object: &'v Value, pointer: &str) -> &'v str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn map(object: &Value, pointer: &str) -> serde_json::Map<String, Value> {
    object.pointer(pointer).and_then(Value::as_object).cloned().unwrap_or_default()
}

fn id(object: &Value) -> Id {
    (text(object, "/metadata/namespace").to_owned(), text(object, "/metadata/name").to_owned())
}

/// Whether `old` is a later version of the same object than `new`.
fn is_newer(old: &str, new: &str) -> bool {
    matches!((old.parse::<u64>(), new.parse::<u64>()), (Ok(old), Ok(new)) if old > new)
}

impl Store {
    /// `secret_source`: namespace that the values Secret comes from.
    pub(crate) fn new(secret_source: &str) -> Self {
        Self { secret_source: secret_source.to_owned(), ..Self::default() }
    }

    /// Makes the snapshot know the git revision that a PackageValues came from. It is told once per generation: what
    /// a HelmRelease says of this generation already stays true however many commits follow. Otherwise, namespace and
    /// name of the Kustomization to ask.
    pub(crate) fn recall_revision(&mut self, name: &str) -> Option<Id> {
        let generation = self.values.get(name).and_then(|live| live.generation);
        if self.revisions.get(name).is_some_and(|known| *known == generation) {
            return None;
        }
        let labels = self.snapshot.values(name).and_then(|values| values.metadata.labels.as_ref());
        let label = |label: &str| labels.and_then(|labels| labels.get(label)).cloned();
        let owner = label(names::LABEL_KUSTOMIZATION_NAMESPACE).zip(label(names::LABEL_KUSTOMIZATION_NAME));
        let Some(owner) = owner else {
            self.set_revision(name, generation, None);
            return None;
        };
        let prefix = format!("{name}@{} ", generation.unwrap_or_default());
        let told = self.labelled(name).find_map(|(_, release)| {
            let annotations = release.pointer("/metadata/annotations")?;
            annotations.get(names::ANNOTATION_VALUES_FROM)?.as_str()?.strip_prefix(&prefix).map(str::to_owned)
        });
        if told.is_some() {
            self.set_revision(name, generation, told);
            return None;
        }
        Some(owner)
    }

    /// Notes the git revision that a generation of a PackageValues came from; whether it is the one that is known.
    pub(crate) fn set_revision(
        &mut self,
        name: &str,
        generation: Option<i64>,
        revision: Option<String>,
    ) -> bool {
        if self.values.get(name).and_then(|live| live.generation) != generation {
            return false;
        }
        self.snapshot.set_revision(name, generation, revision);
        self.revisions.insert(name.to_owned(), generation);
        true
    }

    /// The HelmRelease as it exists.
    pub(crate) fn release(&self, key: &ReleaseKey) -> Option<Arc<Value>> {
        self.releases.get(key).map(Seen::value)
    }

    /// The ArtifactGenerator as it exists.
    pub(crate) fn generator(&self, name: &str) -> Option<Arc<Value>> {
        self.generators.get(name).map(Seen::value)
    }

    /// Existing HelmReleases with the label of that Package.
    pub(crate) fn labelled(&self, package: &str) -> impl Iterator<Item = (&ReleaseKey, Arc<Value>)> {
        self.labelled.get(package).into_iter().flatten().filter_map(|key| Some((key, self.release(key)?)))
    }

    /// Namespace and name of everything of a kind.
    pub(crate) fn ids(&self, kind: Kind) -> HashSet<Id> {
        let plain = |name: &String| (String::new(), name.clone());
        match kind {
            Kind::Package => self.packages.keys().map(plain).collect(),
            Kind::Source => self.sources.keys().map(plain).collect(),
            Kind::Values => self.values.keys().map(plain).collect(),
            Kind::Release => self.releases.keys().cloned().collect(),
            Kind::Generator => {
                self.generators.keys().map(|n| (names::SYSTEM_NAMESPACE.to_owned(), n.clone())).collect()
            }
            Kind::Namespace => self.namespaces.keys().map(plain).collect(),
            Kind::Secret => self.secrets.iter().map(|(ns, s)| (ns.clone(), id(&s.object).1)).collect(),
            Kind::Artifact => {
                self.artifacts.keys().map(|n| (names::SYSTEM_NAMESPACE.to_owned(), n.clone())).collect()
            }
            Kind::Kustomization => {
                let all = self.tenants.iter();
                all.flat_map(|(ns, t)| t.kustomizations.keys().map(|n| (ns.clone(), n.clone()))).collect()
            }
            _ if Kind::ENFORCEMENT.contains(&kind) => {
                self.enforcement.keys().filter(|(of, _)| *of == kind).map(|(_, name)| plain(name)).collect()
            }
            _ => {
                let all = self.tenants.values().flat_map(|tenant| tenant.objects.keys());
                all.filter(|(of, _)| *of == kind).map(|(_, id)| id.clone()).collect()
            }
        }
    }

    fn version(&self, kind: Kind, id: &Id) -> Option<&str> {
        match kind {
            Kind::Package => self.packages.get(&id.1).map(|l| l.resource_version.as_str()),
            Kind::Source => self.sources.get(&id.1).map(|l| l.resource_version.as_str()),
            Kind::Values => self.values.get(&id.1).map(|l| l.resource_version.as_str()),
            Kind::Release => self.releases.get(id).map(|seen| seen.resource_version.as_str()),
            Kind::Generator => self.generators.get(&id.1).map(|seen| seen.resource_version.as_str()),
            Kind::Namespace => self.namespaces.get(&id.1).map(|n| n.resource_version.as_str()),
            Kind::Secret => self.secrets.get(&id.0).map(|s| text(&s.object, "/metadata/resourceVersion")),
            _ if Kind::ENFORCEMENT.contains(&kind) => {
                self.enforcement.get(&(kind, id.1.clone())).map(|seen| seen.resource_version.as_str())
            }
            // Whose tenant they are is only known with the object.
            _ => None,
        }
    }

    /// Puts in an object as the API server gave it; which keys that concerns.
    pub(crate) fn apply(&mut self, kind: Kind, mut object: Value) -> Vec<Key> {
        let id = id(&object);
        let new = text(&object, "/metadata/resourceVersion");
        if self.gone.is_gone(kind, &id, new) {
            return Vec::new();
        }
        if let Some(old) = self.version(kind, &id)
            && (old == new || is_newer(old, new))
        {
            return Vec::new();
        }
        let managers = object.pointer_mut("/metadata/managedFields").map(Value::take);
        match kind {
            Kind::Package | Kind::Source | Kind::Values => self.apply_ours(kind, &id.1, object),
            Kind::Release => {
                if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                    metadata.remove("managedFields");
                }
                // Readiness of a HelmRelease is no gate, so its status is of no interest.
                if let Some(fields) = object.as_object_mut() {
                    fields.remove("status");
                }
                let label = package_label(&object);
                let old = self.releases.insert(id.clone(), Seen::new(&object)).map(|old| old.value());
                let old_label = old.as_ref().and_then(|old| package_label(old));
                if old_label != label {
                    self.unlabel(old_label.as_deref(), &id);
                    if let Some(label) = &label {
                        self.labelled.entry(label.clone()).or_default().insert(id.clone());
                    }
                }
                let same = old.as_ref().is_some_and(|old| same_but_version(old, &object));
                if same { Vec::new() } else { self.release_keys(&id, [old_label, label]) }
            }
            Kind::Generator => {
                if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                    metadata.remove("managedFields");
                }
                self.generators.insert(id.1.clone(), Seen::new(&object));
                vec![Key::Source(id.1)]
            }
            Kind::Namespace => {
                if let (Some(managers), Some(metadata)) =
                    (managers, object.get_mut("metadata").and_then(Value::as_object_mut))
                {
                    metadata.insert("managedFields".to_owned(), managers);
                }
                let facts = NamespaceFacts::of(&object);
                let mut keys = vec![Key::Namespace(id.1.clone()), Key::Secret(id.1.clone())];
                if self.tenants.contains_key(&id.1) {
                    keys.push(Key::Tenant(id.1.clone()));
                }
                let old = self.namespaces.insert(id.1.clone(), facts.clone());
                if old.as_ref().is_none_or(|old| old.terminating != facts.terminating) {
                    keys.extend(self.snapshot.users_of(&id.1).map(|name| Key::Package(name.to_owned())));
                }
                keys
            }
            Kind::Secret => {
                let ours = managers.as_ref().and_then(Value::as_array).is_some_and(|managers| {
                    managers.iter().any(|entry| text(entry, "/manager") == names::MANAGER_OPERATOR)
                });
                self.secrets.insert(id.0.clone(), SecretCopy { object: Arc::new(object), ours });
                self.secret_keys(&id.0)
            }
            Kind::Artifact => {
                let artifact = object.pointer("/status/artifact").map(|artifact| Artifact {
                    url: text(artifact, "/url").to_owned(),
                    digest: text(artifact, "/digest").to_owned(),
                });
                let old = match artifact.clone() {
                    Some(artifact) => self.artifacts.insert(id.1.clone(), artifact),
                    None => self.artifacts.remove(&id.1),
                };
                if old != artifact && self.chart_users.contains_key(&id.1) {
                    vec![Key::Chart(id.1)]
                } else {
                    Vec::new()
                }
            }
            Kind::Kustomization => {
                if !is_tenant(&id.0) {
                    return Vec::new();
                }
                let known = serde_json::json!({
                    "metadata": {
                        "name": id.1, "namespace": id.0,
                        "resourceVersion": text(&object, "/metadata/resourceVersion"),
                        "deletionTimestamp": object.pointer("/metadata/deletionTimestamp"),
                        "finalizers": object.pointer("/metadata/finalizers"),
                        "shard": object.pointer("/metadata/labels").and_then(|labels| labels.get(names::LABEL_SHARD)),
                    },
                    "spec": {
                        "decryption": object.pointer("/spec/decryption"),
                        "postBuild": { "substituteFrom": object.pointer("/spec/postBuild/substituteFrom") },
                    },
                });
                let facts = self.tenants.entry(id.0.clone()).or_default();
                let old = facts.kustomizations.insert(id.1, Seen::new(&known));
                // Its status changes often and concerns nobody here.
                let same = old.is_some_and(|old| {
                    let old = old.object.value();
                    ["/spec", "/metadata/deletionTimestamp", "/metadata/shard"]
                        .iter()
                        .all(|part| old.pointer(part) == known.pointer(part))
                });
                if same { Vec::new() } else { vec![Key::Tenant(id.0)] }
            }
            _ if Kind::ENFORCEMENT.contains(&kind) => {
                self.enforcement.insert((kind, id.1), Seen::new(&object));
                self.grants()
            }
            _ => self.apply_tenant_object(kind, id, object),
        }
    }

    fn apply_tenant_object(&mut self, kind: Kind, id: Id, mut object: Value) -> Vec<Key> {
        let label = object.pointer("/metadata/labels").and_then(|labels| labels.get(LABEL_TENANT));
        let Some(tenant) = label.and_then(Value::as_str).map(str::to_owned) else { return Vec::new() };
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        if kind != Kind::Deployment
            && let Some(fields) = object.as_object_mut()
        {
            fields.remove("status");
        }
        let key = (kind, id);
        let version = text(&object, "/metadata/resourceVersion");
        let known = self.tenants.get(&tenant).and_then(|facts| facts.objects.get(&key));
        if known.is_some_and(|old| is_newer(&old.resource_version, version)) {
            return Vec::new();
        }
        // Somebody may give it another tenant's label.
        let mut keys = Vec::new();
        if self.tenant_of.get(&key).is_some_and(|of| *of != tenant) {
            keys.extend(self.remove_tenant_object(&key));
        }
        if kind == Kind::Deployment {
            self.controllers.there.insert(tenant.clone());
            if is_rolled_out(&object) {
                self.controllers.rolling.remove(&tenant);
            } else {
                self.controllers.rolling.insert(tenant.clone());
            }
        }
        self.tenant_of.insert(key.clone(), tenant.clone());
        self.tenants.entry(tenant.clone()).or_default().objects.insert(key, Seen::new(&object));
        keys.push(Key::Tenant(tenant));
        keys
    }

    fn remove_tenant_object(&mut self, key: &(Kind, Id)) -> Option<Key> {
        let tenant = self.tenant_of.remove(key)?;
        if let Some(facts) = self.tenants.get_mut(&tenant) {
            facts.objects.remove(key);
        }
        if key.0 == Kind::Deployment {
            self.controllers.there.remove(&tenant);
            self.controllers.rolling.remove(&tenant);
        }
        Some(Key::Tenant(tenant))
    }

    /// What the tenants beside this one take up.
    pub(crate) fn beside(&self, tenant: &str) -> Beside {
        let Controllers { there, rolling } = &self.controllers;
        let others = |all: &HashSet<String>| all.len() - usize::from(all.contains(tenant));
        Beside {
            has_controller: there.contains(tenant),
            controllers: others(there),
            is_rolling: rolling.contains(tenant),
            rolling: others(rolling),
        }
    }

    fn apply_ours(&mut self, kind: Kind, name: &str, mut object: Value) -> Vec<Key> {
        let status = object.as_object_mut().and_then(|fields| fields.remove("status"));
        let mut live = Live {
            uid: Some(text(&object, "/metadata/uid").to_owned()).filter(|uid| !uid.is_empty()),
            generation: object.pointer("/metadata/generation").and_then(Value::as_i64),
            resource_version: text(&object, "/metadata/resourceVersion").to_owned(),
            deleting: object.pointer("/metadata/deletionTimestamp").is_some(),
            broken: None,
            status: status.as_ref().map(Compact::new),
        };
        // The renderer needs no more of a status than its conditions.
        if let (Kind::Package, Some(conditions)) =
            (kind, status.as_ref().and_then(|status| status.get("conditions")))
        {
            object["status"] = serde_json::json!({ "conditions": conditions });
        }
        let mut namespaces: BTreeSet<String> = self.snapshot.namespaces_of(name).map(str::to_owned).collect();
        let touched = match kind {
            Kind::Package => serde_json::from_value::<Package>(object).map(|p| self.snapshot.set_package(p)),
            Kind::Source => {
                serde_json::from_value::<PackageSource>(object).map(|s| self.snapshot.set_source(s))
            }
            _ => serde_json::from_value::<PackageValues>(object).map(|v| self.snapshot.set_values(v)),
        };
        let touched = touched.unwrap_or_else(|error| {
            // What was known of it stays, so that nothing is taken for removed.
            live.broken = Some(error.to_string());
            BTreeSet::from([name.to_owned()])
        });
        namespaces.extend(self.snapshot.namespaces_of(name).map(str::to_owned));
        match kind {
            Kind::Package => self.packages.insert(name.to_owned(), live),
            Kind::Source => self.sources.insert(name.to_owned(), live),
            _ => self.values.insert(name.to_owned(), live),
        };
        Self::keys(kind, name, touched, namespaces)
    }

    fn keys(kind: Kind, name: &str, touched: BTreeSet<String>, namespaces: BTreeSet<String>) -> Vec<Key> {
        let mut keys: Vec<Key> = touched.into_iter().map(Key::Package).collect();
        if kind == Kind::Source {
            keys.push(Key::Source(name.to_owned()));
        }
        if kind != Kind::Values {
            keys.extend(namespaces.into_iter().map(Key::Namespace));
        }
        keys
    }

    /// Takes out an object; which keys that concerns. `version` is that of the deletion, where known.
    pub(crate) fn remove(&mut self, kind: Kind, id: &Id, version: Option<&str>) -> Vec<Key> {
        if let (Some(old), Some(new)) = (self.version(kind, id), version)
            && is_newer(old, new)
        {
            // Made anew before the watch told of the deletion.
            return Vec::new();
        }
        if let Some(version) = version {
            self.gone.note(kind, id, version);
        }
        let name = &id.1;
        match kind {
            Kind::Package | Kind::Source | Kind::Values => {
                let namespaces = self.snapshot.namespaces_of(name).map(str::to_owned).collect();
                let touched = match kind {
                    Kind::Package => {
                        self.packages.remove(name);
                        self.snapshot.remove_package(name)
                    }
                    Kind::Source => {
                        self.sources.remove(name);
                        self.snapshot.remove_source(name)
                    }
                    _ => {
                        self.values.remove(name);
                        self.revisions.remove(name);
                        self.snapshot.set_revision(name, None, None);
                        self.snapshot.remove_values(name)
                    }
                };
                Self::keys(kind, name, touched, namespaces)
            }
            Kind::Release => {
                let Some(old) = self.releases.remove(id) else { return Vec::new() };
                let label = package_label(&old.value());
                self.unlabel(label.as_deref(), id);
                self.release_keys(id, [label, None])
            }
            Kind::Generator => {
                self.generators.remove(name);
                vec![Key::Source(name.clone())]
            }
            Kind::Namespace => {
                self.namespaces.remove(name);
                self.snapshot.users_of(name).map(|name| Key::Package(name.to_owned())).collect()
            }
            Kind::Secret => {
                self.secrets.remove(&id.0);
                self.secret_keys(&id.0)
            }
            Kind::Artifact => {
                self.artifacts.remove(name);
                Vec::new()
            }
            Kind::Kustomization => {
                let Some(tenant) = self.tenants.get_mut(&id.0) else { return Vec::new() };
                tenant.kustomizations.remove(name);
                vec![Key::Tenant(id.0.clone())]
            }
            _ if Kind::ENFORCEMENT.contains(&kind) => {
                self.enforcement.remove(&(kind, name.clone()));
                self.grants()
            }
            _ => self.remove_tenant_object(&(kind, id.clone())).into_iter().collect(),
        }
    }

    /// Every role that is given to tenants: each may depend on any of the objects.
    fn grants(&self) -> Vec<Key> {
        let roles = self.enforcement.keys().filter(|(kind, _)| *kind == Kind::Grant);
        roles.map(|(_, name)| Key::Grant(name.clone())).collect()
    }

    /// A role that is given to tenants.
    pub(crate) fn grant(&self, name: &str) -> Option<Value> {
        self.enforcement.get(&(Kind::Grant, name.to_owned())).map(|seen| seen.object.value())
    }

    /// What confines tenants: kind and object.
    pub(crate) fn enforcement(&self) -> Vec<(&'static str, Value)> {
        let objects = self.enforcement.iter().filter(|((kind, _), _)| *kind != Kind::Grant);
        objects.map(|((kind, _), seen)| (kind.name(), seen.object.value())).collect()
    }

    fn unlabel(&mut self, label: Option<&str>, id: &ReleaseKey) {
        let Some(label) = label else { return };
        if let Some(keys) = self.labelled.get_mut(label) {
            keys.remove(id);
            if keys.is_empty() {
                self.labelled.remove(label);
            }
        }
    }

    fn release_keys(&self, id: &ReleaseKey, labels: [Option<String>; 2]) -> Vec<Key> {
        let mut packages: BTreeSet<String> = labels.into_iter().flatten().collect();
        packages.extend(self.snapshot.claimants(&id.0, &id.1).map(str::to_owned));
        packages.into_iter().map(Key::Package).collect()
    }

    /// The source concerns every namespace, a copy its own.
    fn secret_keys(&self, namespace: &str) -> Vec<Key> {
        if namespace == self.secret_source {
            self.namespaces.keys().chain(self.secrets.keys()).cloned().map(Key::Secret).collect()
        } else {
            vec![Key::Secret(namespace.to_owned())]
        }
    }
}

fn package_label(object: &Value) -> Option<String> {
    object.pointer("/metadata/labels")?.get(names::LABEL_PACKAGE)?.as_str().map(str::to_owned)
}

/// Whether two HelmReleases differ in their version alone: a change of status, which concerns nobody here.
fn same_but_version(old: &Value, new: &Value) -> bool {
    let part = |object: &Value, pointer: &str| object.pointer(pointer).cloned();
    ["/spec", "/metadata/labels", "/metadata/annotations", "/metadata/ownerReferences", "/metadata/uid"]
        .iter()
        .all(|pointer| part(old, pointer) == part(new, pointer))
        && old.pointer("/metadata/deletionTimestamp").is_some()
            == new.pointer("/metadata/deletionTimestamp").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn release(version: &str, suspend: bool) -> Value {
        json!({
            "metadata": {
                "namespace": "n", "name": "x", "resourceVersion": version, "uid": "u",
                "labels": { names::LABEL_PACKAGE: "p" },
            },
            "spec": { "suspend": suspend },
            "status": { "at": version },
        })
    }

    #[test]
    fn a_status_change_of_a_release_wakes_nobody() {
        let mut store = Store::new("cozy-system");
        assert_eq!(store.apply(Kind::Release, release("1", false)), [Key::Package("p".to_owned())]);
        assert_eq!(store.apply(Kind::Release, release("2", false)), []);
        assert_eq!(store.apply(Kind::Release, release("3", true)), [Key::Package("p".to_owned())]);
    }

    #[test]
    fn an_older_event_does_not_undo_what_is_known() {
        let mut store = Store::new("cozy-system");
        store.apply(Kind::Release, release("5", true));
        assert_eq!(store.apply(Kind::Release, release("4", false)), []);
        let key = ("n".to_owned(), "x".to_owned());
        assert_eq!(store.release(&key).unwrap().pointer("/spec/suspend"), Some(&json!(true)));
        assert_eq!(store.remove(Kind::Release, &key, Some("3")), []);
        assert_eq!(store.remove(Kind::Release, &key, Some("6")), [Key::Package("p".to_owned())]);
    }

    #[test]
    fn the_answer_to_a_write_that_comes_after_the_deletion_brings_nothing_back() {
        let mut store = Store::new("cozy-system");
        let key = ("n".to_owned(), "x".to_owned());
        store.apply(Kind::Release, release("1", false));
        store.remove(Kind::Release, &key, Some("3"));
        for late in ["2", "3"] {
            assert_eq!(store.apply(Kind::Release, release(late, true)), []);
            assert!(store.release(&key).is_none());
        }
        // One of the same name that was made since is another.
        assert_eq!(store.apply(Kind::Release, release("4", false)), [Key::Package("p".to_owned())]);
        for n in 0..5000_u32 {
            store.remove(Kind::Release, &("n".to_owned(), n.to_string()), Some("9"));
        }
        assert!(store.gone.versions.len() <= Gone::MOST && store.gone.order.len() <= Gone::MOST);
    }

    #[test]
    fn what_cannot_be_read_is_kept_as_it_was() {
        let mut store = Store::new("cozy-system");
        let package = |version: &str, spec: Value| json!({ "metadata": { "name": "p", "resourceVersion": version }, "spec": spec });
        store.apply(Kind::Package, package("1", json!({ "variant": "v" })));
        store.apply(Kind::Package, package("2", json!({ "variant": 7 })));
        assert!(store.packages["p"].broken.is_some());
        assert_eq!(store.snapshot.package("p").unwrap().spec.variant.as_deref(), Some("v"));
    }

    #[test]
    fn what_other_tenants_take_up_is_counted_with_every_change() {
        let mut store = Store::new("cozy-system");
        let deployment = |tenant: &str, name: &str, version: u32, available: u32| {
            json!({
                "metadata": {
                    "namespace": "cozy-fluxcd", "name": name, "resourceVersion": version.to_string(), "generation": 1,
                    "labels": { LABEL_TENANT: tenant },
                },
                "status": { "observedGeneration": 1, "updatedReplicas": 1, "availableReplicas": available },
            })
        };
        store.apply(Kind::Deployment, deployment("tenant-a", "a", 1, 0));
        store.apply(Kind::Deployment, deployment("tenant-b", "b", 2, 1));
        let beside = |has_controller, controllers, rolling| Beside {
            has_controller,
            controllers,
            is_rolling: false,
            rolling,
        };
        assert_eq!(store.beside("tenant-a"), Beside { is_rolling: true, ..beside(true, 1, 0) });
        assert_eq!(store.beside("tenant-b"), beside(true, 1, 1));
        assert_eq!(store.beside("tenant-c"), beside(false, 2, 1));
        store.apply(Kind::Deployment, deployment("tenant-a", "a", 3, 1));
        assert_eq!(store.beside("tenant-c"), beside(false, 2, 0));
        // The other tenant's label: both have to be looked at.
        let keys = store.apply(Kind::Deployment, deployment("tenant-c", "a", 4, 1));
        assert_eq!(keys, ["tenant-a", "tenant-c"].map(|name| Key::Tenant(name.to_owned())));
        assert_eq!(store.beside("tenant-a"), beside(false, 2, 0));
        let id = ("cozy-fluxcd".to_owned(), "a".to_owned());
        assert_eq!(store.remove(Kind::Deployment, &id, Some("5")), [Key::Tenant("tenant-c".to_owned())]);
        assert_eq!(store.remove(Kind::Deployment, &id, Some("5")), []);
        assert_eq!(store.beside("tenant-c"), beside(false, 1, 0));
    }

    #[test]
    fn only_who_is_on_the_way_is_rolling() {
        let deployment = |observed: u32, updated: u32, available: u32, reason: &str| {
            json!({ "metadata": { "generation": 2 }, "status": {
                "observedGeneration": observed, "updatedReplicas": updated, "availableReplicas": available,
                "conditions": [{ "type": "Available", "reason": "x" }, { "type": "Progressing", "reason": reason }],
            } })
        };
        assert!(!is_rolled_out(&json!({ "metadata": { "generation": 1 } })));
        assert!(is_rolled_out(&deployment(2, 1, 1, "ReplicaSetUpdated")));
        // Not seen yet; the old one is not gone; the new one does not run yet.
        assert!(!is_rolled_out(&deployment(1, 1, 1, "NewReplicaSetAvailable")));
        assert!(!is_rolled_out(&deployment(2, 0, 0, "NewReplicaSetAvailable")));
        assert!(!is_rolled_out(&deployment(2, 1, 0, "ReplicaSetUpdated")));
        // It ran and fails since; it never ran.
        assert!(is_rolled_out(&deployment(2, 1, 0, "NewReplicaSetAvailable")));
        assert!(is_rolled_out(&deployment(2, 1, 0, "ProgressDeadlineExceeded")));
    }
}
