//! AdmissionReviews over HTTP: read, decided, answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use base64::Engine as _;
use cozy_core::admission::{Answer, Request, package_guard, prune, stamp};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tracing::{Level, event};

use crate::metrics::Metrics;

/// Largest review: an object and what it was, each as large as the API server takes a request (3 MiB), and what
/// surrounds them.
const MAX_REVIEW: usize = 8 * 1024 * 1024;
/// Bytes of reviews that are in memory at the same time; read, a review takes a multiple of its size.
const IN_FLIGHT: usize = 2 * MAX_REVIEW;
/// Reviews above this take milliseconds to read, and are read beside the threads that serve connections.
const LARGE: usize = 256 * 1024;
/// Longest wait for a place among them, and longest time that a body may take. API servers wait 10 s.
const PATIENCE: Duration = Duration::from_secs(8);

struct Shared {
    metrics: Metrics,
    /// One permit per KiB.
    memory: Semaphore,
}

/// The webhook's paths.
pub(crate) fn router(metrics: Metrics) -> Router {
    let shared = Arc::new(Shared { metrics, memory: Semaphore::new(kib(IN_FLIGHT)) });
    let review = |path: &'static str, decide: fn(&Request) -> Answer| {
        post(move |State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Body| async move {
            answer(&shared, path, decide, &headers, body).await
        })
    };
    Router::new()
        .route("/mutate/kustomizations", review("/mutate/kustomizations", stamp::stamp))
        .route("/mutate/applications", review("/mutate/applications", prune::prune))
        .route("/validate/package-guard", review("/validate/package-guard", guard))
        .route("/healthz", get(async || "ok"))
        .with_state(shared)
}

fn guard(request: &Request) -> Answer {
    let old = Some(&request.old_object).filter(|old| !old.is_null());
    match package_guard::check(old, &request.object) {
        Ok(()) => Answer::Allow,
        Err(refusal) => Answer::Deny(refusal.to_string()),
    }
}

const fn kib(bytes: usize) -> usize {
    bytes.div_ceil(1024)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<Request>,
}

async fn answer(
    shared: &Shared,
    path: &'static str,
    decide: fn(&Request) -> Answer,
    headers: &HeaderMap,
    body: Body,
) -> Response {
    let started = Instant::now();
    let (verdict, response) = match read(shared, headers, body).await {
        Ok(request) => {
            let answer = decide(&request);
            let verdict = match &answer {
                Answer::Allow => "allow",
                Answer::Patch(_) => "patch",
                Answer::Deny(_) => "deny",
            };
            told(path, verdict, &request);
            (verdict, json_response(&respond(&request, answer)))
        }
        Err((status, why)) => {
            event!(Level::WARN, path, status = status.as_u16(), "a review was not read: {why}");
            ("error", (status, why).into_response())
        }
    };
    shared.metrics.reviewed(path, verdict, started.elapsed());
    response
}

/// Names alone, never what is in the object.
fn told(path: &'static str, verdict: &'static str, request: &Request) {
    let Request { uid, kind, namespace, name, operation, user_info, .. } = request;
    let (kind, user) = (&kind.kind, &user_info.username);
    if verdict == "deny" {
        event!(Level::INFO, path, verdict, uid, kind, namespace, name, operation, user, "review");
    } else {
        event!(Level::DEBUG, path, verdict, uid, kind, namespace, name, operation, user, "review");
    }
}

async fn read(shared: &Shared, headers: &HeaderMap, body: Body) -> Result<Request, (StatusCode, String)> {
    let bad = |why: String| (StatusCode::BAD_REQUEST, why);
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().map(str::trim) != Some("application/json") {
        let why = "an AdmissionReview has to be application/json".to_owned();
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
    }
    let length: usize = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse().ok())
        .ok_or_else(|| (StatusCode::LENGTH_REQUIRED, "a Content-Length is needed".to_owned()))?;
    if length > MAX_REVIEW {
        let why = format!("the review has {length} bytes; {MAX_REVIEW} are read");
        return Err((StatusCode::PAYLOAD_TOO_LARGE, why));
    }
    let busy =
        |what: &str| (StatusCode::SERVICE_UNAVAILABLE, format!("{what} took longer than {PATIENCE:?}"));
    let permits = u32::try_from(kib(length).max(1)).unwrap_or(u32::MAX);
    // Held until the review is read: what the decision needs of it is far less than reading took.
    let _memory = tokio::time::timeout(PATIENCE, shared.memory.acquire_many(permits))
        .await
        .map_err(|_| busy("waiting for memory"))?
        .map_err(|_| busy("waiting for memory"))?;
    let bytes = tokio::time::timeout(PATIENCE, axum::body::to_bytes(body, length))
        .await
        .map_err(|_| busy("the body"))?
        .map_err(|error| bad(format!("the body cannot be read: {error}")))?;
    let parse = move || serde_json::from_slice::<Review>(&bytes);
    // A few large ones at once must not keep others from being accepted meanwhile.
    let review = if length > LARGE {
        tokio::task::spawn_blocking(parse)
            .await
            .map_err(|_| (StatusCode::INTERNAL_SERVER_ERROR, "reading the review went wrong".to_owned()))?
    } else {
        parse()
    };
    let review = review.map_err(|error| bad(format!("this is no AdmissionReview: {error}")))?;
    if (review.api_version.as_str(), review.kind.as_str()) != ("admission.k8s.io/v1", "AdmissionReview") {
        let (version, kind) = (&review.api_version, &review.kind);
        return Err(bad(format!(
            "this is {version:?} {kind:?}; an admission.k8s.io/v1 AdmissionReview is needed"
        )));
    }
    match review.request {
        Some(request) if !request.uid.is_empty() => Ok(request),
        _ => Err(bad("the AdmissionReview has no request with a uid".to_owned())),
    }
}

fn respond(request: &Request, answer: Answer) -> Value {
    let mut response = json!({ "uid": request.uid, "allowed": true });
    match answer {
        Answer::Allow => {}
        Answer::Patch(patch) => {
            let patch = base64::engine::general_purpose::STANDARD.encode(Value::Array(patch).to_string());
            response["patchType"] = json!("JSONPatch");
            response["patch"] = json!(patch);
        }
        Answer::Deny(why) => {
            response["allowed"] = json!(false);
            response["status"] = json!({ "code": 403, "reason": "Forbidden", "message": why });
        }
    }
    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response })
}

fn json_response(value: &Value) -> Response {
    ([(CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}
