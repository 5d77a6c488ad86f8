//! A control plane for one test: etcd, kube-apiserver and kube-controller-manager from the cache of `peers/build.sh`,
//! in a directory of its own, gone when the value is dropped.

#![allow(dead_code, clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::wait::{await_condition, conditions};
use tokio::sync::{Mutex, MutexGuard};

/// Longest time that a part may need to start on a loaded machine.
const LONG: Duration = Duration::from_secs(180);
const TOKEN: &str = "admin";
/// One at a time: each is several processes.
static ONE: Mutex<()> = Mutex::const_new(());

/// Where the real parts are.
fn cache() -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    variable("COZY_GITOPS_CACHE")
        .or_else(|| Some(variable("XDG_CACHE_HOME")?.join("cozy-gitops")))
        .or_else(|| Some(variable("HOME")?.join(".cache/cozy-gitops")))
        .context("neither COZY_GITOPS_CACHE, XDG_CACHE_HOME nor HOME is set")
}

/// A program that `peers/build.sh` builds.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    let path = cache()?.join("bin").join(name);
    if !path.is_file() {
        bail!("{} is not there; `make peers` builds it", path.display());
    }
    Ok(path)
}

/// A running control plane.
pub(crate) struct Cluster {
    client: Client,
    processes: Vec<Child>,
    directory: tempfile::TempDir,
    _one: MutexGuard<'static, ()>,
}

impl Cluster {
    /// Starts one and waits until it answers; until an earlier one of this test binary is gone, too.
    pub(crate) async fn start() -> Result<Self> {
        let one = ONE.lock().await;
        let directory = tempfile::tempdir()?;
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("tokens.csv"), format!("{TOKEN},admin,admin,system:masters\n"))?;
        let account = rcgen::KeyPair::generate()?;
        std::fs::write(at("account.key"), account.serialize_pem())?;
        std::fs::write(at("account.pub"), account.public_key_pem())?;
        let [etcd, etcd_peers, api, manager] = free_ports()?;
        std::fs::write(at("kubeconfig"), kubeconfig(api))?;

        let mut processes = vec![spawn(
            directory.path(),
            "etcd",
            &[
                format!("--data-dir={}", at("etcd").display()),
                format!("--listen-client-urls=http://127.0.0.1:{etcd}"),
                format!("--advertise-client-urls=http://127.0.0.1:{etcd}"),
                format!("--listen-peer-urls=http://127.0.0.1:{etcd_peers}"),
                // Tests do not survive a power cut.
                "--unsafe-no-fsync".to_owned(),
            ],
        )?];
        let key = at("account.key").display().to_string();
        let api_server = spawn(
            directory.path(),
            "kube-apiserver",
            &[
                format!("--etcd-servers=http://127.0.0.1:{etcd}"),
                "--bind-address=127.0.0.1".to_owned(),
                format!("--secure-port={api}"),
                format!("--cert-dir={}", at("api").display()),
                format!("--service-account-key-file={}", at("account.pub").display()),
                format!("--service-account-signing-key-file={key}"),
                "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
                format!("--token-auth-file={}", at("tokens.csv").display()),
                "--authorization-mode=RBAC".to_owned(),
                "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            ],
        );
        // From here on a failure has to end what was started.
        let client = async {
            processes.push(api_server?);
            let api_server = processes.last_mut().context("no API server")?;
            let config = Kubeconfig::read_from(at("kubeconfig"))?;
            let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
            let client = Client::try_from(config)?;
            ready(&client, api_server).await?;
            processes.push(spawn(
                directory.path(),
                "kube-controller-manager",
                &[
                    format!("--kubeconfig={}", at("kubeconfig").display()),
                    format!("--service-account-private-key-file={key}"),
                    "--leader-elect=false".to_owned(),
                    "--bind-address=127.0.0.1".to_owned(),
                    format!("--secure-port={manager}"),
                    format!("--cert-dir={}", at("manager").display()),
                ],
            )?);
            anyhow::Ok(client)
        }
        .await;
        match client {
            Ok(client) => Ok(Self { client, processes, directory, _one: one }),
            Err(error) => {
                stop(&mut processes);
                let log = std::fs::read_to_string(at("kube-apiserver.log")).unwrap_or_default();
                let last: Vec<_> = log.lines().rev().take(5).collect();
                Err(error.context(format!("the API server's last words: {last:#?}")))
            }
        }
    }

    /// A client with all rights.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// A kubeconfig with all rights, for other programs.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("kubeconfig")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        stop(&mut self.processes);
    }
}

/// The last started first: a part does not outlive what it needs.
fn stop(processes: &mut [Child]) {
    for process in processes.iter_mut().rev() {
        // It may have ended by itself.
        let _ = process.kill();
        let _ = process.wait();
    }
}

/// Starts a part with its output in a file of its name.
fn spawn(directory: &Path, name: &str, arguments: &[String]) -> Result<Child> {
    let log = File::create(directory.join(format!("{name}.log")))?;
    Command::new(program(name)?)
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot start {name}"))
}

/// Ports that nobody listens on at this moment, each another.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let listeners = (0..N).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}

fn kubeconfig(port: u16) -> String {
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "test",
            "cluster": { "server": format!("https://127.0.0.1:{port}"), "insecure-skip-tls-verify": true },
        }],
        "users": [{ "name": "admin", "user": { "token": TOKEN } }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "admin" } }],
        "current-context": "test",
    })
    .to_string()
}

async fn ready(client: &Client, api_server: &mut Child) -> Result<()> {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(status) = api_server.try_wait()? {
            bail!("the API server ended: {status}");
        }
        let request = http::Request::get("/readyz").body(Vec::new())?;
        match client.request_text(request).await {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > deadline => {
                return Err(error).context("the API server does not get ready");
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

/// Installs Flux's CRDs, those of the controllers' versions in the cache.
pub(crate) async fn install_flux_crds(client: &Client) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut names = Vec::new();
    for part in std::fs::read_dir(cache().unwrap().join("crds")).unwrap() {
        for file in std::fs::read_dir(part.unwrap().path()).unwrap() {
            let bytes = std::fs::read(file.unwrap().path()).unwrap();
            for document in cozy_yaml::parse_bytes(&bytes, &cozy_yaml::Limits::default()) {
                let crd = document.unwrap().value;
                let name = crd["metadata"]["name"].as_str().unwrap().to_owned();
                crds.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(&crd)).await.unwrap();
                names.push(name);
            }
        }
    }
    for name in &names {
        let established = await_condition(crds.clone(), name, conditions::is_crd_established());
        tokio::time::timeout(Duration::from_secs(120), established).await.unwrap().unwrap();
    }
}
