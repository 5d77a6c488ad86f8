//! The operator as its user starts it, with everything going wrong that can: killed, paused, cut off, contradicted,
//! short of rights. Whatever happens, no HelmRelease is ever without the override that is in force.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

#[path = "../../../e2e/tests/operator_support/mod.rs"]
mod operator_support;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cozy_testenv::{Cluster, Process, free_ports};
use futures::StreamExt as _;
use kube::Client;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};

use operator_support::{
    LONG, api, component, condition, delete, eventually, list, patch, prepare, put, read, source, wait_reason,
};

/// The operator as a process; its metrics port.
fn operator(cluster: &Cluster, name: &str, kubeconfig: &PathBuf, more: &[&str]) -> (Process, u16) {
    let [port] = free_ports().unwrap();
    let mut command = Command::new(assert_cmd::cargo::cargo_bin("cozy-gitops"));
    command
        .env("KUBECONFIG", kubeconfig)
        .env("POD_NAME", name)
        .args(["operator", "--health-probe-bind-address=0"])
        .arg(format!("--metrics-bind-address=127.0.0.1:{port}"))
        .args(more);
    (cluster.supervisor().spawn(name, &mut command).unwrap(), port)
}

/// A package with two components, of which `x` is overridden.
async fn package(client: &Client, name: &str, namespace: &str) {
    let (x, y) = (format!("{name}-x"), format!("{name}-y"));
    put(
        client,
        "packagesources",
        "",
        name,
        source(json!([component(&x, namespace), component(&y, namespace)])),
    )
    .await;
    put(client, "packagevalues", "", name, json!({ "spec": overridden(name, 0) })).await;
    put(client, "packages", "", name, json!({ "spec": base(name, 0) })).await;
}

fn base(name: &str, value: u64) -> Value {
    json!({ "components": { format!("{name}-x"): { "values": { "base": value, "over": "the platform's" } } } })
}

fn overridden(name: &str, value: u64) -> Value {
    json!({ "components": { format!("{name}-x"): { "values": { "over": value } } } })
}

/// Watches the HelmReleases and remembers what was ever wrong with one.
struct Recorder {
    seen: Arc<AtomicU64>,
    wrong: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Recorder {
    fn start(client: &Client) -> Self {
        let (seen, wrong) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Vec::new())));
        let releases = api(client, "helmreleases", "");
        let (seen_by, wrong_by) = (seen.clone(), wrong.clone());
        let task = tokio::spawn(async move {
            // The generation and override of each, so that one that goes back is seen as well.
            let mut last: BTreeMap<String, (i64, u64)> = BTreeMap::new();
            let mut events = std::pin::pin!(watcher::watcher(releases, watcher::Config::default()));
            while let Some(event) = events.next().await {
                let Ok(Event::Apply(object) | Event::InitApply(object)) = event else { continue };
                let name = object.metadata.name.clone().unwrap_or_default();
                let Some(of) = name.strip_suffix("-x") else { continue };
                let by_hand = object.data["spec"]["values"]["byHand"] == true;
                let over = object.data["spec"]["values"]["over"].as_u64();
                let generation = object.metadata.generation.unwrap_or_default();
                seen_by.fetch_add(1, Ordering::SeqCst);
                let complain = |what: String| wrong_by.lock().unwrap().push(format!("{of}: {what}"));
                match over {
                    // What a user writes by hand is the user's, until it is undone.
                    _ if by_hand => {}
                    None => complain(format!(
                        "generation {generation} without its override: {}",
                        object.data["spec"]
                    )),
                    Some(over) => {
                        if let Some((known, before)) = last.get(of)
                            && generation > *known
                            && over < *before
                        {
                            complain(format!("generation {generation} goes back from {before} to {over}"));
                        }
                        last.insert(of.to_owned(), (generation, over));
                    }
                }
            }
        });
        Self { seen, wrong, task }
    }

    /// How many generations were looked at; fails when one was wrong.
    fn stop(self) -> u64 {
        self.task.abort();
        let wrong = self.wrong.lock().unwrap();
        assert!(wrong.is_empty(), "{wrong:#?}");
        self.seen.load(Ordering::SeqCst)
    }
}

