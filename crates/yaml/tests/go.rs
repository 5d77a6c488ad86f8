//! Go's `sigs.k8s.io/yaml` and this crate read the same text alike.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use cozy_yaml::{ErrorKind, Limits, canonical_json, parse_chart_values, parse_documents, parse_one, to_yaml};
use proptest::prelude::*;
use serde_json::Value;

/// The value of a text with one document; `null` for none, as Go says.
fn read(text: &str) -> Result<Value, cozy_yaml::Error> {
    parse_one(text.as_bytes(), &Limits::default()).map(|document| document.value)
}

/// Asks Go about documents; `None` (and a line that says so) where there is no Go.
fn ask_go(documents: &[String]) -> Option<Vec<Result<Value, String>>> {
    let answers = ask_go_raw(documents, &[])?;
    let parsed = answers.iter().map(|line| match line.strip_prefix("ERR ") {
        Some(reason) => Err(reason.to_owned()),
        None => Ok(serde_json::from_str(line).unwrap()),
    });
    Some(parsed.collect())
}

/// The same, for the lines that the program answers with.
fn ask_go_raw(documents: &[String], arguments: &[&str]) -> Option<Vec<String>> {
    static BINARY: OnceLock<Option<tempfile::TempPath>> = OnceLock::new();
    let binary = BINARY.get_or_init(|| {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/go-yaml");
        let build =
            Command::new("go").args(["build", "-o"]).arg(&*path).arg(".").current_dir(source).output();
        match build {
            Ok(output) if output.status.success() => Some(path),
            Ok(output) => {
                let reason = String::from_utf8_lossy(&output.stderr).into_owned();
                // Without a network, and without the modules in the cache, there is no Go to compare with either.
                let offline =
                    ["dial tcp", "lookup ", "module lookup disabled", "i/o timeout", "connection refused"];
                assert!(offline.iter().any(|sign| reason.contains(sign)), "go build failed: {reason}");
                eprintln!("skipped: comparing with Go needs its modules ({reason})");
                None
            }
            Err(error) => {
                eprintln!("skipped: comparing with Go needs the go command ({error})");
                None
            }
        }
    });
    let mut child = Command::new(binary.as_ref()?)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the built program");
    let mut stdin = child.stdin.take().unwrap();
    let lines: String = documents.iter().map(|d| serde_json::to_string(d).unwrap() + "\n").collect();
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let answers: Vec<String> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(answers.len(), documents.len());
    Some(answers)
}

