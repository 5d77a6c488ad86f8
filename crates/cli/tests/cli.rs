//! The command as its user sees it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// kustomize as `make peers` built it; `None` (and a line that says so) when nobody did.
fn kustomize() -> Option<PathBuf> {
    let path = cozy_testenv::cache().join("bin/kustomize");
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: {} is not there; run `make peers`", path.display());
    None
}

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::cargo_bin("cozy-gitops").unwrap();
    command.current_dir(root()).env_remove("COZY_GITOPS_KUSTOMIZE").args(arguments);
    if let Some(kustomize) = kustomize() {
        command.env("COZY_GITOPS_KUSTOMIZE", kustomize);
    }
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The JSON plan, which always fits the documented schema.
fn report(output: &Output) -> Value {
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&output.stdout)));
    let schema = std::fs::read_to_string(root().join("docs/plan.schema.json")).unwrap();
    let validator = jsonschema::validator_for(&serde_json::from_str(&schema).unwrap()).unwrap();
    let errors: Vec<String> =
        validator.iter_errors(&report).map(|e| format!("{}: {e}", e.instance_path())).collect();
    assert!(errors.is_empty(), "{}", errors.join("\n"));
    report
}

/// A repository of these files, planned against the example's platform.
fn plan(files: &[(&str, &str)], more: &[&str]) -> (Output, tempfile::TempDir) {
    let repo = tempfile::tempdir().unwrap();
    for (name, content) in files {
        std::fs::write(repo.path().join(name), content).unwrap();
    }
    let directory = repo.path().to_str().unwrap().to_owned();
    let mut arguments = vec!["plan", "--platform", "examples/platform", "--repo", &directory];
    arguments.extend_from_slice(more);
    (run(&arguments), repo)
}

fn values(name: &str, component: &str, values: &Value) -> String {
    json!({"apiVersion": "cozystack.io/v1alpha1", "kind": "PackageValues", "metadata": {"name": name},
           "spec": {"components": {component: {"values": values}}}})
    .to_string()
}

const PRODUCTION: [&str; 7] = [
    "plan",
    "--platform",
    "examples/platform",
    "--charts",
    "examples/charts",
    "--repo",
    "examples/admin/environments/production",
];
const JSON: [&str; 2] = ["--output", "json"];

#[test]
fn the_example_plans_with_file_and_line_behind_every_value() {
    if kustomize().is_none() {
        return;
    }
    let output = run(&PRODUCTION);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    for line in [
        "/autoDiskful/minutes: 30 → 10",
        "examples/admin/base/values/storage.yaml:9",
        "examples/admin/environments/production/ingress.yaml:8",
        "company-base",
        "UnknownKey",
        "PriorityClass/platform-critical",
    ] {
        assert!(shown.contains(line), "{line} is not in:\n{shown}");
    }
    assert!(!shown.contains("alpine") && shown.contains("ubuntu"), "the list was merged:\n{shown}");
    assert!(!shown.contains('\u{1b}'), "no colours in a pipe");
    let report = report(&run(&[&PRODUCTION[..], &JSON].concat()));
    let storage = report["helmReleases"].as_array().unwrap().iter().find(|r| r["name"] == "storage").unwrap();
    assert_eq!((&storage["changes"][0]["from"], &storage["changes"][0]["line"]), (&json!(30), &json!(9)));
    let markdown = run(&[&PRODUCTION[..], &["--output", "markdown"]].concat());
    assert!(text(&markdown.stdout).contains("```diff"));
}

#[test]
fn two_environments_differ_in_what_only_one_of_them_sets() {
    if kustomize().is_none() {
        return;
    }
    let output = run(&[&PRODUCTION[..], &["--base", "examples/admin/environments/staging"], &JSON].concat());
    assert_eq!(output.status.code(), Some(2));
    let names: Vec<_> =
        report(&output)["helmReleases"].as_array().unwrap().iter().map(|r| r["name"].clone()).collect();
    assert_eq!(names, ["ingress", "storage"]);
    let same = run(&[&PRODUCTION[..], &["--base", "examples/admin/environments/production"]].concat());
    assert_eq!(same.status.code(), Some(0), "{}", text(&same.stdout));
}

