//! Who reaches the artifacts and what a tenant's controller reaches, by an evaluator over the rendered policies, for
//! Cilium and for plain NetworkPolicies. It knows what these policies use and stops at anything else.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]
#![allow(dead_code, reason = "the shared helpers serve other tests, too")]

mod surface;

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// One end of a connection.
#[derive(Clone, Debug)]
enum Peer {
    Pod {
        namespace: &'static str,
        labels: BTreeMap<&'static str, &'static str>,
    },
    /// What is no pod: `host`, `remote-node`, `kube-apiserver`, `world`.
    Entity(&'static str),
}

fn pod(namespace: &'static str, labels: &[(&'static str, &'static str)]) -> Peer {
    Peer::Pod { namespace, labels: labels.iter().copied().collect() }
}

fn render(values: &[&str]) -> Vec<Value> {
    let chart = surface::repository("packages/system/cozy-gitops").display().to_string();
    let mut arguments = vec![
        "template",
        "cozy-gitops",
        &chart,
        "--namespace",
        "cozy-system",
        "--show-only",
        "templates/network/policies.yaml",
        "--set",
        "operator.enabled=true,tenant.enabled=true",
    ];
    for value in values {
        arguments.extend(["--set", value]);
    }
    surface::documents(surface::helm(None, &arguments).unwrap().as_bytes())
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).map_or(&[], |list| list.as_array().unwrap())
}

/// Only these keys, so that nothing is left out unseen.
fn only(value: &Value, keys: &[&str]) {
    for key in value.as_object().unwrap().keys() {
        assert!(keys.contains(&key.as_str()), "the evaluator does not know {key} in {value}");
    }
}

/// Whether a label selector takes the labels.
fn selects(selector: &Value, label: &dyn Fn(&str) -> Option<String>) -> bool {
    only(selector, &["matchLabels", "matchExpressions"]);
    let labels = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    labels.into_iter().all(|(key, value)| label(key).as_deref() == value.as_str())
        && list(selector, "matchExpressions").iter().all(|expression| {
            let found = label(expression["key"].as_str().unwrap());
            let among = |found: &String| list(expression, "values").iter().any(|value| value == found);
            match expression["operator"].as_str().unwrap() {
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                "In" => found.is_some_and(|found| among(&found)),
                "NotIn" => !found.is_some_and(|found| among(&found)),
                other => panic!("operator {other}"),
            }
        })
}

fn cilium_selects(selector: &Value, peer: &Peer) -> bool {
    let Peer::Pod { namespace, labels } = peer else { return false };
    selects(selector, &|key| {
        let key = key.strip_prefix("k8s:").unwrap_or(key);
        if key == "io.kubernetes.pod.namespace" {
            return Some((*namespace).to_owned());
        }
        labels.get(key).map(|value| (*value).to_owned())
    })
}

fn cilium_rule(rule: &Value, ends: [&str; 2], peer: &Peer, port: u16) -> bool {
    let [endpoints, entities] = ends;
    only(rule, &[endpoints, entities, "toPorts"]);
    let met = list(rule, endpoints).iter().any(|selector| cilium_selects(selector, peer))
        || list(rule, entities).iter().any(|entity| matches!(peer, Peer::Entity(name) if entity == name));
    let ports: Vec<_> = list(rule, "toPorts").iter().flat_map(|ports| list(ports, "ports")).collect();
    let port = port.to_string();
    met && (ports.is_empty() || ports.iter().any(|allowed| allowed["port"].as_str() == Some(port.as_str())))
}

