//! `cozy-dev up | down | status`: the control plane of the tests, for a person.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is what a command does")]

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use cozy_testenv::{Cluster, Flux, GitServer};
use serde_json::{Value, json};

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

/// Where the running one is written down.
fn directory() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
    let base = std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("cozy-gitops");
    std::env::var_os("COZY_GITOPS_CACHE").map_or(base, PathBuf::from).join("dev")
}

fn state() -> Option<Value> {
    let state: Value =
        serde_json::from_str(&std::fs::read_to_string(directory().join("state.json")).ok()?).ok()?;
    let pid = state["pid"].as_u64()?;
    PathBuf::from(format!("/proc/{pid}")).exists().then_some(state)
}

fn up() -> anyhow::Result<()> {
    if state().is_some() {
        return status();
    }
    std::fs::create_dir_all(directory())?;
    let log = directory().join("log");
    let out = File::create(&log)?;
    let mut server = Command::new(std::env::current_exe()?)
        .arg("serve")
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .process_group(0)
        .spawn()?;
    eprintln!("starting the control plane, Flux and a git server …");
    loop {
        if state().is_some() {
            return status();
        }
        if let Some(ended) = server.try_wait()? {
            bail!("it ended with {ended}:\n{}", std::fs::read_to_string(&log).unwrap_or_default());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn down() -> anyhow::Result<()> {
    let Some(state) = state() else {
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
    let text = |key: &str| state[key].as_str().unwrap_or_default().to_owned();
    println!(
        "A control plane with the CRDs of Cozystack and Flux runs, with Flux's controllers and a git server.\n\n\
         export KUBECONFIG={}\n\
         kubectl get crds\n\n\
         git repository (HTTPS, its certificate authority is in {}):\n  {}\n\n\
         `make down` stops it.",
        text("kubeconfig"),
        text("gitCa"),
        text("git")
    );
    Ok(())
}

#[tokio::main]
async fn serve() -> anyhow::Result<()> {
    let cluster = Cluster::start().await?;
    cluster.install_crds().await?;
    let _flux = Flux::start(&cluster).await?;
    let git = GitServer::start().await?;
    let repository = git.repository("platform").await?;
    repository.push(&[("README.md", "Push manifests here.\n")]).await?;
    let ca = cluster.dir().join("git-ca.crt");
    std::fs::write(&ca, git.ca_pem().context("an HTTPS server has one")?)?;
    let state = json!({
        "pid": std::process::id(),
        "kubeconfig": cluster.admin_kubeconfig()?.display().to_string(),
        "git": repository.url(),
        "gitCa": ca.display().to_string(),
    });
    let path = directory().join("state.json");
    std::fs::write(path.with_extension("new"), state.to_string())?;
    std::fs::rename(path.with_extension("new"), &path)?;
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let mut interrupt = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
