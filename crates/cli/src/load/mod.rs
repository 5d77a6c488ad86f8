//! From files to objects: what Flux or kubectl would read, with the place of everything.

pub(crate) mod charts;
mod files;
pub(crate) mod git;
mod kustomize;

use std::io::Read as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use cozy_core::plan::{Finding, FindingKind, Object, Place, Severity};
use cozy_yaml::{Error, ErrorKind, Limits};

/// What was read.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub(crate) objects: Vec<Object>,
    pub(crate) findings: Vec<Finding>,
}

impl Loaded {
    /// Whether something could not be read, so that what is missing need not be gone.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Error)
    }

    /// Reads the documents of a file's content.
    fn documents(&mut self, bytes: &[u8], file: &Arc<str>) {
        for document in cozy_yaml::parse_bytes(bytes, &Limits::default()) {
            match document {
                Ok(document) => self.objects.extend(Object::from_document(document, file)),
                Err(error) => self.findings.push(unreadable_document(&error, bytes, file)),
            }
        }
    }

    fn unreadable(&mut self, path: &Arc<str>, message: impl std::fmt::Display) {
        let finding = Finding::new(FindingKind::UnreadableFile, Severity::Error, message.to_string());
        self.findings.push(finding.place(Place { file: Arc::clone(path), line: None }));
    }
}

/// Whose objects they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The platform's: read as kubectl reads a directory.
    Platform,
    /// A repository's: read as Flux reads it.
    Repository,
}

/// How files are named in the output: as the user named them, or by a revision for those that git gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    /// A directory, and what stands in its place.
    pub(crate) replaced: Option<(PathBuf, String)>,
}

impl Names {
    pub(crate) fn of(&self, path: &Path) -> Arc<str> {
        if let Some((root, name)) = &self.replaced
            && let Ok(rest) = path.strip_prefix(root)
        {
            return Arc::from(format!("{name}{}", rest.display()));
        }
        Arc::from(cleaned(path).display().to_string())
    }
}

/// The path without `.` and `a/..`, as written otherwise.
pub(crate) fn cleaned(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(out.components().next_back(), Some(Component::Normal(_))) => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    if out.as_os_str().is_empty() { PathBuf::from(".") } else { out }
}

/// Reads a file, a directory or, for `-`, standard input. `root` is how far up the repository reaches.
pub(crate) fn load(path: &Path, names: &Names, role: Role, root: Option<&Path>) -> Result<Loaded> {
    let mut out = Loaded::default();
    if role == Role::Repository && path == Path::new("-") {
        let bytes = read_all(std::io::stdin().lock()).context("cannot read standard input")?;
        out.documents(&bytes, &Arc::from("<stdin>"));
        return Ok(out);
    }
    let metadata = std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
    if metadata.is_dir() {
        let root = match (role, root) {
            (Role::Platform, _) => None,
            (Role::Repository, Some(root)) => Some(within(path, root)?),
            // Without git nobody else's change is being looked at.
            (Role::Repository, None) => git::work_tree(path),
        };
        files::Walk::new(names, role, root, &mut out).directory(path);
    } else {
        let name = names.of(path);
        // Whatever it is called, and also a pipe: it was named.
        match std::fs::File::open(path).map_err(anyhow::Error::from).and_then(|file| {
            if metadata.is_file() {
                Limits::default()
                    .check_length(metadata.len())
                    .map_err(|error| anyhow::anyhow!("{}", error.kind))?;
            }
            Ok(read_all(file)?)
        }) {
            Ok(bytes) => out.documents(&bytes, &name),
            Err(error) => out.unreadable(&name, format!("cannot be read: {error:#}")),
        }
    }
    Ok(out)
}

fn within(path: &Path, root: &Path) -> Result<PathBuf> {
    let root = root.canonicalize().with_context(|| format!("cannot read {}", root.display()))?;
    if !path.canonicalize()?.starts_with(&root) {
        bail!("{} is not below --repo-root {}", path.display(), root.display());
    }
    Ok(root)
}

