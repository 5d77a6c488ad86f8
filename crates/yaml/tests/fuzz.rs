//! The fuzzer's checks on stable: over the seeds, over mutations of them, and over texts made of YAML's own parts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../fuzz/checks.rs"]
mod checks;

use proptest::prelude::*;

fn seeds() -> Vec<Vec<u8>> {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    let mut paths: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let files = paths.iter().map(|path| std::fs::read(path).unwrap());
    let cases =
        include_str!("fixtures/own-cases.txt").lines().map(|line| line.replace("\\n", "\n").into_bytes());
    files.chain(cases).collect()
}

#[test]
fn seeds_pass() {
    let seeds = seeds();
    assert!(seeds.len() > 100);
    for seed in seeds {
        checks::read(&seed);
    }
}

fn parts() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        "a",
        "b: ",
        "- ",
        "? ",
        ": ",
        "\n",
        "\n  ",
        "\n    ",
        "{",
        "}",
        "[",
        "]",
        ", ",
        "&x ",
        "*x",
        "<<: ",
        "!!str ",
        "!!binary ",
        "!t ",
        "|",
        ">",
        "|2-",
        ">+",
        "'",
        "\"",
        "\\",
        "\\u00e9",
        "#",
        " # c",
        "---\n",
        "...\n",
        "%YAML 1.1\n",
        "~",
        "null",
        "yes",
        "0755",
        "1_0",
        "1e3",
        "-0.0",
        ".inf",
        "1e400",
        "18446744073709551616",
        "\t",
        "\r\n",
        "\u{feff}",
        "é",
        "😀",
        "\u{85}",
        "\u{2028}",
        "\u{7f}",
        "{\"a\":1}",
        "\"\\ud83d\"",
        "/",
        "~1",
        "",
    ]);
    prop::collection::vec(part, 0..40).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parts_of_yaml_pass(text in parts()) {
        checks::read(text.as_bytes());
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
        checks::read(&data);
    }
}
