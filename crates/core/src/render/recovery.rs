//! Recovery of an ArtifactGenerator whose condition Ready source-watcher lost (fluxcd/pkg#934).
//!
//! The same steps, annotations and messages as the Go operator's, but driven by deadlines: nothing is polled, and an
//! ArtifactGenerator that was never built is not nudged at all.

use cozy_api::names::{self, reason};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::Outcome;
use super::write::condition_of;

/// How long a lost condition is waited for before the first nudge.
const STUCK_AFTER: SignedDuration = SignedDuration::from_secs(30);
/// Time to the next nudge after so many.
const BACKOFF: [SignedDuration; 5] = [
    SignedDuration::from_secs(30),
    SignedDuration::from_secs(60),
    SignedDuration::from_secs(120),
    SignedDuration::from_secs(240),
    SignedDuration::from_secs(240),
];

/// What is to be done about an ArtifactGenerator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Nothing.
    Nothing,
    /// Look again at that time.
    Later(Timestamp),
    /// It works again: remove our two annotations.
    Clear,
    /// Nudge it: this is attempt number.
    Force(u32),
    /// It was nudged that often; look again at that time, if any.
    Waiting(u32, Option<Timestamp>),
    /// It was nudged as often as makes sense.
    GivenUp,
}

/// Decides from the ArtifactGenerator as it is.
#[must_use]
pub fn recovery(generator: &Value, now: Timestamp) -> Recovery {
    let annotation = |name: &str| {
        generator.pointer("/metadata/annotations").and_then(|a| a.get(name)).and_then(Value::as_str)
    };
    let marked = annotation(names::ANNOTATION_RECOVERY_ATTEMPTS).is_some()
        || annotation(names::ANNOTATION_LAST_RECOVERY).is_some();
    // A counter that is no number counts as none.
    let attempts: u32 =
        annotation(names::ANNOTATION_RECOVERY_ATTEMPTS).and_then(|text| text.parse().ok()).unwrap_or(0);
    let last: Option<Timestamp> =
        annotation(names::ANNOTATION_LAST_RECOVERY).and_then(|text| text.parse().ok());
    let status = generator.get("status");
    let ready = condition_of(status, names::CONDITION_READY);
    let forced = ready.as_ref().is_some_and(|(_, r, _)| r == reason::SOURCE_WATCHER_RECOVERY_FORCED);
    if let Some((state, _, _)) = &ready
        && state != "Unknown"
    {
        return match (forced, marked) {
            (true, _) => Recovery::Waiting(attempts.max(1), None),
            (false, true) => Recovery::Clear,
            (false, false) => Recovery::Nothing,
        };
    }
    let built = status
        .and_then(|status| status.get("inventory"))
        .and_then(Value::as_array)
        .is_some_and(|inventory| !inventory.is_empty());
    let digest = status
        .and_then(|status| status.get("observedSourcesDigest"))
        .and_then(Value::as_str)
        .is_some_and(|digest| !digest.is_empty());
    if !built || !digest {
        return Recovery::Nothing;
    }
    let condition = status
        .and_then(|status| status.get("conditions"))
        .and_then(Value::as_array)
        .and_then(|conditions| conditions.iter().find(|c| c.get("type") == Some(&json!("Ready"))));
    let since = match condition {
        Some(condition) => {
            if condition.get("observedGeneration") != generator.pointer("/metadata/generation") {
                return Recovery::Nothing;
            }
            condition.get("lastTransitionTime")
        }
        None => generator.pointer("/metadata/creationTimestamp"),
    };
    let since: Option<Timestamp> = since.and_then(Value::as_str).and_then(|text| text.parse().ok());
    let stuck = since.and_then(|since| since.checked_add(STUCK_AFTER).ok()).unwrap_or(now);
    if now < stuck {
        return Recovery::Later(stuck);
    }
    let index = usize::try_from(attempts).unwrap_or(usize::MAX).saturating_sub(1).min(BACKOFF.len() - 1);
    let due = match (attempts, last, BACKOFF.get(index)) {
        (0, _, _) | (_, None, _) | (_, _, None) => now,
        (_, Some(last), Some(wait)) => last.checked_add(*wait).unwrap_or(now),
    };
    if now < due {
        return Recovery::Waiting(attempts, Some(due));
    }
    if usize::try_from(attempts).unwrap_or(usize::MAX) >= BACKOFF.len() {
        return Recovery::GivenUp;
    }
    Recovery::Force(attempts + 1)
}

