//! Wall time of `cozy-gitops plan` as a whole process: the platform's size (99 PackageSources, 77 Packages) with 50
//! PackageValues, and ten and a hundred times as much. Prints the shortest and the median of ten runs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    missing_docs
)]

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const RUNS: usize = 10;

fn main() {
    // `cargo test --benches` only wants to know that it starts.
    if std::env::args().any(|a| a == "--test") {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let build = Command::new(&cargo)
        .args(["build", "--release", "--package", "cozy-gitops", "--message-format=json-render-diagnostics"])
        .current_dir(&root)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(build.status.success());
    let messages = String::from_utf8(build.stdout).unwrap();
    let executable = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| message["executable"].as_str().map(str::to_owned))
        .find(|path| path.ends_with("cozy-gitops"))
        .expect("the binary");

    let real = root.join("../shared/data/golden/real-isp-full/input");
    println!("| platform | objects | min | median |\n|---|---|---|---|");
    if real.is_dir() {
        let repo = tempfile::tempdir().unwrap();
        std::fs::write(repo.path().join("values.yaml"), overrides(&names(&real), 50)).unwrap();
        row("Cozystack's own (isp-full)", 99 + 77 + 50, &executable, &real, repo.path());
    }
    for factor in [1, 10, 100] {
        let dir = tempfile::tempdir().unwrap();
        let (platform, repo) = (dir.path().join("platform"), dir.path().join("repo"));
        std::fs::create_dir_all(&platform).unwrap();
        std::fs::create_dir_all(&repo).unwrap();
        let packages: Vec<String> = (0..99 * factor).map(|i| format!("bench.p{i}")).collect();
        std::fs::write(platform.join("platform.yaml"), synthetic(&packages, 77 * factor)).unwrap();
        std::fs::write(repo.join("values.yaml"), overrides(&packages, 50 * factor)).unwrap();
        row(&format!("synthetic × {factor}"), (99 + 77 + 50) * factor, &executable, &platform, &repo);
    }
}

fn row(name: &str, objects: usize, executable: &str, platform: &Path, repo: &Path) {
    let mut times: Vec<Duration> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            let status = Command::new(executable)
                .args(["plan", "--output", "json", "--platform"])
                .arg(platform)
                .arg("--repo")
                .arg(repo)
                .stdout(Stdio::null())
                .status()
                .unwrap();
            assert_eq!(status.code(), Some(2), "{name}: the plan must find changes");
            start.elapsed()
        })
        .collect();
    times.sort();
    let milliseconds = |d: Duration| d.as_secs_f64() * 1000.0;
    println!(
        "| {name} | {objects} | {:.1} ms | {:.1} ms |",
        milliseconds(times[0]),
        milliseconds(times[RUNS / 2])
    );
}

/// Names of the Packages in a directory.
fn names(platform: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(platform.join("Package.yaml")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    lines
        .windows(2)
        .filter(|w| w[0] == "metadata:")
        .filter_map(|w| w[1].strip_prefix("  name: "))
        .map(str::to_owned)
        .collect()
}

fn overrides(packages: &[String], count: usize) -> String {
    let mut out = String::new();
    for name in packages.iter().take(count) {
        let component = name.rsplit('.').next().unwrap();
        write!(
            out,
            "---\napiVersion: cozystack.io/v1alpha1\nkind: PackageValues\nmetadata: {{name: {name}}}\nspec:\n  components:\n    \
             {component}:\n      values:\n        replicas: 3\n        resources: {{limits: {{memory: 1Gi, cpu: 500m}}}}\n        \
             image: {{tag: v1.2.3}}\n"
        )
        .unwrap();
    }
    out
}

fn synthetic(packages: &[String], installed: usize) -> String {
    let mut out = String::new();
    for (i, name) in packages.iter().enumerate() {
        let component = name.rsplit('.').next().unwrap();
        let depends = if i > 0 { format!("    dependsOn: [{}]\n", packages[i - 1]) } else { String::new() };
        write!(
            out,
            "---\napiVersion: cozystack.io/v1alpha1\nkind: PackageSource\nmetadata: {{name: {name}}}\nspec:\n  sourceRef: {{kind: \
             OCIRepository, name: cozystack-packages, namespace: cozy-system, path: /}}\n  variants:\n  - name: default\n{depends}    \
             components:\n    - name: {component}\n      path: system/{component}\n      install: {{namespace: cozy-{component}}}\n    \
             - name: {component}-crds\n      path: system/{component}-crds\n      install: {{namespace: cozy-{component}}}\n"
        )
        .unwrap();
        if i < installed {
            write!(
                out,
                "---\napiVersion: cozystack.io/v1alpha1\nkind: Package\nmetadata: {{name: {name}}}\nspec:\n  components:\n    \
                 {component}:\n      values: {{replicas: 2, resources: {{limits: {{memory: 512Mi}}}}, features: [a, b, c]}}\n"
            )
            .unwrap();
        }
    }
    out
}
