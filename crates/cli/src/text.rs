//! A plan for people.

use std::fmt::Write as _;

use anstyle::Style;
use cozy_core::plan::{
    Finding, ObjectChange, Origin, Plan, ReleaseChange, Severity, ValueChange, ValueLayer, What,
};
use serde_json::Value;
use similar::TextDiff;

use crate::printer::{ADDED, CHANGED, ERROR, FAINT, INFO, REMOVED, STRONG, WARNING, visible, visible_line};

/// Longest value that is shown on one line, in characters.
const LINE: usize = 72;
/// Lines of a long value that are shown at most.
const LINES: usize = 200;

/// The plan as text, with colours.
pub(crate) fn plan(plan: &Plan) -> String {
    let mut out = String::new();
    for change in &plan.releases {
        release(&mut out, change);
    }
    objects(&mut out, &plan.objects);
    findings(&mut out, &plan.findings);
    out.push_str(&summary(plan));
    out.push('\n');
    out
}

/// Sign and style of a change.
fn sign(what: What) -> (char, Style) {
    match what {
        What::Added => ('+', ADDED),
        What::Changed => ('~', CHANGED),
        What::Removed => ('-', REMOVED),
    }
}

fn release(out: &mut String, change: &ReleaseChange) {
    let (sign, style) = sign(change.what);
    let name = visible_line(&format!("{}/{}", change.namespace, change.name));
    let from = visible_line(&format!("Package {}, component {}", change.package, change.component));
    let _ =
        writeln!(out, "{style}{sign}{style:#} {STRONG}HelmRelease {name}{STRONG:#} {FAINT}({from}){FAINT:#}");
    for change in &change.changes {
        value(out, change);
    }
    if !change.fields.is_empty() {
        let _ = writeln!(out, "    {FAINT}besides its values:{FAINT:#}");
    }
    for field in &change.fields {
        difference(out, &field.pointer, field.from.as_ref(), field.to.as_ref(), "");
    }
    out.push('\n');
}

fn value(out: &mut String, change: &ValueChange) {
    let note = match (&change.to, &change.now) {
        (Some(_), origin) => note(origin, ""),
        (None, _) => format!("{}; now the chart's default", note(&change.was, "was ")),
    };
    difference(out, &change.pointer, change.from.as_ref(), change.to.as_ref(), &note);
}

/// Where a value comes from, in a few words.
fn note(origin: &Origin, prefix: &str) -> String {
    let layer = match origin.layer {
        Some(ValueLayer::Package) => "Package",
        Some(ValueLayer::PackageValues) => "PackageValues",
        None => return String::new(),
    };
    match &origin.place {
        Some(place) => format!("{prefix}{layer} {place}"),
        None => format!("{prefix}{layer}, file unknown"),
    }
}

fn difference(out: &mut String, pointer: &str, from: Option<&Value>, to: Option<&Value>, note: &str) {
    let pointer = visible_line(if pointer.is_empty() { "(all)" } else { pointer });
    let note =
        if note.is_empty() { String::new() } else { format!("  {FAINT}# {}{FAINT:#}", visible_line(note)) };
    let (from_line, to_line) = (from.map(one_line), to.map(one_line));
    match (from, to) {
        (None, Some(_)) => match to_line.flatten() {
            Some(to) => {
                let _ = writeln!(out, "    {ADDED}+ {pointer}: {to}{ADDED:#}{note}");
            }
            None => {
                let _ = writeln!(out, "    {ADDED}+ {pointer}:{ADDED:#}{note}");
                block(out, from, to);
            }
        },
        (Some(_), None) => match from_line.flatten() {
            Some(from) => {
                let _ = writeln!(out, "    {REMOVED}- {pointer}: {from}{REMOVED:#}{note}");
            }
            None => {
                let _ = writeln!(out, "    {REMOVED}- {pointer}:{REMOVED:#}{note}");
                block(out, from, to);
            }
        },
        _ => match (from_line.flatten(), to_line.flatten()) {
            (Some(from), Some(to)) => {
                let _ = writeln!(
                    out,
                    "    {CHANGED}~{CHANGED:#} {pointer}: {REMOVED}{from}{REMOVED:#} → {ADDED}{to}{ADDED:#}{note}"
                );
            }
            _ => {
                let _ = writeln!(out, "    {CHANGED}~{CHANGED:#} {pointer}:{note}");
                block(out, from, to);
            }
        },
    }
}

/// The value on one line, when it fits.
pub(crate) fn one_line(value: &Value) -> Option<String> {
    let is_short = match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.chars().count() <= LINE && !text.contains('\n'),
        _ => true,
    };
    is_short.then(|| visible_line(&value.to_string()))
}

/// The value as lines of YAML.
pub(crate) fn lines(value: Option<&Value>) -> String {
    value
        .map(|value| match cozy_yaml::to_yaml(value) {
            Ok(text) => text,
            Err(_) => format!("{value}\n"),
        })
        .unwrap_or_default()
}

