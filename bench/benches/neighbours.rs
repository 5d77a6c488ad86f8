//! What one tenant's sources cost another, with the real controllers: the time from a commit until it is applied while a
//! neighbour's Kustomizations fail all the time, while a neighbour's git server never answers, and with hundreds of
//! Kustomizations on one repository.
//!
//! `cargo bench -p cozy-bench --bench neighbours -- [failing] [silent] [paths] [tenants]`; all by default, in 15 minutes. The API
//! server, Flux and every tenant's controller run on the same machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]

#[path = "../../e2e/tests/product/mod.rs"]
mod product;
#[path = "../../e2e/tests/surface/mod.rs"]
mod surface;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cozy_testenv::{GitServer, Repository};
use futures::{StreamExt as _, stream};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use product::{Stage, source, tenants};
use surface::{Surface, TENANT, api, bare, kustomization, make, merge};

/// The tenant whose commits are timed.
const OTHER: &str = "tenant-bar";
const PUSHES: u32 = 20;
/// The shortest interval that the chart's defaults allow.
const SHORTEST: Duration = Duration::from_secs(30);

fn main() {
    // `cargo test --benches` runs it too, to see that it builds.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    let chosen: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let on = |name: &str| chosen.is_empty() || chosen.iter().any(|chosen| chosen == name);
        if on("failing") || on("silent") {
            println!(
                "| beside | applied after s: median | slowest | a commit at any moment, interval 30 s: mean s |\n\
                 |---|---|---|---|"
            );
        }
        if on("failing") {
            failing().await;
        }
        if on("silent") {
            silent().await;
        }
        if on("paths") || on("tenants") {
            println!(
                "| Kustomizations on one repository | changed path applied after s | all looked at again after s | other \
                 applications written | CPU s of the controllers |\n|---|---|---|---|---|"
            );
        }
        if on("paths") {
            paths(1, 300).await;
        }
        if on("tenants") {
            paths(6, 50).await;
        }
    });
}

fn redis(name: &str, replicas: u32) -> String {
    format!(
        "apiVersion: apps.cozystack.io/v1alpha1\nkind: Redis\nmetadata: {{name: {name}}}\nspec: {{replicas: {replicas}}}\n"
    )
}

/// The chart's defaults but for the number of sources, and without limits, which nobody enforces here.
async fn stage() -> Stage {
    let mut settings = tenants();
    settings.settings.sources = 400;
    Stage::with(Surface::plain().await, &[], settings).await
}

/// Has source-controller look now, as a receiver of the git server's webhooks does.
async fn look(stage: &Stage, namespace: &str, name: &str) {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::SeqCst).to_string();
    let patch = json!({ "metadata": { "annotations": { "reconcile.fluxcd.io/requestedAt": number } } });
    let sources = api(&stage.surface.admin, "GitRepository", Some(namespace));
    sources.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

