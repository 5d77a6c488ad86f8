//! A plan as a comment on a change.

use std::fmt::Write as _;

use cozy_core::plan::{Finding, Plan, ReleaseChange, Severity, What};

use crate::printer::{visible, visible_line};
use crate::text::{line_diff, one_line, shortened, summary};

/// The plan as Markdown.
pub(crate) fn plan(plan: &Plan) -> String {
    let mut out = format!("### {}\n", escaped(&summary(plan)));
    let findings = |severity: Severity| plan.findings.iter().filter(move |f| f.severity == severity);
    for (severity, title) in
        [(Severity::Error, "Errors"), (Severity::Warning, "Warnings"), (Severity::Info, "Notes")]
    {
        list(&mut out, title, findings(severity));
    }
    for change in &plan.releases {
        release(&mut out, change);
    }
    if !plan.objects.is_empty() {
        out.push_str("\n#### Other objects\n\n| | object | fields | file |\n| --- | --- | --- | --- |\n");
        for object in &plan.objects {
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} |",
                word(object.what),
                code(&object.id.to_string()),
                if object.pointers.is_empty() { String::new() } else { code(&shortened(&object.pointers)) },
                object.place.as_ref().map(|place| code(&place.to_string())).unwrap_or_default(),
            );
        }
    }
    out
}

fn word(what: What) -> &'static str {
    match what {
        What::Added => "added",
        What::Changed => "changed",
        What::Removed => "removed",
    }
}

fn list<'f>(out: &mut String, title: &str, findings: impl Iterator<Item = &'f Finding>) {
    let mut first = true;
    for finding in findings {
        if std::mem::take(&mut first) {
            let _ = write!(out, "\n#### {title}\n\n");
        }
        let about = [finding.object.as_deref(), finding.pointer.as_deref()];
        let about: Vec<String> = about.into_iter().flatten().map(code).collect();
        let place = finding
            .place
            .as_ref()
            .map(|place| format!(" ({})", code(&place.to_string())))
            .unwrap_or_default();
        let _ = writeln!(
            out,
            "- **{:?}** {}{place}: {}",
            finding.kind,
            about.join(" "),
            escaped(&finding.message)
        );
        if let Some(hint) = &finding.hint {
            match hint.split_once('\n') {
                Some((first, rest)) => {
                    let _ = writeln!(out, "  - {}\n", escaped(first));
                    fenced(out, "yaml", &visible(rest), "    ");
                }
                None => {
                    let _ = writeln!(out, "  - {}", escaped(hint));
                }
            }
        }
    }
}

fn release(out: &mut String, change: &ReleaseChange) {
    let name = format!("{}/{}", change.namespace, change.name);
    let _ = writeln!(
        out,
        "\n#### HelmRelease {} {}\n\nPackage {}, component {}\n",
        code(&name),
        word(change.what),
        code(&change.package),
        code(&change.component)
    );
    let mut lines = String::new();
    for value in &change.changes {
        let origin = if value.to.is_some() { &value.now } else { &value.was };
        let place = origin.place.as_ref().map(|place| format!("  # {place}")).unwrap_or_default();
        difference(&mut lines, &value.pointer, value.from.as_ref(), value.to.as_ref(), &visible_line(&place));
    }
    for field in &change.fields {
        difference(
            &mut lines,
            &field.pointer,
            field.from.as_ref(),
            field.to.as_ref(),
            "  # besides the values",
        );
    }
    if !lines.is_empty() {
        fenced(out, "diff", &lines, "");
    }
}

fn difference(
    out: &mut String,
    pointer: &str,
    from: Option<&serde_json::Value>,
    to: Option<&serde_json::Value>,
    note: &str,
) {
    let pointer = visible_line(if pointer.is_empty() { "(all)" } else { pointer });
    let long = [from, to].into_iter().flatten().any(|value| one_line(value).is_none());
    if long {
        let _ = writeln!(out, "@@ {pointer}{note} @@");
        for (sign, line) in line_diff(from, to) {
            let sign = if sign == '.' { ' ' } else { sign };
            let _ = writeln!(out, "{sign} {line}");
        }
        return;
    }
    let line = |value| one_line(value).unwrap_or_default();
    if let Some(from) = from {
        let note = if to.is_none() { note } else { "" };
        let _ = writeln!(out, "- {pointer}: {}{note}", line(from));
    }
    if let Some(to) = to {
        let _ = writeln!(out, "+ {pointer}: {}{note}", line(to));
    }
}

/// A block of text whose fence nothing in the text can close.
fn fenced(out: &mut String, language: &str, text: &str, indent: &str) {
    let fence = "`".repeat(longest_run(text).max(2) + 1);
    let _ = writeln!(out, "{indent}{fence}{language}");
    for line in text.lines() {
        let _ = writeln!(out, "{indent}{line}");
    }
    let _ = writeln!(out, "{indent}{fence}");
}

/// Inline code that nothing in the text can close, fit for a table.
fn code(text: &str) -> String {
    let text = visible_line(text).replace('|', "\\|");
    let fence = "`".repeat(longest_run(&text) + 1);
    if text.contains('`') { format!("{fence} {text} {fence}") } else { format!("{fence}{text}{fence}") }
}

fn longest_run(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or_default()
}

/// Prose in which nothing is markup.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in visible_line(text).chars() {
        if matches!(
            c,
            '\\' | '`' | '*' | '_' | '{' | '}' | '[' | ']' | '<' | '>' | '#' | '|' | '!' | '~' | '@'
        ) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_leave_its_place() {
        assert_eq!(code("a`b``c"), "``` a`b``c ```");
        assert_eq!(code("a|b"), "`a\\|b`");
        assert_eq!(escaped("<img> @team [x](y)"), "\\<img\\> \\@team \\[x\\](y)");
        let mut out = String::new();
        fenced(&mut out, "diff", "```\n# x", "");
        assert_eq!(out, "````diff\n```\n# x\n````\n");
    }
}
