//! The merge, by example and by property.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cozy_api::packages::{ComponentValues, ListMerge, ListRule};
use cozy_core::merge::{How, MergeError, Merged, Place, Reason, diff_values, merge_component};
use proptest::prelude::*;
use serde_json::{Value, json};

fn layer(values: Value) -> ComponentValues {
    ComponentValues { values: Some(values), lists: None }
}

fn map_rule(path: &str, keys: &[&str]) -> ListRule {
    ListRule {
        path: path.into(),
        kind: ListMerge::Map,
        keys: Some(keys.iter().map(|k| (*k).to_owned()).collect()),
    }
}

fn append_rule(path: &str) -> ListRule {
    ListRule { path: path.into(), kind: ListMerge::Append, keys: None }
}

fn merged(base: &Value, over: Value) -> Merged {
    merge_component(Some(base), &layer(over), None).unwrap()
}

fn with_rules(
    base: Option<Value>,
    over: Value,
    rules: Vec<ListRule>,
    chart: Option<Value>,
) -> Result<Value, Reason> {
    let layer = ComponentValues { values: Some(over), lists: Some(rules) };
    merge_component(base.as_ref(), &layer, chart.as_ref()).map(|m| m.values.unwrap()).map_err(|e| match e {
        MergeError::Rule { reason, .. } => reason,
        MergeError::Values { .. } => panic!("{e}"),
    })
}

#[test]
fn maps_merge_and_everything_else_replaces() {
    let base = json!({"a": {"b": 1, "c": 2}, "list": [1, 2, 3], "s": "x", "n": {"deep": true}});
    let m = merged(
        &base,
        json!({"a": {"b": 9}, "list": [4], "s": {"now": "a map"}, "n": "now a scalar", "new": {"x": {}}}),
    );
    assert_eq!(
        m.values.unwrap(),
        json!({"a": {"b": 9, "c": 2}, "list": [4], "s": {"now": "a map"}, "n": "now a scalar", "new": {"x": {}}})
    );
    let told: Vec<_> =
        m.overrides.iter().map(|o| (o.pointer.as_str(), o.from.clone(), o.how.clone())).collect();
    assert_eq!(
        told,
        [
            ("/a/b", Some(json!(1)), How::Set),
            ("/list", Some(json!([1, 2, 3])), How::ListReplaced { below: Some(Place::Package), dropped: 3 }),
            ("/n", Some(json!({"deep": true})), How::Set),
            ("/new/x", None, How::Set),
            ("/s", Some(json!("x")), How::Set),
            ("/s/now", None, How::Set),
        ]
    );
}

#[test]
fn null_is_kept_at_every_depth() {
    assert_eq!(
        merged(&json!({"a": {"b": 1}}), json!({"a": {"b": null}, "c": null})).values.unwrap(),
        json!({"a": {"b": null}, "c": null})
    );
    assert_eq!(merged(&json!({"a": null}), json!({"a": {"b": 1}})).values.unwrap(), json!({"a": {"b": 1}}));
    assert_eq!(merged(&json!({"a": null}), json!({"x": 1})).values.unwrap(), json!({"a": null, "x": 1}));
}

#[test]
fn absent_and_empty_stay_apart() {
    let nothing = [ComponentValues::default(), layer(Value::Null), layer(json!({}))];
    for empty in nothing {
        assert_eq!(merge_component(None, &empty, None).unwrap().values, None);
        assert_eq!(merge_component(Some(&json!({})), &empty, None).unwrap().values, Some(json!({})));
        assert_eq!(merge_component(Some(&json!([1])), &empty, None).unwrap().values, Some(json!([1])));
    }
    assert_eq!(merge_component(None, &layer(json!({"a": {}})), None).unwrap().values, Some(json!({"a": {}})));
    assert_eq!(
        merge_component(Some(&json!("text")), &layer(json!({"a": 1})), None).unwrap().values,
        Some(json!({"a": 1}))
    );
}

