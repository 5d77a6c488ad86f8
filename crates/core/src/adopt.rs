//! Self-adoption of a Package that was made by hand, above all the bootstrap Package: which part of it goes to git, and
//! how it is given back.
//!
//! kustomize-controller takes over what `kubectl` owned of an object that it applies, and then removes of it what the
//! manifest does not name. The annotation `kustomize.toolkit.fluxcd.io/ssa: Merge` stops that, so a manifest made here
//! owns just the fields in it; and with `kustomize.toolkit.fluxcd.io/prune: disabled` a manifest that goes from git
//! leaves the Package where it is.

use cozy_api::names::{COZYSTACK_GROUP, MANAGER_HELM, MANAGER_KUSTOMIZE};
use serde_json::{Map, Value, json};

use crate::managed::{self, Owner, Path, Step};

/// Annotation that makes kustomize-controller leave an object when its manifest goes.
const PRUNE: &str = "kustomize.toolkit.fluxcd.io/prune";
/// Annotation that makes kustomize-controller leave the fields of others.
const SSA: &str = "kustomize.toolkit.fluxcd.io/ssa";

/// Why a Package cannot be adopted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AdoptError {
    /// It is something else.
    #[error("not a Package of {COZYSTACK_GROUP}/v1alpha1 but {api_version} {kind}")]
    NotAPackage {
        /// Its `apiVersion`, or a dash.
        api_version: String,
        /// Its `kind`, or a dash.
        kind: String,
    },
    /// It has no name.
    #[error("the Package has no metadata.name")]
    Nameless,
    /// A chart made it.
    #[error(
        "Package {package} comes from the platform's chart, which sets its fields again with every release: override \
         its values with a PackageValues of the same name instead"
    )]
    ChartMade {
        /// Its name.
        package: String,
    },
    /// A field that was asked for is not there.
    #[error(
        "Package {package} has no field {pointer}; fields are JSON pointers from the root, such as /spec/variant"
    )]
    NoSuchField {
        /// Its name.
        package: String,
        /// What was asked for.
        pointer: String,
    },
    /// A field that was asked for is the chart's.
    #[error(
        "{pointer} of Package {package} is set by the platform's chart: override it with a PackageValues of the same \
         name instead"
    )]
    ChartOwned {
        /// Its name.
        package: String,
        /// The chart's field.
        pointer: String,
    },
    /// There is nothing to adopt.
    #[error("Package {package} has nothing in its spec")]
    Empty {
        /// Its name.
        package: String,
    },
    /// There is nothing to give back.
    #[error("Package {package}: kustomize-controller owns none of its fields")]
    NotAdopted {
        /// Its name.
        package: String,
    },
}

/// One field of a Package's spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// JSON pointer from the object's root.
    pub pointer: String,
    /// Who owns it now, `<manager> (<operation>)`; empty when the object tells nobody.
    pub owners: Vec<String>,
}

/// What goes to git.
#[derive(Clone, Debug, PartialEq)]
pub struct Adoption {
    /// The partial manifest.
    pub manifest: Value,
    /// The fields in it.
    pub fields: Vec<Field>,
    /// Fields of the spec that are not in it, because they were not asked for or are the chart's.
    pub left: Vec<Field>,
    /// Pointers among `fields` that look like credentials: to be encrypted, or kept out.
    pub sensitive: Vec<String>,
    /// Whether the object told who owns its fields. `kubectl get` does so only with `--show-managed-fields`.
    pub owners_known: bool,
}

