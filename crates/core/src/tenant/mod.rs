//! What a tenant namespace with Kustomizations needs: accounts, roles, a controller of its own.
//!
//! Everything here is a function of the namespace's name, the Kustomizations in it and the settings; who makes and
//! keeps the objects is the operator.

use std::collections::BTreeSet;
use std::time::Duration;

use cozy_api::names::{self, LABEL_SHARD};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Label of everything that is made for a tenant: its namespace. The network policies of the chart select by it.
pub const LABEL_TENANT: &str = "gitops.cozystack.io/tenant";
/// Names of Secrets and ConfigMaps that Kustomizations may refer to begin with it (policy `kustomization-substitute`).
pub const REFERENCE_PREFIX: &str = "gitops-";
/// Name of the quota; what begins with `gitops` is kept from the tenants' admins by the policy `cozy-gitops-quota`.
pub const QUOTA: &str = "gitops-sources";
/// Annotation of a controller's pods: when the Kustomization was deleted on whose account it was started anew.
pub const ANNOTATION_RESTARTED: &str = "gitops.cozystack.io/restarted-for-deletion-at";
/// Flux's own.
pub const FINALIZER: &str = "finalizers.fluxcd.io";
/// Longest name of a controller that is made of the namespace's name: the names of its ReplicaSets and Pods are longer.
const LONGEST_NAME: usize = 52;

/// What is the same for all tenants.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Image of kustomize-controller.
    pub image: String,
    /// `resources` of its container.
    pub resources: Value,
    /// `tolerations` of its pod.
    pub tolerations: Value,
    /// Where its events go (`--events-addr`); empty: nowhere.
    pub events_address: String,
    /// Kustomizations that it reconciles at the same time.
    pub concurrency: u32,
    /// GitRepositories, and Kustomizations, that a tenant may have.
    pub sources: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            image: "ghcr.io/fluxcd/kustomize-controller:v1.8.0".to_owned(),
            resources: json!({
                "requests": { "cpu": "20m", "memory": "64Mi" }, "limits": { "cpu": "1", "memory": "512Mi" },
            }),
            tolerations: json!([]),
            events_address: String::new(),
            concurrency: 2,
            sources: 50,
        }
    }
}

/// Names that Kustomizations of a namespace refer to, as far as they may.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// Secrets: of decryption and substitution.
    pub secrets: BTreeSet<String>,
    /// ConfigMaps of substitution.
    pub config_maps: BTreeSet<String>,
}

impl References {
    /// Those of the Kustomizations of one namespace. What does not begin with [`REFERENCE_PREFIX`] is refused at
    /// admission, and left out here, too: an object that was there before the policies opens nothing. What a
    /// GitRepository refers to is read by source-controller, and by no tenant's controller.
    #[must_use]
    pub fn of<'k>(kustomizations: impl IntoIterator<Item = &'k Value>) -> Self {
        let mut found = Self::default();
        for kustomization in kustomizations {
            let text = |value: &Value, pointer: &str| {
                value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
            };
            found.secrets.insert(text(kustomization, "/spec/decryption/secretRef/name"));
            let substitutes =
                kustomization.pointer("/spec/postBuild/substituteFrom").and_then(Value::as_array);
            for reference in substitutes.into_iter().flatten() {
                let name = text(reference, "/name");
                match text(reference, "/kind").as_str() {
                    "Secret" => found.secrets.insert(name),
                    "ConfigMap" => found.config_maps.insert(name),
                    _ => false,
                };
            }
        }
        found.secrets.retain(|name| name.starts_with(REFERENCE_PREFIX));
        found.config_maps.retain(|name| name.starts_with(REFERENCE_PREFIX));
        found
    }
}

/// Whether a namespace is a tenant's. By its name, which nobody can change.
#[must_use]
pub fn is_tenant(namespace: &str) -> bool {
    namespace.starts_with(names::TENANT_NAMESPACE_PREFIX)
}

/// The account that a tenant's repositories are applied as, in the tenant's namespace.
#[must_use]
pub fn account(namespace: &str) -> String {
    format!("{namespace}-gitops")
}

