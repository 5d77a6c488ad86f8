//! A control plane: etcd, kube-apiserver, kube-controller-manager.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Context as _, anyhow, bail};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Client, Config};
use serde_json::{Value, json};

use crate::eventually;
use crate::pki::{Ca, key_pair};
use crate::process::{Process, Supervisor, cache, free_ports, program};

/// Every request with its user and object, except reads and what the control plane says to itself.
const AUDIT_POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: ["system:apiserver", "system:kube-controller-manager"]
- level: None
  userGroups: ["system:serviceaccounts:kube-system"]
- level: Request
  verbs: [create, update, patch, delete, deletecollection]
- level: Metadata
"#;

/// Namespaces that every Cozystack has.
const NAMESPACES: [&str; 2] = [cozy_api::names::SYSTEM_NAMESPACE, cozy_api::names::FLUX_NAMESPACE];

/// How a control plane is started.
#[derive(Clone, Debug)]
pub struct ClusterBuilder {
    controller_manager: bool,
    arguments: Vec<String>,
}

impl Default for ClusterBuilder {
    fn default() -> Self {
        Self { controller_manager: true, arguments: Vec::new() }
    }
}

impl ClusterBuilder {
    /// Without kube-controller-manager: no garbage collection, no tokens by Secret, namespaces never go.
    #[must_use]
    pub fn without_controller_manager(mut self) -> Self {
        self.controller_manager = false;
        self
    }