/// Fails on the first document that Go and this crate read differently.
fn compare(documents: &[String]) {
    let Some(answers) = ask_go(documents) else { return };
    let mut different = Vec::new();
    for (document, go) in documents.iter().zip(answers) {
        match (read(document), go) {
            (Ok(ours), Ok(go)) if canonical_json(&ours) == canonical_json(&go) => {}
            (Err(_), Err(_)) => {}
            // We refuse on purpose what Go quietly takes the last of, except in charts. Of two keys that only JSON
            // makes the same, Go takes any.
            (Err(error), Ok(go)) if matches!(error.kind, ErrorKind::DuplicateKey { .. }) => {
                let ours = parse_chart_values(document.as_bytes(), &Limits::default()).unwrap().value;
                if !["1: x\n\"1\": y", "true: x\n\"true\": y"].contains(&document.as_str()) {
                    assert_eq!(canonical_json(&ours), canonical_json(&go), "{document:?}");
                }
            }
            (ours, go) => different.push(format!("{document:?}: we say {ours:?}, Go says {go:?}")),
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

/// Every scalar below as a value, an element, a key and under each tag.
#[test]
fn scalars_in_every_place() {
    let scalars = [
        "yes",
        "Yes",
        "YES",
        "yEs",
        "no",
        "NO",
        "on",
        "On",
        "oN",
        "off",
        "OFF",
        "y",
        "Y",
        "n",
        "N",
        "true",
        "True",
        "TRUE",
        "tRue",
        "false",
        "~",
        "null",
        "Null",
        "NULL",
        "nUll",
        "0",
        "-0",
        "+0",
        "0755",
        "-0755",
        "+0755",
        "0o17",
        "0O17",
        "0x1F",
        "0X1f",
        "-0x1F",
        "0b11",
        "-0b11",
        "0B11",
        "0b12",
        "1_000",
        "_1",
        "1_",
        "0x_1",
        "1__0",
        "1e3",
        "1E3",
        "1e+3",
        "1e-3",
        "1.0",
        "1.",
        ".5",
        "-.5",
        "+.5",
        ".5e3",
        ".",
        "..",
        "...x",
        "-",
        "+",
        "--1",
        "+-1",
        "010",
        "08",
        "09.5",
        "0_8",
        "12:30:45",
        "190:20:30",
        "2024-01-01",
        "2024-01-01T00:00:00Z",
        "2024-1-1",
        "1e400",
        "-1e400",
        "1e-400",
        "9007199254740993",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
        "-9223372036854775809",
        "18446744073709551615",
        "18446744073709551616",
        "+18446744073709551615",
        "12345678901234567890",
        "123456789012345678901234567890",
        "1.7976931348623157e308",
        "5e-324",
        "0.1",
        "100.0",
        "1e21",
        "1e20",
        "1e-7",
        "-0.0",
        "1.10",
        ".inf",
        "-.inf",
        "+.Inf",
        ".nan",
        ".NaN",
        "inf",
        "nan",
        "0x",
        "0o",
        "0b",
        "<<",
        "=",
        "!",
        "a b",
        "ü",
        "日本",
        "1 2",
        "0x1.8p1",
        "1f",
        "Infinity",
        "NaN",
        "infinity",
        "0e0",
        "e1",
        "1e",
    ];
    let mut documents = Vec::new();
    for scalar in scalars {
        documents.push(format!("a: {scalar}"));
        documents.push(format!("- {scalar}"));
        documents.push(format!("{scalar}: x"));
        documents.push(format!("a: \"{scalar}\""));
        documents.push(format!("'{scalar}': x"));
        for tag in ["!!str", "!!int", "!!float", "!!bool", "!!null", "!!binary", "!custom", "!"] {
            documents.push(format!("a: {tag} {scalar}"));
        }
        documents.push(format!("a: !!int \"{scalar}\""));
    }
    compare(&documents);
}

#[test]
fn structures() {
    let documents = [
        "",
        "# only a comment",
        "---",
        "--- a",
        "--- # c\na: 1",
        "a: 1\n...\n",
        "%YAML 1.1\n---\na: yes",
        "- - a\n  - b\n- c",
        "a:\n- b\n- c",
        "a: {b: c, d: [e, f]}",
        "{a: 1, b: }",
        "[a, , b]",
        "a: |\n  x\n  y\n",
        "a: |-\n  x\n\n",
        "a: |+\n  x\n\n\nb: 1",
        "a: >\n  x\n  y\n\n  z\n",
        "a: |2\n    x\n   y\n",
        "a: \"x\\ny\\u00e9\\x41\\e\"",
        "a: 'it''s'",
        "a: &x 1\nb: *x",
        "a: &x [1, 2]\nb: *x\nc: [*x, *x]",
        "a: &a [*a]",
        "b: *nope",
        "x: &x {k: v}\ne:\n  <<: *x\n  z: 1",
        "x: &x {k: v}\ne:\n  k: w\n  <<: *x",
        "x: &x {k: v}\ne:\n  <<: *x\n  k: w",
        "x: &x {k: 1}\ny: &y {k: 2, l: 3}\ne:\n  <<: [*x, *y]",
        "e:\n  <<: {k: v}",
        "e:\n  <<: [1]",
        "e:\n  <<: 5",
        "e: {'<<': 1}",
        "x: &x {k: {a: 1}}\ne:\n  <<: *x\n  k: {b: 2}",
        "? a\n: b",
        "? [a]\n: b",
        "? {a: b}\n: c",
        "1: x\n\"1\": y",
        "a: 1\nb: 2\na: [3]",
        "a: {b: 1, c: 2, b: {d: 3}}",
        "true: x\n\"true\": y",
        "1.5: x",
        "1e6: x",
        "1e21: x",
        "0.0001: x",
        "0.00001: x",
        "123456789.5: x",
        "null: x",
        "~: x",
        "a: b: c",
        "a:\tb",
        "a: b\n c",
        "a: \"b\n  c\"",
        "a: 'b\n\n  c'",
        "a: b #c",
        "a: b#c",
        "a: @b",
        "a: `b",
        "a: %b",
        "a: -b",
        "a: - b",
        "a: [",
        "a: \"",
        "- a\nb: c",
        "a: !!set {b}",
        "a: !!map {b: c}",
        "a: !!seq [b]",
        "a: &x\nb: *x",
        "&k a: 1\nb: *k",
        "a: 1\r\nb: 2\r\n",
        "a: \u{7f}",
        "a: \u{1}",
        "\u{feff}a: 1",
        "a: |\n x\n  y\n z\n",
        "a: >-\n  x\n\n\n  y",
        "a: !!binary aGVsbG8=",
        "a: ? b",
        "a: {? b}",
        "a: [? b]",
        "{a, b: c}",
        "[a: b, c]",
        "a: *",
        "a: &",
        "'a'\n",
        "\"a\": 1",
        "a:  \n  b: 1",
        "-\n  a: 1",
        "- # c\n  a",
    ];
    compare(&documents.map(str::to_owned));
}

/// JSON escapes that Go's YAML reader refuses: kubectl and Flux hand JSON to a JSON reader, which takes them.
#[test]
fn json_is_read_whole() {
    let text = r#"{"a": "b\/c \ud83d\ude00", "d": [1.0, -0, 1e5]}"#;
    assert_eq!(canonical_json(&read(text).unwrap()), r#"{"a":"b/c 😀","d":[1,0,100000]}"#);
}

/// `\n`, `\t` and `\\` of the fixtures, which hold one document a line.
fn unescape(line: &str) -> String {
    line.replace("\\\\", "\u{1}").replace("\\n", "\n").replace("\\t", "\t").replace('\u{1}', "\\")
}

fn replay(cases: &str, answers: &str) {
    assert_eq!(cases.lines().count(), answers.lines().count());
    let mut different = Vec::new();
    for (case, answer) in cases.lines().zip(answers.lines()) {
        let text = unescape(case);
        let ours = read(&text);
        let same = match (&ours, answer.strip_prefix("ERR ")) {
            // JSON goes to a JSON reader, whatever YAML says of it.
            (ours, Some(_)) => ours.is_err() || serde_json::from_str::<Value>(&text).is_ok(),
            // We refuse on purpose what Go quietly takes the last of.
            (Err(error), None) => matches!(error.kind, ErrorKind::DuplicateKey { .. }),
            (Ok(ours), None) => {
                canonical_json(ours) == canonical_json(&serde_json::from_str::<Value>(answer).unwrap())
            }
        };
        if !same {
            different.push(format!("{case}: Go says {answer}, we say {ours:?}"));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

/// Documents of Cozystack's developers and more of our own, with the answers that Go gave.
#[test]
fn recorded_answers() {
    replay(include_str!("fixtures/cozystack-cases.txt"), include_str!("fixtures/cozystack-results.txt"));
    replay(include_str!("fixtures/own-cases.txt"), include_str!("fixtures/own-results.txt"));
}

#[test]
fn recorded_answers_are_still_what_go_says() {
    for (cases, answers) in [
        (include_str!("fixtures/cozystack-cases.txt"), include_str!("fixtures/cozystack-results.txt")),
        (include_str!("fixtures/own-cases.txt"), include_str!("fixtures/own-results.txt")),
    ] {
        let documents: Vec<String> = cases.lines().map(unescape).collect();
        let Some(said) = ask_go(&documents) else { return };
        for ((case, recorded), said) in cases.lines().zip(answers.lines()).zip(said) {
            match (recorded.strip_prefix("ERR "), said) {
                (Some(_), Err(_)) => {}
                (None, Ok(said)) => {
                    let recorded: Value = serde_json::from_str(recorded).unwrap();
                    assert_eq!(canonical_json(&said), canonical_json(&recorded), "{case}");
                }
                (_, said) => panic!("{case}: recorded {recorded}, now {said:?}"),
            }
        }
    }
}

#[test]
fn shared_answers() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/yaml");
    let read = |name: &str| std::fs::read_to_string(dir.join(name));
    let (Ok(cases), Ok(answers)) = (read("cases.txt"), read("go-results.txt")) else {
        eprintln!("skipped: {} is not there", dir.display());
        return;
    };
    replay(&cases, &answers);
}

/// What kubectl and Flux read from a file, and where they stop. We go on after a broken document, and call two things
/// errors that they do not mind: a document that they skip without a word, and a key twice.
#[test]
fn streams() {
    let texts = [
        "a: 1\n---\nb: 2\n",
        "--- {a: 1}\n",
        "---\na: 1\n",
        "a: 1\n--- # c\nb: 2\n",
        "a: 1\n---foo\nb: 2",
        "a: 1\n...\n---\nb: 2\n",
        "a: 1\n... # c\n# d\n---\nb: 2\n",
        "%YAML 1.1\n---\na: yes\n",
        "# c\n%YAML 1.1\n---\na: 1",
        "# c\n---\n# d\n---\na: 1\n---\n",
        "{\"a\":1}{\"b\":2}",
        "{\"a\":1}\n---\n{\"b\":2}\n",
        "{a: 1}\n---\nb: 2",
        "{\"a\": 1e400}",
        "\u{feff}a: 1",
        "a: |\n  x\n---\nb: 2\n",
        "a: '\n---\n'\n",
        "a: 1\r\n---\r\nb: 2\r\n",
        "a: 1\n---\t\nb: 2",
        "---\n---\na: 1",
        "",
        "\n\n",
        "---",
        "null\n---\na: 1",
        "{\"a\": 12345678901234567890, \"b\": 1.0, \"c\": -0}",
        "[1]\n",
        "{\"a\":1}x",
        "--- \na: 1",
        "---  # x\na: 1\n---#y\nb: 2",
        "a: \"x\n---\ny\"\n",
        " ---\na: 1",
        "- a\n-- b",
        "{\"a\": \"\u{7f}\"}",
        "{\"a\":\n\t1}",
        "{\"a\": \"x\\ty\\/\\ud83d\\ude00\u{85}\u{feff}\u{2028}\"}",
        "{\"\\ud83d\": \"\\ude00\\ud83d\\ud83d\\ude00\\n\\\\\"}",
        "{\"a\": [1e2, -0.0, 1E-2, 100000000000000000000, true, false, null, {}, []]}",
        "{} {}",
        "a: 1\n-----BEGIN\nb: 2",
        "a: %b\n",
        "%a: b\n",
    ];
    let Some(answers) = ask_go_raw(&texts.map(str::to_owned), &["stream"]) else { return };
    let mut different = Vec::new();
    for (text, answer) in texts.iter().zip(answers) {
        let go: Result<Vec<Value>, _> = serde_json::from_str(&answer);
        let ours = parse_documents(text, &Limits::default());
        let first_error = ours.iter().position(Result::is_err);
        let same = match go {
            // A number that JSON cannot hold comes through Go's decoder as text; no API server takes it.
            Err(_) => first_error.is_some(),
            Ok(mut go) => {
                let stopped = go.last().is_some_and(|last| last.get("ERR").is_some());
                if stopped {
                    go.pop();
                }
                go.retain(|document| !document.is_null());
                let until = first_error.unwrap_or(ours.len());
                let read: Vec<&Value> =
                    ours.iter().take(until).flatten().map(|d| &d.value).filter(|v| !v.is_null()).collect();
                stopped == first_error.is_some()
                    // With `---text` Go loses the document before as well.
                    && (read.len() == go.len() || stopped && read.len() > go.len())
                    && read.iter().zip(&go).all(|(a, b)| canonical_json(a) == canonical_json(b))
            }
        };
        if !same {
            different.push(format!("{text:?}: Go reads {answer}, we read {ours:?}"));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

/// Mappings of YAML's own parts, put together at random.
fn parts() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        " a", "b: ", "- ", "? ", ": ", "\n", "\n", "\n  ", "\n  ", "\n    ", "{", "}", "[", "]", ", ", "&x ",
        "*x", "<<: ", "!!str ", "!t ", "|\n", ">\n", "|2-", ">+", "'", "\"", "\\", "\\u00e9", "#", " # c",
        "\nc: ", "\nd: ", "\n- ", "\n  - ", "e: ", "f: ", " ", "x y", "~", "null", "yes", "0755", "1_0",
        "1e3", "-0.0", "\t", "é", "😀", "\"q\"", "'s'", "{g: h}", "[1, 2]",
    ]);
    prop::collection::vec(part, 0..16).prop_map(|parts| format!("k: {}\nzz: 1\n", parts.concat()))
}

/// Whatever both read, they read alike; and what only one of them reads is rare and known.
#[test]
fn random_mappings() {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let texts: Vec<String> = (0..20_000).map(|_| parts().new_tree(&mut runner).unwrap().current()).collect();
    let Some(answers) = ask_go(&texts) else { return };
    let (mut both, mut only_go, mut only_we) = (0, 0, 0);
    let mut unknown = Vec::new();
    for (text, go) in texts.iter().zip(answers) {
        match (parse_chart_values(text.as_bytes(), &Limits::default()), go) {
            (Ok(ours), Ok(go)) => {
                both += 1;
                assert_eq!(canonical_json(&ours.value), canonical_json(&go), "{text:?}");
            }
            // Go reads a block scalar whose header is not indented, `'a'#comment`, and a flow list's line of tabs.
            (Err(error), Ok(Value::Object(go))) if go.contains_key("zz") => {
                only_go += 1;
                let known = ["simple key expected", "comments must be separated", "tabs disallowed"];
                if !known.iter().any(|known| error.to_string().contains(known)) {
                    unknown.push(format!("{text:?}: {error}, but Go has {go:?}"));
                }
            }
            // Go minds more tabs.
            (Ok(ours), Err(reason)) => {
                only_we += 1;
                assert!(text.contains('\t'), "{text:?}: {:?}, {reason}", ours.value);
            }
            _ => {}
        }
    }
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
    assert!(both > 2000 && only_go < 100 && only_we < 20, "{both} {only_go} {only_we}");
}

fn files(dir: &Path, out: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, out);
        } else if path.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json") {
            out.push(path);
        }
    }
}

/// Every real file: read alike, and what we print of it read back by Go.
#[test]
fn real_files() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let mut paths = Vec::new();
    files(&dir, &mut paths);
    paths.sort();
    if paths.is_empty() {
        eprintln!("skipped: {} is not there", dir.display());
        return;
    }
    let texts: Vec<String> = paths.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let Some(answers) = ask_go_raw(&texts, &["stream"]) else { return };
    let mut printed = Vec::new();
    for ((path, text), answer) in paths.iter().zip(&texts).zip(answers) {
        let go: Vec<Value> = serde_json::from_str(&answer).unwrap();
        if go.iter().any(|document| document.get("ERR").is_some()) {
            println!("not compared, Go refuses it: {}", path.display());
            assert!(path.starts_with(dir.join("golden")), "{}", path.display());
            continue;
        }
        let go: Vec<&Value> = go.iter().filter(|document| !document.is_null()).collect();
        let ours: Vec<_> = parse_documents(text, &Limits::default())
            .into_iter()
            .map(|document| match document {
                Err(e) if matches!(e.kind, ErrorKind::DuplicateKey { .. }) => {
                    // A chart of others' making.
                    parse_chart_values(text.as_bytes(), &Limits::default()).unwrap()
                }
                other => other.unwrap_or_else(|e| panic!("{}: {e}, but Go reads it", path.display())),
            })
            .collect();
        assert_eq!(ours.len(), go.len(), "{}", path.display());
        for (document, go) in ours.into_iter().zip(go) {
            assert_eq!(canonical_json(&document.value), canonical_json(go), "{}", path.display());
            printed.push((path, document.value));
        }
    }
    let texts: Vec<String> = printed.iter().map(|(_, value)| to_yaml(value).unwrap()).collect();
    let answers = ask_go(&texts).expect("it was there before");
    for ((path, value), answer) in printed.iter().zip(answers) {
        assert_eq!(canonical_json(&answer.unwrap()), canonical_json(value), "{}", path.display());
    }
    println!("{} files, {} documents", paths.len(), printed.len());
}

fn text() -> impl Strategy<Value = String> {
    let awkward = prop::sample::select(vec![
        "",
        " ",
        "~",
        "null",
        "yes",
        "y",
        "NO",
        "on",
        "0755",
        "0x1F",
        "1_000",
        "1e3",
        ".5",
        "12:30:45",
        "2024-01-01",
        "<<",
        "=",
        "- a",
        "a: b",
        "a #b",
        "#a",
        "'",
        "\"",
        "|",
        ">",
        "%",
        "@",
        "`",
        "&a",
        "*a",
        "!a",
        "{",
        "}",
        "[",
        "]",
        ",",
        "?",
        ":",
        "-",
        "---",
        "...",
        "--- a",
        "\t",
        "a\tb",
        "\n",
        "a\n",
        "a\nb",
        "a\n\n",
        "\na",
        " a\nb",
        "a \n b",
        "a\r\nb",
        "a\u{85}b",
        "\u{2028}",
        "\u{feff}",
        "\u{7f}",
        "\u{0}",
        "\u{1b}",
        "日本",
        "\u{1F600}",
        "é",
        "{{ .Values.x }}",
        "-----BEGIN\nx\n-----END\n",
        "  indented\nless\n",
    ])
    .prop_map(str::to_owned);
    prop_oneof![awkward, "[ -~]{0,12}", "\\PC{0,6}", "([a-z:#\\- ]{0,6}\n){0,4}"]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_filter_map("finite", |f| serde_json::Number::from_f64(f).map(Value::Number)),
        text().prop_map(Value::String),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
            prop::collection::btree_map(text(), inner, 0..5)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_printed_is_read_back(value in value()) {
        let text = to_yaml(&value).unwrap();
        let back = read(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        prop_assert_eq!(canonical_json(&back), canonical_json(&value), "{}", text);
    }
}

/// The same through Go, in one batch.
#[test]
fn go_reads_back_what_is_printed() {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let values: Vec<Value> = (0..3000).map(|_| value().new_tree(&mut runner).unwrap().current()).collect();
    let documents: Vec<String> = values.iter().map(|v| to_yaml(v).unwrap()).collect();
    let Some(answers) = ask_go(&documents) else { return };
    for ((value, text), go) in values.iter().zip(&documents).zip(answers) {
        let go = go.unwrap_or_else(|e| panic!("Go refuses what we print: {e}\n{text}\n{value}"));
        assert_eq!(canonical_json(&go), canonical_json(value), "Go reads back something else:\n{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_it_panic(text in "[ -~\n\t]{0,80}") {
        let _ = parse_documents(&text, &Limits::default());
    }
}
