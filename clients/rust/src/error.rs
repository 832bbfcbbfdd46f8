//! What a call can fail with.

use std::collections::BTreeMap;
use std::time::Duration;

use tonic::Code;

use crate::proto::ErrorReason;

/// Any error of somebody else, e.g. of the items that are handed to [`ingest`](crate::Client::ingest).
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What a call failed with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server refused or failed a call, or it could not be reached.
    #[error("{}: {}", code_name(.0.code), .0.message)]
    Call(Box<CallFailure>),

    /// An item handed to `ingest` could not be read; those before it are stored.
    #[error("item {seq} cannot be sent: {source}")]
    Source {
        /// Sequence number that the item would have had.
        seq: u64,
        /// What the source said.
        source: BoxError,
    },

    /// What the client was told to connect to, or how, makes no sense or is not safe; nothing was sent.
    #[error("{0}")]
    Options(String),
}

/// A failed call, decoded from the status details that the server sends.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallFailure {
    /// The canonical status code.
    pub code: Code,
    /// The cause, for programs; `Unspecified` when the failure did not come from the server's own code.
    pub reason: ErrorReason,
    /// A sentence for people.
    pub message: String,
    /// The wrong fields of the request, if that was it.
    pub violations: Vec<FieldViolation>,
    /// How long to wait before trying again; `None` when trying again cannot help by itself.
    pub retry_after: Option<Duration>,
    /// Facts by name, e.g. `next_seq` or `incident_id`.
    pub metadata: BTreeMap<String, String>,
}

/// One wrong field of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FieldViolation {
    /// Its path, e.g. `memory.tags[2]`.
    pub field: String,
    /// What is wrong.
    pub description: String,
}

impl Error {
    /// The canonical status code; `InvalidArgument` for options, `Unknown` for a source that failed.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Call(failure) => failure.code,
            Self::Source { .. } => Code::Unknown,
            Self::Options(_) => Code::InvalidArgument,
        }
    }

    /// The canonical name of the code, e.g. `NOT_FOUND`.
    #[must_use]
    pub fn code_name(&self) -> &'static str {
        code_name(self.code())
    }

    /// The cause, for programs; `Unspecified` when the failure did not come from the server's own code.
    #[must_use]
    pub fn reason(&self) -> ErrorReason {
        self.failure().map_or(ErrorReason::Unspecified, |failure| failure.reason)
    }

    /// The wrong fields of the request, if that was it.
    #[must_use]
    pub fn violations(&self) -> &[FieldViolation] {
        self.failure().map_or(&[], |failure| &failure.violations)
    }

    /// How long to wait before trying again; `None` when trying again cannot help by itself.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.failure().and_then(|failure| failure.retry_after)
    }

    /// A fact by name, e.g. `next_seq` or `incident_id`.
    #[must_use]
    pub fn metadata(&self, name: &str) -> Option<&str> {
        self.failure().and_then(|failure| failure.metadata.get(name)).map(String::as_str)
    }

    /// A sentence for people, without the code.
    #[must_use]
    pub fn message(&self) -> String {
        self.failure().map_or_else(|| self.to_string(), |failure| failure.message.clone())
    }

    /// A failure that the client itself found.
    pub(crate) fn local(code: Code, message: impl Into<String>) -> Self {
        Self::Call(Box::new(CallFailure {
            code,
            reason: ErrorReason::Unspecified,
            message: message.into(),
            violations: Vec::new(),
            retry_after: None,
            metadata: BTreeMap::new(),
        }))
    }

    fn failure(&self) -> Option<&CallFailure> {
        match self {
            Self::Call(failure) => Some(failure),
            Self::Source { .. } | Self::Options(_) => None,
        }
    }
}

fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