/// The partial manifest of a Package: the fields at or below `only`, or all of the spec that no chart owns.
///
/// # Errors
/// When it is no Package, is a chart's, or lacks what was asked for.
pub fn adopt(object: &Value, only: &[String]) -> Result<Adoption, AdoptError> {
    let package = package_name(object)?;
    let owners = managed::owners(object);
    let leaves = leaves(object);
    if leaves.is_empty() {
        return Err(AdoptError::Empty { package });
    }
    if made_by_a_chart(object, &owners) {
        return Err(AdoptError::ChartMade { package });
    }
    let chosen = |pointer: &str| only.is_empty() || only.iter().any(|wanted| is_at_or_below(pointer, wanted));
    if let Some(pointer) =
        only.iter().find(|wanted| !leaves.iter().any(|leaf| is_at_or_below(&leaf.to_string(), wanted)))
    {
        return Err(AdoptError::NoSuchField { package, pointer: pointer.clone() });
    }
    let mut spec = Value::Null;
    let (mut fields, mut left) = (Vec::new(), Vec::new());
    for leaf in &leaves {
        let field = Field { pointer: leaf.to_string(), owners: owners_of(&owners, leaf) };
        let of_the_chart = is_owned_by(&owners, leaf, MANAGER_HELM);
        if !chosen(&field.pointer) || (only.is_empty() && of_the_chart) {
            left.push(field);
            continue;
        }
        if of_the_chart {
            return Err(AdoptError::ChartOwned { package, pointer: field.pointer });
        }
        put(&mut spec, leaf, object);
        fields.push(field);
    }
    let sensitive =
        fields.iter().filter(|field| looks_sensitive(&field.pointer)).map(|f| f.pointer.clone()).collect();
    let manifest = json!({
        "apiVersion": format!("{COZYSTACK_GROUP}/v1alpha1"),
        "kind": "Package",
        "metadata": {"name": package, "annotations": {PRUNE: "disabled", SSA: "Merge"}},
        "spec": spec.get("spec").cloned().unwrap_or_default(),
    });
    Ok(Adoption { manifest, fields, left, sensitive, owners_known: !owners.is_empty() })
}

/// The two server-side applies that give an adopted Package back, in this order. Its spec stays as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct GiveBack {
    /// Applied as [`MANAGER_ADOPT`](cozy_api::names::MANAGER_ADOPT): what kustomize-controller owns of the spec, as it is now, so that it has another
    /// owner when kustomize-controller goes.
    pub keep: Value,
    /// Applied by force as kustomize-controller: nothing, which drops its labels, annotations and ownership.
    pub release: Value,
}

/// How to give a Package back that was adopted. Its manifest has to be out of git, or it is taken again.
///
/// # Errors
/// When it is no Package or kustomize-controller owns none of its fields.
pub fn give_back(object: &Value) -> Result<GiveBack, AdoptError> {
    let package = package_name(object)?;
    let owners = managed::owners(object);
    let theirs: Vec<&Owner> = owners
        .iter()
        .filter(|owner| owner.manager == MANAGER_KUSTOMIZE && owner.operation == "Apply")
        .collect();
    if theirs.is_empty() {
        return Err(AdoptError::NotAdopted { package });
    }
    let release = json!({
        "apiVersion": format!("{COZYSTACK_GROUP}/v1alpha1"),
        "kind": "Package",
        "metadata": {"name": package},
    });
    let mut keep = release.clone();
    for leaf in leaves(object) {
        if theirs.iter().any(|owner| owner.paths.iter().any(|path| path.overlaps(&leaf))) {
            put(&mut keep, &leaf, object);
        }
    }
    Ok(GiveBack { keep, release })
}

fn package_name(object: &Value) -> Result<String, AdoptError> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("/apiVersion"), text("/kind"));
    if api_version.split_once('/').is_none_or(|(group, _)| group != COZYSTACK_GROUP) || kind != "Package" {
        let told = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
        return Err(AdoptError::NotAPackage { api_version: told(api_version), kind: told(kind) });
    }
    match text("/metadata/name") {
        "" => Err(AdoptError::Nameless),
        name => Ok(name.to_owned()),
    }
}

/// Whether all that is owned of the spec is a chart's, or, without managedFields, Helm's marks are on the object.
fn made_by_a_chart(object: &Value, owners: &[Owner]) -> bool {
    if owners.is_empty() {
        return object.pointer("/metadata/annotations/meta.helm.sh~1release-name").is_some()
            || object.pointer("/metadata/labels/app.kubernetes.io~1managed-by").and_then(Value::as_str)
                == Some("Helm");
    }
    let mut spec =
        owners.iter().filter(|owner| owner.paths.iter().any(|path| path.is_below(&["spec"]))).peekable();
    spec.peek().is_some() && spec.all(|owner| owner.manager == MANAGER_HELM)
}

