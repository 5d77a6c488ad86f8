//! What somebody may do, as the API server answers `kubectl auth can-i`.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SelfSubjectRulesReview,
    SelfSubjectRulesReviewSpec, SubjectRulesReviewStatus,
};
use kube::Client;
use kube::api::{Api, PostParams};

/// What one question is about; empty texts are no restriction, and an empty namespace is the whole cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asked<'a> {
    /// API group; empty: the core group.
    pub group: &'a str,
    /// Resource, with its subresource behind a `/`.
    pub resource: &'a str,
    /// Namespace.
    pub namespace: &'a str,
    /// Name of one object.
    pub name: &'a str,
}

/// One question: may the client's user do that?
///
/// # Errors
/// When the API server does not answer.
pub async fn can(client: &Client, verb: &str, asked: Asked<'_>) -> anyhow::Result<bool> {
    let (resource, subresource) = asked.resource.split_once('/').unwrap_or((asked.resource, ""));
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: some(asked.group),
                resource: some(resource),
                subresource: some(subresource),
                namespace: some(asked.namespace),
                name: some(asked.name),
                verb: some(verb),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let answer = Api::all(client.clone()).create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// The answers as a table: a line for each of what is asked about, a column for each verb.
///
/// # Errors
/// When the API server does not answer.
pub async fn matrix(client: &Client, verbs: &[&str], about: &[Asked<'_>]) -> anyhow::Result<String> {
    let mut table = format!("{:<56} {:<16} {}\n", "RESOURCE", "NAMESPACE", verbs.join(" "));
    for asked in about {
        let mut answers = Vec::new();
        for verb in verbs {
            let allowed = can(client, verb, *asked).await?;
            answers.push(format!("{:<width$}", if allowed { "yes" } else { "-" }, width = verb.len()));
        }
        let Asked { group, resource, namespace, .. } = asked;
        let name = if group.is_empty() { (*resource).to_owned() } else { format!("{resource}.{group}") };
        let namespace = if namespace.is_empty() { "-" } else { namespace };
        table += format!("{name:<56} {namespace:<16} {}", answers.join(" ")).trim_end();
        table.push('\n');
    }
    Ok(table)
}

/// All rules that hold for the client's user in a namespace (`kubectl auth can-i --list`): verbs by group, resource and
/// name; an empty name is any, `*` is what it is in RBAC. Cluster-wide grants are among them.
///
/// # Errors
/// When the API server does not answer, or does not know all of them.
pub async fn rules(
    client: &Client,
    namespace: &str,
) -> anyhow::Result<BTreeMap<(String, String, String), BTreeSet<String>>> {
    let review = SelfSubjectRulesReview {
        spec: SelfSubjectRulesReviewSpec { namespace: Some(namespace.to_owned()) },
        ..SelfSubjectRulesReview::default()
    };
    let answer = Api::<SelfSubjectRulesReview>::all(client.clone());
    let status = answer.create(&PostParams::default(), &review).await?.status.unwrap_or_default();
    let SubjectRulesReviewStatus { incomplete, evaluation_error, resource_rules, .. } = status;
    anyhow::ensure!(!incomplete, "the API server does not know all rules: {evaluation_error:?}");
    let mut found: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    for rule in resource_rules {
        let any = vec![String::new()];
        let names = rule.resource_names.filter(|names| !names.is_empty()).unwrap_or(any);
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                for name in &names {
                    let key = (group.clone(), resource.clone(), name.clone());
                    found.entry(key).or_default().extend(rule.verbs.iter().cloned());
                }
            }
        }
    }
    Ok(found)
}

/// [`rules`] as lines of text, in their order.
///
/// # Errors
/// As [`rules`].
pub async fn list(client: &Client, namespace: &str) -> anyhow::Result<String> {
    let lines = rules(client, namespace).await?.into_iter().map(|((group, resource, name), verbs)| {
        let group = if group.is_empty() { String::new() } else { format!(".{group}") };
        let name = if name.is_empty() { String::new() } else { format!(" {name}") };
        let verbs = verbs.into_iter().collect::<Vec<_>>().join(" ");
        format!("  {resource}{group}{name}: {verbs}\n")
    });
    Ok(lines.collect())
}
