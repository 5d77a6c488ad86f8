//! From the commit to the applied object: git trees that no git would write, artifacts changed on their way, commits
//! that nobody signed, history that is rewritten. What was good before stays.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod product;
mod surface;

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cozy_core::tenant::controller;
use cozy_testenv::{GitServer, Repository, eventually};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use product::{Stage, source};
use surface::{Surface, TENANT, api, bare, make};

fn redis(name: &str, replicas: u32) -> String {
    format!(
        "apiVersion: apps.cozystack.io/v1alpha1\nkind: Redis\nmetadata: {{name: {name}}}\nspec: {{replicas: {replicas}}}\n"
    )
}

/// Writes a git object as it is, whatever git thinks of it; its 20 bytes.
fn object(repository: &Repository, kind: &str, content: &[u8]) -> Vec<u8> {
    let mut git = Command::new("git")
        .args(["hash-object", "-t", kind, "-w", "--stdin", "--literally"])
        .current_dir(repository.work_tree())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    git.stdin.take().unwrap().write_all(content).unwrap();
    let output = git.wait_with_output().unwrap();
    assert!(output.status.success());
    let hex = String::from_utf8(output.stdout).unwrap();
    let hex = hex.trim();
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// Of a tree: mode, name, object.
type Entry<'a> = (&'a str, &'a str, &'a [u8]);

