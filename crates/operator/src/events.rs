//! Events on our objects, for `kubectl describe`. They are written when a condition moves, never in a loop.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tracing::debug;

use crate::store::Kind;
use crate::write::resource;

/// Longest note that the API takes is 1 kB.
const LONGEST: usize = 1000;

pub(crate) struct Events {
    recorder: Recorder,
}

impl Events {
    pub(crate) fn new(client: Client, instance: &str) -> Self {
        let reporter =
            Reporter { controller: "cozystack-operator".to_owned(), instance: Some(instance.to_owned()) };
        Self { recorder: Recorder::new(client, reporter) }
    }

    pub(crate) async fn normal(&self, kind: Kind, name: &str, uid: Option<&str>, reason: &str, note: &str) {
        self.publish(EventType::Normal, kind, name, uid, reason, note).await;
    }

    pub(crate) async fn warning(&self, kind: Kind, name: &str, uid: Option<&str>, reason: &str, note: &str) {
        self.publish(EventType::Warning, kind, name, uid, reason, note).await;
    }

    async fn publish(
        &self,
        type_: EventType,
        kind: Kind,
        name: &str,
        uid: Option<&str>,
        reason: &str,
        note: &str,
    ) {
        let resource = resource(kind);
        let reference = ObjectReference {
            api_version: Some(resource.api_version),
            kind: Some(resource.kind),
            name: Some(name.to_owned()),
            uid: uid.map(str::to_owned),
            ..ObjectReference::default()
        };
        let mut end = note.len().min(LONGEST);
        while !note.is_char_boundary(end) {
            end -= 1;
        }
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note.get(..end).unwrap_or_default().to_owned()),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        // An Event that cannot be written changes nothing: the condition says the same.
        if let Err(error) = self.recorder.publish(&event, &reference).await {
            debug!(kind = kind.name(), name, %error, "an Event was not written");
        }
    }
}