/// Reads up to one byte more than is allowed, so that the reader of documents can refuse it.
pub(crate) fn read_all(from: impl std::io::Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(Limits::default().bytes as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a regular file of bounded size.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() {
        bail!("not a regular file");
    }
    Limits::default().check_length(metadata.len()).map_err(|error| anyhow::anyhow!("{}", error.kind))?;
    Ok(read_all(std::fs::File::open(path)?)?)
}

fn unreadable_document(error: &Error, bytes: &[u8], file: &Arc<str>) -> Finding {
    let text = String::from_utf8_lossy(bytes.get(..Limits::default().bytes).unwrap_or(bytes));
    let part = document_around(&text, error.position.line);
    let (kind, name) = guess(part);
    let message = match &error.kind {
        // These quote the text.
        ErrorKind::Syntax(_) | ErrorKind::Number(_) | ErrorKind::Tag { .. } if part.contains("Secret") => {
            "not valid YAML; what is wrong is not quoted, because this looks like a Secret".to_owned()
        }
        kind => kind.to_string(),
    };
    let mut finding = Finding::new(FindingKind::InvalidYaml, Severity::Error, message);
    finding.object = kind.map(|kind| format!("{kind}/{}", name.unwrap_or("?")));
    finding.place(Place { file: Arc::clone(file), line: Some(error.position.line) })
}

/// The document of a text that a line belongs to.
fn document_around(text: &str, line: usize) -> &str {
    let (mut start, mut offset) = (0, 0);
    for (index, content) in text.split_inclusive('\n').enumerate() {
        if content.starts_with("---") {
            if index + 1 > line {
                return text.get(start..offset).unwrap_or_default();
            }
            start = offset;
        }
        offset += content.len();
    }
    text.get(start..).unwrap_or_default()
}

/// Kind and name of an object in a text that is not valid, as far as its lines look like them.
fn guess(text: &str) -> (Option<&str>, Option<&str>) {
    let plain = |value: &'_ str| -> Option<String> {
        let value = value.trim().trim_matches(['"', '\'']);
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        (!value.is_empty() && value.len() < 254 && value.chars().all(fits)).then(|| value.to_owned())
    };
    let mut kind = None;
    let mut name = None;
    let mut in_metadata = false;
    for line in text.lines() {
        if let Some(value) = line.strip_prefix("kind:") {
            kind = kind.or_else(|| plain(value).map(|_| value.trim().trim_matches(['"', '\''])));
        }
        let inline = line.strip_prefix("metadata:").and_then(|rest| rest.split_once("name:"));
        if let Some((_, value)) = inline {
            let value = value.split([',', '}']).next().unwrap_or_default();
            name = name.or_else(|| plain(value).map(|_| value.trim().trim_matches(['"', '\''])));
        }
        match line.strip_prefix(' ').map(str::trim_start) {
            None => in_metadata = line.starts_with("metadata:") || (in_metadata && line.trim().is_empty()),
            Some(inner) if in_metadata => {
                if let Some(value) = inner.strip_prefix("name:") {
                    name = name.or_else(|| plain(value).map(|_| value.trim().trim_matches(['"', '\''])));
                }
            }
            Some(_) => {}
        }
    }
    (kind, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_of_a_broken_document_is_guessed() {
        let text = "kind: Secret\nmetadata:\n  name: one\n---\napiVersion: v1\nkind: 'ConfigMap'\nmetadata:\n  labels: {}\n  name: \"two\"\ndata: [\n";
        assert_eq!(guess(document_around(text, 3)), (Some("Secret"), Some("one")));
        assert_eq!(guess(document_around(text, 10)), (Some("ConfigMap"), Some("two")));
        assert_eq!(
            guess("metadata: {name: x}\nkind: Package\nspec:\n  name: y\n"),
            (Some("Package"), Some("x"))
        );
        assert_eq!(guess("kind: [\nspec:\n  name: y"), (None, None));
    }

    #[test]
    fn paths_are_named_without_detours() {
        let clean = |path: &str| cleaned(Path::new(path)).display().to_string();
        assert_eq!(clean("./a/./b/../c.yaml"), "a/c.yaml");
        assert_eq!(clean("../../a"), "../../a");
        assert_eq!(clean("a/.."), ".");
    }
}