/// The PackageSource's condition Ready while its ArtifactGenerator waits, or was given up.
#[must_use]
pub fn outcome(recovery: &Recovery, name: &str) -> Option<Outcome> {
    let most = BACKOFF.len();
    match recovery {
        Recovery::Force(attempt) | Recovery::Waiting(attempt, _) => Some(Outcome::new(
            "Unknown",
            reason::AWAITING_SOURCE_WATCHER_RECOVERY,
            format!(
                "ArtifactGenerator Ready condition lost to fluxcd/pkg#934 patch.Helper race; force-drift {attempt}/{most} issued, waiting for source-watcher to rebuild."
            ),
        )),
        Recovery::GivenUp => Some(Outcome::new(
            "False",
            reason::SOURCE_WATCHER_STALLED,
            format!(
                "ArtifactGenerator {}/{name} has been stuck with a lost Ready condition through {most} force-drift attempts; source-watcher is not recovering. See https://github.com/fluxcd/pkg/issues/934. An operator must restart source-watcher or manually inspect the ArtifactGenerator.",
                names::SYSTEM_NAMESPACE
            ),
        )),
        Recovery::Nothing | Recovery::Later(_) | Recovery::Clear => None,
    }
}

/// The status that makes source-watcher build again.
#[must_use]
pub fn forced_status(generator: &Value, now: &str) -> Value {
    let mut status = generator.get("status").cloned().unwrap_or_else(|| json!({}));
    let mut conditions = status.get("conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    let outcome = Outcome::new(
        "False",
        reason::SOURCE_WATCHER_RECOVERY_FORCED,
        "cozystack-operator forced drift after fluxcd/pkg#934 stall; source-watcher will rebuild",
    );
    let generation = generator.pointer("/metadata/generation").and_then(Value::as_i64);
    super::write::set_condition(&mut conditions, names::CONDITION_READY, &outcome, generation, now);
    if let Some(fields) = status.as_object_mut() {
        fields.insert("conditions".to_owned(), Value::Array(conditions));
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn generator(ready: Option<Value>, attempts: Option<&str>, last: i64) -> Value {
        let mut object = json!({
            "metadata": { "generation": 1, "creationTimestamp": at(0).to_string(), "annotations": {} },
            "status": { "inventory": [{}], "observedSourcesDigest": "d" },
        });
        if let Some(ready) = ready {
            object["status"]["conditions"] = json!([ready]);
        }
        if let Some(attempts) = attempts {
            object["metadata"]["annotations"][names::ANNOTATION_RECOVERY_ATTEMPTS] = json!(attempts);
            object["metadata"]["annotations"][names::ANNOTATION_LAST_RECOVERY] = json!(at(last).to_string());
        }
        object
    }

    #[test]
    fn a_lost_condition_is_nudged_with_growing_distance_and_given_up() {
        assert_eq!(recovery(&generator(None, None, 0), at(10)), Recovery::Later(at(30)));
        assert_eq!(recovery(&generator(None, None, 0), at(30)), Recovery::Force(1));
        assert_eq!(recovery(&generator(None, Some("garbage"), 0), at(30)), Recovery::Force(1));
        assert_eq!(recovery(&generator(None, Some("2"), 100), at(130)), Recovery::Waiting(2, Some(at(160))));
        assert_eq!(recovery(&generator(None, Some("2"), 100), at(160)), Recovery::Force(3));
        assert_eq!(recovery(&generator(None, Some("5"), 100), at(339)), Recovery::Waiting(5, Some(at(340))));
        assert_eq!(recovery(&generator(None, Some("5"), 100), at(340)), Recovery::GivenUp);
    }

    #[test]
    fn what_was_never_built_is_left_alone() {
        let mut object = generator(None, None, 0);
        object["status"]["inventory"] = json!([]);
        assert_eq!(recovery(&object, at(1000)), Recovery::Nothing);
    }

    #[test]
    fn what_works_again_is_cleared() {
        let ready = json!({ "type": "Ready", "status": "True", "reason": "Succeeded" });
        assert_eq!(recovery(&generator(Some(ready.clone()), Some("1"), 0), at(9)), Recovery::Clear);
        assert_eq!(recovery(&generator(Some(ready), None, 0), at(9)), Recovery::Nothing);
        let forced =
            json!({ "type": "Ready", "status": "False", "reason": reason::SOURCE_WATCHER_RECOVERY_FORCED });
        assert_eq!(recovery(&generator(Some(forced), Some("1"), 0), at(9)), Recovery::Waiting(1, None));
    }
}
