//! The chart of the application GitOps: what a tenant writes into any field comes out as that field's value and
//! nothing else, or is refused by the schema; what comes out is what the CRDs and the policies let in; and the
//! ApplicationDefinition says what the chart's schema says.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

mod surface;

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use surface::{Surface, documents, helm, merge, repository};

const NAMESPACE: &str = "tenant-foo";

/// Every string that a source may have, as a pointer and a value that is allowed there.
const STRINGS: &[(&str, &str)] = &[
    ("/name", "apps"),
    ("/url", "https://git.example.com/team/apps.git"),
    ("/ref/branch", "main"),
    ("/ref/tag", "v1"),
    ("/ref/semver", ">=1.0.0"),
    ("/ref/name", "refs/heads/main"),
    ("/ref/commit", "abcdefabcdefabcdefabcdefabcdefabcdefabcd"),
    ("/secretRef/name", "gitops-credentials"),
    ("/verify/mode", "Tag"),
    ("/verify/secretRef/name", "gitops-signers"),
    ("/interval", "1m"),
    ("/timeout", "2m"),
    ("/path", "./production"),
    ("/deletionPolicy", "Delete"),
    ("/decryption/secretRef/name", "gitops-age"),
    ("/dependsOn/0", "base"),
];

/// What breaks templates, YAML or shells, and what only looks as if.
fn payloads() -> Vec<String> {
    let mut payloads: Vec<String> = [
        "\"",
        "'",
        "a\"b",
        "a'b",
        "\"\nkind: Secret\n#",
        "x\n---\napiVersion: v1\nkind: Secret\n",
        "x\n  serviceAccountName: admin",
        "{{ .Values }}",
        "{{ include \"gitops.labels\" . }}",
        "{{ fail \"x\" }}",
        "{{`{{`}}",
        "${HOME}",
        "$(id)",
        "`id`",
        "!!binary aGk=",
        "!!python/object:os.system",
        "&anchor x",
        "*anchor",
        "<<: *x",
        "|\n  x",
        ">\n  x",
        "? x",
        "- x",
        "# x",
        ": ",
        "a: b",
        "x: {y: z}",
        "[x]",
        "{x: y}",
        "yes",
        "null",
        "~",
        "0x10",
        "1e3",
        "0755",
        "2001-01-01",
        "%YAML 1.1",
        "@x",
        "\t",
        " ",
        "",
        "\u{0}",
        "\u{7}",
        "\u{1b}[31m",
        "\r\n",
        "\u{85}",
        "\u{2028}",
        "\u{feff}x",
        "\u{202e}x",
        "\u{1f600}",
        "\\",
        "\\n",
        "\\\"",
        "..",
        "../..",
        "/etc/passwd",
        "--upload-pack=id",
        "-x",
        "<script>",
        "&amp;",
        "x,y",
        "a b",
    ]
    .map(str::to_owned)
    .into();
    payloads.push("x".repeat(1_000_000));
    payloads.push("\"\n".repeat(500_000));
    payloads
}

fn base() -> Value {
    json!({ "name": "base", "url": "https://git.example.com/team/base.git" })
}

/// A source with every field set.
fn full() -> Value {
    let mut source = json!({ "prune": false, "wait": true, "suspend": true, "dependsOn": [""] });
    for (pointer, value) in STRINGS {
        set(&mut source, pointer, value);
    }
    source
}

fn set(source: &mut Value, pointer: &str, value: &str) {
    let mut at = source;
    for key in pointer.split('/').skip(1) {
        at = if at.is_array() { &mut at[key.parse::<usize>().unwrap()] } else { &mut at[key] };
    }
    *at = value.into();
}

/// What the chart has to make of a source, built from the values without any template.
fn expected(source: &Value) -> [Value; 2] {
    let labels = json!({ "app.kubernetes.io/name": "gitops", "app.kubernetes.io/instance": "gitops-gitops" });
    let field = |name: &str, default: Value| source.get(name).cloned().unwrap_or(default);
    let mut git = json!({
        "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository",
        "metadata": { "name": source["name"], "namespace": NAMESPACE, "labels": labels },
        "spec": {
            "url": source["url"], "interval": field("interval", json!("5m")), "timeout": "60s",
            "suspend": field("suspend", json!(false)),
        },
    });
    for name in ["ref", "secretRef", "verify"] {
        if let Some(value) = source.get(name) {
            git["spec"][name] = value.clone();
        }
    }
    let mut kustomization = json!({
        "apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization",
        "metadata": { "name": source["name"], "namespace": NAMESPACE, "labels": labels },
        "spec": {
            "sourceRef": { "kind": "GitRepository", "name": source["name"] },
            "path": field("path", json!("./")),
            "interval": field("interval", json!("5m")), "timeout": field("timeout", json!("5m")),
            "prune": field("prune", json!(true)), "wait": field("wait", json!(false)),
            "deletionPolicy": field("deletionPolicy", json!("Orphan")), "suspend": field("suspend", json!(false)),
            "serviceAccountName": "tenant-foo-gitops", "targetNamespace": NAMESPACE,
        },
    });
    kustomization["metadata"]["labels"]["sharding.fluxcd.io/key"] = NAMESPACE.into();
    // An empty path is the default's: there is no directory of that name.
    if kustomization["spec"]["path"] == "" {
        kustomization["spec"]["path"] = "./".into();
    }
    if let Some(decryption) = source.get("decryption") {
        kustomization["spec"]["decryption"] = json!({ "provider": "sops" });
        merge(&mut kustomization["spec"]["decryption"], decryption);
    }
    if let Some(names) = source.get("dependsOn") {
        let names: Vec<_> = names.as_array().unwrap().iter().map(|name| json!({ "name": name })).collect();
        kustomization["spec"]["dependsOn"] = names.into();
    }
    [git, kustomization]
}