#[test]
fn numbers_pass_through_untouched() {
    let text = r#"{"a":9007199254740993,"b":-9223372036854775808,"c":18446744073709551615,"d":0.1,"e":-0.0,"f":5e-324}"#;
    let over: Value = serde_json::from_str(text).unwrap();
    let m = merged(&json!({"a": 1, "z": 9_007_199_254_740_995_i64}), over);
    assert_eq!(
        serde_json::to_string(&m.values.unwrap()).unwrap(),
        r#"{"a":9007199254740993,"b":-9223372036854775808,"c":18446744073709551615,"d":0.1,"e":-0.0,"f":5e-324,"z":9007199254740995}"#
    );
    assert!(
        serde_json::from_str::<Value>(r#"{"a":1e400}"#).is_err(),
        "no number that JSON cannot hold gets this far"
    );
}

#[test]
fn awkward_keys_are_keys() {
    let base = json!({"a/b": {"c~d": {"": 1}}, "x.y": 1, "ключ": {"日本": 1}});
    let m = merged(&base, json!({"a/b": {"c~d": {"": 2}}, "x.y": 2, "ключ": {"日本": 2}}));
    let pointers: Vec<_> = m.overrides.iter().map(|o| o.pointer.as_str()).collect();
    assert_eq!(pointers, ["/a~1b/c~0d/", "/x.y", "/ключ/日本"]);
    for pointer in pointers {
        assert_eq!(m.values.as_ref().unwrap().pointer(pointer), Some(&json!(2)), "{pointer}");
    }
    let rules = vec![append_rule("/a~1b/c~0d/")];
    assert_eq!(
        with_rules(Some(json!({"a/b": {"c~d": {"": [1]}}})), json!({"a/b": {"c~d": {"": [2]}}}), rules, None)
            .unwrap(),
        json!({"a/b": {"c~d": {"": [1, 2]}}})
    );
}

#[test]
fn map_lists_merge_append_and_delete() {
    let base = json!({"images": [{"name": "a", "v": {"x": 1, "y": 2}}, {"name": "b"}, {"name": "c"}]});
    let over = json!({"images": [
        {"name": "new", "v": 1}, {"name": "a", "v": {"x": 9}}, {"name": "b", "$patch": "delete"}, {"name": "gone", "$patch": "delete"}
    ]});
    let layer = ComponentValues { values: Some(over), lists: Some(vec![map_rule("/images", &["name"])]) };
    let m = merge_component(Some(&base), &layer, None).unwrap();
    assert_eq!(
        m.values.unwrap(),
        json!({"images": [{"name": "a", "v": {"x": 9, "y": 2}}, {"name": "c"}, {"name": "new", "v": 1}]})
    );
    assert_eq!(
        m.overrides[0].how,
        How::ListMerged { below: Place::Package, added: 1, changed: 1, removed: 1, unmatched: 1 }
    );
}

#[test]
fn the_base_of_a_list_rule_is_the_package_then_the_chart() {
    let rules = || vec![map_rule("/l", &["k"])];
    let chart = Some(json!({"l": [{"k": 1, "from": "chart"}]}));
    let over = json!({"l": [{"k": 1, "x": true}]});
    let package = Some(json!({"l": [{"k": 1, "from": "package"}]}));
    assert_eq!(with_rules(package, over.clone(), rules(), chart.clone()).unwrap()["l"][0]["from"], "package");
    assert_eq!(with_rules(None, over.clone(), rules(), chart.clone()).unwrap()["l"][0]["from"], "chart");
    assert_eq!(
        with_rules(Some(json!({"l": null})), over.clone(), rules(), chart).unwrap(),
        json!({"l": [{"k": 1, "x": true}]})
    );
    assert_eq!(with_rules(None, over.clone(), rules(), Some(json!({}))).unwrap(), over);
    assert_eq!(with_rules(None, over.clone(), rules(), None), Err(Reason::NeedsChartDefaults));
    assert_eq!(
        with_rules(None, over, rules(), Some(json!({"l": "x"}))),
        Err(Reason::NotAList { place: Place::Chart, found: "a string" })
    );
}

#[test]
fn several_keys_and_keys_of_every_type_identify() {
    let rules = || vec![map_rule("/l", &["a", "b"])];
    let base = json!({"l": [{"a": 1, "b": "x", "v": 0}, {"a": "1", "b": "x", "v": 0}, {"a": 1.5, "b": [1], "v": 0}]});
    let over = json!({"l": [{"b": "x", "a": 1.0, "v": 1}, {"a": 1.5, "b": [1], "v": 3}]});
    let out = with_rules(Some(base), over, rules(), None).unwrap();
    assert_eq!(out["l"].as_array().unwrap().iter().map(|e| e["v"].clone()).collect::<Vec<_>>(), [1, 0, 3]);
}

#[test]
fn wrong_rules_are_refused_with_their_reason() {
    let base = || {
        Some(
            json!({"l": [{"k": 1}], "s": 1, "m": {"l": [[1]]}, "dup": [{"k": 1}, {"k": 1}], "bare": [{}], "scalars": [1]}),
        )
    };
    let cases = [
        (json!({"l": []}), vec![map_rule("l", &["k"])], Reason::Pointer),
        (json!({"l": []}), vec![map_rule("", &["k"])], Reason::Pointer),
        (json!({"l": []}), vec![map_rule("/l~2", &["k"])], Reason::Pointer),
        (json!({"l": []}), vec![map_rule("/l", &["k"]), append_rule("/l")], Reason::DuplicateRule),
        (json!({"l": []}), vec![map_rule("/l", &[])], Reason::NoKeys),
        (
            json!({"l": []}),
            vec![ListRule { path: "/l".into(), kind: ListMerge::Append, keys: Some(vec!["k".into()]) }],
            Reason::UnexpectedKeys,
        ),
        (json!({"l": []}), vec![append_rule("/other")], Reason::NotSet),
        (json!({"l": [[1]]}), vec![append_rule("/l/0")], Reason::ThroughList { list: "/l".into() }),
        (
            json!({"m": {"l": [{"x": []}]}}),
            vec![append_rule("/m/l/0/x")],
            Reason::ThroughList { list: "/m/l".into() },
        ),
        (json!({"l": 1}), vec![append_rule("/l/0")], Reason::NotSet),
        (json!({"l": []}), vec![map_rule("/l", &["k", "j", "k"])], Reason::RepeatedKey { key: "k".into() }),
        (
            json!({"l": {"a": 1}}),
            vec![append_rule("/l")],
            Reason::NotAList { place: Place::Layer, found: "a map" },
        ),
        (
            json!({"s": [1]}),
            vec![append_rule("/s")],
            Reason::NotAList { place: Place::Package, found: "a number" },
        ),
        (
            json!({"l": [1]}),
            vec![map_rule("/l", &["k"])],
            Reason::NotAMap { place: Place::Layer, index: 0, found: "a number" },
        ),
        (
            json!({"scalars": [{"k": 1}]}),
            vec![map_rule("/scalars", &["k"])],
            Reason::NotAMap { place: Place::Package, index: 0, found: "a number" },
        ),
        (
            json!({"l": [{"k": 2}, {}]}),
            vec![map_rule("/l", &["k"])],
            Reason::MissingKey { place: Place::Layer, index: 1, key: "k".into() },
        ),
        (
            json!({"l": [{"k": null}]}),
            vec![map_rule("/l", &["k"])],
            Reason::MissingKey { place: Place::Layer, index: 0, key: "k".into() },
        ),
        (
            json!({"bare": [{"k": 1}]}),
            vec![map_rule("/bare", &["k"])],
            Reason::MissingKey { place: Place::Package, index: 0, key: "k".into() },
        ),
        (
            json!({"l": [{"k": 2}, {"k": 2.0}]}),
            vec![map_rule("/l", &["k"])],
            Reason::DuplicateKey { place: Place::Layer, first: 0, second: 1 },
        ),
        (
            json!({"dup": [{"k": 1}]}),
            vec![map_rule("/dup", &["k"])],
            Reason::DuplicateKey { place: Place::Package, first: 0, second: 1 },
        ),
        (
            json!({"l": [{"k": 1, "$patch": "replace"}]}),
            vec![map_rule("/l", &["k"])],
            Reason::Patch { index: 0 },
        ),
    ];
    for (over, rules, reason) in cases {
        assert_eq!(with_rules(base(), over.clone(), rules, None), Err(reason), "{over}");
    }
    let layer = ComponentValues {
        values: Some(json!({"l": []})),
        lists: Some(vec![append_rule("/l"), append_rule("/x")]),
    };
    let error = merge_component(None, &layer, Some(&json!({}))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "lists[1] (\"/x\"): `values` of this component sets nothing there; a rule speaks of a list that the override sets"
    );
}

#[test]
fn an_error_points_at_what_is_to_be_corrected() {
    let pointer = |values: Value, rules: Vec<ListRule>| {
        let layer = ComponentValues { values: Some(values), lists: Some(rules) };
        let error =
            merge_component(Some(&json!({"s": 1, "dup": [{"k": 1}, {"k": 1}]})), &layer, None).unwrap_err();
        (error.pointer(), error.needs_chart_defaults())
    };
    assert_eq!(pointer(json!("text"), vec![]), ("/values".into(), false));
    assert_eq!(pointer(json!({"l": []}), vec![append_rule("l")]), ("/lists/0/path".into(), false));
    assert_eq!(pointer(json!({"l": []}), vec![map_rule("/l", &[])]), ("/lists/0".into(), false));
    assert_eq!(pointer(json!({"l": []}), vec![map_rule("/l", &["k", "k"])]), ("/lists/0/keys".into(), false));
    assert_eq!(pointer(json!({"l": 1}), vec![append_rule("/l")]), ("/values/l".into(), false));
    assert_eq!(
        pointer(json!({"s": [{"k": 1}], "dup": [{}]}), vec![map_rule("/dup", &["k"])]),
        ("/values/dup/0".into(), false)
    );
    assert_eq!(
        pointer(json!({"dup": [{"k": 1}]}), vec![map_rule("/dup", &["k"])]),
        ("/lists/0/path".into(), false)
    );
    assert_eq!(pointer(json!({"l": []}), vec![append_rule("/l")]), ("/lists/0/path".into(), true));
    let error = merge_component(None, &layer(json!([1])), None).unwrap_err();
    assert_eq!(error.to_string(), "`values` is a list, not a map");
}

#[test]
fn a_package_of_null_says_nothing() {
    let m = merge_component(Some(&Value::Null), &layer(json!({"a": 1})), None).unwrap();
    assert_eq!(m.values, Some(json!({"a": 1})));
    assert_eq!(m.overrides.iter().map(|o| o.shadows()).collect::<Vec<_>>(), [false]);
    assert_eq!(
        merge_component(Some(&Value::Null), &layer(json!({})), None).unwrap().values,
        Some(Value::Null)
    );
}

#[test]
fn patches_are_data_where_no_map_rule_is() {
    let over = json!({"l": [{"k": 1, "$patch": "delete"}], "m": {"$patch": "delete"}});
    assert_eq!(
        merged(&json!({"l": [{"k": 1}], "m": {"x": 1}}), over.clone()).values.unwrap()["l"],
        over["l"]
    );
    let out = with_rules(Some(json!({"l": [{"k": 1}]})), over, vec![append_rule("/l")], None).unwrap();
    assert_eq!(out, json!({"l": [{"k": 1}, {"k": 1, "$patch": "delete"}], "m": {"$patch": "delete"}}));
}

#[test]
fn lists_inside_elements_replace() {
    let base = json!({"l": [{"k": 1, "inner": [1, 2], "m": {"a": 1}}]});
    let out = with_rules(
        Some(base),
        json!({"l": [{"k": 1, "inner": [3], "m": {"b": null}}]}),
        vec![map_rule("/l", &["k"])],
        None,
    );
    assert_eq!(out.unwrap(), json!({"l": [{"k": 1, "inner": [3], "m": {"a": 1, "b": null}}]}));
}

/// Why the law below speaks of types; see docs/merge.md.
#[test]
fn layers_do_not_associate_across_a_change_of_type() {
    for between in [json!(5), Value::Null, json!([])] {
        let (a, b, c) = (json!({"x": {"p": 1}}), json!({"x": between}), json!({"x": {"q": 2}}));
        assert_eq!(plus(&plus(&a, &b), &c), json!({"x": {"q": 2}}));
        assert_eq!(plus(&a, &plus(&b, &c)), json!({"x": {"p": 1, "q": 2}}));
    }
}

#[test]
fn a_replaced_list_tells_what_it_drops() {
    let dropped = |base: Option<Value>, chart: Option<Value>, over: Value| {
        let m = merge_component(base.as_ref(), &layer(over), chart.as_ref()).unwrap();
        m.overrides[0].how.clone()
    };
    let images = json!({"images": [{"n": 1}, {"n": 2}, {"n": 3.0}]});
    assert_eq!(
        dropped(Some(images.clone()), None, json!({"images": [{"n": 3}]})),
        How::ListReplaced { below: Some(Place::Package), dropped: 2 }
    );
    assert_eq!(
        dropped(None, Some(images.clone()), json!({"images": [{"n": 9}]})),
        How::ListReplaced { below: Some(Place::Chart), dropped: 3 }
    );
    assert_eq!(dropped(None, None, json!({"images": []})), How::ListReplaced { below: None, dropped: 0 });
    assert_eq!(
        dropped(Some(json!({"images": []})), Some(images), json!({"images": [1]})),
        How::ListReplaced { below: Some(Place::Package), dropped: 0 }
    );
}

#[test]
fn differences_are_leaves() {
    let told = |a: Value, b: Value| -> Vec<(String, Option<Value>, Option<Value>)> {
        diff_values(Some(&a), Some(&b)).into_iter().map(|c| (c.pointer, c.from, c.to)).collect()
    };
    assert_eq!(told(json!({"a": 1}), json!({"a": 1.0})), []);
    assert_eq!(
        told(
            json!({"a": {"b": 1, "c": 2}, "l": [1]}),
            json!({"a": {"b": 3}, "l": [2], "n": {"x": {}, "y": 1}})
        ),
        [
            ("/a/b".into(), Some(json!(1)), Some(json!(3))),
            ("/a/c".into(), Some(json!(2)), None),
            ("/l".into(), Some(json!([1])), Some(json!([2]))),
            ("/n/x".into(), None, Some(json!({}))),
            ("/n/y".into(), None, Some(json!(1))),
        ]
    );
    assert_eq!(told(json!({"a": null}), json!({})), [("/a".into(), Some(Value::Null), None)]);
    assert_eq!(diff_values(None, Some(&json!({}))).len(), 1, "absent and empty differ");
}

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1e9f64..1e9).prop_map(Value::from),
        "\\PC{0,4}".prop_map(Value::from),
        prop::collection::vec(any::<u8>().prop_map(Value::from), 0..4).prop_map(Value::Array),
    ]
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec!["a", "b", "c", "a/b", "~", "x.y", "", "é"]).prop_map(str::to_owned),
        "\\PC{0,3}"
    ]
}

