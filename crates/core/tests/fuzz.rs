//! The fuzzer's checks on stable: over the seeds, over mutations of them, and over layers made to meet.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../fuzz/checks.rs"]
mod checks;

use proptest::prelude::*;
use serde_json::{Value, json};

fn seeds() -> Vec<Vec<u8>> {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    let mut paths: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

#[test]
fn seeds_pass() {
    let seeds = seeds();
    assert!(!seeds.is_empty());
    for seed in seeds {
        checks::merge(&seed);
    }
}

/// Few keys and few values, so that base, layer and chart meet; lists of maps with identities.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        prop::sample::select(vec![json!(1), json!(1.0), json!("x"), json!({}), json!([]), json!(true)]),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        let key = prop::sample::select(vec!["a", "b", "l", "a/b", "~", "", "é.x"]);
        let element = (0..4u8, prop::option::of(inner.clone()), prop::bool::weighted(0.2)).prop_map(
            |(k, v, delete)| {
                let mut element = json!({"k": k});
                if let Some(v) = v {
                    element["v"] = v;
                }
                if delete {
                    element["$patch"] = json!("delete");
                }
                element
            },
        );
        prop_oneof![
            3 => prop::collection::btree_map(key, inner.clone(), 0..4)
                .prop_map(|map| map.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<Value>()),
            1 => prop::collection::vec(inner, 0..4).prop_map(Value::Array),
            2 => prop::collection::vec(element, 0..4).prop_map(Value::Array),
        ]
    })
}

fn rules() -> impl Strategy<Value = Value> {
    let path = prop::sample::select(vec!["/l", "/a/l", "/a~1b", "/~0", "/", "/é.x/l", "", "l", "/l/0", "/b"]);
    let rule = (path, any::<bool>()).prop_map(|(path, map)| {
        if map {
            json!({"path": path, "type": "Map", "keys": ["k"]})
        } else {
            json!({"path": path, "type": "Append"})
        }
    });
    prop::collection::vec(rule, 0..3).prop_map(Value::Array)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn layers_that_meet_pass(
        base in prop::option::of(value()), values in value(), lists in rules(), chart in prop::option::of(value()),
    ) {
        let mut all = json!({"values": values, "lists": lists});
        if let Some(base) = base {
            all["base"] = base;
        }
        if let Some(chart) = chart {
            all["chart"] = chart;
        }
        checks::merge(cozy_yaml::to_json(&all).unwrap().as_bytes());
    }

    #[test]
    fn mutated_seeds_pass(
        seed in prop::sample::select(seeds()),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 0..6),
    ) {
        let mut data = seed;
        for (at, byte, kind) in edits {
            let at = at.index(data.len() + 1);
            match kind {
                0 if at < data.len() => data[at] = byte,
                1 if at < data.len() => { data.remove(at); }
                _ => data.insert(at, byte),
            }
        }
        checks::merge(&data);
    }
}