    /// A further argument of kube-apiserver.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Starts it.
    ///
    /// # Errors
    /// When a part does not come up, with the tail of its log.
    pub async fn start(self) -> anyhow::Result<Cluster> {
        let mut last = anyhow!("not started");
        // A port may be taken by somebody else between finding it free and using it.
        for _ in 0..3 {
            match Cluster::try_start(&self).await {
                Ok(cluster) => return Ok(cluster),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// A running control plane; everything of it is gone when it is dropped.
pub struct Cluster {
    supervisor: Supervisor,
    port: u16,
    ca: Vec<u8>,
    ca_pem: String,
    admin_token: String,
    admin: Client,
    apiserver_arguments: Vec<String>,
    apiserver: Mutex<Option<Process>>,
    _etcd: Process,
    controller_manager: Mutex<Option<Process>>,
}

impl Cluster {
    /// A control plane with the defaults.
    ///
    /// # Errors
    /// When a part does not come up, with the tail of its log.
    pub async fn start() -> anyhow::Result<Self> {
        Self::builder().start().await
    }

    /// For other than the defaults.
    #[must_use]
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    #[allow(clippy::too_many_lines)]
    async fn try_start(builder: &ClusterBuilder) -> anyhow::Result<Self> {
        // The first client of a process decides; a second call changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let supervisor = Supervisor::new("cluster")?;
        let dir = supervisor.dir().to_path_buf();
        let [etcd_port, etcd_peer, port] = free_ports()?;
        let etcd_url = format!("http://127.0.0.1:{etcd_port}");
        let peer_url = format!("http://127.0.0.1:{etcd_peer}");
        let mut etcd = supervisor.spawn(
            "etcd",
            Command::new(program("etcd")?)
                .arg(format!("--data-dir={}", dir.join("etcd").display()))
                .arg(format!("--listen-client-urls={etcd_url}"))
                .arg(format!("--advertise-client-urls={etcd_url}"))
                .arg(format!("--listen-peer-urls={peer_url}"))
                .arg(format!("--initial-advertise-peer-urls={peer_url}"))
                .arg(format!("--initial-cluster=default={peer_url}"))
                .args(["--unsafe-no-fsync=true", "--log-level=warn"]),
        )?;

        let ca = Ca::new("cozy-gitops test")?;
        let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        let mut addresses = vec![IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1))];
        addresses.extend(host_address());
        let server = ca.leaf("kube-apiserver", &names, &addresses)?;
        let proxy = ca.leaf("front-proxy", &[], &[])?;
        let (signing_key, verification_key) = key_pair()?;
        let admin_token = token();
        let write = |name: &str, content: &str| -> anyhow::Result<String> {
            let path = dir.join(name);
            std::fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
            Ok(path.display().to_string())
        };
        let apiserver_arguments: Vec<String> = [
            format!("--etcd-servers={etcd_url}"),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            format!("--tls-cert-file={}", write("server.crt", &server.certificate)?),
            format!("--tls-private-key-file={}", write("server.key", &server.key)?),
            format!("--client-ca-file={}", write("ca.crt", &ca.pem())?),
            format!("--proxy-client-cert-file={}", write("proxy.crt", &proxy.certificate)?),
            format!("--proxy-client-key-file={}", write("proxy.key", &proxy.key)?),
            format!("--requestheader-client-ca-file={}", dir.join("ca.crt").display()),
            "--requestheader-allowed-names=front-proxy".to_owned(),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
            // Services lead to the addresses of their EndpointSlices: there is no kube-proxy.
            "--enable-aggregator-routing=true".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-signing-key-file={}", write("sa.key", &signing_key)?),
            format!("--service-account-key-file={}", write("sa.pub", &verification_key)?),
            format!(
                "--token-auth-file={}",
                write("tokens.csv", &format!("{admin_token},admin,admin,system:masters\n"))?
            ),
            "--authorization-mode=RBAC".to_owned(),
            "--service-cluster-ip-range=10.0.0.0/16".to_owned(),
            format!("--audit-policy-file={}", write("audit-policy.yaml", AUDIT_POLICY)?),
            format!("--audit-log-path={}", dir.join("audit.log").display()),
            "--allow-privileged=true".to_owned(),
            "--profiling=false".to_owned(),
        ]
        .into_iter()
        .chain(builder.arguments.iter().cloned())
        .collect();
        let mut apiserver = supervisor
            .spawn("kube-apiserver", Command::new(program("kube-apiserver")?).args(&apiserver_arguments))?;
        let admin = client(port, &ca.der(), &admin_token, None)?;
        wait_ready(&admin, &mut [&mut etcd, &mut apiserver]).await?;

        let cluster = Self {
            supervisor,
            port,
            ca: ca.der(),
            ca_pem: ca.pem(),
            admin_token,
            admin,
            apiserver_arguments,
            apiserver: Mutex::new(Some(apiserver)),
            _etcd: etcd,
            controller_manager: Mutex::new(None),
        };
        if builder.controller_manager {
            let started = cluster.start_controller_manager()?;
            if let Ok(mut process) = cluster.controller_manager.lock() {
                *process = Some(started);
            }
        }
        for name in NAMESPACES {
            cluster.create_namespace(name, &[]).await?;
        }
        if builder.controller_manager {
            let accounts: Api<ServiceAccount> = Api::namespaced(cluster.admin(), "default");
            eventually("kube-controller-manager to make the first ServiceAccount", async || {
                Ok(accounts.get_opt("default").await?)
            })
            .await?;
        }
        Ok(cluster)
    }

    fn start_controller_manager(&self) -> anyhow::Result<Process> {
        let kubeconfig = self.kubeconfig("kube-controller-manager", &self.admin_token)?;
        self.supervisor.spawn(
            "kube-controller-manager",
            Command::new(program("kube-controller-manager")?)
                .arg(format!("--kubeconfig={}", kubeconfig.display()))
                .arg(format!("--service-account-private-key-file={}", self.dir().join("sa.key").display()))
                .arg(format!("--root-ca-file={}", self.dir().join("ca.crt").display()))
                .args([
                    "--leader-elect=false",
                    "--secure-port=0",
                    "--use-service-account-credentials=true",
                    "--kube-api-qps=200",
                    "--kube-api-burst=400",
                    "--resource-quota-sync-period=5s",
                    "--controllers=garbage-collector-controller,namespace-controller,resourcequota-controller,\
                     serviceaccount-controller,serviceaccount-token-controller,clusterrole-aggregation-controller,\
                     root-ca-certificate-publisher-controller,validatingadmissionpolicy-status-controller",
                ]),
        )
    }

    /// The directory of the cluster: logs, certificates, kubeconfigs.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.supervisor.dir()
    }

    /// Starts further processes that live as long as the cluster.
    #[must_use]
    pub fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    /// Address of the API server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// The certificate authority that signed the API server's certificate, PEM.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// A client of the cluster's administrator.
    #[must_use]
    pub fn admin(&self) -> Client {
        self.admin.clone()
    }

    /// A client of a person, with these groups besides `system:authenticated`.
    ///
    /// # Errors
    /// When the client cannot be made.
    pub fn client_as(&self, user: &str, groups: &[&str]) -> anyhow::Result<Client> {
        let mut groups: Vec<String> = groups.iter().map(|g| (*g).to_owned()).collect();
        groups.push("system:authenticated".to_owned());
        client(self.port, &self.ca, &self.admin_token, Some((user.to_owned(), groups)))
    }

    /// A client with a token of its own.
    ///
    /// # Errors
    /// When the client cannot be made.
    pub fn client_with_token(&self, token: &str) -> anyhow::Result<Client> {
        client(self.port, &self.ca, token, None)
    }

    /// A real token of a ServiceAccount, from a TokenRequest.
    ///
    /// # Errors
    /// When the account does not exist.
    pub async fn service_account_token(&self, namespace: &str, name: &str) -> anyhow::Result<String> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin(), namespace);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec { expiration_seconds: Some(86_400), ..TokenRequestSpec::default() }),
            ..TokenRequest::default()
        };
        let answer = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await
            .with_context(|| format!("token of ServiceAccount {namespace}/{name}"))?;
        answer.status.and_then(|status| status.token).context("no token in the answer")
    }

    /// A client of a ServiceAccount.
    ///
    /// # Errors
    /// When the account does not exist.
    pub async fn service_account_client(&self, namespace: &str, name: &str) -> anyhow::Result<Client> {
        self.client_with_token(&self.service_account_token(namespace, name).await?)
    }

    /// A kubeconfig file of the administrator.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn admin_kubeconfig(&self) -> anyhow::Result<PathBuf> {
        self.kubeconfig("admin", &self.admin_token)
    }

    /// A kubeconfig file for a token; `name` becomes the file's.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn kubeconfig(&self, name: &str, token: &str) -> anyhow::Result<PathBuf> {
        write_kubeconfig(self.dir(), &self.url(), name, "default", token)
    }

    /// Creates a namespace with labels `key=value`; one that is there already is left alone.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn create_namespace(&self, name: &str, labels: &[(&str, &str)]) -> anyhow::Result<()> {
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(name.to_owned());
        let labels: BTreeMap<String, String> =
            labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        namespace.metadata.labels = Some(labels);
        let namespaces: Api<Namespace> = Api::all(self.admin());
        match namespaces.create(&PostParams::default(), &namespace).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            other => other.map(drop).with_context(|| format!("namespace {name}")),
        }
    }

    /// Applies a text of manifests as the administrator, server-side and by force.
    ///
    /// # Errors
    /// When the text cannot be read or an object is refused; names the object.
    pub async fn apply(&self, manifests: &str) -> anyhow::Result<()> {
        for document in cozy_yaml::parse_documents(manifests, &cozy_yaml::Limits::default()) {
            self.apply_value(document?.value).await?;
        }
        Ok(())
    }

    /// Applies one object as the administrator, server-side and by force.
    ///
    /// # Errors
    /// When it is refused; names the object.
    pub async fn apply_value(&self, object: Value) -> anyhow::Result<DynamicObject> {
        apply_as(&self.admin, object, &PatchParams::apply("testenv").force()).await
    }

    /// Applies every YAML file of a directory.
    ///
    /// # Errors
    /// As [`Cluster::apply`]; names the file.
    pub async fn apply_dir(&self, dir: &Path) -> anyhow::Result<()> {
        let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
            .with_context(|| format!("cannot read {}", dir.display()))?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json"))
            .collect();
        files.sort();
        for file in files {
            let text = std::fs::read_to_string(&file)?;
            self.apply(&text).await.with_context(|| file.display().to_string())?;
        }
        Ok(())
    }

    /// Installs the CRDs of Cozystack (ours) and of Flux (the peers'), and waits until they are served. Quotas count them
    /// from then on.
    ///
    /// # Errors
    /// When one is missing or refused.
    pub async fn install_crds(&self) -> anyhow::Result<()> {
        for crd in cozy_api::crds() {
            self.apply_value(serde_json::to_value(crd)?).await?;
        }
        for part in ["source-controller", "kustomize-controller", "crds"] {
            self.apply_dir(&cache().join("crds").join(part)).await.context("run `make peers` once")?;
        }
        self.wait_for_crds().await?;
        // It looks for new kinds every 30 s, and counts those for quotas that it found at its start.
        let running = self.controller_manager.lock().ok().and_then(|mut process| process.take());
        if running.is_some() {
            drop(running);
            let started = self.start_controller_manager()?;
            if let Ok(mut process) = self.controller_manager.lock() {
                *process = Some(started);
            }
        }
        Ok(())
    }

    /// Waits until every CRD is served.
    ///
    /// # Errors
    /// When one is not in time.
    pub async fn wait_for_crds(&self) -> anyhow::Result<()> {
        let crds: Api<CustomResourceDefinition> = Api::all(self.admin());
        eventually("the CRDs to be served", async || {
            let list = crds.list(&kube::api::ListParams::default()).await?;
            let served = |crd: &CustomResourceDefinition| {
                let conditions = crd.status.iter().flat_map(|s| s.conditions.iter().flatten());
                conditions.clone().any(|c| c.type_ == "Established" && c.status == "True")
            };
            Ok(list.items.iter().all(served).then_some(()))
        })
        .await
    }

    /// Makes a Service lead to a port of this machine, as a pod's would: for webhooks and aggregated APIs.
    ///
    /// # Errors
    /// When the machine has no address but loopback, which Kubernetes refuses as an endpoint.
    pub async fn map_service(
        &self,
        namespace: &str,
        name: &str,
        port: u16,
        target: u16,
    ) -> anyhow::Result<()> {
        self.apply_value(json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "namespace": namespace, "name": name },
            "spec": { "ports": [{ "name": "https", "port": port, "targetPort": target }] },
        }))
        .await?;
        self.map_endpoint(namespace, name, "https", target).await
    }

    /// Makes a port of a Service that is there lead to a port of this machine, as a pod's would; each port of this
    /// machine is one endpoint more.
    ///
    /// # Errors
    /// When the machine has no address but loopback, which Kubernetes refuses as an endpoint.
    pub async fn map_endpoint(
        &self,
        namespace: &str,
        service: &str,
        port_name: &str,
        target: u16,
    ) -> anyhow::Result<()> {
        let address = host_address().context("this machine has no address besides loopback")?;
        self.apply_value(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "namespace": namespace, "name": format!("{service}-{target}"),
                "labels": { "kubernetes.io/service-name": service },
            },
            "addressType": if address.is_ipv4() { "IPv4" } else { "IPv6" },
            "endpoints": [{ "addresses": [address.to_string()], "conditions": { "ready": true } }],
            "ports": [{ "name": port_name, "port": target, "protocol": "TCP" }],
        }))
        .await?;
        Ok(())
    }

    /// Takes back what [`Cluster::map_endpoint`] did, as an endpoint goes when its pod is stopped.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn unmap_endpoint(&self, namespace: &str, service: &str, target: u16) -> anyhow::Result<()> {
        let name = format!("{service}-{target}");
        self.kubectl(&["delete", "endpointslice", "-n", namespace, &name, "--ignore-not-found"]).await?;
        Ok(())
    }

    /// Runs kubectl as the administrator and gives what it printed.
    ///
    /// # Errors
    /// When kubectl fails; the error holds what it said.
    pub async fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = tokio::process::Command::new(program("kubectl")?)
            .arg(format!("--kubeconfig={}", self.admin_kubeconfig()?.display()))
            .args(arguments)
            .output()
            .await?;
        if !output.status.success() {
            bail!("kubectl {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The audit log: one event per request, except the control plane's own.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn audit_log(&self) -> anyhow::Result<Vec<Value>> {
        let text = std::fs::read_to_string(self.dir().join("audit.log")).unwrap_or_default();
        // The last line may be half written.
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// Kills the API server.
    pub fn stop_apiserver(&self) {
        if let Ok(mut apiserver) = self.apiserver.lock() {
            drop(apiserver.take());
        }
    }

    /// Starts the API server again, with the data it had, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not come up, with the tail of its log.
    pub async fn start_apiserver(&self) -> anyhow::Result<()> {
        let mut command = Command::new(program("kube-apiserver")?);
        let mut process = self.supervisor.spawn("kube-apiserver", command.args(&self.apiserver_arguments))?;
        wait_ready(&self.admin, &mut [&mut process]).await?;
        if let Ok(mut apiserver) = self.apiserver.lock() {
            *apiserver = Some(process);
        }
        Ok(())
    }
}

/// `<name>.kubeconfig` in a cluster's directory.
pub(crate) fn write_kubeconfig(
    dir: &Path,
    url: &str,
    name: &str,
    namespace: &str,
    token: &str,
) -> anyhow::Result<PathBuf> {
    let path = dir.join(format!("{name}.kubeconfig"));
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": name, "namespace": namespace } }],
        "clusters": [{ "name": "test", "cluster": {
            "server": url,
            "certificate-authority": dir.join("ca.crt").display().to_string(),
        } }],
        "users": [{ "name": name, "user": { "token": token } }],
    });
    std::fs::write(&path, config.to_string())?;
    Ok(path)
}