#[test]
fn an_empty_repository_changes_nothing() {
    let (output, _repo) = plan(&[("README.md", "nothing")], &[]);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn what_has_no_effect_is_listed() {
    let orphan = values("nope", "x", &json!({"a": 1}));
    let typo = values("cozystack.storage", "storge", &json!({"a": 1}));
    let (output, _repo) = plan(&[("a.yaml", &orphan), ("b.yaml", &typo)], &JSON);
    assert_eq!(output.status.code(), Some(0));
    let findings = report(&output)["findings"].to_string();
    for word in ["OrphanPackageValues", "UnknownComponent", "did you mean"] {
        assert!(findings.contains(word), "{word}: {findings}");
    }
}

#[test]
fn a_replaced_list_says_how_many_entries_it_drops() {
    let images = values("cozystack.vm-images", "images", &json!({"images": [{"name": "mine"}]}));
    let (output, _repo) = plan(&[("a.yaml", &images)], &["--charts", "examples/charts", "--output", "json"]);
    let report = report(&output);
    let finding = report["findings"].as_array().unwrap().iter().find(|f| f["kind"] == "ListReplaced");
    assert!(finding.expect("told")["message"].as_str().unwrap().contains('3'), "{report}");
}

#[test]
fn a_manifest_that_takes_a_package_by_force_is_told() {
    let package = json!({"apiVersion": "cozystack.io/v1alpha1", "kind": "Package",
                         "metadata": {"name": "cozystack.storage"},
                         "spec": {"components": {"storage": {"values": {"replicas": 5}}}}});
    let (output, _repo) = plan(&[("a.yaml", &package.to_string())], &[]);
    let shown = text(&output.stdout);
    assert!(shown.contains("PackageValues") && shown.to_lowercase().contains("force"), "{shown}");
}

#[test]
fn bad_input_is_told_and_the_rest_is_planned() {
    let good = values("cozystack.storage", "storage", &json!({"replicas": 5}));
    let wrong = "apiVersion: cozystack.io/v1alpha1\nkind: PackageValues\nmetadata: {name: cozystack.ingress}\nspec: {components: 5}\n";
    for (bad, word) in [
        ("a: [", "bad.yaml"),
        ("a: 1\na: 2\n", "already set"),
        ("- 1\n- 2\n", "bad.yaml"),
        (wrong, "components"),
    ] {
        let (output, _repo) = plan(&[("good.yaml", &good), ("bad.yaml", bad)], &JSON);
        assert_eq!(output.status.code(), Some(1), "{bad}: {}", text(&output.stdout));
        let report = report(&output);
        assert!(report["findings"].to_string().contains(word), "{bad}: {}", report["findings"]);
        assert_eq!(report["helmReleases"][0]["changes"][0]["to"], 5, "{bad}: the rest is planned");
    }
    let twice = format!("{good}\n---\n{}", good.replace('5', "6"));
    let (output, _repo) = plan(&[("twice.yaml", &twice)], &JSON);
    assert_eq!(output.status.code(), Some(1));
    assert!(report(&output)["findings"].to_string().contains("twice.yaml"));
}

#[test]
fn files_that_cannot_be_read_are_told() {
    let good = values("cozystack.storage", "storage", &json!({"replicas": 5}));
    let (_, repo) = plan(&[("good.yaml", &good)], &[]);
    std::fs::write(repo.path().join("latin.yaml"), b"a: \xe9\n").unwrap();
    std::fs::File::create(repo.path().join("huge.yaml")).unwrap().set_len(100 << 20).unwrap();
    std::os::unix::fs::symlink(".", repo.path().join("loop")).unwrap();
    let directory = repo.path().to_str().unwrap();
    let output =
        run(&[&["plan", "--platform", "examples/platform", "--repo", directory], &JSON[..]].concat());
    assert_eq!(output.status.code(), Some(1));
    let report = report(&output);
    for file in ["latin.yaml", "huge.yaml", "loop"] {
        assert!(report["findings"].to_string().contains(file), "{file}: {}", report["findings"]);
    }
    assert_eq!(report["helmReleases"][0]["changes"][0]["to"], 5);
}

#[test]
fn nothing_of_a_secret_is_ever_printed() {
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: d}\nstringData: {password: hunter2}\ndata: {token: aHVudGVyMg==}\n";
    let sops = "apiVersion: v1\nkind: Secret\nmetadata: {name: t, namespace: d}\ndata: {a: 'ENC[AES256_GCM,data:hunter2]'}\nsops: {mac: x}\n";
    let broken = "apiVersion: v1\nkind: Secret\nmetadata: {name: u}\nstringData: {password: hunter2\n";
    for format in ["text", "json", "markdown"] {
        let files = [("a.yaml", secret), ("b.yaml", sops), ("c.yaml", broken)];
        let (output, _repo) = plan(&files, &["--output", format]);
        let all = text(&output.stdout) + &text(&output.stderr);
        assert!(!all.contains("hunter2") && !all.contains("aHVudGVyMg"), "{format}: {all}");
        assert!(all.contains("Secret"), "{all}");
    }
}

