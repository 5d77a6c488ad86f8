//! `peers/build.sh`: the cache of the real parts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A small part that builds two programs.
const PART: &str = "age";

/// A build of the part into a cache of the test's own.
fn build(cache: &Path) -> Child {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../peers/build.sh"))
        .arg(PART)
        .env("COZY_GITOPS_CACHE", cache)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap()
}

fn succeeds(build: Child) -> String {
    let output = build.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    told
}

/// Finished builds, and those under way or broken off.
fn builds(cache: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let entries = std::fs::read_dir(cache.join("peers")).into_iter().flatten();
    let directories = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    directories.partition(|path| !path.file_name().unwrap().to_string_lossy().starts_with('.'))
}

fn works(cache: &Path) {
    for program in ["age", "age-keygen"] {
        let output = Command::new(cache.join("bin").join(program)).arg("--version").output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn two_builds_at_once_make_one() {
    let scratch = cozy_testenv::Supervisor::new("peers").unwrap();
    let cache = scratch.dir();
    let builds_at_once = [build(cache), build(cache)];
    let told: String = builds_at_once.map(succeeds).concat();
    assert_eq!(told.matches("building age").count(), 1, "{told}");
    let (finished, broken) = builds(cache);
    assert_eq!((finished.len(), broken.len()), (1, 0), "{finished:?} {broken:?}");
    works(cache);
    // What is there is not built again.
    assert_eq!(succeeds(build(cache)), "");
}

#[test]
fn an_interrupted_build_is_not_taken_for_a_finished_one() {
    let scratch = cozy_testenv::Supervisor::new("peers").unwrap();
    let cache = scratch.dir();
    let mut interrupted = build(cache);
    let deadline = Instant::now() + Duration::from_secs(120);
    while builds(cache).1.is_empty() {
        assert!(Instant::now() < deadline, "the build does not begin");
        std::thread::sleep(Duration::from_millis(2));
    }
    Command::new("kill").args(["-KILL", "--", &format!("-{}", interrupted.id())]).status().unwrap();
    assert!(!interrupted.wait().unwrap().success());
    let (finished, broken) = builds(cache);
    assert_eq!((finished.len(), broken.len()), (0, 1), "{finished:?} {broken:?}");
    assert!(!cache.join("bin").join(PART).exists());

    succeeds(build(cache));
    let (finished, broken) = builds(cache);
    assert_eq!((finished.len(), broken.len()), (1, 0), "{finished:?} {broken:?}");
    works(cache);
}
