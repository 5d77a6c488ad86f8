//! A stand-in for the kubelet: the Deployments of one namespace run as local processes.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, EnvVar, PodSpec};
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::watcher;
use serde_json::json;
use tokio::sync::Mutex;

use crate::cluster::{Cluster, write_kubeconfig};
use crate::process::{Process, program};

/// How long a process has to live before its Deployment counts as available.
const SETTLING: Duration = Duration::from_millis(500);

/// Runs the first container of each Deployment in a namespace: the pod template's arguments and environment
/// (field references resolved), with a real token of its ServiceAccount. A process that ends is started again, one that
/// takes more memory than its container's limit is killed, a changed template replaces it, a deleted Deployment stops it,
/// and the Deployment's status tells.
///
/// An image's last path segment up to the tag names the program that `make peers` built
/// (`ghcr.io/fluxcd/kustomize-controller:v1.9.6` runs `kustomize-controller`). Addresses that a pod would reach by a
/// Service's name are mapped on start ([`Kubelet::start`]).
pub struct Kubelet {
    task: tokio::task::JoinHandle<()>,
    pods: Pods,
}

type Pods = Arc<Mutex<HashMap<String, Pod>>>;

struct Pod {
    deployment: Deployment,
    process: Option<Process>,
    started: tokio::time::Instant,
    restarts: u32,
    out_of_memory: u32,
    /// The generation that became ready.
    rolled: Option<i64>,
}

struct Node {
    namespace: String,
    kube: kube::Client,
    supervisor: crate::Supervisor,
    url: String,
    mapped: BTreeMap<String, String>,
    programs: BTreeMap<String, PathBuf>,
    arguments: Vec<String>,
}

/// What a [`Kubelet`] is told beside the Deployments.
pub struct KubeletBuilder<'a> {
    cluster: &'a Cluster,
    namespace: &'a str,
    mapped: BTreeMap<String, String>,
    programs: BTreeMap<String, PathBuf>,
    arguments: Vec<String>,
}

impl KubeletBuilder<'_> {
    /// Turns a text in arguments and environment, such as a Service's address or a port, into another.
    #[must_use]
    pub fn map(mut self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.mapped.insert(from.into(), to.into());
        self
    }

    /// What an image runs that `make peers` does not build: `name` is the last segment of the image's path.
    #[must_use]
    pub fn program(mut self, name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        self.programs.insert(name.into(), path.into());
        self
    }

    /// One argument more for every process: ports, for instance, which pods have each to themselves.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Starts to run the namespace's Deployments.
    #[must_use]
    pub fn start(self) -> Kubelet {
        let node = Node {
            namespace: self.namespace.to_owned(),
            kube: self.cluster.admin(),
            supervisor: self.cluster.supervisor().clone(),
            url: self.cluster.url(),
            mapped: self.mapped,
            programs: self.programs,
            arguments: self.arguments,
        };
        let pods = Pods::default();
        let shared = Arc::clone(&pods);
        let task = tokio::spawn(async move { node.run(shared).await });
        Kubelet { task, pods }
    }
}

impl Kubelet {
    /// For other programs than the peers.
    #[must_use]
    pub fn builder<'a>(cluster: &'a Cluster, namespace: &'a str) -> KubeletBuilder<'a> {
        KubeletBuilder {
            cluster,
            namespace,
            mapped: BTreeMap::new(),
            programs: BTreeMap::new(),
            arguments: Vec::new(),
        }
    }