#[test]
fn a_revision_of_git_can_be_the_base() {
    let before = values("cozystack.storage", "storage", &json!({"replicas": 5}));
    let (_, repo) = plan(&[("a.yaml", &before)], &[]);
    for arguments in [&["init", "-q"][..], &["add", "-A"], &["commit", "-q", "-m", "one"]] {
        let identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"];
        let git = std::process::Command::new("git")
            .args(identity)
            .args(arguments)
            .current_dir(repo.path())
            .output();
        assert!(git.unwrap().status.success());
    }
    std::fs::write(repo.path().join("a.yaml"), before.replace('5', "6")).unwrap();
    let directory = repo.path().to_str().unwrap();
    let output = run(&[
        "plan",
        "--platform",
        "examples/platform",
        "--repo",
        directory,
        "--base-git",
        "HEAD",
        "--output",
        "json",
    ]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    let change = report(&output)["helmReleases"][0]["changes"][0].clone();
    assert_eq!((&change["from"], &change["to"]), (&json!(5), &json!(6)));
}

#[test]
fn standard_input_is_a_repository_too() {
    let mut command = Command::cargo_bin("cozy-gitops").unwrap();
    command.current_dir(root()).args(["plan", "--platform", "examples/platform", "--repo", "-"]);
    let output = command
        .write_stdin(values("cozystack.storage", "storage", &json!({"replicas": 5})))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stdout).contains("/replicas: 3 → 5"));
}

#[test]
fn wrong_use_is_an_error_on_standard_error() {
    for arguments in
        [&["plan", "--repo", "x"][..], &["plan", "--platform", "/nope", "--repo", "x"], &["nonsense"]]
    {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
    assert_eq!(run(&["--help"]).status.code(), Some(0));
}

#[test]
fn render_prints_one_sorted_list() {
    let output = run(&[
        "render",
        "--platform",
        "examples/platform",
        "--output",
        "json",
        "--helmrelease-interval",
        "90s",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list["kind"], "List");
    let items = list["items"].as_array().unwrap();
    let key = |i: &Value| {
        [&i["kind"], &i["metadata"]["namespace"], &i["metadata"]["name"]]
            .map(|v| v.as_str().unwrap_or_default().to_owned())
    };
    assert!(items.is_sorted_by_key(key));
    let release = items.iter().find(|i| i["kind"] == "HelmRelease").unwrap();
    assert_eq!(release["spec"]["interval"], "1m30s");
}

#[test]
fn the_real_platform_renders_like_the_go_operator() {
    let golden = root().join("../shared/data/golden/real-isp-full");
    if !golden.is_dir() {
        eprintln!("skipped: {} is not there", golden.display());
        return;
    }
    let input = golden.join("input");
    let output = run(&["render", "--platform", input.to_str().unwrap(), "--output", "json"]);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let recorded = std::fs::read_to_string(golden.join("output/01-all/helmreleases.json")).unwrap();
    let recorded: Vec<Value> = serde_json::from_str(&recorded).unwrap();
    let ours: Vec<&Value> =
        list["items"].as_array().unwrap().iter().filter(|i| i["kind"] == "HelmRelease").collect();
    assert_eq!(ours.len(), recorded.len());
    for theirs in recorded {
        let id = |o: &Value| (o["metadata"]["namespace"].clone(), o["metadata"]["name"].clone());
        let ours = ours.iter().find(|o| id(o) == id(&theirs)).unwrap();
        assert_eq!(ours["spec"], theirs["spec"]);
    }
}