/// From the moment at which the repository is looked at until its application is there with that many replicas.
async fn applied(stage: &Stage, namespace: &str, source: &str, name: &str, replicas: u32) -> Duration {
    let applications = api(&stage.surface.admin, "Redis", Some(namespace));
    let begin = Instant::now();
    look(stage, namespace, source).await;
    loop {
        let there = applications.get_opt(name).await.unwrap();
        if there.is_some_and(|there| there.data["spec"]["replicas"] == replicas) {
            return begin.elapsed();
        }
        assert!(begin.elapsed() < Duration::from_secs(900), "not applied");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The times of some commits of the other tenant, one about every two seconds.
async fn commits(stage: &Stage, repository: &Repository, from: u32) -> Vec<Duration> {
    let mut times = Vec::new();
    for number in from..from + PUSHES {
        repository.push(&[("good/a.yaml", &redis("good", number))]).await.unwrap();
        times.push(applied(stage, OTHER, "good", "good", number).await);
        tokio::time::sleep(Duration::from_millis(1_700)).await;
    }
    times.sort();
    times
}

fn print(beside: &str, times: &[Duration]) {
    let mean = times.iter().sum::<Duration>() / u32::try_from(times.len()).unwrap() + SHORTEST / 2;
    println!(
        "| {beside} | {:.2} | {:.2} | {:.2} |",
        times[times.len() / 2].as_secs_f64(),
        times.last().unwrap().as_secs_f64(),
        mean.as_secs_f64()
    );
}

/// The other tenant's repository, applied.
async fn innocent(stage: &Stage, git: &GitServer) -> Repository {
    let repository = git.repository("apps").await.unwrap();
    repository.push(&[("good/a.yaml", &redis("good", 1))]).await.unwrap();
    let other = stage.surface.user("other-tenant").await;
    let [of_repository, of_kustomization] =
        [json!({ "interval": "10m" }), json!({ "path": "good", "interval": "10m" })];
    source(&other, OTHER, "good", repository.url(), [of_repository, of_kustomization]).await;
    stage.says(OTHER, "good", "True", "Applied").await;
    repository
}

/// Kustomizations of the tenant, many at a time.
async fn create(stage: &Stage, namespace: &str, objects: Vec<Value>) {
    let kustomizations = &api(&stage.surface.admin, "Kustomization", Some(namespace));
    let create =
        |object: Value| async move { make(kustomizations, &PostParams::default(), &object).await.unwrap() };
    let _: Vec<DynamicObject> = stream::iter(objects).map(create).buffer_unordered(8).collect().await;
}

/// How many Kustomizations of a namespace say that of their condition Ready.
async fn ready(stage: &Stage, namespace: &str, status: &str, contains: &str) -> usize {
    let kustomizations = api(&stage.surface.admin, "Kustomization", Some(namespace));
    let all = kustomizations.list(&ListParams::default()).await.unwrap();
    let says = |object: &&DynamicObject| {
        let conditions = object.data["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|condition| {
            condition["type"] == "Ready"
                && condition["status"] == status
                && condition["message"].as_str().unwrap_or_default().contains(contains)
        })
    };
    all.items.iter().filter(says).count()
}

async fn until(what: &str, mut check: impl AsyncFnMut() -> bool) -> Duration {
    let begin = Instant::now();
    while !check().await {
        assert!(begin.elapsed() < Duration::from_secs(900), "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    begin.elapsed()
}

async fn failing() {
    let git = GitServer::start_plain().await.unwrap();
    let hostile = git.repository("hostile").await.unwrap();
    hostile.push(&[("good/a.yaml", &redis("good", 1))]).await.unwrap();
    let stage = stage().await;
    let repository = innocent(&stage, &git).await;
    // The neighbour is there, with a controller of its own, before and after.
    let tenant = stage.surface.user("tenant").await;
    source(&tenant, TENANT, "apps", hostile.url(), [json!({}), json!({ "path": "good", "interval": "10m" })])
        .await;
    stage.says(TENANT, "apps", "True", "Applied").await;
    print("a quiet neighbour", &commits(&stage, &repository, 100).await);

    let mut made = 0;
    for all in [50, 200] {
        let bad = (made..all).map(|number| {
            let mut object = kustomization(TENANT, &format!("bad-{number}"));
            let spec = json!({ "path": "./nothing", "interval": "30s", "retryInterval": "30s" });
            merge(&mut object, &json!({ "spec": spec }));
            object
        });
        create(&stage, TENANT, bad.collect()).await;
        made = all;
        until("all to fail", async || ready(&stage, TENANT, "False", "path not found").await == all).await;
        // Spread over their interval, as they are after a while.
        tokio::time::sleep(SHORTEST).await;
        let times = commits(&stage, &repository, 100 + u32::try_from(all).unwrap()).await;
        print(&format!("{all} Kustomizations that fail every 30 s"), &times);
    }
    stage.stop().await;
}

async fn silent() {
    // Takes connections and says nothing.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            open.push(connection);
        }
    });
    let git = GitServer::start_plain().await.unwrap();
    let stage = stage().await;
    let repository = innocent(&stage, &git).await;
    let sources = api(&stage.surface.admin, "GitRepository", Some(TENANT));
    for number in 0..50 {
        let mut object = bare("GitRepository", Some(TENANT), &format!("silent-{number}"));
        let url = format!("http://{address}/{number}.git");
        object["spec"] = json!({ "url": url, "interval": "30s", "timeout": "60s" });
        make(&sources, &PostParams::default(), &object).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    repository.push(&[("good/a.yaml", &redis("good", 1000))]).await.unwrap();
    let took = applied(&stage, OTHER, "good", "good", 1000).await;
    print("50 repositories on a git server that never answers, timeout 60 s (one commit)", &[took]);
    server.abort();
    stage.stop().await;
}

/// CPU seconds of all tenants' controllers so far.
async fn cpu() -> u64 {
    let mut ticks = 0_u64;
    let mut processes = tokio::fs::read_dir("/proc").await.unwrap();
    while let Ok(Some(process)) = processes.next_entry().await {
        let read = async |file: &str| tokio::fs::read(process.path().join(file)).await.unwrap_or_default();
        let environment = read("environ").await;
        let command = read("cmdline").await;
        let ours = String::from_utf8_lossy(&environment).contains("RUNTIME_NAMESPACE=tenant-")
            && String::from_utf8_lossy(&command).contains("kustomize-controller");
        if !ours {
            continue;
        }
        let stat = String::from_utf8_lossy(&read("stat").await).into_owned();
        // After the name in parentheses: state is the first, utime and stime the 12th and 13th.
        let fields: Vec<&str> =
            stat.rsplit_once(") ").map_or_else(Vec::new, |(_, rest)| rest.split(' ').collect());
        ticks += fields.iter().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>();
    }
    ticks / 100
}

/// Some tenants with some Kustomizations each, all on one repository, one path of which changes.
async fn paths(tenants: usize, each: usize) {
    let git = GitServer::start_plain().await.unwrap();
    let repository = git.repository("many").await.unwrap();
    for number in 0..each {
        let directory = repository.work_tree().join(format!("k/{number}"));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("a.yaml"), redis(&format!("r{number}"), 1)).unwrap();
    }
    repository.push(&[("k/0/a.yaml", &redis("r0", 1))]).await.unwrap();
    let stage = stage().await;
    let names: Vec<String> = (0..tenants).map(|number| format!("tenant-n{number}")).collect();
    for namespace in &names {
        stage.surface.create(&bare("Namespace", None, namespace)).await;
        let source = json!({
            "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository",
            "metadata": { "name": "apps", "namespace": namespace },
            "spec": { "url": repository.url(), "interval": "10m", "ref": { "branch": "main" } },
        });
        stage.surface.create(&source).await;
        let all = (0..each).map(|number| {
            let mut object = kustomization(namespace, &format!("k{number}"));
            merge(&mut object, &json!({ "spec": { "path": format!("./k/{number}"), "interval": "1h" } }));
            object
        });
        create(&stage, namespace, all.collect()).await;
    }
    let settled = async |revision: &str| {
        for namespace in &names {
            if ready(&stage, namespace, "True", revision).await < each {
                return false;
            }
        }
        true
    };
    until("all to be applied", async || settled("Applied").await).await;
    for round in 0..3_u32 {
        let before = versions(&stage, &names).await;
        let number = each / 3 * usize::try_from(round).unwrap() + 7;
        let name = format!("r{number}");
        let path = format!("k/{number}/a.yaml");
        let revision = repository.push(&[(path.as_str(), redis(&name, 2).as_str())]).await.unwrap();
        let used = cpu().await;
        let begin = Instant::now();
        for namespace in &names {
            look(&stage, namespace, "apps").await;
        }
        let waits = names.iter().map(|namespace| applied_there(&stage, namespace, &name, begin));
        let slowest = futures::future::join_all(waits).await.into_iter().max().unwrap();
        until("all to be looked at", async || settled(&revision).await).await;
        let whole = begin.elapsed();
        let used = cpu().await - used;
        let after = versions(&stage, &names).await;
        let written = after.iter().filter(|(key, version)| before.get(*key) != Some(version)).count();
        println!(
            "| {tenants} × {each} | {:.1} | {:.1} | {} | {used} |",
            slowest.as_secs_f64(),
            whole.as_secs_f64(),
            written - tenants
        );
    }
    stage.stop().await;
}

async fn applied_there(stage: &Stage, namespace: &str, name: &str, begin: Instant) -> Duration {
    let applications = api(&stage.surface.admin, "Redis", Some(namespace));
    until("the changed path", async || {
        let there = applications.get_opt(name).await.unwrap();
        there.is_some_and(|there| there.data["spec"]["replicas"] == 2)
    })
    .await;
    begin.elapsed()
}

/// The version of every application.
async fn versions(stage: &Stage, names: &[String]) -> BTreeMap<(String, String), String> {
    let mut found = BTreeMap::new();
    for namespace in names {
        let applications = api(&stage.surface.admin, "Redis", Some(namespace));
        for object in applications.list(&ListParams::default()).await.unwrap() {
            let version = object.metadata.resource_version.unwrap();
            found.insert((namespace.clone(), object.metadata.name.unwrap()), version);
        }
    }
    found
}
