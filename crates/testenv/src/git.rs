//! A smart-HTTP git server on loopback: `git http-backend` behind a small HTTP server.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio_rustls::TlsAcceptor;

use crate::pki::Ca;
use crate::process::Supervisor;

/// A running git server; repositories and server are gone when it is dropped.
pub struct GitServer {
    supervisor: Supervisor,
    port: u16,
    ca_pem: Option<String>,
    task: tokio::task::JoinHandle<()>,
}

struct Shared {
    root: PathBuf,
    credentials: Option<String>,
}

impl GitServer {
    /// Over HTTPS, open to everybody.
    ///
    /// # Errors
    /// When it cannot listen.
    pub async fn start() -> anyhow::Result<Self> {
        Self::run(true, None).await
    }

    /// Over plain HTTP, open to everybody.
    ///
    /// # Errors
    /// When it cannot listen.
    pub async fn start_plain() -> anyhow::Result<Self> {
        Self::run(false, None).await
    }

    /// Over HTTPS, with basic authentication.
    ///
    /// # Errors
    /// When it cannot listen.
    pub async fn start_private(user: &str, password: &str) -> anyhow::Result<Self> {
        Self::run(true, Some((user, password))).await
    }

    async fn run(tls: bool, credentials: Option<(&str, &str)>) -> anyhow::Result<Self> {
        let supervisor = Supervisor::new("git")?;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let credentials = credentials.map(|(u, p)| {
            format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("{u}:{p}")))
        });
        let shared = Arc::new(Shared { root: supervisor.dir().to_path_buf(), credentials });
        let router = axum::Router::new()
            .fallback(serve)
            .with_state(shared)
            .layer(axum::extract::DefaultBodyLimit::disable());
        let (acceptor, ca_pem) = if tls {
            let ca = Ca::new("cozy-gitops test git")?;
            (Some(acceptor(&ca)?), Some(ca.pem()))
        } else {
            (None, None)
        };
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (router, acceptor) = (router.clone(), acceptor.clone());
                tokio::spawn(async move {
                    let service = TowerToHyperService::new(router);
                    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    // Who breaks off a connection breaks only that.
                    let _ = match acceptor {
                        Some(acceptor) => match acceptor.accept(stream).await {
                            Ok(stream) => builder.serve_connection(TokioIo::new(stream), service).await,
                            Err(_) => Ok(()),
                        },
                        None => builder.serve_connection(TokioIo::new(stream), service).await,
                    };
                });
            }
        });
        Ok(Self { supervisor, port, ca_pem, task })
    }

    /// The certificate authority of an HTTPS server, PEM: what goes into a GitRepository's `ca.crt`.
    #[must_use]
    pub fn ca_pem(&self) -> Option<&str> {
        self.ca_pem.as_deref()
    }

    /// Makes an empty repository with a work tree.
    ///
    /// # Errors
    /// When git fails.
    pub async fn repository(&self, name: &str) -> anyhow::Result<Repository> {
        let bare = self.supervisor.dir().join(format!("{name}.git"));
        let work = self.supervisor.dir().join(format!("{name}.work"));
        git(self.supervisor.dir(), &["init", "-q", "--bare", "-b", "main", &bare.display().to_string()])
            .await?;
        git(&bare, &["config", "http.receivepack", "true"]).await?;
        git(&bare, &["config", "receive.denyDeleteCurrent", "ignore"]).await?;
        git(self.supervisor.dir(), &["init", "-q", "-b", "main", &work.display().to_string()]).await?;
        git(&work, &["remote", "add", "origin", &bare.display().to_string()]).await?;
        let scheme = if self.ca_pem.is_some() { "https" } else { "http" };
        Ok(Repository { url: format!("{scheme}://127.0.0.1:{}/{name}.git", self.port), work })
    }
}

impl Drop for GitServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A repository on the server.
#[derive(Clone, Debug)]
pub struct Repository {
    url: String,
    work: PathBuf,
}

impl Repository {
    /// Where it is fetched from.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The work tree.
    #[must_use]
    pub fn work_tree(&self) -> &Path {
        &self.work
    }

