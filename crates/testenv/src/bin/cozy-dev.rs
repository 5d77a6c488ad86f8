//! `cozy-dev up | down | status`: the control plane of the tests with the product on it, for a person.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is what a command does")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use cozy_testenv::{
    Cluster, Flux, GitServer, Kubelet, Repository, SourceWatcher, cache, eventually, free_ports, program,
    tail,
};
use serde_json::{Value, json};

/// Of the product's own ports, which the pod's address keeps apart in a cluster.
const METRICS: u16 = 8080;
const HEALTH: u16 = 8081;
const WEBHOOK: u16 = 9443;
/// A tenant, and its account, which Cozystack names like it.
const TENANT: &str = "tenant-demo";

fn main() -> ExitCode {
    let result = match std::env::args().nth(1).as_deref() {
        Some("up") => up(),
        Some("down") => down(),
        Some("status") => status(),
        Some("serve") => serve(),
        _ => Err(anyhow::anyhow!("usage: cozy-dev up | down | status")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Where the running one is written down: `$COZY_GITOPS_DEV`, or a directory of the cache.
fn directory() -> PathBuf {
    std::env::var_os("COZY_GITOPS_DEV").map_or_else(|| cache().join("dev"), PathBuf::from)
}

/// What the running one wrote down; nothing when it is gone, however it went.
fn state() -> Option<Value> {
    let state: Value =
        serde_json::from_str(&std::fs::read_to_string(directory().join("state.json")).ok()?).ok()?;
    // The number may be another process's by now.
    let command = std::fs::read(format!("/proc/{}/cmdline", state["pid"].as_u64()?)).ok()?;
    command.windows(b"cozy-dev".len()).any(|part| part == b"cozy-dev").then_some(state)
}

fn up() -> anyhow::Result<()> {
    if state().is_some() {
        return status();
    }
    // What a killed one may have left.
    let _ = std::fs::remove_dir_all(directory());
    std::fs::create_dir_all(directory())?;
    let path = directory().join("log");
    let out = File::create(&path)?;
    let mut server = Command::new(std::env::current_exe()?)
        .arg("serve")
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .process_group(0)
        .spawn()?;
    let mut log = File::open(&path)?;
    let mut shown = String::new();
    loop {
        let started = state().is_some();
        let mut more = Vec::new();
        log.read_to_end(&mut more)?;
        let more = String::from_utf8_lossy(&more).into_owned();
        std::io::stderr().write_all(more.as_bytes())?;
        shown.push_str(&more);
        if started {
            println!();
            return status();
        }
        if let Some(ended) = server.try_wait()? {
            bail!("it ended with {ended}; what it said is above and in {}", path.display());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn down() -> anyhow::Result<()> {
    let Some(state) = state() else {
        let _ = std::fs::remove_dir_all(directory());
        println!("nothing runs");
        return Ok(());
    };
    let pid = state["pid"].to_string();
    Command::new("kill").args(["-TERM", &pid]).status()?;
    for _ in 0..300 {
        if !PathBuf::from(format!("/proc/{pid}")).exists() {
            std::fs::remove_dir_all(directory())?;
            println!("stopped; nothing is left behind");
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    bail!("process {pid} does not end; kill it and remove {}", directory().display())
}

fn status() -> anyhow::Result<()> {
    let Some(state) = state() else { bail!("nothing runs; `make up` starts it") };
    let text = |key: &str| state[key].as_str().unwrap_or_default();
    print!(
        "A control plane runs, with Flux, a git server and cozy-gitops in the place of the cozystack-operator; the\n\
         packages of examples/platform are installed and overridden from git, and a tenant has a repository of its own.\n\n  \
           export KUBECONFIG={kubeconfig} PATH={bin}:$PATH\n\n\
         What to try:\n\n  \
           kubectl get packages                     # OVERRIDES tells which are overridden\n  \
           kubectl get packagevalues                # by whom: these come from the repository below\n  \
           kubectl get helmrelease -n cozy-storage storage -o yaml\n\n  \
           git clone {git} admin\n  \
           sed -i 's/minutes: 10/minutes: 5/' admin/storage.yaml\n  \
           git -C admin commit -am faster\n  \
           git -C admin push\n  \
           kubectl get helmrelease -n cozy-storage storage -o yaml -w   # in a few seconds\n\n\
         As the tenant {TENANT}, whose repository is below:\n\n  \
           alias tenant='kubectl --kubeconfig {tenant} -n {TENANT}'\n  \
           tenant get gitrepositories,kustomizations,redises\n  \
           kubectl get deployments -n cozy-fluxcd   # the tenant's own controller\n\n  \
           git clone {team} team\n  \
           sed -i 's/replicas: 2/replicas: 3/' team/cache.yaml\n  \
           git -C team commit -am larger\n  \
           git -C team push\n  \
           tenant get redis cache -o yaml -w        # within the interval of 5 s\n\n  \
           # refused, with the reason:\n  \
           tenant patch kustomization apps --type=merge -p '{{\"spec\":{{\"targetNamespace\":\"tenant-other\"}}}}'\n\n\
         Logs of every part are in {logs}. There are no nodes and no helm-controller: a HelmRelease is as far\n\
         as it goes. `make down` stops everything.\n",
        kubeconfig = text("kubeconfig"),
        bin = cache().join("bin").display(),
        git = text("git"),
        tenant = text("tenant"),
        team = text("team"),
        logs = text("logs"),
    );
    Ok(())
}

#[tokio::main]
async fn serve() -> anyhow::Result<()> {
    // Ends the wait for a part that is slow, too; the cluster's own watchdog removes what was started.
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let mut interrupt = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?;
    let run = async {
        let _parts = start().await?;
        std::future::pending::<anyhow::Result<()>>().await
    };
    tokio::select! {
        result = run => result,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

struct Parts {
    _kubelets: [Kubelet; 2],
    _flux: Flux,
    _source_watcher: SourceWatcher,
    _git: GitServer,
    _cluster: Cluster,
}

async fn start() -> anyhow::Result<Parts> {
    let step = |what: &str| eprintln!("{what} …");
    step("starting etcd, kube-apiserver and kube-controller-manager");
    let cluster = Cluster::start().await?;
    step("installing the kinds of Cozystack and Flux");
    cluster.install_crds().await?;
    cluster.install_applications().await?;
    step("starting Flux's controllers and the git server");
    let mut flux = Flux::start(&cluster).await?;
    // Without TLS, so that a person's git needs no certificate.
    let git = GitServer::start_plain().await?;
    let repository = admin_repository(&git).await?;
    step("installing the operator (chart system/cozy-gitops) and the packages of examples/platform");
    let source_watcher = SourceWatcher::start(&cluster, &root().join("examples/charts/packages")).await?;
    // The chart of the operator reads Cozystack's roles of tenants, to which it adds.
    cluster.apply(&text("e2e/fixtures/cozystack-tenant-roles.yaml")?).await?;
    let kubelet = install_operator(&cluster).await?;
    let controllers = Kubelet::builder(&cluster, "cozy-fluxcd")
        .argument("--health-addr=127.0.0.1:0")
        .argument("--metrics-addr=127.0.0.1:0")
        .start();
    cluster.apply_dir(&root().join("examples/platform")).await?;
    step("installing the admin's surface (chart system/customizer) on the repository");
    install_customizer(&cluster, &repository)?;
    if let Err(error) = overridden(&cluster).await {
        bail!(
            "{error:#}\n{}\nthe end of the operator's log:\n{}\nof source-controller's:\n{}\nof kustomize-controller's:\n{}",
            cluster.kubectl(&["get", "gitrepositories,kustomizations,packages,packagevalues", "-A"]).await?,
            tail(&kubelet.log("cozy-gitops").await),
            flux.source_controller().log_tail(),
            flux.kustomize_controller().log_tail(),
        );
    }
    step("giving the tenant tenant-demo its repository (examples/tenant)");
    let team = git.repository("team").await?;
    team.push(&[("cache.yaml", &text("examples/tenant/apps/cache.yaml")?)]).await?;
    let tenant = tenant(&cluster, &team).await?;
    if let Err(error) = applied(&cluster).await {
        let told = cluster.kubectl(&["get", "gitrepositories,kustomizations,redises", "-n", TENANT]).await?;
        bail!(
            "{error:#}\n{told}\nthe end of the operator's log:\n{}",
            tail(&kubelet.log("cozy-gitops").await)
        );
    }
    let state = json!({
        "pid": std::process::id(),
        "kubeconfig": cluster.admin_kubeconfig()?.display().to_string(),
        "git": repository.url(),
        "tenant": tenant.display().to_string(),
        "team": team.url(),
        "logs": cluster.dir().display().to_string(),
    });
    let path = directory().join("state.json");
    std::fs::write(path.with_extension("new"), state.to_string())?;
    std::fs::rename(path.with_extension("new"), &path)?;
    Ok(Parts {
        _kubelets: [kubelet, controllers],
        _flux: flux,
        _source_watcher: source_watcher,
        _git: git,
        _cluster: cluster,
    })
}

/// A file of the work tree.
fn text(path: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(root().join(path)).with_context(|| path.to_owned())
}

/// The work tree that this was built from.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The overrides of the example, in a repository of their own.
async fn admin_repository(git: &GitServer) -> anyhow::Result<Repository> {
    let repository = git.repository("admin").await?;
    let source = root().join("examples/admin/base/values");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&source).with_context(|| source.display().to_string())? {
        let entry = entry?;
        files
            .push((entry.file_name().to_string_lossy().into_owned(), std::fs::read_to_string(entry.path())?));
    }
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    repository.push(&files).await?;
    Ok(repository)
}

/// Installs a chart as an admin does.
fn helm(
    cluster: &Cluster,
    release: &str,
    chart: &str,
    arguments: &[&str],
    values: &Value,
) -> anyhow::Result<()> {
    let file = cluster.dir().join(format!("{release}-values.json"));
    std::fs::write(&file, values.to_string())?;
    let output = Command::new(program("helm")?)
        .args(["upgrade", "--install", "--namespace=cozy-system", release])
        .arg(root().join("packages/system").join(chart))
        .args(arguments)
        .arg("--values")
        .arg(&file)
        .env("KUBECONFIG", cluster.admin_kubeconfig()?)
        .output()?;
    if !output.status.success() {
        bail!("helm cannot install {chart}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

async fn install_operator(cluster: &Cluster) -> anyhow::Result<Kubelet> {
    let product = std::env::current_exe()?.with_file_name("cozy-gitops");
    if !product.exists() {
        bail!("{} is not there; start with `make up`, which builds it", product.display());
    }
    let operator = root().join("packages/system/cozy-gitops/values-operator.yaml");
    let values = json!({
        "image": "cozy-gitops",
        "operator": { "replicas": 1, "logFormat": "text", "ports": { "metrics": METRICS, "health": HEALTH, "webhook": WEBHOOK } },
        "tenant": {
            "enabled": true,
            // The git server of this machine, without TLS; and nobody wants to wait for half a minute.
            "sources": { "schemes": ["http", "https", "ssh"], "allowedHosts": ["127.0.0.1"] },
            "bounds": { "minInterval": "1s" },
        },
        // There is no Cilium here.
        "network": { "cilium": { "enabled": false }, "networkPolicy": { "enabled": true } },
    });
    helm(cluster, "cozy-gitops", "cozy-gitops", &["--values", &operator.display().to_string()], &values)?;
    let [metrics, health, webhook] = free_ports()?;
    cluster.map_endpoint("cozy-system", "cozy-gitops", "webhook", webhook).await?;
    Ok(Kubelet::builder(cluster, "cozy-system")
        .program("cozy-gitops", product)
        .map(format!("=:{METRICS}"), format!("=127.0.0.1:{metrics}"))
        .map(format!("=:{HEALTH}"), format!("=127.0.0.1:{health}"))
        .map(format!("=:{WEBHOOK}"), format!("=0.0.0.0:{webhook}"))
        .start())
}

fn install_customizer(cluster: &Cluster, repository: &Repository) -> anyhow::Result<()> {
    let values = json!({
        "source": { "url": repository.url(), "ref": { "branch": "main" }, "interval": "5s" },
        "kustomization": { "path": "./", "interval": "1m" },
    });
    helm(cluster, "customizer", "customizer", &[], &values)
}

/// Waits until the repository's overrides are in force.
async fn overridden(cluster: &Cluster) -> anyhow::Result<()> {
    eventually("the overrides of the repository to be merged", async || {
        let all = cluster.kubectl(&["get", "packagevalues", "-o", "json"]).await?;
        let all: Value = serde_json::from_str(&all)?;
        let merged = |item: &Value| {
            let conditions = item["status"]["conditions"].as_array();
            conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
        };
        let items = all["items"].as_array().context("no list")?;
        Ok((items.len() == 3 && items.iter().all(merged)).then_some(()))
    })
    .await
}

/// The tenant with its account, which writes its sources itself; gives its kubeconfig.
async fn tenant(cluster: &Cluster, team: &Repository) -> anyhow::Result<PathBuf> {
    cluster.create_namespace(TENANT, &[]).await?;
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": TENANT, "namespace": TENANT },
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": TENANT, "namespace": TENANT },
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cozy:tenant:super-admin",
        },
        "subjects": [{ "kind": "ServiceAccount", "name": TENANT, "namespace": TENANT }],
    });
    for object in [account, binding] {
        cluster.apply_value(object).await?;
    }
    let kubeconfig = cluster.kubeconfig(TENANT, &cluster.service_account_token(TENANT, TENANT).await?)?;
    let sources = text("examples/tenant/sources.yaml")?
        .replace("https://git.example.com/team/apps.git", team.url())
        .replace("interval: 30s", "interval: 5s");
    let file = cluster.dir().join("tenant-sources.yaml");
    std::fs::write(&file, sources)?;
    // The operator grants the tenants' rights once it has seen that the admission is in force.
    eventually("the tenant to be allowed to write its sources", async || {
        let output = Command::new(program("kubectl")?)
            .args(["apply", "--filename"])
            .arg(&file)
            .env("KUBECONFIG", &kubeconfig)
            .output()?;
        anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(Some(()))
    })
    .await?;
    Ok(kubeconfig)
}

/// Waits until the tenant's repository is applied.
async fn applied(cluster: &Cluster) -> anyhow::Result<()> {
    eventually("the tenant's application", async || {
        let get = ["get", "redis", "cache", "-n", TENANT, "--ignore-not-found", "-o", "name"];
        Ok((!cluster.kubectl(&get).await?.is_empty()).then_some(()))
    })
    .await
}