/// Renders the chart; the message when it refuses.
fn render(sources: &[Value]) -> Result<Vec<Value>, String> {
    // Escaped, as YAML would change some characters before the chart sees them; Flux hands JSON over.
    let values: String = json!({ "sources": sources, "_cluster": { "x": 1 } })
        .to_string()
        .chars()
        .map(|char| match u32::from(char) {
            ascii if ascii < 0x7f => char.to_string(),
            plane if plane <= 0xffff => format!("\\u{plane:04x}"),
            other => format!("\\U{other:08x}"),
        })
        .collect();
    let chart = repository("packages/apps/gitops").display().to_string();
    let mut helm = Command::new(cozy_testenv::program("helm").unwrap())
        .args(["template", "gitops-gitops", &chart, "--namespace", NAMESPACE, "--values", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Helm reads all of it before it says anything.
    helm.stdin.take().unwrap().write_all(values.as_bytes()).unwrap();
    let output = helm.wait_with_output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(documents(&output.stdout))
}

#[test]
fn every_string_stays_in_its_field() {
    let next = AtomicUsize::new(0);
    let (rendered, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // Each try is a run of Helm.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some((pointer, _)) = STRINGS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (stayed, stopped) = try_all(pointer);
                    rendered.fetch_add(stayed, Ordering::Relaxed);
                    refused.fetch_add(stopped, Ordering::Relaxed);
                }
            });
        }
    });
    let (rendered, refused) = (rendered.into_inner(), refused.into_inner());
    println!("{rendered} rendered as they are, {refused} refused");
    assert!(rendered > 40, "only {rendered} were rendered: the test would show nothing");
}

/// All payloads in one field: how many stayed in it, and how many the schema refused.
fn try_all(pointer: &str) -> (usize, usize) {
    let payloads = payloads();
    // The schema names every source that it refuses, so that many can share a run. Large ones have one of their own,
    // and so has what the templates judge.
    let alone = |payload: &&String| payload.len() > 1000 || pointer == "/dependsOn/0";
    let (alone, together): (Vec<_>, Vec<_>) = payloads.iter().partition(alone);
    let mut stayed = alone.iter().filter(|payload| stays(pointer, payload)).count();
    for payloads in together.chunks(40) {
        let sources: Vec<_> = payloads
            .iter()
            .enumerate()
            .map(|(number, payload)| {
                let mut source = full();
                source["name"] = format!("source-{number}").into();
                set(&mut source, pointer, payload);
                source
            })
            .collect();
        let all = [vec![base()], sources.clone()].concat();
        let message = match render(&all) {
            Ok(objects) => {
                same(objects, &all, pointer);
                stayed += sources.len();
                continue;
            }
            Err(message) => message,
        };
        assert!(
            message.contains("schema"),
            "{pointer}: refused otherwise than by the schema: {message:.500}"
        );
        let named = |number: usize| {
            ["/", "'"].iter().any(|end| message.contains(&format!("at '/sources/{}{end}", number + 1)))
        };
        let taken: Vec<_> = sources.into_iter().enumerate().filter(|(number, _)| !named(*number)).collect();
        let taken: Vec<_> =
            std::iter::once(base()).chain(taken.into_iter().map(|(_, source)| source)).collect();
        same(render(&taken).unwrap_or_else(|message| panic!("{pointer}: {message:.2000}")), &taken, pointer);
        stayed += taken.len() - 1;
    }
    (stayed, payloads.len() - stayed)
}

/// What came out is what the sources say, and nothing else.
fn same(mut objects: Vec<Value>, sources: &[Value], about: &str) {
    let mut wanted: Vec<_> = sources.iter().flat_map(expected).collect();
    let key = |object: &Value| (object["kind"].to_string(), object["metadata"]["name"].to_string());
    wanted.sort_by_key(key);
    objects.sort_by_key(key);
    assert_eq!(objects, wanted, "{about}");
}

