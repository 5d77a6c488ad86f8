//! Positions, limits, streams and errors.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cozy_yaml::{
    Document, ErrorKind, Limits, Position, canonical_eq, digest, normalize, parse_bytes, parse_documents,
    parse_one,
};
use serde_json::{Value, json};

fn at(line: usize, column: usize) -> Position {
    Position { line, column }
}

fn one(text: &str) -> Document {
    let mut documents = parse_documents(text, &Limits::default());
    assert_eq!(documents.len(), 1, "{text:?}");
    documents.pop().unwrap().unwrap()
}

fn error(text: &str) -> cozy_yaml::Error {
    parse_documents(text, &Limits::default()).pop().unwrap().unwrap_err()
}

#[test]
fn every_key_and_element_has_its_place() {
    let d = one("# comment\na:\n  b: 1\n  'c/d~e': [x, {k: z}]\nü: 2\n");
    assert_eq!(d.start, at(2, 1));
    assert_eq!(d.positions.get(""), Some(at(2, 1)));
    assert_eq!(d.positions.get("/a"), Some(at(2, 1)));
    assert_eq!(d.positions.get("/a/b"), Some(at(3, 3)));
    assert_eq!(d.positions.get("/a/c~1d~0e"), Some(at(4, 3)));
    assert_eq!(d.positions.get("/a/c~1d~0e/0"), Some(at(4, 13)));
    assert_eq!(d.positions.get("/a/c~1d~0e/1/k"), Some(at(4, 17)));
    assert_eq!(d.positions.get("/ü"), Some(at(5, 1)));
    assert_eq!(d.positions.get("/a/nope"), None);
    assert_eq!(d.positions.nearest("/a/b/deeper/still"), at(3, 3));
    assert_eq!(d.positions.nearest("/nope"), at(2, 1));
}

#[test]
fn what_aliases_bring_is_found_where_it_is_written() {
    let d = one("x: &x\n  k: v\ne:\n  <<: *x\n  z: 1\nf: *x\n");
    assert_eq!(d.positions.get("/e/k"), Some(at(2, 3)));
    assert_eq!(d.positions.get("/f"), Some(at(6, 1)));
    assert_eq!(d.positions.get("/f/k"), Some(at(2, 3)));
}

#[test]
fn streams_number_their_documents_and_keep_their_lines() {
    let text = "---\n# nothing\n---\na: 1\n--- # comment\nb: 2\n---\n---\nc: 3\n...\n---\n";
    let documents: Vec<_> =
        parse_documents(text, &Limits::default()).into_iter().map(Result::unwrap).collect();
    let seen: Vec<_> = documents.iter().map(|d| (d.index, d.value.clone(), d.start)).collect();
    assert_eq!(
        seen,
        [(0, json!({"a": 1}), at(4, 1)), (1, json!({"b": 2}), at(6, 1)), (2, json!({"c": 3}), at(9, 1))]
    );
}

#[test]
fn a_broken_document_does_not_hide_the_others() {
    let documents = parse_documents("a: 1\n---\nb: [\n---\nc: 3\n", &Limits::default());
    assert_eq!(documents.len(), 3);
    assert_eq!(documents[0].as_ref().unwrap().value, json!({"a": 1}));
    assert!(documents[1].as_ref().unwrap_err().position.line >= 3);
    assert_eq!(documents[2].as_ref().unwrap().value, json!({"c": 3}));
    assert_eq!(documents[2].as_ref().unwrap().positions.get("/c"), Some(at(5, 1)));
}

#[test]
fn what_kubectl_refuses_or_skips_is_an_error_in_its_place() {
    for (text, place, says) in [
        ("%YAML 1.1\n---\na: yes\n", at(1, 1), "directives"),
        ("a: 1\n--- {b: 2}\n", at(2, 1), "nothing but a comment"),
        ("a: 1\n-----BEGIN\n", at(2, 1), "nothing but a comment"),
        ("a: 1\n...\n\nb: 2\n", at(4, 1), "do not read on after"),
    ] {
        let documents = parse_documents(text, &Limits::default());
        let errors: Vec<_> = documents.iter().filter_map(|d| d.as_ref().err()).collect();
        assert_eq!(errors.len(), 1, "{documents:?}");
        assert_eq!(errors[0].position, place);
        assert!(errors[0].to_string().contains(says), "{}", errors[0]);
    }
    assert_eq!(parse_one(b"%YAML 1.1\n---\na: yes\n", &Limits::default()).unwrap().value, json!({"a": true}));
    assert_eq!(parse_one(b"--- {a: 1}\n", &Limits::default()).unwrap().value, json!({"a": 1}));
}