/// Lines that differ, with three lines round them, each with its sign.
pub(crate) fn line_diff(from: Option<&Value>, to: Option<&Value>) -> Vec<(char, String)> {
    let (from, to) = (lines(from), lines(to));
    let diff = TextDiff::from_lines(&from, &to);
    let mut out = Vec::new();
    for (index, group) in diff.grouped_ops(3).iter().enumerate() {
        if index > 0 {
            out.push(('.', "…".to_owned()));
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let sign = match change.tag() {
                similar::ChangeTag::Delete => '-',
                similar::ChangeTag::Insert => '+',
                similar::ChangeTag::Equal => ' ',
            };
            out.push((sign, visible(change.value().trim_end_matches('\n'))));
        }
    }
    let more = out.len().saturating_sub(LINES);
    if more > 0 {
        out.truncate(LINES);
        out.push(('.', format!("… {more} more lines")));
    }
    out
}

fn block(out: &mut String, from: Option<&Value>, to: Option<&Value>) {
    for (sign, line) in line_diff(from, to) {
        let style = match sign {
            '+' => ADDED,
            '-' => REMOVED,
            '.' => {
                let _ = writeln!(out, "        {FAINT}{line}{FAINT:#}");
                continue;
            }
            _ => Style::new(),
        };
        let _ = writeln!(out, "      {style}{sign} {line}{style:#}");
    }
}

fn objects(out: &mut String, changes: &[ObjectChange]) {
    if changes.is_empty() {
        return;
    }
    let _ = writeln!(out, "{STRONG}Other objects{STRONG:#}");
    for change in changes {
        let (sign, style) = sign(change.what);
        let place = change
            .place
            .as_ref()
            .map(|place| format!("  {FAINT}# {}{FAINT:#}", visible_line(&place.to_string())));
        let pointers = if change.pointers.is_empty() {
            String::new()
        } else {
            format!(": {}", shortened(&change.pointers))
        };
        let _ = writeln!(
            out,
            "  {style}{sign} {}{style:#}{}{}",
            visible_line(&change.id.to_string()),
            visible_line(&pointers),
            place.unwrap_or_default()
        );
    }
    out.push('\n');
}

pub(crate) fn shortened(pointers: &[String]) -> String {
    const MOST: usize = 5;
    let shown: Vec<&str> = pointers.iter().take(MOST).map(String::as_str).collect();
    let more = pointers.len().saturating_sub(MOST);
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

/// Findings in text, errors first.
pub(crate) fn findings(out: &mut String, findings: &[Finding]) {
    for finding in findings {
        let (word, style) = match finding.severity {
            Severity::Error => ("error", ERROR),
            Severity::Warning => ("warning", WARNING),
            Severity::Info => ("info", INFO),
        };
        let _ = writeln!(
            out,
            "{style}{word}{style:#} {STRONG}{:?}{STRONG:#}: {}",
            finding.kind,
            indented(&finding.message)
        );
        let about = [finding.object.as_deref(), finding.pointer.as_deref()];
        let about: Vec<&str> = about.into_iter().flatten().collect();
        let place = finding
            .place
            .as_ref()
            .map(|place| format!("{FAINT}-->{FAINT:#} {}", visible_line(&place.to_string())));
        let about =
            (!about.is_empty()).then(|| format!("{FAINT}in{FAINT:#} {}", visible_line(&about.join(" "))));
        let parts: Vec<String> = [place, about].into_iter().flatten().collect();
        if !parts.is_empty() {
            let _ = writeln!(out, "    {}", parts.join(" "));
        }
        if let Some(hint) = &finding.hint {
            let _ = writeln!(out, "    {INFO}hint{INFO:#}: {}", indented(hint));
        }
    }
    if !findings.is_empty() {
        out.push('\n');
    }
}

fn indented(text: &str) -> String {
    visible(text).replace('\n', "\n      ")
}

/// One line about the whole plan.
pub(crate) fn summary(plan: &Plan) -> String {
    let count = |what: What| plan.releases.iter().filter(|release| release.what == what).count();
    let mut text = if plan.has_changes() {
        let values: usize = plan.releases.iter().map(|release| release.changes.len()).sum();
        format!(
            "Plan: {} to add, {} to change, {} to remove ({values} {}); {} other {}.",
            plural(count(What::Added), "HelmRelease"),
            count(What::Changed),
            count(What::Removed),
            word(values, "value"),
            plan.objects.len(),
            word(plan.objects.len(), "object"),
        )
    } else {
        "No changes.".to_owned()
    };
    let (errors, warnings) = (plan.count(Severity::Error), plan.count(Severity::Warning));
    if errors + warnings > 0 {
        let _ = write!(text, " {}, {}.", plural(errors, "error"), plural(warnings, "warning"));
    }
    text
}

fn word(count: usize, one: &str) -> String {
    if count == 1 { one.to_owned() } else { format!("{one}s") }
}

fn plural(count: usize, one: &str) -> String {
    format!("{count} {}", word(count, one))
}
