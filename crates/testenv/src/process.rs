//! Processes that never outlive the test process.
//!
//! A [`Supervisor`] starts a watchdog: a shell that reads process groups from a pipe. The pipe closes when the
//! supervisor is dropped and also when the whole test process is killed; then the watchdog kills the groups and
//! removes the directory. So nothing is left behind after success, a panic, Ctrl-C or `kill -9`.

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, bail};

/// `-s KILL`: dash does not understand `-KILL --`.
const WATCHDOG: &str = r#"
trap '' INT TERM HUP
groups=
while read -r group; do groups="$groups $group"; done
for group in $groups; do kill -s KILL -- "-$group" 2>/dev/null; done
for try in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$1" 2>/dev/null && break; sleep 0.2; done
"#;

/// Path of a program that `make peers` built.
///
/// # Errors
/// When it is not there; the error says what to run.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let path = cache().join("bin").join(name);
    if !path.exists() {
        bail!("{} is not there; run `make peers` once", path.display());
    }
    Ok(path)
}

/// The cache that `make peers` fills: `$COZY_GITOPS_CACHE`, or `cozy-gitops` in the user's cache directory.
#[must_use]
pub fn cache() -> PathBuf {
    if let Some(dir) = std::env::var_os("COZY_GITOPS_CACHE") {
        return dir.into();
    }
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base =
        base.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache"));
    base.join("cozy-gitops")
}

/// Owns a directory and the processes that work in it.
#[derive(Clone)]
pub struct Supervisor {
    inner: Arc<Inner>,
}

struct Inner {
    dir: PathBuf,
    watchdog: Mutex<(Child, Option<ChildStdin>)>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Ok(mut watchdog) = self.watchdog.lock() {
            drop(watchdog.1.take());
            let _ = watchdog.0.wait();
        }
    }
}

impl Supervisor {
    /// A new directory (in memory where the machine has such a file system) with its watchdog.
    ///
    /// # Errors
    /// When the directory or the watchdog cannot be made.
    pub fn new(what: &str) -> anyhow::Result<Self> {
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() { shm.to_path_buf() } else { std::env::temp_dir() };
        let dir = tempfile::Builder::new().prefix(&format!("cozy-gitops-{what}-")).tempdir_in(base)?.keep();
        let mut watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .arg(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot start sh")?;
        let stdin = watchdog.stdin.take();
        Ok(Self { inner: Arc::new(Inner { dir, watchdog: Mutex::new((watchdog, stdin)) }) })
    }

    /// The directory; gone when the last clone of the supervisor is.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// Starts a process in a group of its own; what it prints goes to `<name>.log` in the directory.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(&self, name: &str, command: &mut Command) -> anyhow::Result<Process> {
        let log = self.dir().join(format!("{name}.log"));
        let out = File::options().create(true).append(true).open(&log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        if let Ok(mut watchdog) = self.inner.watchdog.lock()
            && let Some(stdin) = &mut watchdog.1
        {
            writeln!(stdin, "{}", child.id())?;
        }
        Ok(Process { name: name.to_owned(), child, log, _supervisor: self.clone() })
    }
}

/// A running process; killed when dropped.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    _supervisor: Supervisor,
}

impl Process {
    /// Fails with the tail of its log when it has ended.
    ///
    /// # Errors
    /// When the process is not running any more.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                bail!("{} ended with {status}; the end of its log:\n{}", self.name, self.log_tail())
            }
        }
    }

    /// The last lines of its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        tail(&self.log())
    }

    /// Its whole log.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by name, such as `TERM`, `KILL`, `STOP` or `CONT`, to the process and its children.
    ///
    /// # Errors
    /// When `kill` cannot be run.
    pub fn signal(&self, signal: &str) -> anyhow::Result<()> {
        Command::new("kill").args([&format!("-{signal}"), "--", &format!("-{}", self.id())]).output()?;
        Ok(())
    }

    /// Waits until it has ended by itself or by a signal.
    ///
    /// # Errors
    /// When the system refuses to tell.
    pub fn wait(&mut self) -> anyhow::Result<std::process::ExitStatus> {
        Ok(self.child.wait()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.signal("KILL");
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The last lines of a log.
#[must_use]
pub fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines.get(lines.len().saturating_sub(25)..).unwrap_or_default().join("\n")
}

/// Ports that nobody listens on now, for a program that has to be told where to listen. They lie below those that the
/// system gives to clients, so that only another caller at the same moment could take one before the program does.
///
/// # Errors
/// When none is found.
pub fn free_ports<const N: usize>() -> anyhow::Result<[u16; N]> {
    const OPEN: std::ops::Range<u16> = 10_000..32_000;
    let mut listeners = Vec::with_capacity(N);
    let mut ports = [0; N];
    for port in &mut ports {
        let random = RandomState::new();
        let listener = (0..100_u8)
            .find_map(|attempt| {
                let offset = random.hash_one(attempt) % u64::from(OPEN.end - OPEN.start);
                let candidate = OPEN.start + u16::try_from(offset).ok()?;
                std::net::TcpListener::bind(("127.0.0.1", candidate)).ok()
            })
            .context("no free port found")?;
        *port = listener.local_addr()?.port();
        listeners.push(listener);
    }
    Ok(ports)
}
