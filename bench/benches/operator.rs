//! The operator on a real API server, beside what was recorded of the Go operator: time until settled, writes, CPU,
//! memory, a restart, and the time from a PackageValues to its HelmRelease.
//!
//! `cargo bench -p cozy-bench --bench operator -- [packages …]`; the default sizes are `isp-full 500 2000`. The control
//! plane comes from `make peers`; the operator runs in a process of its own, on the same machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]

#[path = "../../e2e/tests/operator_support/mod.rs"]
mod operator_support;

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use cozy_operator::Config;
use futures::{StreamExt, TryStreamExt, stream};
use kube::Client;
use kube::api::ListParams;
use serde_json::{Value, json};

use cozy_testenv::{Cluster, free_ports};
use operator_support::{api, component, get, list, prepare, put, shared, source};

/// Recorded of the Go operator (shared/data/golden/FIGURES.md): settled s, CPU s, writes, peak MB; restart s, writes.
const GO: [(&str, [f64; 6]); 3] = [
    ("isp-full", [10.0, 3.5, 1_660.0, 49.0, 3.0, 700.0]),
    ("500", [42.6, 29.0, 4_550.0, 62.0, 14.0, 2_587.0]),
    ("2000", [332.0, 374.0, 18_004.0, 117.0, 153.0, 10_085.0]),
];
const OPERATOR: &str = "COZY_BENCH_OPERATOR";

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    if let Ok(port) = std::env::var(OPERATOR) {
        let config = Config {
            metrics_bind_address: format!("127.0.0.1:{port}"),
            health_probe_bind_address: "0".to_owned(),
            ..Config::default()
        };
        runtime.block_on(cozy_operator::run(config, std::future::pending())).unwrap();
        return;
    }
    // `cargo test --benches` runs it too, to see that it builds.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let sizes: Vec<String> = std::env::args().skip(1).filter(|size| !size.starts_with('-')).collect();
    let sizes = if sizes.is_empty() { vec!["isp-full".into(), "500".into(), "2000".into()] } else { sizes };
    println!(
        "| scenario | settled s | CPU s | writes | peak MB | restart s | restart writes | p50 / p99 ms | a quiet minute: requests, CPU | writes when a dependency's status changes |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for size in sizes {
        runtime.block_on(scenario(&size));
        if let Some((_, [settled, cpu, writes, peak, restart, again])) =
            GO.iter().find(|(name, _)| *name == size)
        {
            println!(
                "| Go, recorded: {size} | {settled} | {cpu} | {writes} | {peak} | {restart} | {again} | | 0, 0.04 s | 3 to 502 |"
            );
        }
    }
}

struct Process {
    child: Child,
    port: u16,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start(cluster: &Cluster) -> Self {
        let [port] = free_ports().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .env("KUBECONFIG", cluster.admin_kubeconfig().unwrap())
            .env(OPERATOR, port.to_string())
            .spawn()
            .unwrap();
        Self { child, port }
    }

    async fn writes(&self) -> Option<u64> {
        let (_, text) = get(self.port, "/metrics").await?;
        Some(
            text.lines()
                .filter(|line| line.starts_with("cozy_gitops_writes_total{"))
                .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
                .sum(),
        )
    }

    /// Seconds of CPU, and the largest resident memory in MB.
    fn cost(&self) -> (f64, f64) {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap();
        let stat = read("stat");
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: f64 = [11, 12].iter().map(|at: &usize| fields[*at].parse::<f64>().unwrap()).sum();
        let status = read("status");
        let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
        let peak: f64 = peak.split_whitespace().nth(1).unwrap().parse().unwrap();
        (ticks / 100.0, peak / 1024.0)
    }

    /// Waits until nothing was written for a second; when the last write was, and how many there were.
    async fn settled(&self, start: Instant) -> (Duration, u64) {
        let mut last = (None, start);
        loop {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let now = self.writes().await;
            if now != last.0 {
                last = (now, Instant::now());
            } else if now.is_some() && last.1.elapsed() > Duration::from_secs(2) {
                return (last.1 - start, now.unwrap_or_default());
            }
        }
    }
}

async fn scenario(size: &str) {
    let cluster = Cluster::start().await.unwrap();
    let kubeconfig = kube::config::Kubeconfig::read_from(cluster.admin_kubeconfig().unwrap()).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
    let client = cozy_operator::client(config).unwrap();
    prepare(&cluster).await;
    let (sources, packages) = objects(size);
    for (plural, objects) in [("packagesources", &sources), ("packages", &packages)] {
        stream::iter(objects.iter().map(|(name, object)| {
            let client = client.clone();
            async move { put(&client, plural, "", name, object.clone()).await }
        }))
        .buffer_unordered(16)
        .collect::<Vec<()>>()
        .await;
    }
    let start = Instant::now();
    let operator = Process::start(&cluster);
    let (settled, writes) = operator.settled(start).await;
    let (cpu, peak) = operator.cost();
    let releases = list(&client, "helmreleases").await.len();
    let (p50, p99) = latency(&client, &packages[0].0).await;
    operator.settled(Instant::now()).await;
    let (quiet_from, cpu_from) = (requests(&cluster), operator.cost().0);
    tokio::time::sleep(Duration::from_mins(1)).await;
    let (quiet, idle_cpu) = (requests(&cluster) - quiet_from, operator.cost().0 - cpu_from);
    let woken = dependency_wakes(&client, &operator, &packages).await;
    drop(operator);
    let start = Instant::now();
    let operator = Process::start(&cluster);
    let (restart, again) = operator.settled(start).await;
    println!(
        "| {size}: {} Packages, {releases} HelmReleases | {:.1} | {cpu:.1} | {writes} | {peak:.0} | {:.1} | {again} | {p50:.0} / {p99:.0} | {quiet}, {idle_cpu:.2} s | {woken} |",
        packages.len(),
        settled.as_secs_f64(),
        restart.as_secs_f64()
    );
}