fn tree(repository: &Repository, entries: &[Entry<'_>]) -> Vec<u8> {
    let mut content = Vec::new();
    for (mode, name, id) in entries {
        content.extend_from_slice(format!("{mode} {name}\0").as_bytes());
        content.extend_from_slice(id);
    }
    object(repository, "tree", &content)
}

/// Pushes a tree as a branch.
async fn push(repository: &Repository, branch: &str, tree: &[u8]) {
    let hex: String = tree.iter().map(|byte| format!("{byte:02x}")).collect();
    let commit = repository.git(&["commit-tree", "-m", branch, &hex]).await.unwrap();
    let target = format!("{}:refs/heads/{branch}", commit.trim());
    repository.git(&["push", "-q", "origin", &target]).await.unwrap();
}

/// Branches with what git itself would not write, beside a directory `good` that is as it should be.
async fn odd(repository: &Repository) -> Vec<String> {
    let evil = object(repository, "blob", redis("evil", 1).as_bytes());
    let up = object(repository, "blob", b"../../../../../..");
    let passwd = object(repository, "blob", b"/etc/passwd");
    let modules =
        object(repository, "blob", b"[submodule \"sub\"]\n\tpath = sub\n\turl = http://169.254.169.254/x\n");
    let config = object(repository, "blob", b"[core]\n\tfsmonitor = \"touch evil.yaml\"\n");
    let in_tree = tree(repository, &[("100644", "evil.yaml", &evil)]);
    let git_dir = tree(repository, &[("100644", "config", &config)]);
    let long = "n".repeat(5000);
    let file = "100644";
    let branches: Vec<(&str, Vec<Entry<'_>>)> = vec![
        ("upwards", vec![("40000", "..", &in_tree)]),
        ("here", vec![("40000", ".", &in_tree)]),
        ("slash", vec![(file, "../../evil.yaml", &evil)]),
        ("absolute", vec![(file, "/tmp/evil.yaml", &evil)]),
        ("git-directory", vec![("40000", ".git", &git_dir)]),
        ("git-in-capitals", vec![("40000", ".GIT", &git_dir)]),
        ("git-in-short", vec![("40000", "GIT~1", &git_dir)]),
        ("link-and-directory", vec![("120000", "d", &up), ("40000", "d", &in_tree)]),
        ("directory-and-link", vec![("40000", "d", &in_tree), ("120000", "d", &up)]),
        ("link-under-a-file", vec![("120000", "d", &passwd), (file, "d", &evil)]),
        ("submodule", vec![(file, ".gitmodules", &modules), ("160000", "sub", &evil)]),
        ("device", vec![("20000", "device", &evil)]),
        ("no-mode", vec![("0", "nothing", &evil)]),
        ("long-name", vec![(file, &long, &evil)]),
        ("option", vec![(file, "-rf", &evil), (file, "--as=admin\n.yaml", &evil)]),
    ];
    let mut names = Vec::new();
    for (name, entries) in &branches {
        let blob = object(repository, "blob", redis(&format!("good-{name}"), 1).as_bytes());
        let good = tree(repository, &[(file, "a.yaml", &blob)]);
        // In git's order, or it would be the order that is refused.
        let mut all = [&entries[..], &[("40000", "good", &good[..])]].concat();
        all.sort_by_key(|(_, name, _)| *name);
        push(repository, name, &tree(repository, &all)).await;
        names.push((*name).to_owned());
    }
    // The same name twice where it is applied.
    let [first, second] = [1, 2].map(|n| object(repository, "blob", redis("good-twice", n).as_bytes()));
    let good = tree(repository, &[(file, "a.yaml", &first), (file, "a.yaml", &second)]);
    push(repository, "twice", &tree(repository, &[("40000", "good", &good)])).await;
    names.push("twice".to_owned());
    names
}

/// Every file of that name below a directory.
fn find(directory: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(find(&path, name));
        } else if path.file_name().is_some_and(|file| file == name) {
            found.push(path);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_trees_reach_nothing_and_stop_nobody() {
    let git = GitServer::start_plain().await.unwrap();
    let repository = git.repository("odd").await.unwrap();
    let names = odd(&repository).await;
    let innocent = git.repository("apps").await.unwrap();
    innocent.push(&[("a.yaml", &redis("good", 1))]).await.unwrap();
    let mut stage = Stage::start(Surface::plain().await, &[]).await;
    let [tenant, other] = [stage.surface.user("tenant").await, stage.surface.user("other-tenant").await];
    for name in &names {
        let of = [json!({ "ref": { "branch": name } }), json!({ "path": "good" })];
        source(&tenant, TENANT, name, repository.url(), of).await;
    }
    source(&other, "tenant-bar", "good", innocent.url(), [json!({}), json!({})]).await;
    stage.says("tenant-bar", "good", "True", "Applied").await;
    let mut applied = 0;
    for name in &names {
        let outcome = eventually(&format!("{name} to be judged"), async || {
            let ready = |object: Value| {
                let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
                conditions.into_iter().find(|c| c["type"] == "Ready" && c["status"] != "Unknown")
            };
            let fetched = stage.get("gitrepository", TENANT, name).await.and_then(ready);
            let applied = stage.get("kustomization", TENANT, name).await.and_then(ready);
            match (fetched, applied) {
                (Some(fetched), _) if fetched["status"] == "False" => Ok(Some(fetched)),
                (_, Some(applied))
                    if applied["status"] == "True" || applied["reason"] != "ArtifactFailed" =>
                {
                    Ok(Some(applied))
                }
                _ => Ok(None),
            }
        })
        .await
        .unwrap();
        eprintln!("{name}: {} {}", outcome["status"], outcome["message"]);
        // Refused with a word, or applied without what is odd.
        if outcome["status"] == "True" {
            applied += 1;
            assert!(stage.get("redis", TENANT, &format!("good-{name}")).await.is_some(), "{name}");
        } else {
            assert!(!outcome["message"].as_str().unwrap_or_default().is_empty(), "{name}");
        }
    }
    assert!(applied > 0);
    // Nothing but the good part became an object, and nothing was written beside the directories it belongs in.
    assert!(stage.get("redis", TENANT, "evil").await.is_none());
    let directory = stage.surface.cluster().dir().to_path_buf();
    assert_eq!(find(&directory, "evil.yaml"), Vec::<PathBuf>::new());
    assert!(!Path::new("/tmp/evil.yaml").exists());
    for archive in find_archives(&directory.join("artifacts").join("gitrepository").join(TENANT)) {
        for (path, kind) in entries(&archive) {
            assert!(
                !path.starts_with('/') && !path.split('/').any(|part| part == "..") && "05".contains(kind),
                "{}: {path} of type {kind}",
                archive.display()
            );
        }
    }
    let log = stage.kubelet.log(&controller(TENANT)).await;
    assert!(!log.contains("root:x:0") && !log.contains("panic"), "{log}");
    assert_eq!(stage.kubelet.restarts(&controller(TENANT)).await, 0);
    stage.flux.source_controller().check().unwrap();
    innocent.push(&[("a.yaml", &redis("good", 7))]).await.unwrap();
    eventually("the other tenant to go on", async || {
        let redis = stage.get("redis", "tenant-bar", "good").await.unwrap_or_default();
        Ok((redis["spec"]["replicas"] == 7).then_some(()))
    })
    .await
    .unwrap();
    stage.stop().await;
}

fn find_archives(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(find_archives(&path));
        } else if path.to_string_lossy().ends_with(".tar.gz") {
            found.push(path);
        }
    }
    assert!(!found.is_empty(), "no artifact in {}", directory.display());
    found
}

