//! Kustomizations: built by kustomize itself, and traced back to the files that they were built from.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use cozy_core::plan::{Finding, FindingKind, Object, Place, Severity, Source, Text};
use cozy_yaml::{Limits, Positions};
use serde_json::Value;

use super::{Loaded, Names, read_file};

/// What kustomize takes for a kustomization, in its order.
const FILES: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];
/// Path of the program, instead of a search in PATH.
const VARIABLE: &str = "COZY_GITOPS_KUSTOMIZE";

/// The kustomization file of a directory.
pub(super) fn file_of(directory: &Path) -> Option<PathBuf> {
    FILES.iter().map(|name| directory.join(name)).find(|path| path.is_file())
}

/// Builds a kustomization and adds its objects.
pub(super) fn build(directory: &Path, names: &Names, root: Option<&Path>, out: &mut Loaded) {
    let mut scan = Scan { names, root, seen: HashSet::new(), texts: Vec::new(), leaves: false, out };
    let findings_before = scan.out.findings.len();
    scan.kustomization(directory);
    let (texts, leaves) = (scan.texts, scan.leaves);
    let place =
        Place { file: names.of(&file_of(directory).unwrap_or_else(|| directory.to_owned())), line: None };
    // What leads out of the repository is not built: it would be fetched, or read from this machine.
    let refused = out
        .findings
        .get(findings_before..)
        .unwrap_or_default()
        .iter()
        .any(|f| f.kind == FindingKind::RemoteBase);
    if refused {
        return;
    }
    match run(directory, leaves) {
        Ok(bytes) => {
            for document in cozy_yaml::parse_bytes(&bytes, &Limits::default()) {
                match document {
                    Ok(document) => {
                        for object in Object::from_document(document, &place.file) {
                            out.objects.push(traced(object, &texts));
                        }
                    }
                    Err(error) => out.findings.push(
                        Finding::new(
                            FindingKind::KustomizeFailed,
                            Severity::Error,
                            format!("what kustomize prints cannot be read: {}", error.kind),
                        )
                        .place(place.clone()),
                    ),
                }
            }
        }
        Err(finding) => out.findings.push(finding.place(place)),
    }
}

fn run(directory: &Path, leaves: bool) -> Result<Vec<u8>, Box<Finding>> {
    let failed =
        |message: String| Box::new(Finding::new(FindingKind::KustomizeFailed, Severity::Error, message));
    let Some((program, is_kubectl)) = program() else {
        return Err(Box::new(failed("this is a kustomization, and neither kustomize nor kubectl is there to build it".to_owned())
            .hint(format!("install kustomize (https://kubectl.docs.kubernetes.io/installation/kustomize/) or kubectl, or set {VARIABLE} to the path of one of them"))));
    };
    let mut command = Command::new(&program);
    command.arg(if is_kubectl { "kustomize" } else { "build" });
    // Flux loads files from anywhere in the artifact; kustomize alone only from below the kustomization.
    command.arg(if leaves {
        "--load-restrictor=LoadRestrictionsNone"
    } else {
        "--load-restrictor=LoadRestrictionsRootOnly"
    });
    command.arg(directory).stdin(Stdio::null());
    // Nothing is fetched, whatever was overlooked.
    command
        .env("GIT_ALLOW_PROTOCOL", "none")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env_remove("NO_PROXY")
        .env_remove("no_proxy");
    for variable in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
        command.env(variable, "http://127.0.0.1:1");
    }
    let output = command
        .output()
        .map_err(|error| failed(format!("cannot run {}: {error}", Path::new(&program).display())))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let text = String::from_utf8_lossy(&output.stderr);
    // kustomize may quote whole documents, Secrets included.
    let text = text.split("node contents:").next().unwrap_or_default();
    let text: String = text.trim().chars().take(2000).collect();
    Err(failed(format!("kustomize cannot build this: {text}")))
}

