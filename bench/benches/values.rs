//! Reading, merging and judging values: what one reconciliation, and one plan, does per component.
//!
//! `cargo bench -p cozy-bench --bench values`

use std::hint::black_box;
use std::path::{Path, PathBuf};

use cozy_api::packages::{ComponentValues, ListMerge, ListRule};
use cozy_core::chart::Chart;
use cozy_core::merge::{diff_values, merge_component};
use cozy_yaml::{Limits, parse_chart_values, parse_documents};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use serde_json::{Value, json};

fn shared(below: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data").join(below)
}

/// The platform's PackageSources, one text.
fn platform() -> Option<String> {
    let mut paths: Vec<_> =
        std::fs::read_dir(shared("cozystack/sources")).ok()?.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let texts = paths.iter().filter_map(|path| std::fs::read_to_string(path).ok());
    Some(texts.map(|text| format!("---\n{text}\n")).collect())
}

fn reading(c: &mut Criterion) {
    let Some(text) = platform() else { return };
    let mut group = c.benchmark_group("read");
    for times in [1, 10, 100] {
        let text = text.repeat(times);
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_with_input(BenchmarkId::new("platform", times), &text, |b, text| {
            b.iter(|| black_box(parse_documents(text, &Limits::default())).len());
        });
    }
    group.finish();
}

/// Values with `n` leaves in maps and a list of `n` elements, and a layer that touches a tenth of each.
fn values(n: usize) -> (Value, ComponentValues) {
    let map = |from: usize, step: usize, value: &str| -> Value {
        (from..n).step_by(step).map(|i| (format!("key{i}"), json!({"a": {"b": value}, "c": i}))).collect()
    };
    let list = |from: usize, step: usize, value: &str| -> Value {
        (from..n).step_by(step).map(|i| json!({"name": format!("n{i}"), "value": value})).collect()
    };
    let base = json!({"map": map(0, 1, "base"), "list": list(0, 1, "base"), "other": list(0, 1, "base")});
    let over = json!({"map": map(0, 10, "over"), "list": list(5, 10, "over"), "other": list(5, 10, "over")});
    let rule = ListRule { path: "/list".into(), kind: ListMerge::Map, keys: Some(vec!["name".into()]) };
    (base, ComponentValues { values: Some(over), lists: Some(vec![rule]) })
}

fn merging(c: &mut Criterion) {
    let mut group = c.benchmark_group("merge");
    for n in [10, 100, 1000, 10_000] {
        let (base, layer) = values(n);
        group.throughput(Throughput::Elements(n as u64));
        group.bench_with_input(BenchmarkId::new("component", n), &n, |b, _| {
            b.iter(|| black_box(merge_component(Some(&base), &layer, None)).is_ok());
        });
        let merged = merge_component(Some(&base), &layer, None).ok().and_then(|merged| merged.values);
        group.bench_with_input(BenchmarkId::new("diff", n), &n, |b, _| {
            b.iter(|| black_box(diff_values(Some(&base), merged.as_ref())).len());
        });
    }
    group.finish();
}

fn judging(c: &mut Criterion) {
    // The chart with the largest schema of the platform.
    let dir = shared("charts/packages/system/cilium/charts/cilium");
    let read = |name: &str| std::fs::read(dir.join(name)).ok();
    let (Some(values), Some(schema)) = (read("values.yaml"), read("values.schema.json")) else { return };
    let Ok(document) = parse_chart_values(&values, &Limits::default()) else { return };
    let chart = Chart { values: document.value.clone(), schema: serde_json::from_slice(&schema).ok() };
    let layer = json!({"hubble": {"enabled": true, "relay": {"replicas": 2, "typo": 1}}, "debug": {"enabled": "yes"}});
    let mut group = c.benchmark_group("cilium");
    group.bench_function("read values.yaml", |b| {
        b.iter(|| black_box(parse_chart_values(&values, &Limits::default())).is_ok());
    });
    group.bench_function("unknown keys", |b| b.iter(|| black_box(chart.unknown_keys(&layer)).len()));
    group.bench_function("violations", |b| b.iter(|| black_box(chart.violations(&layer)).is_ok()));
    group.finish();
}

criterion_group!(benches, reading, merging, judging);
criterion_main!(benches);