/// Cilium's verdict at one end: denials first, then what is allowed where a default denies.
fn cilium(policies: &[Value], subject: &Peer, direction: &str, peer: &Peer, port: u16) -> bool {
    let (mut closed, mut allowed) = (false, false);
    let ends = if direction == "ingress" {
        ["fromEndpoints", "fromEntities"]
    } else {
        ["toEndpoints", "toEntities"]
    };
    for policy in policies.iter().filter(|policy| policy["apiVersion"] == "cilium.io/v2") {
        let spec = &policy["spec"];
        only(
            spec,
            &[
                "description",
                "nodeSelector",
                "endpointSelector",
                "enableDefaultDeny",
                "ingress",
                "ingressDeny",
                "egress",
            ],
        );
        let selected = match (subject, spec.get("nodeSelector")) {
            (Peer::Entity("host"), Some(selector)) => {
                assert_eq!(*selector, json!({}), "of all nodes");
                true
            }
            (Peer::Pod { namespace, .. }, None) => {
                policy["metadata"]["namespace"] == *namespace
                    && cilium_selects(&spec["endpointSelector"], subject)
            }
            _ => false,
        };
        if !selected {
            continue;
        }
        let denials = list(spec, if direction == "ingress" { "ingressDeny" } else { "egressDeny" });
        if denials.iter().any(|rule| cilium_rule(rule, ends, peer, port)) {
            return false;
        }
        let rules = list(spec, direction);
        let default = spec.get("enableDefaultDeny").is_none_or(|default| default[direction] != false);
        closed |= default && spec.get(direction).is_some();
        allowed |= rules.iter().any(|rule| cilium_rule(rule, ends, peer, port));
    }
    allowed || !closed
}

/// The verdict of plain NetworkPolicies at one end.
fn plain(policies: &[Value], subject: &Peer, direction: &str, peer: &Peer, port: u16) -> bool {
    let Peer::Pod { namespace, labels } = subject else { return true };
    let (mut closed, mut allowed) = (false, false);
    let (kind, ends) = if direction == "ingress" { ("Ingress", "from") } else { ("Egress", "to") };
    for policy in policies.iter().filter(|policy| policy["kind"] == "NetworkPolicy") {
        let spec = &policy["spec"];
        only(spec, &["podSelector", "policyTypes", "ingress", "egress"]);
        let selected = policy["metadata"]["namespace"] == *namespace
            && selects(&spec["podSelector"], &|key| labels.get(key).map(|value| (*value).to_owned()));
        if !selected || !list(spec, "policyTypes").iter().any(|found| found == kind) {
            continue;
        }
        closed = true;
        allowed |= list(spec, direction).iter().any(|rule| {
            only(rule, &[ends, "ports"]);
            let in_range = |allowed: &Value| {
                let first = allowed["port"].as_u64().unwrap();
                let last = allowed.get("endPort").map_or(first, |port| port.as_u64().unwrap());
                allowed["protocol"] == "TCP" && (first..=last).contains(&u64::from(port))
            };
            let ends = list(rule, ends);
            (ends.is_empty() || ends.iter().any(|end| plain_peer(end, peer)))
                && (rule.get("ports").is_none() || list(rule, "ports").iter().any(in_range))
        });
    }
    allowed || !closed
}

fn plain_peer(end: &Value, peer: &Peer) -> bool {
    only(end, &["namespaceSelector", "podSelector", "ipBlock"]);
    match peer {
        Peer::Pod { namespace, labels } => {
            end.get("namespaceSelector").is_some_and(|selector| {
                selects(selector, &|key| {
                    (key == "kubernetes.io/metadata.name").then(|| (*namespace).to_owned())
                })
            }) && end.get("podSelector").is_none_or(|selector| {
                selects(selector, &|key| labels.get(key).map(|value| (*value).to_owned()))
            })
        }
        Peer::Entity("kube-apiserver") => {
            end.get("ipBlock").is_some_and(|block| block["cidr"] == "192.0.2.1/32")
        }
        Peer::Entity(_) => false,
    }
}

type Verdict = fn(&[Value], &Peer, &str, &Peer, u16) -> bool;

/// A connection needs both ends.
fn reaches(policies: &[Value], verdict: Verdict, from: &Peer, to: &Peer, port: u16) -> bool {
    verdict(policies, from, "egress", to, port) && verdict(policies, to, "ingress", from, port)
}

fn controller() -> Peer {
    pod("cozy-fluxcd", &[("gitops.cozystack.io/tenant", "tenant-foo")])
}

fn flux() -> Peer {
    pod("cozy-fluxcd", &[("app.kubernetes.io/name", "flux")])
}

fn dns() -> Peer {
    pod("kube-system", &[("k8s-app", "kube-dns")])
}