/// The program that builds kustomizations, and whether it is kubectl.
fn program() -> Option<(OsString, bool)> {
    if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        let is_kubectl =
            Path::new(&path).file_name().is_some_and(|name| name.to_string_lossy().starts_with("kubectl"));
        return Some((path, is_kubectl));
    }
    let path = std::env::var_os("PATH")?;
    [("kustomize", false), ("kubectl", true)].into_iter().find_map(|(name, is_kubectl)| {
        let found =
            std::env::split_paths(&path).map(|directory| directory.join(name)).find(|path| path.is_file())?;
        Some((found.into_os_string(), is_kubectl))
    })
}

/// A text that objects may have been made from.
struct Candidate {
    target: Target,
    text: Text,
}

/// Which objects a text speaks of; what is absent fits everything.
#[derive(Clone, Default)]
struct Target {
    kind: Option<String>,
    name: Option<String>,
}

impl Target {
    fn of(value: Option<&Value>) -> Self {
        let text = |key: &str| value?.get(key)?.as_str().map(str::to_owned);
        Self { kind: text("kind"), name: text("name") }
    }

    fn fits(&self, object: &Object) -> bool {
        self.kind.as_deref().is_none_or(|kind| kind == object.kind())
            && self.name.as_deref().is_none_or(|name| name == object.name())
    }
}

fn traced(mut object: Object, candidates: &[Candidate]) -> Object {
    let texts = candidates.iter().filter(|c| c.target.fits(&object)).map(|c| c.text.clone()).collect();
    object.source = Source::Built(texts);
    object
}

/// Reads the files that a kustomization names, bases first: to refuse what leads out of the repository, and to know
/// what stands where.
struct Scan<'a> {
    names: &'a Names,
    root: Option<&'a Path>,
    seen: HashSet<PathBuf>,
    texts: Vec<Candidate>,
    /// Whether a file is loaded from outside its kustomization's directory.
    leaves: bool,
    out: &'a mut Loaded,
}