/// Name of a tenant's controller: of its Deployment, account and network policy in `cozy-fluxcd`, and of its role in
/// the tenant's namespace. Of the namespace's name where that is short enough, otherwise of its digest; the two never
/// meet, since the first begins with `tenant-`.
#[must_use]
pub fn controller(namespace: &str) -> String {
    let plain = format!("kustomize-controller-{namespace}");
    if plain.len() <= LONGEST_NAME {
        return plain;
    }
    let digest = Sha256::digest(namespace.as_bytes());
    let hex: String = digest.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    format!("kustomize-controller-{hex}")
}

/// Everything for one tenant, in the order in which it is made: rights before who uses them. In the opposite order it
/// is removed.
#[must_use]
pub fn desired(settings: &Settings, namespace: &str, references: &References) -> Vec<Value> {
    let (account, controller) = (account(namespace), controller(namespace));
    let metadata = |of: &str, name: &str| {
        json!({
            "name": name, "namespace": of,
            "labels": { "app.kubernetes.io/managed-by": "cozy-gitops", LABEL_TENANT: namespace },
        })
    };
    let flux = names::FLUX_NAMESPACE;
    let rbac = "rbac.authorization.k8s.io";
    let role = |name: &str, rules: Value| json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata(namespace, name), "rules": rules });
    let binding = |name: &str, of: &str, subject: &str| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata(namespace, name),
            "roleRef": { "apiGroup": rbac, "kind": "Role", "name": name },
            "subjects": [{ "kind": "ServiceAccount", "namespace": of, "name": subject }],
        })
    };
    let service_account = |of: &str, name: &str, token: bool| {
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(of, name),
            "automountServiceAccountToken": token,
        })
    };
    vec![
        json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata(namespace, QUOTA),
            "spec": { "hard": {
                "count/gitrepositories.source.toolkit.fluxcd.io": settings.sources.to_string(),
                "count/kustomizations.kustomize.toolkit.fluxcd.io": settings.sources.to_string(),
            } },
        }),
        // Nobody runs as it: the controller impersonates it.
        service_account(namespace, &account, false),
        role(
            &account,
            json!([
                { "apiGroups": [names::APPS_GROUP], "resources": ["*"], "verbs": ["*"] },
                {
                    "apiGroups": ["core.cozystack.io"], "resources": ["tenantmodules"],
                    "verbs": ["get", "list", "watch"],
                },
            ]),
        ),
        binding(&account, namespace, &account),
        service_account(flux, &controller, true),
        role(&controller, controller_rules(&account, references)),
        binding(&controller, flux, &controller),
        network_policy(&metadata(flux, &controller), namespace),
        deployment(settings, &metadata(flux, &controller), namespace, &account, &controller),
    ]
}

/// When a controller has to be started anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restart {
    /// The pods' annotation [`ANNOTATION_RESTARTED`]; none: never.
    pub at: Option<String>,
    /// Until the next Kustomization may need it.
    pub after: Option<Duration>,
}

/// A controller reconciles and deletes a Kustomization one after the other, and a build that never ends (attack class 18)
/// would keep a deleted Kustomization for ever. So it is started anew for each that it has not let go of after
/// `patience`: once, since what hangs again is there no more.
///
/// `deployment` is the controller as it exists; what its pods are told already stays, or they would roll again.
#[must_use]
pub fn restart<'k>(
    namespace: &str,
    kustomizations: impl IntoIterator<Item = &'k Value>,
    deployment: Option<&Value>,
    patience: Duration,
    now: Timestamp,
) -> Restart {
    let told = deployment
        .and_then(|deployment| deployment.pointer("/spec/template/metadata/annotations"))
        .and_then(|annotations| annotations.get(ANNOTATION_RESTARTED)?.as_str()?.parse::<Timestamp>().ok());
    let mut restart = Restart::default();
    let mut latest = told;
    for kustomization in kustomizations {
        let text = |pointer: &str| kustomization.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let held = kustomization
            .pointer("/metadata/finalizers")
            .and_then(Value::as_array)
            .is_some_and(|all| all.iter().any(|name| name == FINALIZER));
        let Ok(deleted) = text("/metadata/deletionTimestamp").parse::<Timestamp>() else { continue };
        if !held || text("/metadata/shard") != namespace || told.is_some_and(|told| told >= deleted) {
            continue;
        }
        let waited = Duration::try_from(now.duration_since(deleted)).unwrap_or_default();
        if waited >= patience {
            latest = latest.max(Some(deleted));
        } else {
            let left = patience.saturating_sub(waited);
            restart.after = Some(restart.after.map_or(left, |after| after.min(left)));
        }
    }
    restart.at = latest.map(|at| at.to_string());
    restart
}

