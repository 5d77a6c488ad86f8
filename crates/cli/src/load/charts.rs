//! Charts' values and schemas from their sources.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use cozy_core::chart::{Chart, coalesce, merge_file};
use cozy_core::plan::{Finding, FindingKind, Prepared, Severity, WantedChart};
use cozy_yaml::Limits;
use serde_json::{Map, Value};

use super::read_file;

/// Subcharts of subcharts of …: nobody ships more.
const DEPTH: usize = 8;

/// Gives a plan the charts that it wants and that are there.
pub(crate) fn load(directory: &Path, prepared: &mut Prepared) -> Result<Vec<Finding>> {
    if !directory.is_dir() {
        bail!("--charts {} is not a directory", directory.display());
    }
    prepared.set_charts_given();
    let mut findings = Vec::new();
    let mut read: HashMap<(String, Vec<String>), Option<Arc<Chart>>> = HashMap::new();
    for wanted in prepared.wanted_charts() {
        let key = (wanted.path.clone(), wanted.values_files.clone());
        let chart = read.entry(key).or_insert_with(|| {
            match find(directory, &wanted).and_then(|path| chart(&path, &wanted)) {
                Ok(chart) => Some(Arc::new(chart)),
                Err(error) => {
                    let message = format!("chart {}: {error:#}; nothing is checked against it", wanted.path);
                    findings.push(Finding::new(FindingKind::ChartNotFound, Severity::Warning, message));
                    None
                }
            }
        });
        if let Some(chart) = chart {
            prepared.set_chart(&wanted.artifact, chart);
        }
    }
    Ok(findings)
}

fn find(directory: &Path, wanted: &WantedChart) -> Result<PathBuf> {
    let path = Path::new(wanted.path.trim_matches('/'));
    if path.components().any(|part| !matches!(part, Component::Normal(_))) {
        bail!("its path leads out of the charts");
    }
    [directory.join("packages").join(path), directory.join(path)]
        .into_iter()
        .find(|path| path.join("Chart.yaml").is_file())
        .with_context(|| format!("no such chart below {}", directory.display()))
}

fn chart(path: &Path, wanted: &WantedChart) -> Result<Chart> {
    let own = match wanted.values_files.split_first() {
        None => optional_values(&path.join("values.yaml"))?,
        // The first takes the place of values.yaml, the others are merged into it.
        Some((first, others)) => {
            let mut values = values(&plain(path, first)?)?;
            for file in others {
                merge_file(&mut values, &self::values(&plain(path, file)?)?);
            }
            values
        }
    };
    let schema = path.join("values.schema.json");
    let schema = if schema.is_file() { Some(self::values(&schema)?) } else { None };
    Ok(Chart { values: with_subcharts(path, own, DEPTH)?, schema })
}

fn plain(path: &Path, file: &str) -> Result<PathBuf> {
    if Path::new(file).components().any(|part| !matches!(part, Component::Normal(_))) {
        bail!("its values file {file:?} leads out of the chart");
    }
    Ok(path.join(file))
}

fn optional_values(path: &Path) -> Result<Value> {
    if path.is_file() { values(path) } else { Ok(Value::Object(Map::new())) }
}

fn values(path: &Path) -> Result<Value> {
    let read = || -> Result<Value> {
        let value = cozy_yaml::parse_chart_values(&read_file(path)?, &Limits::default())?.value;
        Ok(if value.is_null() { Value::Object(Map::new()) } else { value })
    };
    read().with_context(|| format!("cannot read {}", path.display()))
}

/// The chart's values with those of its subcharts below their names, as Helm hands them on.
fn with_subcharts(path: &Path, mut own: Value, depth: usize) -> Result<Value> {
    let Ok(entries) = std::fs::read_dir(path.join("charts")) else { return Ok(own) };
    if depth == 0 {
        bail!("its subcharts are nested too deep");
    }
    let aliases = aliases(path)?;
    for entry in entries {
        let below = entry?.path();
        if !below.join("Chart.yaml").is_file() {
            continue;
        }
        let defaults = with_subcharts(&below, optional_values(&below.join("values.yaml"))?, depth - 1)?;
        let metadata = values(&below.join("Chart.yaml"))?;
        let Some(name) = metadata.get("name").and_then(Value::as_str) else { continue };
        let names = aliases.get(name).cloned().unwrap_or_else(|| vec![name.to_owned()]);
        let Value::Object(own) = &mut own else { continue };
        for name in names {
            let mut merged = defaults.clone();
            if let Some(said) = own.get(&name) {
                coalesce(&mut merged, said);
            }
            own.insert(name, merged);
        }
    }
    Ok(own)
}

/// Names under which the chart uses its dependencies, by the dependency's own name.
fn aliases(path: &Path) -> Result<HashMap<String, Vec<String>>> {
    let metadata = values(&path.join("Chart.yaml"))?;
    let mut out: HashMap<String, Vec<String>> = HashMap::new();
    for dependency in metadata.get("dependencies").and_then(Value::as_array).into_iter().flatten() {
        let text = |key| dependency.get(key).and_then(Value::as_str);
        if let Some(name) = text("name") {
            out.entry(name.to_owned()).or_default().push(text("alias").unwrap_or(name).to_owned());
        }
    }
    Ok(out)
}
