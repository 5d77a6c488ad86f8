//! The plan as JSON; `docs/plan.schema.json` is its schema.

use serde_json::{Map, Value, json};

use super::{Finding, Plan, ReleaseChange, Severity, ValueChange, What};
use crate::plan::{ObjectChange, Place};

/// Version of the format: raised when a field changes its meaning or goes.
pub const FORMAT: &str = "cozy-gitops/plan/v1";

impl Plan {
    /// The plan as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let count = |what: What| self.releases.iter().filter(|release| release.what == what).count();
        json!({
            "format": FORMAT,
            "summary": {
                "added": count(What::Added),
                "changed": count(What::Changed),
                "removed": count(What::Removed),
                "objects": self.objects.len(),
                "errors": self.count(Severity::Error),
                "warnings": self.count(Severity::Warning),
            },
            "helmReleases": self.releases.iter().map(release).collect::<Vec<_>>(),
            "objects": self.objects.iter().map(object).collect::<Vec<_>>(),
            "findings": self.findings.iter().map(finding).collect::<Vec<_>>(),
        })
    }
}

fn release(release: &ReleaseChange) -> Value {
    let fields: Vec<Value> = release
        .fields
        .iter()
        .map(|field| {
            let mut out = Map::new();
            out.insert("pointer".to_owned(), json!(field.pointer));
            put(&mut out, "from", field.from.as_ref());
            put(&mut out, "to", field.to.as_ref());
            Value::Object(out)
        })
        .collect();
    json!({
        "namespace": release.namespace,
        "name": release.name,
        "package": release.package,
        "component": release.component,
        "change": release.what,
        "changes": release.changes.iter().map(change).collect::<Vec<_>>(),
        "fields": fields,
    })
}

fn change(change: &ValueChange) -> Value {
    let mut out = Map::new();
    out.insert("pointer".to_owned(), json!(change.pointer));
    // Absent is not null: null is a value that Helm acts on.
    put(&mut out, "from", change.from.as_ref());
    put(&mut out, "to", change.to.as_ref());
    out.insert("layer".to_owned(), json!(change.now.layer));
    located(&mut out, "file", "line", change.now.place.as_ref());
    out.insert("fromLayer".to_owned(), json!(change.was.layer));
    located(&mut out, "fromFile", "fromLine", change.was.place.as_ref());
    Value::Object(out)
}

fn object(object: &ObjectChange) -> Value {
    let mut out = Map::new();
    out.insert("apiVersion".to_owned(), json!(object.api_version));
    out.insert("kind".to_owned(), json!(object.id.kind));
    out.insert("namespace".to_owned(), json!(object.id.namespace));
    out.insert("name".to_owned(), json!(object.id.name));
    out.insert("change".to_owned(), json!(object.what));
    out.insert("pointers".to_owned(), json!(object.pointers));
    located(&mut out, "file", "line", object.place.as_ref());
    Value::Object(out)
}

fn finding(finding: &Finding) -> Value {
    let mut out = Map::new();
    out.insert("kind".to_owned(), json!(finding.kind));
    out.insert("severity".to_owned(), json!(finding.severity));
    out.insert("object".to_owned(), json!(finding.object));
    out.insert("pointer".to_owned(), json!(finding.pointer));
    out.insert("message".to_owned(), json!(finding.message));
    out.insert("hint".to_owned(), json!(finding.hint));
    located(&mut out, "file", "line", finding.place.as_ref());
    Value::Object(out)
}

fn put(out: &mut Map<String, Value>, key: &str, value: Option<&Value>) {
    if let Some(value) = value {
        out.insert(key.to_owned(), value.clone());
    }
}

fn located(out: &mut Map<String, Value>, file: &str, line: &str, place: Option<&Place>) {
    out.insert(file.to_owned(), json!(place.map(|place| &*place.file)));
    out.insert(line.to_owned(), json!(place.and_then(|place| place.line)));
}
