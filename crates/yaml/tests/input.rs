//! Hostile and mistaken input, and what a text's documents are.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cozy_yaml::{
    Document, Error, ErrorKind, Limits, Position, parse_bytes, parse_documents, parse_one, to_yaml,
};
use serde_json::{Value, json};

fn parse(text: &str) -> Document {
    parse_one(text.as_bytes(), &Limits::default()).unwrap()
}

fn fails(text: &str) -> Error {
    parse_one(text.as_bytes(), &Limits::default()).unwrap_err()
}

fn at(line: usize, column: usize) -> Position {
    Position { line, column }
}

#[test]
fn positions_of_keys_and_elements() {
    let document = parse(
        "# c\na:\n  b/c: [x, {~: y}]\n  'd~': |\n    text\n  é: 1\n".replace("{~: y}", "{k: y}").as_str(),
    );
    let positions = &document.positions;
    assert_eq!(positions.get(""), Some(at(2, 1)));
    assert_eq!(positions.get("/a"), Some(at(2, 1)));
    assert_eq!(positions.get("/a/b~1c"), Some(at(3, 3)));
    assert_eq!(positions.get("/a/b~1c/0"), Some(at(3, 9)));
    assert_eq!(positions.get("/a/b~1c/1/k"), Some(at(3, 13)));
    assert_eq!(positions.get("/a/d~0"), Some(at(4, 3)));
    assert_eq!(positions.get("/a/é"), Some(at(6, 3)));
    for absent in ["/a/b~1c/2", "/a/b~1c/00", "/a/b~1c/-", "/z", "a", "/a/d~", "/a/é/x"] {
        assert_eq!(positions.get(absent), None, "{absent}");
    }
    assert_eq!(positions.nearest("/a/b~1c/7/x"), at(3, 3));
    assert_eq!(positions.nearest("/z"), at(2, 1));
    assert_eq!(positions.nearest("no pointer"), at(2, 1));
    let below = positions.below("/a/b~1c").unwrap();
    assert_eq!(below.get("/1/k"), Some(at(3, 13)));
}

#[test]
fn positions_below_an_alias_are_those_of_the_anchor() {
    let document = parse("x: &x\n  k: [1]\ny: *x\nz:\n  <<: *x\n  l: 2\n");
    let positions = &document.positions;
    assert_eq!(positions.get("/true"), Some(at(3, 1)));
    assert_eq!(positions.get("/true/k"), Some(at(2, 3)));
    assert_eq!(positions.get("/z/k/0"), Some(at(2, 7)));
    assert_eq!(positions.get("/z/l"), Some(at(6, 3)));
}

#[test]
fn a_broken_document_does_not_hide_the_others() {
    let text = "a: 1\n---\nb: [\n--- # third\nc: 3\n...\n# nothing\n---\n---\nd: 4\nd: 5\n--- \n{e: 5}\n";
    let documents = parse_documents(text, &Limits::default());
    let seen: Vec<_> = documents
        .iter()
        .map(|document| match document {
            Ok(document) => (document.value.clone(), document.start),
            Err(error) => (Value::Null, error.position),
        })
        .collect();
    assert_eq!(seen.len(), 5, "{documents:?}");
    assert_eq!(seen[0], (json!({"a": 1}), at(1, 1)));
    assert_eq!(seen[1].0, Value::Null);
    assert_eq!(seen[2], (json!({"c": 3}), at(5, 1)));
    assert_eq!(seen[3], (Value::Null, at(11, 1)));
    assert_eq!(seen[4], (json!({"e": 5}), at(13, 1)));
    assert_eq!(documents[4].as_ref().unwrap().index, 4);
}

#[test]
fn markers_inside_scalars_are_text_unless_at_the_margin() {
    let documents = parse_documents("a: |\n  ---\n  x\nb: '\n  --- '\n", &Limits::default());
    assert_eq!(documents.len(), 1);
    assert_eq!(documents[0].as_ref().unwrap().value, json!({"a": "---\nx\n", "b": " --- "}));
}