/// Puts [`Restart::at`] on the controller among [`desired`] objects.
pub fn restarted(objects: &mut [Value], at: &str) {
    for object in objects.iter_mut().filter(|object| object["kind"] == "Deployment") {
        object["spec"]["template"]["metadata"]["annotations"] = json!({ ANNOTATION_RESTARTED: at });
    }
}

/// What the controller does in the tenant's namespace; it has no rights anywhere else. Found by running it.
fn controller_rules(account: &str, references: &References) -> Value {
    let kustomize = "kustomize.toolkit.fluxcd.io";
    let mut rules = vec![
        json!({
            "apiGroups": [kustomize], "resources": ["kustomizations"],
            "verbs": ["get", "list", "watch", "update", "patch"],
        }),
        json!({
            "apiGroups": [kustomize], "resources": ["kustomizations/status", "kustomizations/finalizers"],
            "verbs": ["get", "update", "patch"],
        }),
        // Its informers need all four, and only GitRepositories pass admission as a source.
        json!({
            "apiGroups": ["source.toolkit.fluxcd.io"],
            "resources": ["gitrepositories", "ocirepositories", "buckets", "externalartifacts"],
            "verbs": ["get", "list", "watch"],
        }),
        json!({ "apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"] }),
        // Before it deletes what was applied it looks, through a cache of the namespace's accounts, whether the account is
        // there; without the right the Kustomization would keep its finalizer for ever.
        json!({ "apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["get", "list", "watch"] }),
        json!({
            "apiGroups": [""], "resources": ["serviceaccounts"], "resourceNames": [account],
            "verbs": ["impersonate"],
        }),
    ];
    // An empty list of names would be all names.
    for (resource, names) in [("secrets", &references.secrets), ("configmaps", &references.config_maps)] {
        if !names.is_empty() {
            rules.push(json!({
                "apiGroups": [""], "resources": [resource], "resourceNames": names, "verbs": ["get"],
            }));
        }
    }
    Value::Array(rules)
}

/// Nobody reaches the controller. Whom it reaches is the chart's part, by the label; policies add up, so that a wider
/// one here would open what that one closes.
fn network_policy(metadata: &Value, namespace: &str) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata,
        "spec": {
            "podSelector": { "matchLabels": { LABEL_TENANT: namespace } },
            "policyTypes": ["Ingress"],
        },
    })
}