/// Renders with the payload in one field: as that field's value, or not at all.
fn stays(pointer: &str, payload: &str) -> bool {
    let mut source = full();
    set(&mut source, pointer, payload);
    match render(&[base(), source.clone()]) {
        Ok(objects) => {
            same(objects, &[base(), source], &format!("{pointer}: {payload:.100?}"));
            true
        }
        Err(message) => {
            assert!(
                message.contains("schema") || message.contains("sources:"),
                "{pointer}: {payload:.100?}: refused otherwise than by the schema: {message:.500}"
            );
            false
        }
    }
}

#[test]
fn other_types_and_fields_are_refused() {
    for patch in [
        json!({ "name": 1 }),
        json!({ "url": ["x"] }),
        json!({ "prune": "false" }),
        json!({ "interval": 5 }),
        json!({ "dependsOn": "base" }),
        json!({ "dependsOn": ["apps"] }),
        json!({ "ref": "main" }),
        json!({ "ref": { "x": "y" } }),
        json!({ "kubeConfig": {} }),
        json!({ "serviceAccountName": "x" }),
        json!({ "targetNamespace": "x" }),
        json!({ "provider": "aws" }),
        json!({ "secretRef": { "name": "postgres" } }),
        json!({ "decryption": { "provider": "sops" } }),
        json!({ "name": "x".repeat(64) }),
    ] {
        let mut source = full();
        merge(&mut source, &patch);
        assert!(render(&[base(), source]).is_err(), "not refused: {patch}");
    }
    let many: Vec<_> =
        (0..51).map(|i| json!({ "name": format!("s{i}"), "url": "https://git.example.com/a" })).collect();
    assert!(render(&many).is_err());
    assert_eq!(render(&many[..50]).unwrap().len(), 100);
}

/// Without what only a chart needs, the schema is the one that Cozystack's API has.
#[test]
fn the_application_definition_has_the_charts_schema() {
    fn structural(value: &Value) -> Value {
        match value {
            Value::Object(object) => object
                .iter()
                .filter(|(key, _)| !["additionalProperties", "patternProperties"].contains(&key.as_str()))
                .map(|(key, value)| {
                    let value = if key == "properties" {
                        value
                            .as_object()
                            .unwrap()
                            .iter()
                            .map(|(key, value)| (key.clone(), structural(value)))
                            .collect()
                    } else {
                        structural(value)
                    };
                    (key.clone(), value)
                })
                .collect(),
            Value::Array(items) => items.iter().map(structural).collect(),
            other => other.clone(),
        }
    }
    let schema = std::fs::read(repository("packages/apps/gitops/values.schema.json")).unwrap();
    let mut wanted = structural(&serde_json::from_slice(&schema).unwrap());
    wanted["properties"].as_object_mut().unwrap().remove("global");
    let definition = std::fs::read(repository("packages/system/gitops-rd/cozyrds/gitops.yaml")).unwrap();
    let definition = documents(&definition).remove(0);
    let application = &definition["spec"]["application"];
    let found: Value = serde_json::from_str(application["openAPISchema"].as_str().unwrap()).unwrap();
    assert_eq!(found, wanted);
    assert_eq!([&application["kind"], &application["plural"]], ["GitOps", "gitopses"]);
    let chart = repository("packages/system/gitops-rd").display().to_string();
    let rendered = documents(helm(None, &["template", "gitops-rd", &chart]).unwrap().as_bytes());
    assert_eq!(rendered, [definition]);
}

/// The real CRDs, strictly, and the real policies let in what the chart renders; with the stamp taken away.
#[tokio::test(flavor = "multi_thread")]
async fn what_it_renders_is_admitted() {
    let surface =
        Surface::start(&["admission.mutation=policy", "admission.webhook.prune.enabled=false"]).await;
    surface.delete("MutatingAdmissionPolicyBinding", None, "cozy-gitops-stamp").await;
    surface.delete("MutatingAdmissionPolicy", None, "cozy-gitops-stamp").await;
    let objects = render(&[base(), full()]).unwrap();
    assert_eq!(objects.len(), 4);
    for object in &objects {
        let request = http::Request::post(format!(
            "{}?fieldValidation=Strict",
            <kube::api::DynamicObject as kube::Resource>::url_path(
                &surface::resource(surface::kind(object)),
                Some(NAMESPACE)
            )
        ));
        let request =
            request.header("Content-Type", "application/json").body(object.to_string().into_bytes());
        let answer = surface.admin.request::<Value>(request.unwrap()).await;
        let created = answer.unwrap_or_else(|error| panic!("{object}: {error}"));
        let mut wanted = created.clone();
        merge(&mut wanted, object);
        assert_eq!(created, wanted, "stored otherwise than rendered");
    }
}