fn tree() -> impl Strategy<Value = Value> {
    let map = |inner: BoxedStrategy<Value>| {
        prop::collection::btree_map(key(), inner, 0..5).prop_map(|m| Value::Object(m.into_iter().collect()))
    };
    map(leaf().prop_recursive(3, 24, 5, move |inner| map(inner.boxed())).boxed())
}

/// Trees in which `m…` keys always hold maps and `s…` keys never do: layers without changes of type.
fn typed_tree() -> impl Strategy<Value = Value> {
    fn level(depth: u32) -> BoxedStrategy<Value> {
        let scalars = prop::collection::btree_map("s[a-c]", leaf(), 0..3);
        if depth == 0 {
            return scalars.prop_map(|m| Value::Object(m.into_iter().collect())).boxed();
        }
        (scalars, prop::collection::btree_map("m[a-c]", level(depth - 1), 0..3))
            .prop_map(|(s, m)| Value::Object(s.into_iter().chain(m).collect()))
            .boxed()
    }
    level(3)
}

fn plus(a: &Value, b: &Value) -> Value {
    merge_component(Some(a), &layer(b.clone()), None).unwrap().values.unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_empty_layer_is_the_identity(a in tree()) {
        prop_assert_eq!(plus(&a, &json!({})), a.clone());
        prop_assert_eq!(plus(&json!({}), &a), a);
    }

    #[test]
    fn merging_twice_is_merging_once(a in tree(), b in tree()) {
        let once = plus(&a, &b);
        prop_assert_eq!(plus(&once, &b), once);
    }

    #[test]
    fn layers_associate_where_no_type_changes(a in typed_tree(), b in typed_tree(), c in typed_tree()) {
        prop_assert_eq!(plus(&plus(&a, &b), &c), plus(&a, &plus(&b, &c)));
    }

    /// Every leaf of the layer is in the result, every other difference would be one too many.
    #[test]
    fn exactly_the_layers_leaves_change(a in tree(), b in tree()) {
        let m = merge_component(Some(&a), &layer(b.clone()), None).unwrap();
        let result = m.values.unwrap();
        for o in &m.overrides {
            prop_assert_eq!(a.pointer(&o.pointer), o.from.as_ref(), "{}", o.pointer);
            prop_assert!(result.pointer(&o.pointer).is_some(), "{}", o.pointer);
        }
        for change in diff_values(Some(&a), Some(&result)) {
            let owned = m.overrides.iter().any(|o| change.pointer == o.pointer || change.pointer.starts_with(&format!("{}/", o.pointer)));
            prop_assert!(owned, "{} changed without an override: {:?}", change.pointer, m.overrides);
        }
        prop_assert_eq!(plus(&result, &b), result);
    }

    /// `{}` over a map and absent keys: what the layer does not name is the very same, byte for byte.
    #[test]
    fn untouched_siblings_stay(a in tree(), b in tree()) {
        let result = plus(&a, &b);
        for (key, value) in a.as_object().unwrap() {
            if b.get(key).is_none() {
                prop_assert_eq!(serde_json::to_string(&result[key]).unwrap(), serde_json::to_string(value).unwrap());
            }
        }
        for (key, value) in b.as_object().unwrap() {
            if !value.is_object() {
                prop_assert_eq!(&result[key], value, "lists, scalars and null replace whole");
            }
        }
    }

    /// A difference is told whenever there is one, each at a place of its own, and backwards it is the same.
    #[test]
    fn differences_are_complete(a in tree(), b in tree()) {
        let there = diff_values(Some(&a), Some(&b));
        prop_assert_eq!(there.is_empty(), cozy_yaml::canonical_eq(&a, &b));
        prop_assert!(there.is_sorted_by(|x, y| x.pointer < y.pointer), "{:?}", there);
        for change in &there {
            prop_assert_eq!(a.pointer(&change.pointer), change.from.as_ref());
            prop_assert_eq!(b.pointer(&change.pointer), change.to.as_ref());
        }
        let back = diff_values(Some(&b), Some(&a));
        prop_assert_eq!(back.len(), there.len());
        for (x, y) in there.iter().zip(&back) {
            prop_assert_eq!((&x.pointer, &x.from, &x.to), (&y.pointer, &y.to, &y.from));
        }
    }

    /// Layers that bring the same `Map` lists associate as well, as long as none deletes.
    #[test]
    fn map_lists_associate(
        a in prop::collection::btree_map(0u8..6, any::<i8>(), 0..5),
        b in prop::collection::btree_map(0u8..6, any::<i8>(), 0..5),
        c in prop::collection::btree_map(0u8..6, any::<i8>(), 0..5),
    ) {
        // Each layer sets a field of its own in each element, and one that all set.
        let list = |m: &std::collections::BTreeMap<u8, i8>, own: &str| -> Value {
            let items: Vec<Value> = m.iter().map(|(k, v)| json!({"k": k, "v": v, own: v})).collect();
            json!({"l": items})
        };
        let plus = |a: &Value, b: &Value| {
            with_rules(Some(a.clone()), b.clone(), vec![map_rule("/l", &["k"])], None).unwrap()
        };
        let (a, b, c) = (list(&a, "a"), list(&b, "b"), list(&c, "c"));
        prop_assert_eq!(plus(&plus(&a, &b), &c), plus(&a, &plus(&b, &c)));
    }

    /// With every list appended to, nothing of the base's list is lost and its order stays.
    #[test]
    fn append_keeps_the_base_as_its_beginning(base in prop::collection::vec(leaf(), 0..5), more in prop::collection::vec(leaf(), 0..5)) {
        let out = with_rules(Some(json!({"l": base})), json!({"l": more}), vec![append_rule("/l")], None).unwrap();
        let expected: Vec<Value> = base.into_iter().chain(more).collect();
        prop_assert_eq!(out, json!({"l": expected}));
    }

    /// A map list keeps untouched elements and their order, and is idempotent.
    #[test]
    fn map_lists_touch_only_what_they_name(base in prop::collection::btree_map(0u8..20, any::<i64>(), 0..8), over in prop::collection::btree_map(0u8..20, any::<i64>(), 0..8)) {
        let list = |m: &std::collections::BTreeMap<u8, i64>| -> Vec<Value> { m.iter().map(|(k, v)| json!({"k": k, "v": v})).collect() };
        let rules = || vec![map_rule("/l", &["k"])];
        let once = with_rules(Some(json!({"l": list(&base)})), json!({"l": list(&over)}), rules(), None).unwrap();
        let mut expected: Vec<Value> = base.iter().map(|(k, v)| json!({"k": k, "v": over.get(k).unwrap_or(v)})).collect();
        expected.extend(over.iter().filter(|(k, _)| !base.contains_key(k)).map(|(k, v)| json!({"k": k, "v": v})));
        prop_assert_eq!(&once, &json!({"l": expected}));
        prop_assert_eq!(with_rules(Some(once.clone()), json!({"l": list(&over)}), rules(), None).unwrap(), once);
    }
}