/// Path and type (tar's letter) of an archive's entries.
fn entries(archive: &Path) -> Vec<(String, char)> {
    let mut content = Vec::new();
    let file = std::fs::File::open(archive).unwrap();
    flate2::read::GzDecoder::new(file).read_to_end(&mut content).unwrap();
    tar::Archive::new(&content[..])
        .entries()
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            (path, char::from(entry.header().entry_type().as_byte()))
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_changed_on_its_way_is_not_applied() {
    let git = GitServer::start_plain().await.unwrap();
    let repository = git.repository("apps").await.unwrap();
    repository.push(&[("a.yaml", &redis("good", 1))]).await.unwrap();
    let stage = Stage::start(Surface::plain().await, &[]).await;
    let tenant = stage.surface.user("tenant").await;
    // Fetched once: source-controller, too, looks at what it stores, and would put it right.
    let seldom = json!({ "interval": "60m" });
    source(&tenant, TENANT, "apps", repository.url(), [seldom, json!({ "suspend": true })]).await;
    eventually("the artifact", async || {
        let object = stage.get("gitrepository", TENANT, "apps").await.unwrap_or_default();
        Ok((!object["status"]["artifact"].is_null()).then_some(()))
    })
    .await
    .unwrap();
    let directory = stage.surface.cluster().dir().join("artifacts/gitrepository").join(TENANT).join("apps");
    let archive = find_archives(&directory).remove(0);
    let genuine = std::fs::read(&archive).unwrap();
    // A valid archive that holds something else.
    let mut builder =
        tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default()));
    let text = redis("evil", 1);
    let mut header = tar::Header::new_gnu();
    header.set_size(text.len() as u64);
    header.set_mode(0o644);
    builder.append_data(&mut header, "a.yaml", text.as_bytes()).unwrap();
    let changed = builder.into_inner().unwrap().finish().unwrap();
    std::fs::write(&archive, changed).unwrap();
    let suspend = async |suspend: bool| {
        let patch = Patch::Merge(json!({ "spec": { "suspend": suspend } }));
        let kustomizations = api(&tenant, "Kustomization", Some(TENANT));
        kustomizations.patch("apps", &PatchParams::default(), &patch).await.unwrap();
    };
    suspend(false).await;
    stage.says(TENANT, "apps", "False", "digest").await;
    // Cut off on its way.
    std::fs::write(&archive, &genuine[..genuine.len() / 2]).unwrap();
    stage.says(TENANT, "apps", "False", "digest").await;
    for name in ["evil", "good"] {
        assert!(stage.get("redis", TENANT, name).await.is_none(), "{name}");
    }
    std::fs::write(&archive, &genuine).unwrap();
    stage.says(TENANT, "apps", "True", "Applied").await;
    assert!(stage.get("redis", TENANT, "good").await.is_some());
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unsigned_and_rewritten_history_leaves_what_was_good() {
    let git = GitServer::start_plain().await.unwrap();
    let repository = git.repository("apps").await.unwrap();
    // Commits that the fixture's author signed; gpg is not needed to look at them.
    let bundle = surface::repository("e2e/fixtures/signed/commits.bundle");
    repository.git(&["fetch", "-q", &bundle.display().to_string(), "refs/*:refs/fixture/*"]).await.unwrap();
    let go_to = async |target: &str| {
        repository
            .git(&["push", "-q", "--force", "origin", &format!("{target}:refs/heads/main")])
            .await
            .unwrap();
        repository.git(&["rev-parse", target]).await.unwrap().trim().to_owned()
    };
    let stage = Stage::start(Surface::plain().await, &[]).await;
    let tenant = stage.surface.user("tenant").await;
    let author = std::fs::read_to_string(surface::repository("e2e/fixtures/signed/author.asc")).unwrap();
    let mut keys = bare("Secret", Some(TENANT), "gitops-authors");
    keys["stringData"] = json!({ "author.asc": author });
    let secrets = api(&tenant, "Secret", Some(TENANT));
    make(&secrets, &PostParams::default(), &keys).await.unwrap();

    go_to("refs/fixture/tags/signed-1").await;
    let verify = json!({ "verify": { "mode": "HEAD", "secretRef": { "name": "gitops-authors" } } });
    source(&tenant, TENANT, "apps", repository.url(), [verify, json!({ "path": "good" })]).await;
    let replicas = async |wanted: u32| {
        eventually(&format!("{wanted} replicas"), async || {
            let redis = stage.get("redis", TENANT, "good").await.unwrap_or_default();
            anyhow::ensure!(redis["spec"]["replicas"] == wanted, "{}", redis["spec"]);
            Ok(Some(()))
        })
        .await
        .unwrap();
    };
    let repository_says = async |status: &str, contains: &str| {
        eventually(&format!("the repository to be {status}: {contains}"), async || {
            let object = stage.get("gitrepository", TENANT, "apps").await.unwrap_or_default();
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
            let fits = ready.is_some_and(|ready| {
                ready["status"] == status && ready["message"].as_str().unwrap_or_default().contains(contains)
            });
            anyhow::ensure!(fits, "{}", json!(conditions));
            Ok(Some(()))
        })
        .await
        .unwrap();
    };
    replicas(1).await;
    let second = go_to("refs/fixture/tags/signed-2").await;
    replicas(2).await;

    // On top of it somebody who has no key, with whoever's name.
    repository.git(&["checkout", "-q", "-f", "-B", "main", "refs/fixture/tags/signed-2"]).await.unwrap();
    repository.push(&[("good/a.yaml", &redis("good", 66))]).await.unwrap();
    repository_says("False", "signature").await;
    tokio::time::sleep(std::time::Duration::from_secs(6)).await;
    replicas(2).await;
    let object = stage.get("kustomization", TENANT, "apps").await.unwrap();
    let last = object["status"]["lastAppliedRevision"].as_str().unwrap_or_default().to_owned();
    assert!(last.ends_with(&second), "{last}");

    // The branch goes, and comes back.
    repository.git(&["push", "-q", "origin", ":refs/heads/main"]).await.unwrap();
    repository_says("False", "").await;
    tokio::time::sleep(std::time::Duration::from_secs(6)).await;
    replicas(2).await;
    // Back to an older commit, by force: signed, so the author's word. A fork of the history follows git, too.
    go_to("refs/fixture/tags/signed-1").await;
    repository_says("True", "stored artifact").await;
    replicas(1).await;
    let patch = Patch::Merge(json!({ "spec": { "verify": null } }));
    api(&tenant, "GitRepository", Some(TENANT)).patch("apps", &PatchParams::default(), &patch).await.unwrap();
    repository.git(&["checkout", "-q", "--orphan", "other"]).await.unwrap();
    repository.push(&[("good/a.yaml", &redis("good", 3))]).await.unwrap_err();
    let fork = repository.git(&["rev-parse", "HEAD"]).await.unwrap();
    go_to(fork.trim()).await;
    replicas(3).await;
    stage.stop().await;
}