    /// Runs the Deployments of a namespace; `map` turns texts in arguments and environment, such as a Service's
    /// address, into others.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn start(cluster: &Cluster, namespace: &str, map: &[(&str, &str)]) -> anyhow::Result<Self> {
        let builder = Self::builder(cluster, namespace);
        Ok(map.iter().fold(builder, |builder, (from, to)| builder.map(*from, *to)).start())
    }

    /// Names of the Deployments whose process runs.
    pub async fn running(&self) -> Vec<String> {
        let mut out: Vec<String> = self
            .pods
            .lock()
            .await
            .iter()
            .filter(|(_, pod)| pod.process.is_some())
            .map(|(name, _)| name.clone())
            .collect();
        out.sort();
        out
    }

    /// How often a Deployment's process had to be started again.
    pub async fn restarts(&self, name: &str) -> u32 {
        self.pods.lock().await.get(name).map_or(0, |pod| pod.restarts)
    }

    /// How often a Deployment's process was killed because it took more memory than its limit.
    pub async fn out_of_memory(&self, name: &str) -> u32 {
        self.pods.lock().await.get(name).map_or(0, |pod| pod.out_of_memory)
    }

    /// What a Deployment's process has logged.
    pub async fn log(&self, name: &str) -> String {
        self.pods
            .lock()
            .await
            .get(name)
            .and_then(|pod| pod.process.as_ref())
            .map(Process::log)
            .unwrap_or_default()
    }

    /// Kills a Deployment's process; it is started again.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn kill(&self, name: &str) -> anyhow::Result<()> {
        let pods = self.pods.lock().await;
        pods.get(name)
            .and_then(|pod| pod.process.as_ref())
            .with_context(|| format!("{name} does not run"))?
            .signal("KILL")
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Node {
    async fn run(self, pods: Pods) {
        let api: Api<Deployment> = Api::namespaced(self.kube.clone(), &self.namespace);
        let mut events = watcher(api, watcher::Config::default()).boxed();
        let mut tick = tokio::time::interval(Duration::from_millis(250));
        let mut listed: Vec<String> = Vec::new();
        loop {
            tokio::select! {
                event = events.next() => {
                    let mut pods = pods.lock().await;
                    match event {
                        Some(Ok(watcher::Event::Init)) => listed.clear(),
                        Some(Ok(watcher::Event::InitApply(deployment))) => {
                            listed.extend(deployment.metadata.name.clone());
                            set(&mut pods, deployment);
                        }
                        Some(Ok(watcher::Event::InitDone)) => pods.retain(|name, _| listed.contains(name)),
                        Some(Ok(watcher::Event::Apply(deployment))) => set(&mut pods, deployment),
                        Some(Ok(watcher::Event::Delete(deployment))) => {
                            pods.remove(&deployment.metadata.name.unwrap_or_default());
                        }
                        // The watcher reconnects by itself.
                        Some(Err(_)) => tokio::time::sleep(Duration::from_millis(250)).await,
                        None => return,
                    }
                }
                _ = tick.tick() => {
                    let mut pods = pods.lock().await;
                    for (name, pod) in pods.iter_mut() {
                        if let Err(error) = self.sync(name, pod).await {
                            tracing::warn!("kubelet stand-in: {name}: {error:#}");
                        }
                    }
                }
            }
        }
    }

    async fn sync(&self, name: &str, pod: &mut Pod) -> anyhow::Result<()> {
        let wanted = pod.deployment.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1) > 0;
        if let (Some(process), Some(limit)) = (&pod.process, memory_limit(&pod.deployment))
            && resident(process.id()).is_some_and(|bytes| bytes > limit)
        {
            pod.out_of_memory += 1;
            process.signal("KILL")?;
        }
        if let Some(process) = &mut pod.process
            && process.check().is_err()
        {
            pod.process = None;
            pod.restarts += 1;
        }
        if !wanted {
            pod.process = None;
        } else if pod.process.is_none() && pod.started.elapsed() > SETTLING {
            pod.started = tokio::time::Instant::now();
            pod.process = Some(self.launch(name, &pod.deployment).await?);
        }
        let ready = i32::from(pod.process.is_some() && pod.started.elapsed() > SETTLING);
        let known = pod.deployment.status.as_ref();
        let told = known.and_then(|s| s.ready_replicas).unwrap_or(0);
        let generation = pod.deployment.metadata.generation;
        if ready > 0 {
            pod.rolled = generation;
        }
        let progressing =
            if pod.rolled == generation { "NewReplicaSetAvailable" } else { "ReplicaSetUpdated" };
        if told != ready || known.and_then(|s| s.observed_generation) != generation {
            let status = json!({ "status": {
                "observedGeneration": generation, "replicas": i32::from(wanted), "updatedReplicas": i32::from(wanted),
                "readyReplicas": ready, "availableReplicas": ready, "unavailableReplicas": i32::from(wanted) - ready,
                "conditions": [
                    {
                        "type": "Available", "status": if ready == i32::from(wanted) { "True" } else { "False" },
                        "reason": if ready == i32::from(wanted) { "MinimumReplicasAvailable" } else { "MinimumReplicasUnavailable" },
                        "message": "", "lastTransitionTime": k8s_openapi::jiff::Timestamp::now().to_string(),
                    },
                    {
                        "type": "Progressing", "status": "True", "reason": progressing,
                        "message": "", "lastTransitionTime": k8s_openapi::jiff::Timestamp::now().to_string(),
                    },
                ],
            } });
            let api: Api<Deployment> = Api::namespaced(self.kube.clone(), &self.namespace);
            pod.deployment = api.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await?;
        }
        Ok(())
    }

    async fn launch(&self, name: &str, deployment: &Deployment) -> anyhow::Result<Process> {
        let pod: &PodSpec =
            deployment.spec.as_ref().and_then(|s| s.template.spec.as_ref()).context("no pod template")?;
        let container = pod.containers.first().context("no container")?;
        let image = container.image.as_deref().unwrap_or_default();
        let binary =
            image.rsplit('/').next().unwrap_or_default().split([':', '@']).next().unwrap_or_default();
        let account = pod.service_account_name.as_deref().unwrap_or("default");
        let kubeconfig = self.kubeconfig(name, account).await?;
        let temp = self.supervisor.dir().join(format!("{name}-tmp"));
        std::fs::create_dir_all(&temp)?;
        let path = match self.programs.get(binary) {
            Some(path) => path.clone(),
            None => program(binary)?,
        };
        let mut command = Command::new(path);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &temp)
            .env("TMPDIR", &temp)
            .env("KUBECONFIG", kubeconfig);
        for variable in container.env.iter().flatten() {
            command.env(&variable.name, self.map(&self.value(variable, name, container)));
        }
        command.args(container.args.iter().flatten().map(|argument| self.map(argument)));
        command.args(&self.arguments);
        self.supervisor.spawn(name, &mut command)
    }

    /// The process talks to the API server as the pod would: with a token of its ServiceAccount, bound to nothing else.
    async fn kubeconfig(&self, name: &str, account: &str) -> anyhow::Result<PathBuf> {
        use k8s_openapi::api::authentication::v1::TokenRequest;
        use k8s_openapi::api::core::v1::ServiceAccount;
        let accounts: Api<ServiceAccount> = Api::namespaced(self.kube.clone(), &self.namespace);
        let answer =
            accounts.create_token_request(account, &Default::default(), &TokenRequest::default()).await;
        let token = answer
            .with_context(|| format!("token of {account}"))?
            .status
            .and_then(|s| s.token)
            .unwrap_or_default();
        write_kubeconfig(self.supervisor.dir(), &self.url, name, &self.namespace, &token)
    }

    fn value(&self, variable: &EnvVar, name: &str, container: &Container) -> String {
        if let Some(value) = &variable.value {
            return value.clone();
        }
        let source = variable.value_from.as_ref();
        if let Some(field) = source.and_then(|s| s.field_ref.as_ref()) {
            return match field.field_path.as_str() {
                "metadata.namespace" => self.namespace.clone(),
                "metadata.name" | "metadata.uid" => name.to_owned(),
                "status.podIP" | "status.hostIP" => "127.0.0.1".to_owned(),
                _ => String::new(),
            };
        }
        let resource = source.and_then(|s| s.resource_field_ref.as_ref()).map(|r| r.resource.as_str());
        let limits = container.resources.as_ref().and_then(|r| r.limits.as_ref());
        let limit = resource.and_then(|r| limits?.get(r.strip_prefix("limits.")?));
        limit.map(|quantity| quantity.0.clone()).unwrap_or_default()
    }

    fn map(&self, text: &str) -> String {
        self.mapped.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }
}