fn deployment(
    settings: &Settings,
    metadata: &Value,
    namespace: &str,
    account: &str,
    controller: &str,
) -> Value {
    let args = [
        "--watch-all-namespaces=false".to_owned(),
        format!("--watch-label-selector={LABEL_SHARD}={namespace}"),
        "--no-cross-namespace-refs=true".to_owned(),
        "--no-remote-bases=true".to_owned(),
        format!("--default-service-account={account}"),
        format!("--default-decryption-service-account={account}"),
        format!("--default-kubeconfig-service-account={account}"),
        // Without the first it lists all Secrets and ConfigMaps of the cluster; without the second it refuses the
        // default accounts above. An identity is a token of an account, and it has no right to ask for one.
        "--feature-gates=DisableConfigWatchers=true,ObjectLevelWorkloadIdentity=true".to_owned(),
        format!("--concurrent={}", settings.concurrency.max(1)),
        format!("--events-addr={}", settings.events_address),
        // One replica at a time, by the strategy below; a Lease would be in the tenant's namespace.
        "--enable-leader-election=false".to_owned(),
        "--log-level=info".to_owned(),
        "--log-encoding=json".to_owned(),
    ];
    let labels = json!({ LABEL_TENANT: namespace, "app.kubernetes.io/name": "kustomize-controller" });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": {
            "replicas": 1,
            "revisionHistoryLimit": 0,
            "strategy": { "type": "Recreate" },
            "selector": { "matchLabels": { LABEL_TENANT: namespace } },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "serviceAccountName": controller,
                    "terminationGracePeriodSeconds": 60,
                    "tolerations": settings.tolerations,
                    "securityContext": {
                        "runAsNonRoot": true, "runAsUser": 65534, "fsGroup": 1337,
                        "seccompProfile": { "type": "RuntimeDefault" },
                    },
                    "containers": [{
                        "name": "manager",
                        "image": settings.image,
                        "args": args,
                        "env": [{ "name": "RUNTIME_NAMESPACE", "value": namespace }],
                        "ports": [
                            { "containerPort": 8080, "name": "http-prom", "protocol": "TCP" },
                            { "containerPort": 9440, "name": "healthz", "protocol": "TCP" },
                        ],
                        "livenessProbe": { "httpGet": { "path": "/healthz", "port": "healthz" } },
                        "readinessProbe": { "httpGet": { "path": "/readyz", "port": "healthz" } },
                        "resources": settings.resources,
                        "securityContext": {
                            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true,
                            "capabilities": { "drop": ["ALL"] }, "seccompProfile": { "type": "RuntimeDefault" },
                        },
                        "volumeMounts": [{ "name": "temp", "mountPath": "/tmp" }],
                    }],
                    // Where artifacts are unpacked: a repository cannot fill the node.
                    "volumes": [{ "name": "temp", "emptyDir": { "sizeLimit": "1Gi" } }],
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find<'o>(objects: &'o [Value], kind: &str, name: &str) -> &'o Value {
        objects.iter().find(|o| o["kind"] == kind && o["metadata"]["name"] == name).unwrap()
    }

    #[test]
    fn names_are_distinct_and_short() {
        let long = format!("tenant-{}", "a".repeat(56));
        let longer = format!("tenant-{}b", "a".repeat(55));
        assert_eq!(controller("tenant-foo"), "kustomize-controller-tenant-foo");
        let all = ["tenant-foo", "tenant-foo-b", &long, &longer].map(controller);
        let distinct: BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert!(all.iter().all(|name| name.len() <= LONGEST_NAME), "{all:?}");
    }

    #[test]
    fn the_role_names_what_is_referred_to_and_nothing_else() {
        let kustomizations = [
            json!({"spec": {
                "decryption": {"provider": "sops", "secretRef": {"name": "gitops-age"}},
                "postBuild": {"substituteFrom": [
                    {"kind": "ConfigMap", "name": "gitops-settings"}, {"kind": "Secret", "name": "gitops-more"},
                    {"kind": "Secret", "name": "database-password"}, {"kind": "ConfigMap", "name": "kube-root-ca.crt"},
                    {"kind": "Node", "name": "gitops-node"}, {"name": 7}, null,
                ]},
            }}),
            json!({"spec": {"decryption": {"secretRef": {"name": "redis-auth"}}}}),
            json!({"spec": {"postBuild": {"substituteFrom": "odd"}}}),
            json!(null),
        ];
        let references = References::of(&kustomizations);
        let names = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>();
        assert_eq!(names(&references.secrets), ["gitops-age", "gitops-more"]);
        assert_eq!(names(&references.config_maps), ["gitops-settings"]);

        let objects = desired(&Settings::default(), "tenant-foo", &references);
        let rules = find(&objects, "Role", "kustomize-controller-tenant-foo")["rules"].as_array().unwrap();
        let of = |resource: &str| rules.iter().find(|rule| rule["resources"] == json!([resource]));
        assert_eq!(of("secrets").unwrap()["resourceNames"], json!(["gitops-age", "gitops-more"]));
        assert_eq!(of("secrets").unwrap()["verbs"], json!(["get"]));
        let impersonate = rules.iter().find(|rule| rule["verbs"] == json!(["impersonate"])).unwrap();
        assert_eq!(impersonate["resourceNames"], json!(["tenant-foo-gitops"]));

        // With nothing to read there is no rule, which without names would be all of them.
        let objects = desired(&Settings::default(), "tenant-foo", &References::default());
        let rules = find(&objects, "Role", "kustomize-controller-tenant-foo")["rules"].to_string();
        assert!(!rules.contains("secrets") && !rules.contains("configmaps"), "{rules}");
    }

    #[test]
    fn everything_is_in_two_namespaces_and_carries_the_label() {
        for object in desired(&Settings::default(), "tenant-foo", &References::default()) {
            let of = object["metadata"]["namespace"].as_str().unwrap();
            assert!(of == "tenant-foo" || of == "cozy-fluxcd", "{object}");
            assert_eq!(object["metadata"]["labels"][LABEL_TENANT], "tenant-foo");
            let kind = object["kind"].as_str().unwrap();
            assert!(!kind.starts_with("Cluster"), "{object}");
            for subject in object["subjects"].as_array().into_iter().flatten() {
                assert_eq!(subject["kind"], "ServiceAccount");
            }
        }
    }

    #[test]
    fn the_controller_is_locked_down() {
        let objects = desired(&Settings::default(), "tenant-foo", &References::default());
        let pod = &find(&objects, "Deployment", "kustomize-controller-tenant-foo")["spec"]["template"];
        let container = &pod["spec"]["containers"][0];
        let args: Vec<&str> =
            container["args"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        for wanted in [
            "--watch-all-namespaces=false",
            "--watch-label-selector=sharding.fluxcd.io/key=tenant-foo",
            "--no-cross-namespace-refs=true",
            "--no-remote-bases=true",
            "--default-service-account=tenant-foo-gitops",
            "--default-decryption-service-account=tenant-foo-gitops",
            "--default-kubeconfig-service-account=tenant-foo-gitops",
            "--feature-gates=DisableConfigWatchers=true,ObjectLevelWorkloadIdentity=true",
        ] {
            assert!(args.contains(&wanted), "{wanted}: {args:?}");
        }
        assert_eq!(container["env"], json!([{ "name": "RUNTIME_NAMESPACE", "value": "tenant-foo" }]));
        assert_eq!(pod["metadata"]["labels"][LABEL_TENANT], "tenant-foo");
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        assert!(container["resources"]["limits"]["memory"].is_string());
    }

    #[test]
    fn a_controller_that_does_not_let_go_is_started_anew_once() {
        let patience = Duration::from_secs(180);
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let deleted = |at: &str, shard: &str| json!({ "metadata": { "deletionTimestamp": at, "finalizers": ["x", FINALIZER], "shard": shard } });
        let look = |kustomizations: &[Value], deployment: Option<&Value>| {
            restart("tenant-foo", kustomizations, deployment, patience, now)
        };
        let long_ago = deleted("2026-01-01T00:10:00Z", "tenant-foo");
        let lately = deleted("2026-01-01T00:59:00Z", "tenant-foo");
        let before = Some("2026-01-01T00:10:00Z".to_owned());
        assert_eq!(look(&[json!({}), json!(null)], None), Restart::default());
        assert_eq!(look(&[deleted("2026-01-01T00:10:00Z", "tenant-bar")], None), Restart::default());
        let mut without = long_ago.clone();
        without["metadata"]["finalizers"] = json!(["x"]);
        assert_eq!(look(&[without], None), Restart::default());
        let after = Some(Duration::from_secs(120));
        assert_eq!(look(&[long_ago.clone(), lately.clone()], None), Restart { at: before.clone(), after });
        // It is told already: not again, and what it is told stays.
        let mut objects = desired(&Settings::default(), "tenant-foo", &References::default());
        restarted(&mut objects, "2026-01-01T00:10:00Z");
        let controller = find(&objects, "Deployment", "kustomize-controller-tenant-foo").clone();
        assert_eq!(look(&[long_ago], Some(&controller)), Restart { at: before.clone(), after: None });
        assert_eq!(look(&[], Some(&controller)), Restart { at: before.clone(), after: None });
        let later = deleted("2026-01-01T00:20:00Z", "tenant-foo");
        assert_eq!(look(&[later], Some(&controller)).at.as_deref(), Some("2026-01-01T00:20:00Z"));
        let mut odd = controller;
        odd["spec"]["template"]["metadata"]["annotations"][ANNOTATION_RESTARTED] = json!("soon");
        assert_eq!(look(&[], Some(&odd)), Restart::default());
    }
}
