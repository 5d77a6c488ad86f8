//! Compares the rights that a chart grants with those that the API server's audit log saw in use.

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::api::rbac::v1::PolicyRule;
use serde_json::Value;

/// One verb on one resource, as the authorizer looks at it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Access {
    /// API group; empty: the core group.
    pub group: String,
    /// Resource, with its subresource behind a `/`.
    pub resource: String,
    /// Verb.
    pub verb: String,
    /// Namespace; empty: cluster-wide.
    pub namespace: String,
    /// Name; empty: the whole collection, or, in a grant, any name.
    pub name: String,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, resource, verb, namespace, name } = self;
        let group = if group.is_empty() { String::new() } else { format!(".{group}") };
        write!(f, "{verb} {resource}{group}")?;
        if !name.is_empty() {
            write!(f, " {name}")?;
        }
        if namespace.is_empty() { Ok(()) } else { write!(f, " in {namespace}") }
    }
}

impl Access {
    /// Whether this grant covers a use: its namespace and name, where it has them, are the use's.
    #[must_use]
    pub fn covers(&self, used: &Self) -> bool {
        (&self.group, &self.resource, &self.verb) == (&used.group, &used.resource, &used.verb)
            && (self.namespace.is_empty() || self.namespace == used.namespace)
            && (self.name.is_empty() || self.name == used.name)
    }
}

/// What the user did, according to the audit log's events (level Metadata is enough). Requests that were refused
/// for want of rights count: they are uses of rights that are missing.
#[must_use]
pub fn used(events: &[Value], user: &str) -> BTreeSet<Access> {
    let mut found = BTreeSet::new();
    for event in events {
        let object = &event["objectRef"];
        // A watch ends when the log is read long before; its beginning tells as much.
        let stage = event["stage"].as_str().unwrap_or_default();
        if event["user"]["username"] != user
            || !object.is_object()
            || !matches!(stage, "ResponseComplete" | "ResponseStarted")
        {
            continue;
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (resource, subresource) = (text(&object["resource"]), text(&object["subresource"]));
        let access = Access {
            group: text(&object["apiGroup"]),
            resource: if subresource.is_empty() { resource } else { format!("{resource}/{subresource}") },
            verb: text(&event["verb"]),
            namespace: text(&object["namespace"]),
            name: Some(text(&object["name"]))
                .filter(|name| !name.is_empty())
                .or_else(|| name_in_selector(event["requestURI"].as_str().unwrap_or_default()))
                .unwrap_or_default(),
        };
        // An apply or update that makes the object is authorized as create, too; that check knows the name.
        let made =
            matches!(access.verb.as_str(), "patch" | "update") && event["responseStatus"]["code"] == 201;
        if made {
            found.insert(Access { verb: "create".to_owned(), ..access.clone() });
        }
        found.insert(access);
    }
    found
}

/// The name that a list or watch confines itself to, which the authorizer takes for the request's name.
fn name_in_selector(uri: &str) -> Option<String> {
    let query = uri.split_once('?')?.1;
    let selector = query.split('&').find_map(|pair| pair.strip_prefix("fieldSelector="))?;
    let selector = selector.replace("%3D", "=").replace("%3d", "=").replace("%2C", ",").replace("%2c", ",");
    selector.split(',').find_map(|term| term.strip_prefix("metadata.name=")).map(str::to_owned)
}

/// What the rules of a role allow, one grant per verb, resource and name; `namespace` is a Role's, empty for a
/// ClusterRole that is bound cluster-wide.
#[must_use]
pub fn granted(rules: &[PolicyRule], namespace: &str) -> BTreeSet<Access> {
    let mut found = BTreeSet::new();
    for rule in rules {
        let any = [String::new()];
        let names = rule.resource_names.as_deref().filter(|names| !names.is_empty()).unwrap_or(&any);
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                for verb in &rule.verbs {
                    for name in names {
                        found.insert(Access {
                            group: group.clone(),
                            resource: resource.clone(),
                            verb: verb.clone(),
                            namespace: namespace.to_owned(),
                            name: name.clone(),
                        });
                    }
                }
            }
        }
    }
    found
}