/// Bytes that the first container may take.
fn memory_limit(deployment: &Deployment) -> Option<u64> {
    let pod = deployment.spec.as_ref()?.template.spec.as_ref()?;
    let quantity = &pod.containers.first()?.resources.as_ref()?.limits.as_ref()?.get("memory")?.0;
    let (number, unit) =
        quantity.split_at(quantity.find(|c: char| !c.is_ascii_digit()).unwrap_or(quantity.len()));
    let factor = match unit {
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "" => 1,
        _ => return None,
    };
    Some(number.parse::<u64>().ok()? * factor)
}

/// Bytes of memory that a process takes now.
fn resident(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

fn set(pods: &mut HashMap<String, Pod>, deployment: Deployment) {
    let name = deployment.metadata.name.clone().unwrap_or_default();
    match pods.get_mut(&name) {
        Some(pod) => {
            let changed = pod.deployment.spec.as_ref().map(|s| &s.template)
                != deployment.spec.as_ref().map(|s| &s.template);
            if changed {
                pod.process = None;
                pod.started = tokio::time::Instant::now();
            }
            pod.deployment = deployment;
        }
        None => {
            let started = tokio::time::Instant::now();
            pods.insert(
                name,
                Pod { deployment, process: None, started, restarts: 0, out_of_memory: 0, rolled: None },
            );
        }
    }
}
