//! What holds for every base, layer, list rules and chart. Run by the fuzzer, and on stable over the seeds and
//! their mutations (`tests/fuzz.rs`).

use cozy_api::packages::{ComponentValues, ListMerge};
use cozy_core::chart::{Chart, coalesce};
use cozy_core::merge::{How, Merged, diff_values, merge_component};
use cozy_yaml::{Limits, canonical_eq, parse_one};
use serde_json::Value;

/// Reads `data` as a YAML map of `base`, `values`, `lists`, `chart` and `schema`, each of which may be missing.
pub(crate) fn merge(data: &[u8]) {
    let limits = Limits { bytes: 1 << 16, depth: 40, nodes: 5000, alias_nodes: 2000, alias_bytes: 1 << 16 };
    let Ok(document) = parse_one(data, &limits) else { return };
    let part = |name: &str| document.value.get(name);
    let layer = ComponentValues {
        values: part("values").cloned(),
        lists: part("lists").and_then(|lists| serde_json::from_value(lists.clone()).ok()),
    };
    let (base, defaults) = (part("base"), part("chart"));

    match merge_component(base, &layer, defaults) {
        Ok(merged) => holds(base, &layer, defaults, &merged),
        Err(error) => {
            assert!(!error.to_string().is_empty() && error.pointer().starts_with('/'), "{error:?}");
            if error.needs_chart_defaults() {
                assert!(defaults.is_none());
                let again = merge_component(base, &layer, Some(&Value::Null));
                assert!(!again.is_err_and(|error| error.needs_chart_defaults()));
            }
        }
    }
    let nothing =
        merge_component(base, &ComponentValues::default(), defaults).expect("an empty layer always fits");
    assert_eq!(
        (nothing.values.as_ref(), nothing.overrides.len()),
        (base, 0),
        "the empty layer is the identity"
    );

    let chart = Chart { values: defaults.cloned().unwrap_or_default(), schema: part("schema").cloned() };
    if let Some(values) = &layer.values {
        for pointer in chart.unknown_keys(values) {
            assert!(values.pointer(&pointer).is_some(), "{pointer}");
        }
        for violation in chart.violations(values).into_iter().flatten() {
            assert!(violation.pointer.is_empty() || violation.pointer.starts_with('/'), "{violation:?}");
        }
    }
    let mut coalesced = chart.values.clone();
    coalesce(&mut coalesced, &chart.values);
}

fn holds(base: Option<&Value>, layer: &ComponentValues, defaults: Option<&Value>, merged: &Merged) {
    let empty =
        layer.values.as_ref().is_none_or(|values| values.is_null() || values == &serde_json::json!({}));
    if empty {
        assert_eq!(merged.values.as_ref(), base);
        return;
    }
    let values = merged.values.as_ref().expect("a layer that says something gives values");
    assert!(values.is_object());
    assert!(merged.overrides.is_sorted_by(|a, b| a.pointer < b.pointer), "{:?}", merged.overrides);
    for o in &merged.overrides {
        assert!(values.pointer(&o.pointer).is_some(), "{}", o.pointer);
        assert_eq!(base.and_then(|base| at(base, &o.pointer)), o.from.as_ref(), "{}", o.pointer);
        assert_eq!(o.shadows(), o.from.is_some());
        let ruled = layer.lists.iter().flatten().any(|rule| rule.path == o.pointer);
        assert_eq!(matches!(o.how, How::ListMerged { .. }), ruled, "{o:?}");
    }
    // Nothing changes but what the layer sets.
    let nothing = serde_json::json!({});
    let before = base.filter(|base| !base.is_null()).unwrap_or(&nothing);
    for change in diff_values(Some(before), Some(values)) {
        let set =
            |pointer: &str| change.pointer == pointer || change.pointer.starts_with(&format!("{pointer}/"));
        assert!(merged.overrides.iter().any(|o| set(&o.pointer)), "{change:?} of {:?}", merged.overrides);
    }
    // Again is the same, unless it appends.
    if layer.lists.iter().flatten().all(|rule| rule.kind == ListMerge::Map) {
        let again = merge_component(Some(values), layer, defaults).expect("what was merged merges again");
        let again = again.values.expect("values stay");
        assert!(canonical_eq(&again, values), "{values} became {again}");
    }
}

/// Through maps only: pointers of overrides never lead into lists.
fn at<'v>(value: &'v Value, pointer: &str) -> Option<&'v Value> {
    cozy_yaml::parse_pointer(pointer)?.iter().try_fold(value, |value, token| value.as_object()?.get(token))
}
