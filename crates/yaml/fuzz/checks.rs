//! What holds for every text. Run by the fuzzer, and on stable over the seeds and their mutations
//! (`tests/fuzz.rs`).

use cozy_yaml::{
    Document, Limits, canonical_eq, canonical_json, digest, normalize, parse_bytes, parse_chart_values,
    parse_one, push_token, to_json, to_yaml,
};
use serde_json::Value;

/// Reads `data` in every way.
pub(crate) fn read(data: &[u8]) {
    // Small limits, so that the fuzzer meets them.
    let limits = Limits { bytes: 1 << 16, depth: 20, nodes: 5000, alias_nodes: 2000, alias_bytes: 1 << 16 };
    for document in parse_bytes(data, &limits) {
        match document {
            Ok(document) => check(data, &document),
            Err(error) => assert!(error.position.line >= 1 && error.position.column >= 1, "{error}"),
        }
    }
    let strict = parse_one(data, &limits);
    let lenient = parse_chart_values(data, &limits);
    if let Ok(strict) = strict {
        let lenient = lenient.expect("reading leniently refuses nothing more");
        assert_eq!(canonical_json(&strict.value), canonical_json(&lenient.value));
    }
}

fn check(data: &[u8], document: &Document) {
    // A lone carriage return is a line break, too.
    let lines = data.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count() + 1;
    every_node_has_a_place(&document.value, document, lines, &mut String::new());

    let value = &document.value;
    let yaml = to_yaml(value).expect("what was read can be printed");
    same(value, &parse_one(yaml.as_bytes(), &Limits::default()).expect("what was printed can be read").value);
    let json = to_json(value).expect("what was read can be printed");
    same(value, &parse_one(json.as_bytes(), &Limits::default()).expect("JSON is YAML").value);
    same(value, &serde_json::from_str(&json).expect("JSON"));
    same(value, &serde_json::from_str(&canonical_json(value)).expect("JSON"));
    let normal = normalize(value.clone());
    same(value, &normal);
    assert_eq!(normalize(normal.clone()), normal);
}

fn same(a: &Value, b: &Value) {
    assert!(canonical_eq(a, b), "{a} is not {b}");
    assert_eq!(canonical_json(a), canonical_json(b));
    assert_eq!(digest(a), digest(b));
}

fn every_node_has_a_place(value: &Value, document: &Document, lines: usize, pointer: &mut String) {
    let place = document.positions.get(pointer).unwrap_or_else(|| panic!("{pointer:?} has no place"));
    assert!((1..=lines).contains(&place.line) && place.column >= 1, "{pointer:?} at {place}");
    assert_eq!(document.positions.nearest(pointer), place);
    let length = pointer.len();
    let mut below = |key: &str, value| {
        push_token(pointer, key);
        every_node_has_a_place(value, document, lines, pointer);
        pointer.truncate(length);
    };
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| below(key, value)),
        Value::Array(items) => items.iter().enumerate().for_each(|(i, item)| below(&i.to_string(), item)),
        _ => {}
    }
}