impl Scan<'_> {
    fn kustomization(&mut self, directory: &Path) {
        let Ok(canonical) = directory.canonicalize() else { return };
        if !self.seen.insert(canonical) {
            return;
        }
        let Some(file) = file_of(directory) else { return };
        let name = self.names.of(&file);
        let bytes = match read_file(&file) {
            Ok(bytes) => bytes,
            Err(error) => return self.out.unreadable(&name, format!("cannot be read: {error:#}")),
        };
        let document = match cozy_yaml::parse_one(&bytes, &Limits::default()) {
            Ok(document) => document,
            Err(error) => return self.out.findings.push(super::unreadable_document(&error, &bytes, &name)),
        };
        let at = At { directory, file: &name, positions: &document.positions };
        let said = &document.value;
        for field in ["resources", "bases", "components"] {
            for (index, entry) in strings(said.get(field)) {
                self.resource(&at, &format!("/{field}/{index}"), entry);
            }
        }
        for (index, entry) in strings(said.get("patchesStrategicMerge")) {
            let pointer = format!("/patchesStrategicMerge/{index}");
            if entry.contains('\n') {
                self.inline(&at, &pointer, entry, &Target::default(), &bytes);
            } else {
                self.patch_file(&at, &pointer, entry, &Target::default());
            }
        }
        for field in ["patches", "patchesJson6902"] {
            for (index, patch) in said.get(field).and_then(Value::as_array).into_iter().flatten().enumerate()
            {
                let target = Target::of(patch.get("target"));
                if let Some(path) = patch.get("path").and_then(Value::as_str) {
                    self.patch_file(&at, &format!("/{field}/{index}/path"), path, &target);
                } else if let Some(text) = patch.get("patch").and_then(Value::as_str) {
                    self.inline(&at, &format!("/{field}/{index}/patch"), text, &target, &bytes);
                }
            }
        }
        self.other_files(&at, said);
    }

    /// Files that are not objects: they are only checked to be inside the repository.
    fn other_files(&mut self, at: &At<'_>, said: &Value) {
        for field in ["configMapGenerator", "secretGenerator"] {
            for (index, generator) in
                said.get(field).and_then(Value::as_array).into_iter().flatten().enumerate()
            {
                for list in ["files", "envs"] {
                    for (_, entry) in strings(generator.get(list)) {
                        let path = entry.split_once('=').map_or(entry, |(_, path)| path);
                        self.resolve(at, &format!("/{field}/{index}/{list}"), path, true);
                    }
                }
                if let Some(path) = generator.get("env").and_then(Value::as_str) {
                    self.resolve(at, &format!("/{field}/{index}/env"), path, true);
                }
            }
        }
        for field in ["crds", "configurations", "generators", "transformers", "validators"] {
            for (index, entry) in strings(said.get(field)) {
                if !entry.contains('\n') {
                    self.resolve(at, &format!("/{field}/{index}"), entry, true);
                }
            }
        }
        for (index, replacement) in
            said.get("replacements").and_then(Value::as_array).into_iter().flatten().enumerate()
        {
            if let Some(path) = replacement.get("path").and_then(Value::as_str) {
                self.resolve(at, &format!("/replacements/{index}/path"), path, true);
            }
        }
        if let Some(path) = said.pointer("/openapi/path").and_then(Value::as_str) {
            self.resolve(at, "/openapi/path", path, true);
        }
        // Their own configuration names files too, which is not looked into: they stay within kustomize's own bounds.
        if ["generators", "transformers", "validators"].iter().any(|field| said.get(field).is_some()) {
            self.leaves = false;
        }
    }

    fn resource(&mut self, at: &At<'_>, pointer: &str, entry: &str) {
        let Some(path) = self.resolve(at, pointer, entry, false) else { return };
        if path.is_dir() {
            return self.kustomization(&path);
        }
        self.check_leaves(at, &path);
        self.objects(&path);
    }

    /// The path that an entry names, when it is there and inside the repository.
    fn resolve(&mut self, at: &At<'_>, pointer: &str, entry: &str, file: bool) -> Option<PathBuf> {
        let path = at.directory.join(entry);
        let exists = path.exists();
        if is_remote(entry) && !exists || entry.contains("://") {
            let message = format!(
                "{entry} is not in the repository, and nothing is fetched; copy it into the repository"
            );
            self.refuse(at, pointer, message);
            return None;
        }
        // kustomize says what is missing.
        let canonical = path.canonicalize().ok()?;
        if self.root.is_some_and(|root| !canonical.starts_with(root)) {
            let message = format!("{entry} leads out of the repository; Flux has nothing there");
            self.refuse(at, pointer, message);
            return None;
        }
        if file {
            self.check_leaves(at, &path);
        }
        Some(super::cleaned(&path))
    }

    fn refuse(&mut self, at: &At<'_>, pointer: &str, message: String) {
        let place = Place { file: Arc::clone(at.file), line: Some(at.positions.nearest(pointer).line) };
        self.out.findings.push(Finding::new(FindingKind::RemoteBase, Severity::Error, message).place(place));
    }

    fn check_leaves(&mut self, at: &At<'_>, path: &Path) {
        let inside = matches!((path.canonicalize(), at.directory.canonicalize()), (Ok(path), Ok(directory)) if path.starts_with(&directory));
        self.leaves |= !inside;
    }

    fn objects(&mut self, path: &Path) {
        let name = self.names.of(path);
        let bytes = match read_file(path) {
            Ok(bytes) => bytes,
            Err(error) => return self.out.unreadable(&name, format!("cannot be read: {error:#}")),
        };
        for document in cozy_yaml::parse_bytes(&bytes, &Limits::default()) {
            match document {
                Ok(document) => {
                    self.document(document.value, &document.positions, &name, 0, &Target::default())
                }
                Err(error) => self.out.findings.push(super::unreadable_document(&error, &bytes, &name)),
            }
        }
    }

    fn patch_file(&mut self, at: &At<'_>, pointer: &str, entry: &str, target: &Target) {
        let Some(path) = self.resolve(at, pointer, entry, true) else { return };
        let name = self.names.of(&path);
        match read_file(&path) {
            Ok(bytes) => self.patch(&bytes, &name, 0, target),
            Err(error) => self.out.unreadable(&name, format!("cannot be read: {error:#}")),
        }
    }

    /// A patch inside the kustomization: known by line when it is a block (`patch: |`).
    fn inline(&mut self, at: &At<'_>, pointer: &str, text: &str, target: &Target, bytes: &[u8]) {
        let line = at.positions.nearest(pointer).line;
        let source = String::from_utf8_lossy(bytes);
        if source.lines().nth(line.saturating_sub(1)).is_some_and(|line| line.trim_end().contains(['|', '>']))
        {
            self.patch(text.as_bytes(), at.file, line, target);
        }
    }

    fn patch(&mut self, bytes: &[u8], name: &Arc<str>, lines_before: usize, target: &Target) {
        for document in cozy_yaml::parse_bytes(bytes, &Limits::default()) {
            let Ok(document) = document else { continue };
            match document.value {
                Value::Array(operations) => {
                    for (index, operation) in operations.into_iter().enumerate() {
                        let Some(path) = operation.get("path").and_then(Value::as_str) else { continue };
                        let Some(value) = operation.get("value") else { continue };
                        let at = path.to_owned();
                        let Some(positions) = document.positions.below(&format!("/{index}/value")) else {
                            continue;
                        };
                        let text = Text {
                            file: Arc::clone(name),
                            positions,
                            at,
                            lines_before,
                            value: Some(value.clone().into()),
                        };
                        self.texts.push(Candidate { target: target.clone(), text });
                    }
                }
                value => self.document(value, &document.positions, name, lines_before, target),
            }
        }
    }

    fn document(
        &mut self,
        value: Value,
        positions: &Positions,
        name: &Arc<str>,
        lines_before: usize,
        target: &Target,
    ) {
        let items = value
            .get("items")
            .and_then(Value::as_array)
            .filter(|_| value.get("kind").and_then(Value::as_str).is_some_and(|kind| kind.ends_with("List")));
        if let Some(items) = items {
            for (index, item) in items.iter().enumerate() {
                if let Some(positions) = positions.below(&format!("/items/{index}")) {
                    self.candidate(item.clone(), positions, name, lines_before, target);
                }
            }
            return;
        }
        self.candidate(value, positions.clone(), name, lines_before, target);
    }

    fn candidate(
        &mut self,
        value: Value,
        positions: Positions,
        name: &Arc<str>,
        lines_before: usize,
        target: &Target,
    ) {
        let own = Target {
            kind: value.get("kind").and_then(Value::as_str).map(str::to_owned),
            name: value.pointer("/metadata/name").and_then(Value::as_str).map(str::to_owned),
        };
        // A patch's `target` says more than the patch itself, whose name counts for nothing then.
        let target = if target.kind.is_some() || target.name.is_some() { target.clone() } else { own };
        let text = Text {
            file: Arc::clone(name),
            positions,
            at: String::new(),
            lines_before,
            value: Some(value.into()),
        };
        self.texts.push(Candidate { target, text });
    }
}