#[test]
fn tabs_do_not_indent() {
    for (text, place) in [
        ("a:\n\tb: 1\n", at(2, 2)),
        ("a:\n  \tb\n", at(2, 3)),
        ("a: 1\n\t\nb: 2\n", at(2, 1)),
        ("a: [1]\n \t# c\nb: 2\n", at(2, 2)),
        ("a: 1\n\t# c\nb: 2\n", at(2, 1)),
        ("a:\n- \tb\n", at(2, 3)),
        ("a: |\n  \tb\n", at(2, 3)),
        ("a: |\n  b\n\t\nc: 1\n", at(3, 1)),
    ] {
        let e = error(text);
        assert_eq!(e.position, place, "{text:?}: {e}");
        assert!(e.to_string().contains("tab"), "{text:?}: {e}");
    }
    for text in [
        "a:\tb\n",
        "a: {\n b:\t1,\t\n }\n",
        "a: |\n  b\n  \tc\n\n",
        "a: b\t# c\n",
        "a: 1\n \t# c\nb: 2\n",
        "a: 'x\n\ty'\nb: \"z\n\t\"\n",
    ] {
        one(text);
    }
}

#[test]
fn three_dashes_in_a_text_are_not_a_document() {
    let d = one("a: |\n  ---\n  b\n");
    assert_eq!(d.value, json!({"a": "---\nb\n"}));
}

