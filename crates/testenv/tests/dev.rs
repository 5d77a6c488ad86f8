//! `cozy-dev`, as `make up` and `make down` run it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::process::{Command, Output};

use cozy_testenv::{Supervisor, program};

fn cozy_dev(directory: &Path, command: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cozy-dev"))
        .arg(command)
        .env("COZY_GITOPS_DEV", directory)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Stops it also when the test fails.
struct Running<'a>(&'a Path);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        cozy_dev(self.0, "down");
    }
}

#[test]
fn up_gives_a_working_control_plane_and_down_leaves_nothing() {
    let product = Path::new(env!("CARGO_BIN_EXE_cozy-dev")).with_file_name("cozy-gitops");
    if !product.exists() {
        // With `cargo test --package cozy-testenv` nothing else has built it.
        let built = Command::new(env!("CARGO")).args(["build", "--package", "cozy-gitops"]).status().unwrap();
        assert!(built.success() && product.exists(), "{}", product.display());
    }
    let scratch = Supervisor::new("dev").unwrap();
    let directory = scratch.dir().join("state");
    assert!(text(&cozy_dev(&directory, "status").stderr).contains("nothing runs; `make up` starts it"));

    let _running = Running(&directory);
    let up = cozy_dev(&directory, "up");
    assert!(up.status.success(), "{}", text(&up.stderr));
    assert!(text(&up.stderr).contains("starting etcd"), "it does not say what it is doing");
    let told = text(&up.stdout);
    assert_eq!(told.trim(), text(&cozy_dev(&directory, "up").stdout).trim(), "a second start is none");

    let after = |mark: &str| told.split(mark).nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    let kubeconfig = after("export KUBECONFIG=");
    let kubectl = |arguments: &[&str]| {
        let output =
            Command::new(program("kubectl").unwrap()).env("KUBECONFIG", &kubeconfig).args(arguments).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert!(kubectl(&["get", "packages"]).contains("storage:/autoDiskful/minutes"));

    // What it says to try.
    let admin = scratch.dir().join("admin");
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .args(["-c", "user.name=test", "-c", "user.email=test@example.org"])
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    };
    let admin = admin.to_str().unwrap();
    git(&["clone", "--quiet", &after("git clone "), admin]);
    let file = Path::new(admin).join("storage.yaml");
    let values = std::fs::read_to_string(&file).unwrap();
    assert!(values.contains("minutes: 10"));
    std::fs::write(&file, values.replace("minutes: 10", "minutes: 5")).unwrap();
    git(&["-C", admin, "commit", "--quiet", "-am", "faster"]);
    git(&["-C", admin, "push", "--quiet"]);
    let wait = ["wait", "helmrelease/storage", "-n", "cozy-storage", "--timeout=120s"];
    kubectl(&[&wait[..], &["--for=jsonpath={.spec.values.autoDiskful.minutes}=5"]].concat());

    // And as the tenant.
    let tenant = after("--kubeconfig ");
    let team = scratch.dir().join("team");
    let team = team.to_str().unwrap();
    git(&[
        "clone",
        "--quiet",
        told.split("git clone ").nth(2).unwrap().split_whitespace().next().unwrap(),
        team,
    ]);
    let file = Path::new(team).join("cache.yaml");
    let application = std::fs::read_to_string(&file).unwrap();
    assert!(application.contains("replicas: 2"));
    std::fs::write(&file, application.replace("replicas: 2", "replicas: 3")).unwrap();
    git(&["-C", team, "commit", "--quiet", "-am", "larger"]);
    git(&["-C", team, "push", "--quiet"]);
    let wait = ["wait", "redis/cache", "-n", "tenant-demo", "--timeout=120s"];
    kubectl(&[&wait[..], &["--for=jsonpath={.spec.replicas}=3"]].concat());
    let patch = told.split("tenant patch ").nth(1).unwrap().lines().next().unwrap();
    let arguments = patch.split_whitespace().map(|argument| argument.trim_matches('\''));
    let refused = Command::new(program("kubectl").unwrap())
        .args(["--kubeconfig", &tenant, "--namespace", "tenant-demo", "patch"])
        .args(arguments)
        .output()
        .unwrap();
    assert!(text(&refused.stderr).contains("[kustomization-target]"), "{}", text(&refused.stderr));

    let down = cozy_dev(&directory, "down");
    assert!(text(&down.stdout).contains("stopped; nothing is left behind"), "{}", text(&down.stderr));
    assert!(!directory.exists() && !Path::new(&kubeconfig).exists());
    assert!(text(&cozy_dev(&directory, "down").stdout).contains("nothing runs"));
}