/// Waits until every HelmRelease says what Package and PackageValues say, and every status the same.
async fn converged(client: &Client, wanted: &BTreeMap<String, (u64, u64)>) {
    let last = Mutex::new(String::new());
    let done = tokio::time::timeout(LONG, async {
        'again: loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let releases = list(client, "helmreleases").await;
            for (name, (base, over)) in wanted {
                let found = releases.iter().find(|r| r["metadata"]["name"] == format!("{name}-x"));
                let values = found.map(|release| release["spec"]["values"].clone()).unwrap_or_default();
                let package = read(client, "packages", "", name).await.unwrap();
                let digest = &package["status"]["effectiveValues"][format!("{name}-x")]["digest"];
                let right = values == json!({ "base": base, "over": over });
                if !right || digest != &json!(cozy_yaml::digest(&values)) {
                    *last.lock().unwrap() =
                        format!("{name}: wanted {base}/{over}, has {values}, told {digest}");
                    continue 'again;
                }
            }
            return;
        }
    })
    .await;
    assert!(done.is_ok(), "{}", last.lock().unwrap());
}

/// The same sequence in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_again_and_again_during_five_hundred_changes() {
    const PACKAGES: u64 = 20;
    let cluster = Arc::new(Cluster::start().await.unwrap());
    let client = cluster.admin();
    prepare(&cluster).await;
    let name = |index: u64| format!("kill.p{index}");
    for index in 0..PACKAGES {
        package(&client, &name(index), &format!("ns-{}", index % 4)).await;
    }
    let recorder = Recorder::start(&client);
    let kubeconfig = cluster.admin_kubeconfig().unwrap();

    let done = Arc::new(AtomicBool::new(false));
    let killer = {
        let (cluster, kubeconfig, done) = (cluster.clone(), kubeconfig.clone(), done.clone());
        tokio::task::spawn_blocking(move || {
            let (mut dice, mut kills) = (Dice(7), 0);
            while !done.load(Ordering::SeqCst) {
                let (mut process, _) = operator(&cluster, &format!("operator-{kills}"), &kubeconfig, &[]);
                std::thread::sleep(Duration::from_millis(150 + dice.below(1200)));
                process.signal("KILL").unwrap();
                process.wait().unwrap();
                kills += 1;
            }
            kills
        })
    };
    let mut dice = Dice(42);
    let mut wanted: BTreeMap<String, (u64, u64)> = (0..PACKAGES).map(|i| (name(i), (0, 0))).collect();
    for change in 1..=500 {
        let of = name(dice.below(PACKAGES));
        let (base_value, over) = wanted.get_mut(&of).unwrap();
        match dice.below(10) {
            0..6 => {
                *over = change;
                put(&client, "packagevalues", "", &of, json!({ "spec": overridden(&of, change) })).await;
            }
            6..9 => {
                *base_value = change;
                put(&client, "packages", "", &of, json!({ "spec": base(&of, change) })).await;
            }
            _ => {
                let index = of.trim_start_matches("kill.p").parse::<u64>().unwrap();
                let releases = api(&client, "helmreleases", &format!("ns-{}", index % 4));
                let by_hand = json!({ "spec": { "values": { "byHand": true, "over": "by hand" } } });
                // It may not be there yet.
                let _ =
                    releases.patch(&format!("{of}-x"), &PatchParams::default(), &Patch::Merge(by_hand)).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    done.store(true, Ordering::SeqCst);
    let kills = killer.await.unwrap();
    assert!(kills > 5, "{kills} kills");
    let (_process, _) = operator(&cluster, "operator-last", &kubeconfig, &[]);
    converged(&client, &wanted).await;
    eprintln!("{kills} kills, {} generations looked at", recorder.stop());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_goes_for_a_minute_and_comes_back() {
    let cluster = Cluster::start().await.unwrap();
    let client = cluster.admin();
    prepare(&cluster).await;
    package(&client, "gone.p", "ns-gone").await;
    let (mut process, _) = operator(&cluster, "operator", &cluster.admin_kubeconfig().unwrap(), &[]);
    wait_reason(&client, "packagevalues", "gone.p", "Merged").await;
    let before = read(&client, "helmreleases", "ns-gone", "gone.p-x").await.unwrap();
    let recorder = Recorder::start(&client);

    cluster.stop_apiserver();
    tokio::time::sleep(Duration::from_mins(1)).await;
    process.check().unwrap_or_else(|error| panic!("it did not survive: {error:#}"));
    cluster.start_apiserver().await.unwrap();
    // A change that its watches cannot have seen going by.
    put(&client, "packagevalues", "", "gone.p", json!({ "spec": overridden("gone.p", 1) })).await;
    converged(&client, &BTreeMap::from([("gone.p".to_owned(), (0, 1))])).await;
    let after = read(&client, "helmreleases", "ns-gone", "gone.p-x").await.unwrap();
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["metadata"]["generation"], 2, "one change, one generation");
    process.check().unwrap();
    recorder.stop();
}

/// Watches that are too far behind get 410 and have to list anew: the process is paused, and when it goes on the API
/// server is another one, which remembers nothing of before.
#[tokio::test(flavor = "multi_thread")]
async fn watches_that_expired_are_begun_anew() {
    let cluster = Cluster::start().await.unwrap();
    let client = cluster.admin();
    prepare(&cluster).await;
    for name in ["old.a", "old.b"] {
        package(&client, name, "ns-old").await;
    }
    let (mut process, _) = operator(&cluster, "operator", &cluster.admin_kubeconfig().unwrap(), &[]);
    for name in ["old.a", "old.b"] {
        wait_reason(&client, "packagevalues", name, "Merged").await;
    }
    let recorder = Recorder::start(&client);
    process.signal("STOP").unwrap();
    for value in 1..=200 {
        put(&client, "packagevalues", "", "old.a", json!({ "spec": overridden("old.a", value) })).await;
    }
    // One that came and one that went meanwhile.
    package(&client, "old.c", "ns-old").await;
    delete(&client, "packagevalues", "", "old.b").await;
    cluster.stop_apiserver();
    cluster.start_apiserver().await.unwrap();
    put(&client, "packagevalues", "", "old.a", json!({ "spec": overridden("old.a", 201) })).await;
    process.signal("CONT").unwrap();
    let wanted = BTreeMap::from([("old.a".to_owned(), (0, 201)), ("old.c".to_owned(), (0, 0))]);
    converged(&client, &wanted).await;
    eventually("the override that went is gone", || async {
        let release = read(&client, "helmreleases", "ns-old", "old.b-x").await.unwrap();
        release["spec"]["values"]["over"] == "the platform's"
    })
    .await;
    process.check().unwrap();
    // Of old.b the last generation is rightly without.
    recorder.task.abort();
    let wrong = recorder.wrong.lock().unwrap();
    assert!(wrong.iter().all(|what| what.starts_with("old.b")), "{wrong:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_writer_on_every_object_changes_nothing_in_the_end() {
    const PACKAGES: u64 = 8;
    let cluster = Cluster::start().await.unwrap();
    let client = cluster.admin();
    prepare(&cluster).await;
    let name = |index: u64| format!("two.p{index}");
    for index in 0..PACKAGES {
        package(&client, &name(index), "ns-two").await;
    }
    let (mut process, _) = operator(&cluster, "operator", &cluster.admin_kubeconfig().unwrap(), &[]);
    for index in 0..PACKAGES {
        wait_reason(&client, "packagevalues", &name(index), "Merged").await;
    }
    let recorder = Recorder::start(&client);
    let done = Arc::new(AtomicBool::new(false));
    let other = {
        let (client, done) = (client.clone(), done.clone());
        tokio::spawn(async move {
            let mut round = 0_u64;
            while !done.load(Ordering::SeqCst) {
                for index in 0..PACKAGES {
                    round += 1;
                    let mark =
                        json!({ "metadata": { "annotations": { "example.org/round": round.to_string() } } });
                    for (plural, namespace, object) in [
                        ("packages", "", name(index)),
                        ("packagesources", "", name(index)),
                        ("packagevalues", "", name(index)),
                        ("helmreleases", "ns-two", format!("{}-x", name(index))),
                        ("artifactgenerators", "cozy-system", name(index)),
                        ("namespaces", "", "ns-two".to_owned()),
                    ] {
                        patch(&client, plural, namespace, &object, mark.clone()).await;
                    }
                    let status = json!({ "status": { "overrideSummary": "nonsense" } });
                    let packages = api(&client, "packages", "");
                    packages
                        .patch_status(&name(index), &PatchParams::default(), &Patch::Merge(status))
                        .await
                        .unwrap();
                }
            }
            round
        })
    };
    let mut wanted = BTreeMap::new();
    for value in 1..=10 {
        for index in 0..PACKAGES {
            let of = name(index);
            put(&client, "packagevalues", "", &of, json!({ "spec": overridden(&of, value) })).await;
            put(&client, "packages", "", &of, json!({ "spec": base(&of, value) })).await;
            wanted.insert(of, (value, value));
        }
    }
    done.store(true, Ordering::SeqCst);
    let rounds = other.await.unwrap();
    assert!(rounds >= PACKAGES, "{rounds}");
    converged(&client, &wanted).await;
    for index in 0..PACKAGES {
        let release = read(&client, "helmreleases", "ns-two", &format!("{}-x", name(index))).await.unwrap();
        assert!(
            release["metadata"]["annotations"]["example.org/round"].is_string(),
            "foreign annotations stay"
        );
        eventually("the status is put back", || async {
            let package = read(&client, "packages", "", &name(index)).await.unwrap();
            package["status"]["overrideSummary"] == format!("{}-x:/over", name(index))
        })
        .await;
    }
    process.check().unwrap();

    // Deleted by hand: it comes back, with its override from the first generation on.
    delete(&client, "helmreleases", "ns-two", "two.p0-x").await;
    eventually("it is back", || async {
        read(&client, "helmreleases", "ns-two", "two.p0-x").await.is_some()
    })
    .await;
    let release = read(&client, "helmreleases", "ns-two", "two.p0-x").await.unwrap();
    assert_eq!(release["spec"]["values"], json!({ "base": 10, "over": 10 }));
    assert_eq!(release["metadata"]["generation"], 1);
    eprintln!("{rounds} rounds of another writer, {} generations looked at", recorder.stop());
}

/// An account with all rights, so that the audit log tells the replicas apart.
async fn replica(cluster: &Cluster, name: &str) -> PathBuf {
    cluster
        .apply(&format!(
            "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {name}, namespace: cozy-system}}\n---\n\
             apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {{name: {name}}}\n\
             roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}}\n\
             subjects: [{{kind: ServiceAccount, name: {name}, namespace: cozy-system}}]"
        ))
        .await
        .unwrap();
    let token = cluster.service_account_token("cozy-system", name).await.unwrap();
    cluster.kubeconfig(name, &token).unwrap()
}

/// Writes of a replica that changed something, Leases and Events left out.
fn writes_of(cluster: &Cluster, name: &str) -> Vec<String> {
    let user = format!("system:serviceaccount:cozy-system:{name}");
    let log = cluster.audit_log().unwrap();
    let writes = log.iter().filter(|event| {
        event["user"]["username"] == user
            && ["create", "update", "patch", "delete"].iter().any(|verb| event["verb"] == *verb)
            && event["responseStatus"]["code"].as_u64().is_some_and(|code| code < 300)
            && event["objectRef"]["resource"] != "leases"
            && event["objectRef"]["resource"] != "events"
    });
    writes.map(|event| format!("{} {}", event["verb"], event["objectRef"])).collect()
}

async fn holder(client: &Client) -> String {
    let lease = read(client, "leases", "cozy-system", "cozystack-operator.cozystack.io").await;
    lease.and_then(|lease| lease["spec"]["holderIdentity"].as_str().map(str::to_owned)).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_paused_or_killed_never_writes_beside_the_next() {
    let cluster = Cluster::start().await.unwrap();
    let client = cluster.admin();
    prepare(&cluster).await;
    package(&client, "led.p", "ns-led").await;
    let elect = ["--leader-elect"];
    let (mut a, _) = operator(&cluster, "replica-a", &replica(&cluster, "replica-a").await, &elect);
    wait_reason(&client, "packagevalues", "led.p", "Merged").await;
    assert!(holder(&client).await.starts_with("replica-a"));
    let recorder = Recorder::start(&client);
    let (mut b, _) = operator(&cluster, "replica-b", &replica(&cluster, "replica-b").await, &elect);

    // Paused beyond its Lease, with work under its hands.
    put(&client, "packagevalues", "", "led.p", json!({ "spec": overridden("led.p", 1) })).await;
    a.signal("STOP").unwrap();
    eventually("b leads", || async { holder(&client).await.starts_with("replica-b") }).await;
    put(&client, "packagevalues", "", "led.p", json!({ "spec": overridden("led.p", 2) })).await;
    converged(&client, &BTreeMap::from([("led.p".to_owned(), (0, 2))])).await;
    let before = writes_of(&cluster, "replica-a").len();
    a.signal("CONT").unwrap();
    let ended = tokio::task::spawn_blocking(move || a.wait().map(|status| (status, a.log_tail())));
    let (status, log) = tokio::time::timeout(LONG, ended).await.unwrap().unwrap().unwrap();
    assert!(!status.success(), "it went on: {log}");
    assert!(log.contains("Lease"), "it does not say why: {log}");
    assert_eq!(writes_of(&cluster, "replica-a").split_off(before), Vec::<String>::new());

    // Killed: the next one takes over when the Lease has run out.
    let (mut c, _) = operator(&cluster, "replica-c", &replica(&cluster, "replica-c").await, &elect);
    b.signal("KILL").unwrap();
    b.wait().unwrap();
    put(&client, "packagevalues", "", "led.p", json!({ "spec": overridden("led.p", 3) })).await;
    eventually("c leads", || async { holder(&client).await.starts_with("replica-c") }).await;
    converged(&client, &BTreeMap::from([("led.p".to_owned(), (0, 3))])).await;
    c.check().unwrap();

    // Asked to end, it gives the Lease back, and nobody waits for it to run out.
    let start = Instant::now();
    c.signal("TERM").unwrap();
    assert!(c.wait().unwrap().success(), "{}", c.log_tail());
    assert_eq!(holder(&client).await, "");
    eprintln!("ended after {:?}, {} generations looked at", start.elapsed(), recorder.stop());
}

/// Rights are lacking: told on the object and as an Event, the others go on, and once granted it heals by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_told_and_stops_nothing_else() {
    let cluster = Cluster::start().await.unwrap();
    let client = cluster.admin();
    prepare(&cluster).await;
    cluster.create_namespace("ns-r", &[]).await.unwrap();
    // Everything but creating HelmReleases.
    let role = |verbs: &str| {
        format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: short}}\nrules:\n\
             - {{apiGroups: [cozystack.io, source.extensions.fluxcd.io, source.toolkit.fluxcd.io, '', events.k8s.io], \
             resources: ['*'], verbs: ['*']}}\n\
             - {{apiGroups: [helm.toolkit.fluxcd.io], resources: [helmreleases], verbs: [{verbs}]}}\n---\n\
             apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: short, namespace: cozy-system}}\n---\n\
             apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {{name: short}}\n\
             roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: short}}\n\
             subjects: [{{kind: ServiceAccount, name: short, namespace: cozy-system}}]"
        )
    };
    cluster.apply(&role("list, watch, update, delete")).await.unwrap();
    let token = cluster.service_account_token("cozy-system", "short").await.unwrap();
    let kubeconfig = cluster.kubeconfig("short", &token).unwrap();
    package(&client, "short.p", "ns-r").await;
    let (mut process, _) = operator(&cluster, "operator", &kubeconfig, &[]);
    let message = wait_reason(&client, "packages", "short.p", "HelmReleaseFailed").await;
    assert!(message.contains("cannot create resource \"helmreleases\""), "{message}");
    eventually("an Event tells", || async {
        list(&client, "events").await.iter().any(|event| {
            event["type"] == "Warning"
                && event["note"].as_str().is_some_and(|note| note.contains("helmreleases"))
        })
    })
    .await;
    // What needs no such right is done.
    assert!(read(&client, "artifactgenerators", "cozy-system", "short.p").await.is_some());
    assert!(condition(&client, "packagevalues", "short.p", "Ready").await.is_some());
    process.check().unwrap();

    cluster.apply(&role("list, watch, create, update, delete")).await.unwrap();
    wait_reason(&client, "packages", "short.p", "ReconciliationSucceeded").await;
    let release = read(&client, "helmreleases", "ns-r", "short.p-x").await.unwrap();
    assert_eq!(release["spec"]["values"]["over"], 0);
}