#[test]
fn duplicate_keys_name_both_places() {
    let e = error("a:\n  b: 1\n  c: 2\n  b: 3\n");
    assert_eq!(e.position, at(4, 3));
    assert_eq!(e.kind, ErrorKind::DuplicateKey { key: "b".into(), first: at(2, 3) });
    assert!(e.to_string().contains("line 2:3"), "{e}");
    // Also when only JSON makes them the same, and in JSON itself.
    assert!(matches!(error("1: a\n'1': b").kind, ErrorKind::DuplicateKey { .. }));
    assert!(matches!(error(r#"{"a": 1, "a": 2}"#).kind, ErrorKind::DuplicateKey { .. }));
    // A key that `<<` brings is not set twice by setting it.
    assert_eq!(one("x: &x {k: v}\ne: {<<: *x, k: w}").value["e"]["k"], json!("w"));
}

#[test]
fn bombs_are_refused_before_they_go_off() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for i in 1..12 {
        bomb += &format!("a{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 9].join(", "));
    }
    assert!(matches!(error(&bomb).kind, ErrorKind::Expansion));
    assert!(matches!(
        error(&format!("a: {}", "[".repeat(100_000))).kind,
        ErrorKind::TooDeep { .. } | ErrorKind::Syntax(_)
    ));
    assert!(matches!(error(&"- ".repeat(100_000)).kind, ErrorKind::TooDeep { .. } | ErrorKind::Syntax(_)));
    let deep: String = (0..1000).map(|i| format!("{}a:\n", " ".repeat(i))).collect();
    assert!(matches!(error(&deep).kind, ErrorKind::TooDeep { .. } | ErrorKind::Syntax(_)));
}

#[test]
fn a_text_beyond_the_limit_is_not_read() {
    let limits = Limits { bytes: 10, ..Limits::default() };
    let e = parse_documents("aaaaaaaaaaa: 1", &limits).pop().unwrap().unwrap_err();
    assert_eq!(e.kind, ErrorKind::TooLarge { bytes: 14, limit: 10 });
    let e = parse_bytes(&[0xff; 11], &limits).pop().unwrap().unwrap_err();
    assert_eq!(e.kind, ErrorKind::TooLarge { bytes: 11, limit: 10 });
}

#[test]
fn bytes_must_be_utf8() {
    let e = parse_bytes(b"a: 1\nb: \xff\n", &Limits::default()).pop().unwrap().unwrap_err();
    assert_eq!((e.position, e.kind), (at(2, 4), ErrorKind::Encoding { offset: 8, hint: "" }));
    let with_mark = parse_bytes("\u{feff}a: 1".as_bytes(), &Limits::default()).pop().unwrap().unwrap();
    assert_eq!(with_mark.value, json!({"a": 1}));
}

#[test]
fn numbers_are_as_an_api_server_stores_them() {
    let stored = |text: &str| normalize(serde_json::from_str::<Value>(text).unwrap()).to_string();
    for (written, expected) in [
        ("9007199254740993", "9007199254740993"),
        ("9223372036854775807", "9223372036854775807"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("1.0", "1"),
        ("100.0", "100"),
        ("-0", "0"),
        ("-0.0", "0"),
        ("1.10", "1.1"),
        ("[1.0,{\"a\":2.0}]", "[1,{\"a\":2}]"),
    ] {
        assert_eq!(stored(written), expected, "{written}");
    }
    let float = |text: &str| normalize(serde_json::from_str::<Value>(text).unwrap()).as_f64().unwrap();
    assert!((float("18446744073709551615") - 18_446_744_073_709_552_000.0).abs() < f64::EPSILON);
    assert!((float("123456789012345678901234567890") - 1.234_567_890_123_456_8e29).abs() < f64::EPSILON);
    assert!(serde_json::from_str::<Value>("1e400").is_err());
}

#[test]
fn manifests_hold_the_numbers_that_are_stored() {
    for text in [SENT.to_owned(), cozy_yaml::to_yaml(&serde_json::from_str(SENT).unwrap()).unwrap()] {
        let value = one(&text).value;
        assert_eq!(value, normalize(value.clone()), "{text}");
        assert_eq!(cozy_yaml::to_json(&value).unwrap(), STORED);
    }
    let as_written = parse_one(b"a: 18446744073709551615", &Limits::default()).unwrap().value;
    assert_eq!(as_written, json!({"a": u64::MAX}));
}

#[test]
fn equality_ignores_notation_only() {
    assert!(canonical_eq(&json!({"a": 1, "b": [1.0]}), &json!({"b": [1], "a": 1.0})));
    assert!(!canonical_eq(&json!({"a": null}), &json!({})));
    assert!(!canonical_eq(&json!("1"), &json!(1)));
    assert!(!canonical_eq(&json!(9_007_199_254_740_993_i64), &json!(9_007_199_254_740_992_i64)));
    assert_eq!(digest(&json!({"b": 1.0, "a": "x"})), digest(&json!({"a": "x", "b": 1})));
    // printf '{"a":1}' | sha256sum
    assert_eq!(
        digest(&json!({"a": 1})),
        "sha256:015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"
    );
}

/// What a real API server stored, and the Go operator's Go printed, of one Package (numbers of every kind).
const SENT: &str = r#"{"i31":2147483648,"p53":9007199254740992,"p53p1":9007199254740993,"maxi64":9223372036854775807,
"mini64":-9223372036854775808,"u64":18446744073709551615,"over":123456789012345678901234567890,"negzero":-0,
"one":1.0,"half":0.5,"tenth":0.1,"trail":1.10,"e21":1e21,"e20":1e20,"em6":0.000001,"em7":1e-7,
"big":1.7976931348623157e308,"e3":1E3,"intish":100.0,"nz":-0.0,"p53f":9007199254740993.0,"pi":3.141592653589793238462643}"#;
const STORED: &str = r#"{"big":1.7976931348623157e+308,"e20":100000000000000000000,"e21":1e+21,"e3":1000,"em6":0.000001,"em7":1e-7,"half":0.5,"i31":2147483648,"intish":100,"maxi64":9223372036854775807,"mini64":-9223372036854775808,"negzero":0,"nz":0,"one":1,"over":1.2345678901234568e+29,"p53":9007199254740992,"p53f":9007199254740992,"p53p1":9007199254740993,"pi":3.141592653589793,"tenth":0.1,"trail":1.1,"u64":18446744073709552000}"#;

#[test]
fn numbers_are_printed_as_go_prints_what_it_stored() {
    let value = normalize(one(SENT).value);
    assert_eq!(cozy_yaml::to_json(&value).unwrap(), STORED);
    let pretty = cozy_yaml::to_json_pretty(&json!({"a": [1.5e300, {}], "b": -1e-9, "c": -0.5})).unwrap();
    assert_eq!(pretty, "{\n  \"a\": [\n    1.5e+300,\n    {}\n  ],\n  \"b\": -1e-9,\n  \"c\": -0.5\n}\n");
    assert!(canonical_eq(&one(&cozy_yaml::to_yaml(&value).unwrap()).value, &value));
}