/// Requests so far that the audit log has, those of the benchmark left out: it makes none while it counts.
fn requests(cluster: &Cluster) -> usize {
    let log = cluster.audit_log().unwrap();
    log.iter().filter(|event| event["verb"] != "watch").count()
}

/// Writes after a HelmRelease of the Package that most others depend on has become ready.
async fn dependency_wakes(client: &Client, operator: &Process, packages: &Objects) -> u64 {
    let mut dependents: std::collections::BTreeMap<String, usize> = Default::default();
    for source in list(client, "packagesources").await {
        for variant in source["spec"]["variants"].as_array().into_iter().flatten() {
            for on in variant["dependsOn"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                *dependents.entry(on.to_owned()).or_default() += 1;
            }
        }
    }
    let most = dependents.into_iter().max_by_key(|(_, count)| *count).map(|(name, _)| name);
    let package = most.unwrap_or_else(|| packages[0].0.clone());
    let found = list(client, "helmreleases").await;
    let Some(release) = found.iter().find(|r| r["metadata"]["labels"]["cozystack.io/package"] == package)
    else {
        return 0;
    };
    let text = |pointer: &str| release.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
    let before = operator.writes().await.unwrap();
    let status = json!({ "status": { "observedGeneration": 1, "conditions": [{
        "type": "Ready", "status": "True", "reason": "InstallSucceeded", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }] } });
    api(client, "helmreleases", &text("/metadata/namespace"))
        .patch_status(&text("/metadata/name"), &Default::default(), &kube::api::Patch::Merge(status))
        .await
        .unwrap();
    operator.settled(Instant::now()).await.1 - before
}

type Objects = Vec<(String, Value)>;

fn objects(size: &str) -> (Objects, Objects) {
    if size == "isp-full" {
        let case = shared().expect("the recorded objects").join("golden/real-isp-full/output/01-all");
        let read = |file: &str| -> Objects {
            let list: Vec<Value> = serde_json::from_slice(&std::fs::read(case.join(file)).unwrap()).unwrap();
            let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
            list.iter().map(|object| (name(object), json!({ "spec": object["spec"] }))).collect()
        };
        return (read("packagesources.json"), read("packages.json"));
    }
    let count: usize = size.parse().expect("isp-full or a number of packages");
    let name = |index: usize| format!("bench.p{index}");
    let sources = (0..count)
        .map(|index| {
            (name(index), source(json!([component(&format!("c{index}"), &format!("bench-{}", index % 50))])))
        })
        .collect();
    let packages = (0..count).map(|index| (name(index), json!({ "spec": {} }))).collect();
    (sources, packages)
}

/// From the write of a PackageValues to the HelmRelease with it, as a watcher sees it: milliseconds.
async fn latency(client: &Client, package: &str) -> (f64, f64) {
    let found = list(client, "helmreleases").await;
    let release = found.iter().find(|r| r["metadata"]["labels"]["cozystack.io/package"] == package).unwrap();
    let text = |pointer: &str| release.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
    let (namespace, name, artifact) =
        (text("/metadata/namespace"), text("/metadata/name"), text("/spec/chartRef/name"));
    let prefix = format!("{package}-default-").replace('.', "-");
    let component = artifact.strip_prefix(&prefix).unwrap_or(&name).to_owned();
    let releases = api(client, "helmreleases", &namespace);
    let mut times = Vec::new();
    for round in 0..200 {
        // One change after the other, each when what the one before caused has been told.
        tokio::time::sleep(Duration::from_millis(150)).await;
        let from = releases.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
        let watch = kube::api::WatchParams::default().fields(&format!("metadata.name={name}"));
        let mut events = std::pin::pin!(releases.watch(&watch, &from).await.unwrap());
        let start = Instant::now();
        let values =
            json!({ "spec": { "components": { component.clone(): { "values": { "bench": round } } } } });
        put(client, "packagevalues", "", package, values).await;
        while let Some(event) = events.try_next().await.unwrap() {
            if let kube::api::WatchEvent::Added(object) | kube::api::WatchEvent::Modified(object) = event
                && object.data["spec"]["values"]["bench"] == round
            {
                break;
            }
        }
        times.push(start.elapsed().as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[times.len() * 99 / 100])
}
