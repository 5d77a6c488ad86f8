//! Many tenants, and tenants who take more than their share: builds that explode or never end, repositories of a hundred
//! thousand files and of half a gigabyte, and ten thousand writes. Each has the consequences alone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod product;
mod surface;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use cozy_core::tenant::{ANNOTATION_RESTARTED, controller};
use cozy_testenv::{GitServer, Repository, eventually};
use futures::StreamExt as _;
use kube::api::{Api, DeleteParams, DynamicObject, PostParams};
use serde_json::json;

use product::{Product, Stage, source, tenants};
use surface::{Surface, TENANT, api, git_repository, kustomization, make, refusal, typed};

fn redis(name: &str, replicas: u32) -> String {
    format!(
        "apiVersion: apps.cozystack.io/v1alpha1\nkind: Redis\nmetadata: {{name: {name}}}\nspec: {{replicas: {replicas}}}\n"
    )
}

/// Pushes a change and gives the time until it is applied in the namespace.
async fn live(stage: &Stage, namespace: &str, repository: &Repository, replicas: u32) -> Duration {
    repository.push(&[("good/a.yaml", &redis("good", replicas))]).await.unwrap();
    let begin = Instant::now();
    eventually(&format!("replicas {replicas} of {namespace}"), async || {
        let there = stage.get("redis", namespace, "good").await.unwrap_or_default();
        Ok((there["spec"]["replicas"] == replicas).then_some(()))
    })
    .await
    .unwrap();
    begin.elapsed()
}