#[test]
fn directives_and_carriage_returns() {
    assert_eq!(parse("# c\r\n%YAML 1.1\r\n---\r\na: yes\r\n").value, json!({"a": true}));
    let two = parse_documents("a: 1\r\n---\r\nb: 2\r\n", &Limits::default());
    assert_eq!(two.len(), 2);
    assert_eq!(two[1].as_ref().unwrap().start, at(3, 1));
}

#[test]
fn json_documents_follow_each_other() {
    let documents = parse_documents("{\"a\": 1}{\"b\":\n 2} {\"c\": [3]}\n", &Limits::default());
    let values: Vec<_> = documents.iter().map(|d| d.as_ref().unwrap().value.clone()).collect();
    assert_eq!(values, [json!({"a": 1}), json!({"b": 2}), json!({"c": [3]})]);
    assert_eq!(documents[1].as_ref().unwrap().positions.get("/b"), Some(at(1, 10)));
    assert_eq!(documents[2].as_ref().unwrap().start, at(2, 5));
    assert!(matches!(fails("{\"a\": 1e400}"), Error { kind: ErrorKind::Number(_), .. }));
    assert_eq!(parse("{\"a\\/b\": \"\\ud83d\\ude00\"}").value, json!({"a/b": "😀"}));
}

#[test]
fn comments_may_stand_before_json() {
    let text = "# POST /apis\n\n{\"a\": \"\\/\\ud83d\\ude00\",\n \"b\": -0.0}\n---\n# again\n{\"c\":\n1}\n";
    let documents = parse_documents(text, &Limits::default());
    let values: Vec<_> = documents.iter().map(|d| d.as_ref().unwrap().value.clone()).collect();
    assert_eq!(values, [json!({"a": "/😀", "b": 0}), json!({"c": 1})]);
    assert_eq!(documents[0].as_ref().unwrap().positions.get("/b"), Some(at(4, 2)));
    assert_eq!(documents[1].as_ref().unwrap().positions.get("/c"), Some(at(7, 2)));
}

#[test]
fn a_duplicate_key_names_both_places() {
    let error = fails("a: 1\nb:\n  c: 1\n  \"c\": 2\n");
    assert_eq!(
        error,
        Error { position: at(4, 3), kind: ErrorKind::DuplicateKey { key: "c".into(), first: at(3, 3) } }
    );
    assert_eq!(
        error.to_string(),
        "line 4:3: key \"c\" is already set at line 3:3; \
         Kubernetes would silently take the last one, so remove one of them"
    );
    assert!(matches!(fails("1: a\n'1': b\n"), Error { kind: ErrorKind::DuplicateKey { .. }, .. }));
    assert!(matches!(fails("yes: a\non: b\n"), Error { kind: ErrorKind::DuplicateKey { .. }, .. }));
    assert!(matches!(fails("{\"a\": 1, \"a\": 1}"), Error { kind: ErrorKind::DuplicateKey { .. }, .. }));
}

#[test]
fn bytes_that_are_not_utf8() {
    let mut bytes = b"a: 1\nb: \xc3\xa9\xff\n".to_vec();
    let error = parse_bytes(&bytes, &Limits::default()).remove(0).unwrap_err();
    assert_eq!(error, Error { position: at(2, 5), kind: ErrorKind::Encoding { offset: 10, hint: "" } });
    bytes.splice(..0, [0xff, 0xfe]);
    let error = parse_bytes(&bytes, &Limits::default()).remove(0).unwrap_err();
    assert!(error.to_string().contains("UTF-16"), "{error}");
    assert_eq!(parse_one(b"\xef\xbb\xbfa: 1", &Limits::default()).unwrap().value, json!({"a": 1}));
}

