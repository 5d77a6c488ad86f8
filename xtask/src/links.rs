//! Links between the repository's Markdown pages.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::files;

/// Directories that hold no pages of ours.
const SKIPPED: [&str; 5] = ["target", "node_modules", ".git", "fuzz", "dist"];

fn pages(directory: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let entries =
        std::fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        // Not through a symlink: it may lead out of the repository.
        let kind = entry.file_type()?;
        if kind.is_dir() && !SKIPPED.iter().any(|skipped| entry.file_name() == *skipped) {
            pages(&path, found)?;
        } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    Ok(())
}

/// The lines of a page outside fenced code, with their numbers.
fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    page.lines().enumerate().filter_map(move |(index, line)| {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            return None;
        }
        (!fenced).then_some((index + 1, line))
    })
}

/// Targets of the inline links of a line; what is in backquotes is no link.
fn targets(line: &str) -> Vec<String> {
    let text: String = line.split('`').step_by(2).collect::<Vec<_>>().join("``");
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .filter_map(|(target, _)| target.split_whitespace().next().map(str::to_owned))
        .collect()
}

/// Anchors of a page's headings, as forges make them: lower case, spaces to dashes, punctuation dropped, and a
/// number behind one that is there already.
fn anchors(page: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for (_, line) in prose(page) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let slug: String = title
            .trim()
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let same = anchors.iter().filter(|known| **known == slug).count();
        anchors.push(if same == 0 { slug } else { format!("{slug}-{same}") });
    }
    anchors
}

/// What is wrong with a link of `page`, if anything.
fn problem(page: &Path, content: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let path = page.parent().unwrap_or(Path::new(".")).join(file);
    if !file.is_empty() && !path.exists() {
        return Some("there is no such file".to_owned());
    }
    let anchor = anchor?;
    let text = if file.is_empty() { content.to_owned() } else { std::fs::read_to_string(path).ok()? };
    (!anchors(&text).iter().any(|known| known == anchor))
        .then(|| format!("there is no heading for #{anchor}"))
}

/// Fails when a link of a page leads nowhere inside the repository. Links to other sites are not followed.
pub(crate) fn resolve() -> Result<()> {
    let root = files::root();
    let mut found = Vec::new();
    pages(&root, &mut found)?;
    found.sort();
    let mut problems = Vec::new();
    for page in &found {
        let content =
            std::fs::read_to_string(page).with_context(|| format!("cannot read {}", page.display()))?;
        let name = page.strip_prefix(&root).unwrap_or(page).display();
        for (line, text) in prose(&content) {
            for target in targets(text) {
                if let Some(problem) = problem(page, &content, &target) {
                    problems.push(format!("{name}:{line}: ({target}): {problem}"));
                }
            }
        }
    }
    if problems.is_empty() { Ok(()) } else { bail!(problems.join("\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_outside_code() {
        let page = "[a](a.md) and `[b](b.md)` and [c](c.md#x \"title\")\n```\n[d](d.md)\n```\n![e](e.png)\n";
        let found: Vec<String> = prose(page).flat_map(|(_, line)| targets(line)).collect();
        assert_eq!(found, ["a.md", "c.md#x", "e.png"]);
    }

    #[test]
    fn anchors_are_those_of_headings_outside_code() {
        let page = "# One, `two` & three\n```\n# no\n```\n## Same\n## Same\n#nospace\n";
        assert_eq!(anchors(page), ["one-two--three", "same", "same-1"]);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_a_problem() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("page.md");
        let content = "# Here\n";
        assert_eq!(problem(&page, content, "Cargo.toml"), None);
        assert_eq!(problem(&page, content, "#here"), None);
        assert_eq!(problem(&page, content, "https://example.org/x"), None);
        assert!(problem(&page, content, "missing.md").is_some());
        assert!(problem(&page, content, "#there").is_some());
    }
}