/// Grants that nothing used, and uses that nothing grants.
#[must_use]
pub fn differences(granted: &BTreeSet<Access>, used: &BTreeSet<Access>) -> Vec<String> {
    let unused = granted.iter().filter(|grant| !used.iter().any(|used| grant.covers(used)));
    let missing = used.iter().filter(|used| !granted.iter().any(|grant| grant.covers(used)));
    unused
        .map(|grant| format!("granted and never used: {grant}"))
        .chain(missing.map(|used| format!("used and not granted: {used}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const USER: &str = "system:serviceaccount:cozy-system:cozy-gitops";

    fn event(verb: &str, object: Value, uri: &str, code: u16) -> Value {
        json!({
            "stage": "ResponseComplete", "verb": verb, "user": { "username": USER }, "objectRef": object,
            "requestURI": uri, "responseStatus": { "code": code },
        })
    }

    fn rule(group: &str, resource: &str, names: &[&str], verbs: &[&str]) -> PolicyRule {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        PolicyRule {
            api_groups: Some(owned(&[group])),
            resources: Some(owned(&[resource])),
            resource_names: (!names.is_empty()).then(|| owned(names)),
            verbs: owned(verbs),
            ..PolicyRule::default()
        }
    }

    #[test]
    fn exact_rights_have_no_difference() {
        let events = [
            event("list", json!({ "resource": "packages", "apiGroup": "cozystack.io" }), "/x", 200),
            event(
                "watch",
                json!({ "resource": "secrets" }),
                "/api/v1/secrets?watch=1&fieldSelector=metadata.name%3Dcozystack-values",
                200,
            ),
            event("patch", json!({ "resource": "namespaces", "name": "a" }), "/x", 201),
            event(
                "patch",
                json!({ "resource": "packages", "subresource": "status", "apiGroup": "cozystack.io", "name": "a" }),
                "/x",
                200,
            ),
            json!({ "stage": "ResponseComplete", "verb": "get", "user": { "username": USER }, "requestURI": "/readyz" }),
            json!({ "stage": "ResponseComplete", "verb": "delete", "user": { "username": "admin" },
                    "objectRef": { "resource": "nodes" } }),
        ];
        let rules = [
            rule("cozystack.io", "packages", &[], &["list"]),
            rule("cozystack.io", "packages/status", &[], &["patch"]),
            rule("", "secrets", &["cozystack-values"], &["watch"]),
            rule("", "namespaces", &[], &["create", "patch"]),
        ];
        assert_eq!(differences(&granted(&rules, ""), &used(&events, USER)), Vec::<String>::new());
    }

    #[test]
    fn unused_and_missing_rights_are_told() {
        let events = [
            event(
                "get",
                json!({ "resource": "leases", "apiGroup": "coordination.k8s.io", "name": "other",
                                 "namespace": "cozy-system" }),
                "/x",
                200,
            ),
            event("list", json!({ "resource": "secrets" }), "/api/v1/secrets", 403),
        ];
        let rules = [rule("coordination.k8s.io", "leases", &["ours"], &["get"])];
        assert_eq!(
            differences(&granted(&rules, "cozy-system"), &used(&events, USER)),
            [
                "granted and never used: get leases.coordination.k8s.io ours in cozy-system",
                "used and not granted: list secrets",
                "used and not granted: get leases.coordination.k8s.io other in cozy-system",
            ]
        );
    }

    #[test]
    fn a_namespaced_grant_does_not_cover_the_cluster() {
        let grant = granted(&[rule("", "secrets", &[], &["list"])], "a");
        let events = [event("list", json!({ "resource": "secrets" }), "/api/v1/secrets", 200)];
        assert_eq!(differences(&grant, &used(&events, USER)).len(), 2);
    }
}