/// What is the same in every cluster, where Flux is a pod among others.
fn confined(policies: &[Value], verdict: Verdict) {
    let check = |from: &Peer, to: &Peer, port, wanted| {
        assert_eq!(reaches(policies, verdict, from, to, port), wanted, "{from:?} to {to:?}, port {port}");
    };
    let tenant = pod(
        "tenant-foo",
        &[("app.kubernetes.io/name", "flux"), ("gitops.cozystack.io/tenant", "tenant-foo")],
    );
    for port in [9790, 9691] {
        check(&tenant, &flux(), port, false);
        check(&pod("cozy-system", &[]), &flux(), port, false);
        check(&Peer::Entity("world"), &flux(), port, false);
        check(&pod("cozy-fluxcd", &[("app", "helm-controller")]), &flux(), port, true);
        check(&pod("cozy-dashboard", &[]), &flux(), port, true);
        check(&controller(), &flux(), port, true);
    }
    // Flux's other services and what it reaches stay as they were.
    check(&pod("cozy-monitoring", &[]), &flux(), 8080, true);
    check(&tenant, &flux(), 9292, true);
    check(&flux(), &Peer::Entity("world"), 443, true);
    check(&flux(), &pod("tenant-foo", &[]), 443, true);
    // The tenant's controller: the API server, names, artifacts; nobody reaches it.
    check(&controller(), &Peer::Entity("kube-apiserver"), 6443, true);
    check(&controller(), &dns(), 53, true);
    check(&controller(), &dns(), 443, false);
    check(&controller(), &flux(), 8080, false);
    check(&controller(), &Peer::Entity("world"), 443, false);
    check(&controller(), &pod("tenant-foo", &[]), 80, false);
    check(&controller(), &pod("kube-system", &[]), 53, false);
    check(&tenant, &controller(), 8080, false);
    check(&pod("cozy-fluxcd", &[]), &controller(), 8080, false);
}

const CONSUMERS: &str = "artifacts.consumers={cozy-dashboard}";

#[test]
fn cilium_keeps_tenants_from_artifacts() {
    let policies = render(&[CONSUMERS]);
    assert!(policies.iter().all(|policy| policy["apiVersion"] == "cilium.io/v2"));
    confined(&policies, cilium);
    // Flux on the host network: it is its node.
    let node = Peer::Entity("host");
    for port in [9790, 9691] {
        assert!(!reaches(&policies, cilium, &pod("tenant-foo", &[]), &node, port));
        assert!(!reaches(&policies, cilium, &Peer::Entity("world"), &node, port));
        assert!(reaches(&policies, cilium, &controller(), &node, port));
        assert!(reaches(&policies, cilium, &pod("cozy-fluxcd", &[]), &node, port));
        assert!(reaches(&policies, cilium, &pod("cozy-dashboard", &[]), &node, port));
        assert!(reaches(&policies, cilium, &Peer::Entity("remote-node"), &node, port));
    }
    for port in [22, 80, 6443, 10250] {
        assert!(
            reaches(&policies, cilium, &Peer::Entity("world"), &node, port),
            "port {port} of the nodes is closed"
        );
        assert!(reaches(&policies, cilium, &pod("tenant-foo", &[]), &node, port));
        assert!(!reaches(&policies, cilium, &controller(), &node, port));
    }
}

#[test]
fn plain_network_policies_keep_tenants_from_artifacts() {
    let policies = render(&[
        CONSUMERS,
        "network.cilium.enabled=false",
        "network.networkPolicy.enabled=true",
        "network.networkPolicy.apiServerCIDRs={192.0.2.1/32}",
    ]);
    assert!(policies.iter().all(|policy| policy["kind"] == "NetworkPolicy"));
    confined(&policies, plain);
}

/// Without the policies the evaluator lets everything through; so it is they that the tests above see.
#[test]
fn without_policies_everything_is_open() {
    assert!(reaches(&[], cilium, &pod("tenant-foo", &[]), &flux(), 9790));
    assert!(reaches(&[], plain, &pod("tenant-foo", &[]), &flux(), 9790));
}