/// The leaves of the spec: scalars, lists, empty maps.
fn leaves(object: &Value) -> Vec<Path> {
    let mut found = Vec::new();
    let root = Path(vec![Step::Field("spec".to_owned())]);
    let mut pending: Vec<(Path, &Value)> = object.get("spec").map(|spec| (root, spec)).into_iter().collect();
    while let Some((path, value)) = pending.pop() {
        match value.as_object() {
            Some(map) if !map.is_empty() => {
                for (key, value) in map.iter().rev() {
                    let mut path = path.clone();
                    path.0.push(Step::Field(key.clone()));
                    pending.push((path, value));
                }
            }
            // An empty or absent spec has nothing in it.
            _ if path.0.len() == 1 => {}
            _ => found.push(path),
        }
    }
    found
}

fn is_owned_by(owners: &[Owner], leaf: &Path, manager: &str) -> bool {
    owners.iter().any(|owner| owner.manager == manager && owner.paths.iter().any(|path| path.overlaps(leaf)))
}

fn owners_of(owners: &[Owner], leaf: &Path) -> Vec<String> {
    owners
        .iter()
        .filter(|owner| owner.paths.iter().any(|path| path.overlaps(leaf)))
        .map(|owner| format!("{} ({})", owner.manager, owner.operation))
        .collect()
}

