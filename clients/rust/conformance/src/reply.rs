//! Answers, as they are written.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clag_client::proto::ErrorReason;
use clag_client::{Error, Outcome};
use prost::Message;
use serde_json::{Value, json};

/// What a command ends with instead of `ok`.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The client's own error.
    Client(Error),
    /// The command itself makes no sense; the code is canonical.
    Command(&'static str, String),
}

impl Failure {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Command("INVALID_ARGUMENT", message.into())
    }

    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::Client(error) => of_client(error),
            Self::Command(code, message) => json!({"code": code, "reason": "", "message": message}),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Client(error)
    }
}

fn of_client(error: &Error) -> Value {
    let reason = match error.reason() {
        ErrorReason::Unspecified => "",
        reason => without_prefix(reason.as_str_name(), "ERROR_REASON_"),
    };
    let mut told = json!({"code": error.code_name(), "reason": reason, "message": error.message()});
    if !error.violations().is_empty() {
        let violations = error.violations().iter();
        told["violations"] =
            violations.map(|one| json!({"field": one.field, "description": one.description})).collect();
    }
    if let Some(pause) = error.retry_after() {
        told["retry_after_ms"] = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX).into();
    }
    told
}

pub(crate) fn hello() -> String {
    let features = ["tls", "unix"];
    line(&json!({"hello": {"language": "rust", "client": env!("CARGO_PKG_VERSION"), "features": features}}))
}

pub(crate) fn line(answer: &Value) -> String {
    format!("{answer}\n")
}

/// An outcome of an item.
pub(crate) fn event_of(outcome: &Outcome) -> Value {
    let mut event = json!({
        "seq": outcome.seq,
        "disposition": disposition_of(outcome),
        "memory_id": outcome.memory_id,
        "state": without_prefix(outcome.state.as_str_name(), "MEMORY_STATE_"),
        "final": outcome.is_final,
    });
    if let Some(error) = &outcome.error {
        let reason = without_prefix(error.reason().as_str_name(), "ERROR_REASON_");
        event["error"] = json!({"reason": reason, "field": error.field, "message": error.message});
    }
    event
}

pub(crate) fn disposition_of(outcome: &Outcome) -> &'static str {
    without_prefix(outcome.disposition.as_str_name(), "DISPOSITION_")
}

fn without_prefix(name: &'static str, prefix: &str) -> &'static str {
    name.strip_prefix(prefix).unwrap_or(name)
}

pub(crate) fn encoded(message: &impl Message) -> String {
    STANDARD.encode(message.encode_to_vec())
}

pub(crate) fn decoded<M: Message + Default>(data: &str) -> Result<M, Failure> {
    let bytes = STANDARD.decode(data).map_err(|error| Failure::invalid(error.to_string()))?;
    M::decode(bytes.as_slice()).map_err(|error| Failure::invalid(error.to_string()))
}