    /// Writes files, commits everything and pushes; gives the commit.
    ///
    /// # Errors
    /// When git fails.
    pub async fn push(&self, files: &[(&str, &str)]) -> anyhow::Result<String> {
        for (name, content) in files {
            let path = self.work.join(name);
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)?;
            }
            std::fs::write(&path, content)?;
        }
        self.commit().await
    }

    /// Removes files, commits everything and pushes; gives the commit.
    ///
    /// # Errors
    /// When git fails.
    pub async fn remove(&self, files: &[&str]) -> anyhow::Result<String> {
        for name in files {
            std::fs::remove_file(self.work.join(name))?;
        }
        self.commit().await
    }

    /// Commits whatever the work tree holds and pushes it; gives the commit.
    ///
    /// # Errors
    /// When git fails.
    pub async fn commit(&self) -> anyhow::Result<String> {
        git(&self.work, &["add", "-A"]).await?;
        git(&self.work, &["commit", "-q", "--allow-empty", "-m", "change"]).await?;
        git(&self.work, &["push", "-q", "origin", "HEAD:main"]).await?;
        Ok(git(&self.work, &["rev-parse", "HEAD"]).await?.trim().to_owned())
    }

    /// Runs git in the work tree and gives what it printed.
    ///
    /// # Errors
    /// When git fails; the error holds what it said.
    pub async fn git(&self, arguments: &[&str]) -> anyhow::Result<String> {
        git(&self.work, arguments).await
    }
}

async fn git(dir: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git")
        .args(["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"])
        .args(arguments)
        .current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .output()
        .await
        .context("cannot run git")?;
    if !output.status.success() {
        bail!("git {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn acceptor(ca: &Ca) -> anyhow::Result<TlsAcceptor> {
    use rustls_pki_types::pem::PemObject as _;
    use rustls_pki_types::{CertificateDer, PrivateKeyDer};
    let leaf = ca.leaf("git", &["localhost", "git.example.org"], &[])?;
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(leaf.certificate.as_bytes())?],
                PrivateKeyDer::from_pem_slice(leaf.key.as_bytes())?,
            )?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn serve(
    State(shared): State<Arc<Shared>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let given = headers.get("authorization").and_then(|v| v.to_str().ok());
    if shared.credentials.is_some() && given != shared.credentials.as_deref() {
        return (StatusCode::UNAUTHORIZED, [("www-authenticate", "Basic realm=\"git\"")]).into_response();
    }
    match backend(&shared, &method, &uri, &headers, &body).await {
        Ok(response) => response,
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")).into_response(),
    }
}

/// One CGI call of `git http-backend`.
async fn backend(
    shared: &Shared,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    body: &Bytes,
) -> anyhow::Result<Response> {
    let header = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    let mut child = Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", &shared.root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("REQUEST_METHOD", method.as_str())
        .env("PATH_INFO", uri.path())
        .env("QUERY_STRING", uri.query().unwrap_or_default())
        .env("CONTENT_TYPE", header("content-type"))
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .env("HTTP_GIT_PROTOCOL", header("git-protocol"))
        .env("GIT_PROTOCOL", header("git-protocol"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut stdin = child.stdin.take().context("no stdin")?;
    let body = body.clone();
    let writer = tokio::spawn(async move {
        // The backend may answer without reading everything.
        let _ = stdin.write_all(&body).await;
    });
    let output = child.wait_with_output().await?;
    writer.await?;
    let end =
        output.stdout.windows(4).position(|w| w == b"\r\n\r\n").context("no header from git http-backend")?;
    let (head, rest) = output.stdout.split_at(end);
    let mut response = Response::new(Body::from(rest.get(4..).unwrap_or_default().to_vec()));
    for line in String::from_utf8_lossy(head).lines() {
        let Some((name, value)) = line.split_once(": ") else { continue };
        if name.eq_ignore_ascii_case("status") {
            let code = value.split(' ').next().unwrap_or_default();
            *response.status_mut() = code.parse().unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        } else {
            response.headers_mut().insert(HeaderName::try_from(name)?, HeaderValue::try_from(value)?);
        }
    }
    Ok(response)
}