/// Requests of the operator since the audit log had that many events, by verb and tenant.
fn requests(surface: &Surface, since: usize) -> BTreeMap<String, BTreeMap<String, usize>> {
    let mut found: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    for event in surface.cluster().audit_log().unwrap().iter().skip(since) {
        let object = &event["objectRef"];
        if event["user"]["username"] != "system:serviceaccount:cozy-system:cozy-gitops"
            || event["stage"] != "ResponseComplete"
            || object["resource"] == "leases"
        {
            continue;
        }
        let text = |field: &str| object[field].as_str().unwrap_or_default();
        let tenant = [text("namespace"), text("name").trim_start_matches("kustomize-controller-")]
            .into_iter()
            .find(|name| name.starts_with("tenant-"))
            .unwrap_or("nobody's")
            .to_owned();
        let verb = event["verb"].as_str().unwrap_or_default();
        let code = event["responseStatus"]["code"].as_i64().unwrap_or_default();
        let what = if code < 400 { verb.to_owned() } else { format!("{verb} {code} {}", object["resource"]) };
        *found.entry(tenant).or_default().entry(what).or_default() += 1;
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_tenants_cost_the_same_each() {
    const ALL: usize = 200;
    let surface = Surface::plain().await;
    surface.install(&["admission.mutation=webhook"]).await.unwrap();
    let product = Product::start(surface.cluster(), tenants()).await;
    surface.granted().await;
    let since = surface.cluster().audit_log().unwrap().len();
    let names: Vec<String> = (0..ALL).map(|number| format!("tenant-{number:03}x")).collect();
    let deployments = api(&surface.admin, "Deployment", Some("cozy-fluxcd"));
    let begin = Instant::now();
    for (number, name) in names.iter().enumerate() {
        surface.create(&surface::bare("Namespace", None, name)).await;
        surface.create(&kustomization(name, "apps")).await;
        // A few one by one, the others as fast as it goes.
        if !(5..ALL - 5).contains(&number) {
            surface::eventually("a controller", || async {
                deployments.get_opt(&controller(name)).await.unwrap().is_some()
            })
            .await;
        }
    }
    surface::eventually("all to have a controller", || async {
        deployments.list_metadata(&Default::default()).await.unwrap().items.len() == ALL
    })
    .await;
    eprintln!("{ALL} tenants in {:?}", begin.elapsed());
    let found = requests(&surface, since);
    for name in &names {
        // Nine objects, each by one server-side apply, and nothing is read: what is there is known from the watches.
        assert_eq!(found[name], BTreeMap::from([("patch".to_owned(), 9)]), "{name}");
    }
    assert!(!found.contains_key("nobody's"), "{:?}", found["nobody's"]);

    // One tenant's change costs one tenant's work.
    let since = surface.cluster().audit_log().unwrap().len();
    let last = names.last().unwrap();
    surface.delete("Kustomization", Some(last), "apps").await;
    surface::eventually("its controller to go", || async {
        deployments.get_opt(&controller(last)).await.unwrap().is_none()
    })
    .await;
    eventually("all of it to go", async || {
        let found = requests(&surface, since);
        let all = found.get(last).is_some_and(|verbs| verbs.get("delete") == Some(&9));
        anyhow::ensure!(all, "{found:?}");
        Ok(Some(()))
    })
    .await
    .unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut found = requests(&surface, since);
    // The control plane counts the quota at the same moment: once more with what it says now, and perhaps before the watch
    // has told that it is gone.
    let mut again = 0;
    found.get_mut(last).unwrap().retain(|what, times| {
        let quota = what.starts_with("delete 4") && what.contains("resourcequotas");
        again += if quota { *times } else { 0 };
        !quota
    });
    assert!(again <= 2, "{again}");
    assert_eq!(found, BTreeMap::from([(last.clone(), BTreeMap::from([("delete".to_owned(), 9)]))]));
    product.stop(surface.cluster()).await;
}

/// A tree of kustomizations of which each is built twice by the next: 2^30 objects out of 62 small files.
fn doubling(directory: &Path, values: usize) {
    let write = |name: &str, file: &str, text: &str| {
        let path = directory.join(name);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join(file), text).unwrap();
    };
    let list = vec!["1"; values].join(",");
    write(
        "0",
        "a.yaml",
        &format!(
            "apiVersion: apps.cozystack.io/v1alpha1\nkind: Redis\nmetadata: {{name: a}}\nspec: {{v: [{list}]}}\n"
        ),
    );
    write("0", "kustomization.yaml", "resources: [a.yaml]\n");
    let mut before = "../0".to_owned();
    for level in 1..=30 {
        for side in ["a", "b"] {
            let text = format!("namePrefix: {side}-\nresources: [{before}]\n");
            write(&format!("{level}{side}"), "kustomization.yaml", &text);
        }
        before = format!("../{level}a, ../{level}b");
    }
    std::fs::write(directory.join("kustomization.yaml"), "resources: [30a, 30b]\n").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exploding_build_takes_its_own_controller_alone() {
    let git = GitServer::start_plain().await.unwrap();
    let [hostile, innocent] =
        [git.repository("hostile").await.unwrap(), git.repository("apps").await.unwrap()];
    doubling(&hostile.work_tree().join("memory"), 20_000);
    doubling(&hostile.work_tree().join("endless"), 1);
    hostile.push(&[("good/a.yaml", &redis("good", 1))]).await.unwrap();
    innocent.push(&[("good/a.yaml", &redis("good", 1))]).await.unwrap();
    let mut settings = tenants();
    settings.settings.resources = json!({ "limits": { "memory": "512Mi" } });
    settings.stuck = Duration::from_secs(20);
    let stage = Stage::with(Surface::plain().await, &[], settings).await;
    let [tenant, other] = [stage.surface.user("tenant").await, stage.surface.user("other-tenant").await];
    let path = |path: &str| json!({ "path": path });
    source(&tenant, TENANT, "good", hostile.url(), [json!({}), path("good")]).await;
    source(&other, "tenant-bar", "good", innocent.url(), [json!({}), path("good")]).await;
    for namespace in [TENANT, "tenant-bar"] {
        stage.says(namespace, "good", "True", "Applied").await;
    }
    let quiet = live(&stage, "tenant-bar", &innocent, 2).await;

    // More memory than its limit: the controller goes, is started again, and goes again; nobody else's does.
    source(&tenant, TENANT, "memory", hostile.url(), [json!({}), path("memory")]).await;
    let ours = controller(TENANT);
    eventually("the controller to be killed", async || {
        Ok((stage.kubelet.out_of_memory(&ours).await > 0).then_some(()))
    })
    .await
    .unwrap();
    let beside = live(&stage, "tenant-bar", &innocent, 3).await;
    eprintln!("another tenant's push: live after {quiet:?} quiet, {beside:?} beside the exploding build");
    assert!(beside < Duration::from_secs(7), "{beside:?}");
    api(&tenant, "Kustomization", Some(TENANT)).delete("memory", &DeleteParams::default()).await.unwrap();
    let gone = async |name: &str| {
        eventually(&format!("{name} to be gone"), async || {
            Ok(stage.get("kustomization", TENANT, name).await.is_none().then_some(()))
        })
        .await
        .unwrap();
    };
    gone("memory").await;

    // More time than there is: what is deleted while it is built is let go of all the same, by one start anew.
    let generation = async || {
        let deployment = stage.get("deployment", "cozy-fluxcd", &ours).await.unwrap();
        let told = &deployment["spec"]["template"]["metadata"]["annotations"][ANNOTATION_RESTARTED];
        (deployment["metadata"]["generation"].as_i64().unwrap(), told.as_str().map(str::to_owned))
    };
    let (before, told) = generation().await;
    assert_eq!(told, None, "who is killed by a limit need not be started anew");
    source(&tenant, TENANT, "endless", hostile.url(), [json!({}), path("endless")]).await;
    eventually("it to be built", async || {
        let log = stage.kubelet.log(&ours).await;
        let object = stage.get("kustomization", TENANT, "endless").await.unwrap_or_default();
        let text = object["status"]["conditions"].to_string();
        anyhow::ensure!(text.contains("Building"), "{text}\n{}", log.lines().last().unwrap_or_default());
        Ok(Some(()))
    })
    .await
    .unwrap();
    api(&tenant, "Kustomization", Some(TENANT)).delete("endless", &DeleteParams::default()).await.unwrap();
    let beside = live(&stage, "tenant-bar", &innocent, 4).await;
    assert!(beside < Duration::from_secs(7), "{beside:?}");
    gone("endless").await;
    let (after, told) = generation().await;
    assert_eq!(after, before + 1);
    assert!(told.is_some());
    live(&stage, TENANT, &hostile, 5).await;
    assert_eq!(generation().await, (after, told), "it is not started anew again");
    assert_eq!(stage.kubelet.restarts(&controller("tenant-bar")).await, 0);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn huge_repositories_are_their_owners_alone() {
    let git = GitServer::start_plain().await.unwrap();
    let innocent = git.repository("apps").await.unwrap();
    innocent.push(&[("good/a.yaml", &redis("good", 1))]).await.unwrap();
    let many = git.repository("many").await.unwrap();
    for directory in 0..100 {
        let path = many.work_tree().join(format!("{directory}"));
        std::fs::create_dir_all(&path).unwrap();
        for file in 0..1000 {
            std::fs::write(path.join(format!("{file}.txt")), format!("{directory}/{file}")).unwrap();
        }
    }
    many.push(&[("good/a.yaml", &redis("many", 1))]).await.unwrap();
    // Nothing compresses it.
    let large = git.repository("large").await.unwrap();
    let mut state = 1_u64;
    let block: Vec<u8> = (0..125_000_000)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            u8::try_from(state & 0xff).unwrap()
        })
        .collect();
    for number in 0..4 {
        let name = large.work_tree().join(format!("{number}.bin"));
        let mut block = block.clone();
        block.rotate_left(number * 1_000_003);
        std::fs::write(name, block).unwrap();
    }
    large.push(&[("good/a.yaml", &redis("large", 1))]).await.unwrap();

    let stage = Stage::start(Surface::plain().await, &[]).await;
    let [tenant, other] = [stage.surface.user("tenant").await, stage.surface.user("other-tenant").await];
    source(&other, "tenant-bar", "good", innocent.url(), [json!({}), json!({ "path": "good" })]).await;
    stage.says("tenant-bar", "good", "True", "Applied").await;
    for (name, repository) in [("many", &many), ("large", &large)] {
        source(&tenant, TENANT, name, repository.url(), [json!({}), json!({ "path": "good" })]).await;
    }
    // The other tenant goes on meanwhile. Both repositories are fetched by the one source-controller there is, hence on a
    // machine with other work a push may wait for them; it is live in the end (`live` gives up after its own limit).
    let mut slowest = Duration::ZERO;
    let deadline = Instant::now() + Duration::from_secs(300);
    let mut replicas = 1;
    let mut judged = [None, None];
    while judged.iter().any(Option::is_none) && Instant::now() < deadline {
        replicas += 1;
        slowest = slowest.max(live(&stage, "tenant-bar", &innocent, replicas).await);
        for (name, judged) in ["many", "large"].into_iter().zip(&mut judged) {
            let object = stage.get("kustomization", TENANT, name).await.unwrap_or_default();
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let ready = conditions.iter().find(|condition| condition["type"] == "Ready").cloned();
            if let Some(ready) = ready
                && ready["status"] != "Unknown"
                && !ready["message"].as_str().unwrap_or_default().contains("not found")
                && ready["reason"] != "ArtifactFailed"
            {
                *judged = Some((ready["status"].clone(), ready["message"].clone()));
            }
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    eprintln!("another tenant's pushes were live after {slowest:?} at most; {judged:?}");
    for name in ["many", "large"] {
        let told = stage.get("kustomization", TENANT, name).await.unwrap();
        let source = stage.get("gitrepository", TENANT, name).await.unwrap();
        eprintln!("{name}: {} {}", told["status"]["conditions"], source["status"]["conditions"]);
    }
    assert!(judged.iter().all(Option::is_some), "{judged:?}");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_is_refused_and_others_write_on() {
    const ALL: usize = 10_000;
    let stage = Stage::start(Surface::plain().await, &[]).await;
    let [tenant, other] = [stage.surface.user("tenant").await, stage.surface.user("other-tenant").await];
    // The quota is there with the first Kustomization, and is counted once the control plane has seen it.
    let kustomizations = api(&tenant, "Kustomization", Some(TENANT));
    make(&kustomizations, &PostParams::default(), &kustomization(TENANT, "first")).await.unwrap();
    let used = async || {
        let quota = stage.get("resourcequota", TENANT, "gitops-sources").await.unwrap_or_default();
        let used = &quota["status"]["used"]["count/kustomizations.kustomize.toolkit.fluxcd.io"];
        used.as_str().and_then(|used| used.parse::<usize>().ok())
    };
    eventually("the quota to be counted", async || Ok((used().await == Some(1)).then_some(())))
        .await
        .unwrap();

    let begin = Instant::now();
    let flood = tokio::spawn(flood(kustomizations.clone(), ALL));
    let mut slowest = Duration::ZERO;
    let mut writes = 0;
    while !flood.is_finished() {
        let name = format!("beside-{writes}");
        let asked = Instant::now();
        let sources = api(&other, "GitRepository", Some("tenant-bar"));
        make(&sources, &PostParams::default(), &git_repository("tenant-bar", &name)).await.unwrap();
        sources.delete(&name, &DeleteParams::default()).await.unwrap();
        slowest = slowest.max(asked.elapsed());
        writes += 1;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let counted = flood.await.unwrap();
    let mut told = String::new();
    write!(
        told,
        "{ALL} writes in {:?}: {counted:?}; others' {writes} took {slowest:?} at most",
        begin.elapsed()
    )
    .unwrap();
    eprintln!("{told}");
    let made = counted.get(&0).copied().unwrap_or_default();
    assert!((1..=49).contains(&made), "{told}");
    assert_eq!(counted.get(&403).copied().unwrap_or_default() + made, ALL, "{told}");
    assert!(slowest < Duration::from_secs(10), "{told}");
    assert!(writes > 3, "{told}");
    assert!(used().await.is_some_and(|used| used <= 50));
    // Who is refused is told what holds.
    let refused =
        make(&kustomizations, &PostParams::default(), &kustomization(TENANT, "one-more")).await.unwrap_err();
    let (_, message) = refusal(&refused);
    assert!(message.contains("exceeded quota: gitops-sources") && message.contains("limited"), "{message}");
    // The product goes on.
    stage.stop().await;
}

/// Creates that many Kustomizations as fast as the API server takes them; the answers by status code, 0 being done.
async fn flood(kustomizations: Api<DynamicObject>, all: usize) -> BTreeMap<u16, usize> {
    let writes = futures::stream::iter(0..all).map(|number| {
        let kustomizations = kustomizations.clone();
        async move {
            let object = typed(&kustomization(TENANT, &format!("flood-{number}")));
            match kustomizations.create(&PostParams::default(), &object).await {
                Ok(_) => 0,
                Err(kube::Error::Api(status)) => status.code,
                // The server dropped the connection.
                Err(_) => 1,
            }
        }
    });
    let answers: Vec<u16> = writes.buffer_unordered(64).collect().await;
    let mut counted = BTreeMap::new();
    for code in answers {
        *counted.entry(code).or_default() += 1;
    }
    counted
}