/// The kustomization that is being read.
struct At<'a> {
    directory: &'a Path,
    file: &'a Arc<str>,
    positions: &'a Positions,
}

fn strings(list: Option<&Value>) -> impl Iterator<Item = (usize, &str)> {
    list.and_then(Value::as_array)
        .into_iter()
        .flatten()
        .enumerate()
        .filter_map(|(i, v)| Some((i, v.as_str()?)))
}

/// Whether kustomize would fetch it: a URL, git's short form, or a host and a path.
fn is_remote(entry: &str) -> bool {
    let first = entry.split('/').next().unwrap_or_default();
    entry.contains("://")
        || entry.contains("?ref=")
        || entry.starts_with("git@")
        || entry.starts_with("git::")
        || (first.contains('.')
            && !matches!(first, "." | "..")
            && entry.contains('/')
            && !first.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_fetched_is_recognised() {
        for remote in [
            "https://example.org/x.yaml",
            "github.com/a/b?ref=v1",
            "git@example.org:a/b",
            "git::ssh://x",
            "example.org/a/b//c",
        ] {
            assert!(is_remote(remote), "{remote}");
        }
        for local in ["../base", "./a.yaml", "a.yaml", "packages/a.yaml", ".hidden/a.yaml"] {
            assert!(!is_remote(local), "{local}");
        }
    }
}