/// Applies an object with any client.
///
/// # Errors
/// When it is refused; names the object.
pub async fn apply_as(
    client: &Client,
    object: Value,
    parameters: &PatchParams,
) -> anyhow::Result<DynamicObject> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (version, kind) = (text("/apiVersion"), text("/kind"));
    let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
    let (group, version) = version.split_once('/').unwrap_or(("", &version));
    let gvk = GroupVersionKind::gvk(group, version, &kind);
    let what = || format!("{kind} {namespace}/{name}");
    let (resource, capabilities) = kube::discovery::pinned_kind(client, &gvk).await.with_context(what)?;
    let api: Api<DynamicObject> = if capabilities.scope == kube::discovery::Scope::Namespaced {
        Api::namespaced_with(
            client.clone(),
            if namespace.is_empty() { "default" } else { &namespace },
            &resource,
        )
    } else {
        Api::all_with(client.clone(), &resource)
    };
    api.patch(&name, parameters, &Patch::Apply(&object)).await.with_context(what)
}

fn client(
    port: u16,
    ca: &[u8],
    token: &str,
    acting: Option<(String, Vec<String>)>,
) -> anyhow::Result<Client> {
    let mut config = Config::new(format!("https://127.0.0.1:{port}").parse()?);
    config.root_cert = Some(vec![ca.to_vec()]);
    config.auth_info.token = Some(token.to_owned().into());
    if let Some((user, groups)) = acting {
        config.auth_info.impersonate = Some(user);
        config.auth_info.impersonate_groups = Some(groups);
    }
    config.connect_timeout = Some(std::time::Duration::from_secs(5));
    Ok(Client::try_from(config)?)
}

async fn wait_ready(admin: &Client, parts: &mut [&mut Process]) -> anyhow::Result<()> {
    let deadline = tokio::time::Instant::now() + crate::PATIENCE;
    loop {
        for part in parts.iter_mut() {
            part.check()?;
        }
        let request = axum::http::Request::get("/readyz").body(Vec::new())?;
        if admin.request_text(request).await.is_ok() {
            return Ok(());
        }
        if tokio::time::Instant::now() > deadline {
            let tails: Vec<String> = parts.iter().map(|p| p.log_tail()).collect();
            bail!("the API server is not ready in time:\n{}", tails.join("\n"));
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// An address of this machine that is not loopback; nothing is sent to find it.
pub(crate) fn host_address() -> Option<IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|a| a.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

fn token() -> String {
    use std::hash::{BuildHasher as _, Hasher as _};
    let part = || std::collections::hash_map::RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", part(), part())
}