#[test]
fn a_huge_text_is_refused() {
    let limits = Limits { bytes: 10, ..Limits::default() };
    let error = parse_bytes(b"a: 12345678", &limits).remove(0).unwrap_err();
    assert_eq!(error.kind, ErrorKind::TooLarge { bytes: 11, limit: 10 });
    let error = Limits::default().check_length(100 << 20).unwrap_err();
    assert!(error.to_string().contains("104857600 bytes are more than the 33554432"), "{error}");
}

#[test]
fn depth_is_bounded() {
    let flow = |n: usize| "[".repeat(n) + &"]".repeat(n);
    assert!(parse_one(flow(120).as_bytes(), &Limits::default()).is_ok());
    for n in [121, 200, 10_000, 1_000_000] {
        assert!(matches!(fails(&flow(n)), Error { kind: ErrorKind::TooDeep { .. }, .. }), "{n}");
    }
    assert!(matches!(fails(&"- ".repeat(200)), Error { kind: ErrorKind::TooDeep { .. }, .. }));
    let through_alias = format!("a: &a {}\nb: {}*a {}\n", flow(100), "[".repeat(50), "]".repeat(50));
    assert!(matches!(fails(&through_alias), Error { kind: ErrorKind::TooDeep { .. }, .. }));
}

#[test]
fn values_are_counted() {
    let limits = Limits { nodes: 100, ..Limits::default() };
    for text in [
        format!("[{}]", "1, ".repeat(101)),
        "- a\n".repeat(101),
        format!("{{\"a\": [{}1]}}", "1,".repeat(101)),
    ] {
        let error = parse_one(text.as_bytes(), &limits).unwrap_err();
        assert_eq!(error.kind, ErrorKind::TooMany { limit: 100 }, "{text}");
        assert!(parse_one(text.as_bytes(), &Limits::default()).is_ok());
    }
}

#[test]
fn alias_bombs_are_refused() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..10 {
        let aliases = vec![format!("*a{}", i - 1); 10].join(", ");
        bomb += &format!("a{i}: &a{i} [{aliases}]\n");
    }
    assert!(matches!(fails(&bomb), Error { kind: ErrorKind::Expansion, .. }));
    let text = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), vec!["*a"; 100].join(", "));
    assert!(matches!(fails(&text), Error { kind: ErrorKind::Expansion, .. }));
    let merges = format!(
        "a: &a {{{}}}\nb:\n{}",
        (0..1000).map(|i| format!("k{i}: x, ")).collect::<String>(),
        (0..1000).map(|i| format!("  c{i}: {{<<: *a}}\n")).collect::<String>()
    );
    assert!(matches!(fails(&merges), Error { kind: ErrorKind::Expansion, .. }));
    let nested = format!(
        "{}{}{}",
        (0..100).map(|i| format!("&n{i} [")).collect::<String>(),
        vec!["x"; 100_000].join(", "),
        "]".repeat(100)
    );
    assert!(matches!(fails(&nested), Error { kind: ErrorKind::Expansion, .. }));
}

#[test]
fn empty_texts() {
    for text in ["", "\n\n", "# only a comment\n", "---\n", "---\n---\n", "\u{feff}"] {
        assert!(parse_documents(text, &Limits::default()).is_empty(), "{text:?}");
        assert_eq!(parse(text).value, Value::Null);
    }
    assert_eq!(parse("null").value, Value::Null);
    assert_eq!(parse_documents("~", &Limits::default()).len(), 1);
    assert!(matches!(fails("a: 1\n---\nb: 2"), Error { kind: ErrorKind::NotOne(2), .. }));
}

#[test]
fn printing() {
    let value = json!({"b": ["yes", "1_000", "0755", "~", "null", "2024-01-01", "", "x"], "a": "one\ntwo\n",
        "n": null, "m": {}, "l": [], "i": 9_007_199_254_740_993_i64, "f": 0.5});
    let text = to_yaml(&value).unwrap();
    assert_eq!(parse(&text).value, value, "{text}");
    assert!(text.starts_with("a: |\n  one\n  two\nb:\n"), "{text}");
}
