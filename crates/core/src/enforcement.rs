//! Whether what confines tenants is in force, and what tenants may therefore be given.
//!
//! The chart names, in an annotation of each role, the objects that have to be there before anybody gets the role.
//! The objects are looked at as they are on the API server, so that what was deleted or loosened by hand counts.

use serde_json::Value;

/// Annotation of a ClusterRole: the label that gives it to a tenant role by aggregation.
pub const GRANT_TO: &str = "gitops.cozystack.io/grant-to";
/// Annotation of a ClusterRole: what has to be in force before, as `Kind/name`, separated by commas.
pub const ENFORCED_BY: &str = "gitops.cozystack.io/enforced-by";
/// Annotation of a ClusterRole that is given to nobody: what is not in force.
pub const WITHHELD: &str = "gitops.cozystack.io/withheld";
/// Label of the ClusterRoles that are given to tenants.
pub const LABEL_RIGHTS: &str = "gitops.cozystack.io/rights";
/// Label of the policies, bindings and webhook configurations.
pub const LABEL_ENFORCEMENT: &str = "gitops.cozystack.io/enforcement";
/// Labels that Kubernetes or Cozystack aggregate by begin so, and no others are set.
const AGGREGATION: &str = "rbac.cozystack.io/aggregate-to-";

/// What one look at the enforcement found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Enforcement {
    /// What is not there, or does not refuse anything. Nobody may have the rights.
    pub missing: Vec<String>,
    /// What is there and has not been seen to work yet. Who has no rights gets none; who has some keeps them, since what
    /// was in force before is until the new is.
    pub pending: Vec<String>,
}

impl Enforcement {
    /// Everything is in force.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.missing.is_empty() && self.pending.is_empty()
    }
}

/// What a ClusterRole that waits for enforcement says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The label to set; none when the annotation names no label that aggregates to a role of tenants.
    pub label: Option<String>,
    /// Labels that it has and that give it to somebody.
    pub given: Vec<String>,
    /// What has to be in force: kind and name.
    pub enforced_by: Vec<(String, String)>,
    /// What it says of why it is given to nobody; absent: nothing.
    pub withheld: Option<String>,
}

impl Grant {
    /// Reads a ClusterRole.
    #[must_use]
    pub fn of(role: &Value) -> Self {
        let found = |name: &str| role.pointer("/metadata/annotations")?.get(name)?.as_str();
        let annotation = |name: &str| found(name).unwrap_or_default();
        let label = Some(annotation(GRANT_TO)).filter(|label| label.starts_with(AGGREGATION));
        let labels = role.pointer("/metadata/labels").and_then(Value::as_object);
        Self {
            label: label.map(str::to_owned),
            given: labels
                .into_iter()
                .flat_map(|labels| labels.keys())
                .filter(|label| is_aggregation(label))
                .cloned()
                .collect(),
            enforced_by: annotation(ENFORCED_BY)
                .split(',')
                .filter_map(|item| item.trim().split_once('/'))
                .map(|(kind, name)| (kind.to_owned(), name.to_owned()))
                .collect(),
            withheld: found(WITHHELD).map(str::to_owned),
        }
    }

    /// Whether what the role waits for is in force. `objects`: everything with the label [`LABEL_ENFORCEMENT`].
    #[must_use]
    pub fn enforcement<'o>(&self, objects: impl IntoIterator<Item = (&'o str, &'o Value)>) -> Enforcement {
        let objects: Vec<(&str, &Value)> = objects.into_iter().collect();
        let mut found = Enforcement::default();
        if self.enforced_by.is_empty() {
            found.missing.push(format!("the annotation {ENFORCED_BY}"));
        }
        for (kind, name) in &self.enforced_by {
            judge(kind, name, &objects, &mut found);
        }
        found
    }
}

fn is_aggregation(label: &str) -> bool {
    label.starts_with(AGGREGATION) || label.starts_with("rbac.authorization.k8s.io/aggregate-to-")
}

fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn judge(kind: &str, name: &str, objects: &[(&str, &Value)], found: &mut Enforcement) {
    let of_kind = |wanted: &'static str| {
        objects.iter().filter(move |(kind, _)| *kind == wanted).map(|(_, object)| *object)
    };
    let Some(object) = objects
        .iter()
        .find(|(of, object)| *of == kind && text(object, "/metadata/name") == name)
        .map(|(_, object)| *object)
    else {
        found.missing.push(format!("{kind} {name} (not there)"));
        return;
    };
    let mut miss = |why: &str| found.missing.push(format!("{kind} {name} ({why})"));
    if object.pointer("/metadata/deletionTimestamp").is_some() {
        miss("is being deleted");
        return;
    }
    // Absent means Fail.
    let fails = |owner: &Value| !matches!(owner.get("failurePolicy").and_then(Value::as_str), Some("Ignore"));
    match kind {
        "ValidatingAdmissionPolicy" | "MutatingAdmissionPolicy" => {
            if !object.get("spec").is_some_and(fails) {
                miss("failurePolicy is Ignore");
            }
            let bindings = if kind == "ValidatingAdmissionPolicy" {
                of_kind("ValidatingAdmissionPolicyBinding")
            } else {
                of_kind("MutatingAdmissionPolicyBinding")
            };
            let bound = bindings.filter(|binding| text(binding, "/spec/policyName") == name).any(|binding| {
                let denies = binding
                    .pointer("/spec/validationActions")
                    .and_then(Value::as_array)
                    .is_some_and(|actions| actions.iter().any(|action| action == "Deny"));
                binding.pointer("/metadata/deletionTimestamp").is_none()
                    && !binding.pointer("/spec/matchResources").is_some_and(narrows)
                    && (denies || kind == "MutatingAdmissionPolicy")
            });
            if !bound {
                miss("no binding that covers everything and denies");
            }
            // Mutating ones have no status.
            if kind == "ValidatingAdmissionPolicy"
                && object.pointer("/status/observedGeneration") != object.pointer("/metadata/generation")
            {
                found.pending.push(format!("{kind} {name} (not compiled yet)"));
            }
        }
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => {
            let webhooks = object.get("webhooks").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            if webhooks.is_empty() {
                miss("has no webhooks");
            }
            for webhook in webhooks {
                let of = text(webhook, "/name");
                if !fails(webhook) {
                    found.missing.push(format!("{kind} {name} ({of}: failurePolicy is Ignore)"));
                }
                // Until the authority is known everything is refused, which harms nobody's isolation.
                if text(webhook, "/clientConfig/caBundle").is_empty() {
                    found.pending.push(format!("{kind} {name} ({of}: no caBundle)"));
                }
            }
        }
        _ => miss("not a kind that confines anybody"),
    }
}

/// Whether a binding's `matchResources` leave anything out. The API server fills in empty selectors.
fn narrows(resources: &Value) -> bool {
    let empty = |value: &Value| match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Null => true,
        _ => false,
    };
    resources
        .as_object()
        .is_some_and(|fields| fields.iter().any(|(key, value)| key != "matchPolicy" && !empty(value)))
}