fn is_at_or_below(pointer: &str, wanted: &str) -> bool {
    let wanted = wanted.trim_end_matches('/');
    pointer.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Copies the value at `leaf` from `object` to the same place of `target`.
fn put(target: &mut Value, leaf: &Path, object: &Value) {
    let Some(value) = leaf.of(object) else { return };
    let mut at = target;
    for name in leaf.fields() {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        let Value::Object(map) = at else { return };
        at = map.entry(name.to_owned()).or_insert(Value::Null);
    }
    *at = value.clone();
}

/// Whether the last name of a pointer is one that credentials go by.
fn looks_sensitive(pointer: &str) -> bool {
    let last = pointer.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    ["password", "passwd", "secret", "token", "privatekey", "accesskey", "apikey", "credential"]
        .iter()
        .any(|word| last.replace(['-', '_'], "").contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bootstrap(managers: &Value) -> Value {
        json!({
            "apiVersion": "cozystack.io/v1alpha1",
            "kind": "Package",
            "metadata": {
                "name": "cozystack.cozystack-platform",
                "uid": "1", "resourceVersion": "7", "generation": 2,
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
                "managedFields": managers,
            },
            "spec": {
                "variant": "isp-full",
                "components": {"platform": {"values": {
                    "publishing": {"host": "example.org", "apiServerEndpoint": "https://example.org:443"},
                    "networking": {"podCIDR": "10.244.0.0/16"},
                    "bundles": {"disabledPackages": ["cozystack.velero"]},
                    "authentication": {"adminPassword": "x"},
                }}},
            },
            "status": {"conditions": []},
        })
    }

    fn by_hand() -> Value {
        json!([{"manager": "kubectl-client-side-apply", "operation": "Update", "fieldsV1": {"f:spec": {
            "f:variant": {},
            "f:components": {".": {}, "f:platform": {".": {}, "f:values": {
                ".": {}, "f:publishing": {".": {}, "f:host": {}, "f:apiServerEndpoint": {}},
                "f:networking": {"f:podCIDR": {}}, "f:bundles": {"f:disabledPackages": {}},
                "f:authentication": {"f:adminPassword": {}},
            }}},
        }}}])
    }

    #[test]
    fn all_of_the_spec_goes_to_git_and_nothing_else() {
        let object = bootstrap(&by_hand());
        let adoption = adopt(&object, &[]).unwrap();
        assert_eq!(
            adoption.manifest,
            json!({
                "apiVersion": "cozystack.io/v1alpha1",
                "kind": "Package",
                "metadata": {
                    "name": "cozystack.cozystack-platform",
                    "annotations": {
                        "kustomize.toolkit.fluxcd.io/prune": "disabled",
                        "kustomize.toolkit.fluxcd.io/ssa": "Merge",
                    },
                },
                "spec": object["spec"],
            })
        );
        assert!(adoption.owners_known && adoption.left.is_empty());
        assert_eq!(adoption.fields[0].owners, ["kubectl-client-side-apply (Update)"]);
        assert_eq!(adoption.sensitive, ["/spec/components/platform/values/authentication/adminPassword"]);
    }

    #[test]
    fn a_part_of_the_spec_goes_alone() {
        let only =
            ["/spec/components/platform/values/publishing/host".to_owned(), "/spec/variant/".to_owned()];
        let adoption = adopt(&bootstrap(&by_hand()), &only).unwrap();
        assert_eq!(
            adoption.manifest["spec"],
            json!({
                "variant": "isp-full",
                "components": {"platform": {"values": {"publishing": {"host": "example.org"}}}},
            })
        );
        assert_eq!(adoption.fields.len(), 2);
        assert_eq!(adoption.left.len(), 4);
    }

    #[test]
    fn a_field_of_the_chart_stays_out_and_is_refused_when_asked_for() {
        let managers = json!([
            {"manager": "kubectl", "operation": "Apply", "fieldsV1": {"f:spec": {"f:variant": {}}}},
            {"manager": "helm-controller", "operation": "Update", "fieldsV1": {"f:spec": {
                "f:components": {"f:platform": {"f:values": {"f:networking": {"f:podCIDR": {}}}}},
            }}},
        ]);
        let object = bootstrap(&managers);
        let adoption = adopt(&object, &[]).unwrap();
        assert_eq!(adoption.manifest.pointer("/spec/components/platform/values/networking"), None);
        assert_eq!(adoption.left[0].owners, ["helm-controller (Update)"]);
        let pointer = "/spec/components/platform/values/networking/podCIDR".to_owned();
        assert!(matches!(
            adopt(&object, &["/spec/components/platform/values/networking".to_owned()]),
            Err(AdoptError::ChartOwned { pointer: refused, .. }) if refused == pointer
        ));
    }

    #[test]
    fn a_package_of_the_chart_is_refused() {
        let managers = json!([{"manager": "helm-controller", "operation": "Update", "fieldsV1": {"f:spec": {"f:variant": {}}}}]);
        assert!(matches!(adopt(&bootstrap(&managers), &[]), Err(AdoptError::ChartMade { .. })));
        let mut marked = bootstrap(&json!([]));
        marked["metadata"]["annotations"] = json!({"meta.helm.sh/release-name": "cozystack-platform"});
        assert!(matches!(adopt(&marked, &[]), Err(AdoptError::ChartMade { .. })));
    }

    #[test]
    fn what_is_no_adoptable_package_is_told() {
        let refused = |object: Value, only: &[String]| adopt(&object, only).unwrap_err().to_string();
        assert_eq!(refused(json!({}), &[]), "not a Package of cozystack.io/v1alpha1 but - -");
        assert!(refused(json!({"apiVersion": "v1", "kind": "Secret"}), &[]).ends_with("but v1 Secret"));
        let nameless = json!({"apiVersion": "cozystack.io/v1alpha1", "kind": "Package"});
        assert!(refused(nameless, &[]).contains("metadata.name"));
        let mut empty = bootstrap(&by_hand());
        empty["spec"] = json!({});
        assert!(refused(empty, &[]).contains("nothing in its spec"));
        let missing = ["/spec/components/platform/values/publish".to_owned()];
        assert!(
            refused(bootstrap(&by_hand()), &missing)
                .contains("has no field /spec/components/platform/values/publish;")
        );
    }

    #[test]
    fn giving_back_keeps_what_kustomize_owns_and_releases_it() {
        let managers = json!([
            {"manager": "kustomize-controller", "operation": "Apply", "fieldsV1": {
                "f:metadata": {"f:labels": {"f:kustomize.toolkit.fluxcd.io/name": {}}},
                "f:spec": {"f:variant": {}, "f:components": {"f:platform": {"f:values": {"f:bundles": {"f:disabledPackages": {}}}}}},
            }},
        ]);
        let given = give_back(&bootstrap(&managers)).unwrap();
        assert_eq!(
            given.keep,
            json!({
                "apiVersion": "cozystack.io/v1alpha1",
                "kind": "Package",
                "metadata": {"name": "cozystack.cozystack-platform"},
                "spec": {
                    "variant": "isp-full",
                    "components": {"platform": {"values": {"bundles": {"disabledPackages": ["cozystack.velero"]}}}},
                },
            })
        );
        assert_eq!(given.release.get("spec"), None);
        assert!(matches!(give_back(&bootstrap(&by_hand())), Err(AdoptError::NotAdopted { .. })));
    }
}
