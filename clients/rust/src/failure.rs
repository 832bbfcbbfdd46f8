//! Decodes tonic's status into our error: the server's details, and what tonic made of a broken connection.
//!
//! tonic calls a connection that breaks unknown, cancelled or internal, depending on who noticed first, and its own
//! message limits out of range or internal. To a caller a server that went away is unavailable, whichever way it
//! showed, and a message that is too large exhausts a resource, as every other client says.

use std::error::Error as StdError;

use tonic::{Code, Status, TimeoutExpired};
use tonic_types::StatusExt;

use crate::error::{CallFailure, Error, FieldViolation};
use crate::proto::ErrorReason;

/// The server's limit of a message, in both directions (see `GetServerInfo`).
pub(crate) const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

impl From<Status> for Error {
    /// Decodes a failed call. Details that cannot be decoded are left out: code and message still say what happened.
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        let info = details.error_info();
        let violations = details.bad_request().map_or_else(Vec::new, |request| {
            let violations = request.field_violations.iter();
            violations
                .map(|one| FieldViolation { field: one.field.clone(), description: one.description.clone() })
                .collect()
        });
        Self::Call(Box::new(CallFailure {
            code: code_of(&status),
            // A reason that a newer server knows and we do not is UNSPECIFIED.
            reason: info.and_then(|info| ErrorReason::from_str_name(&info.reason)).unwrap_or_default(),
            message: message_of(&status),
            violations,
            retry_after: details.retry_info().and_then(|info| info.retry_delay),
            metadata: info.map(|info| info.metadata.clone().into_iter().collect()).unwrap_or_default(),
        }))
    }
}

fn code_of(status: &Status) -> Code {
    if is_too_large(status) {
        Code::ResourceExhausted
    } else if let Some(reset) = reset_of(status) {
        code_of_reset(reset)
    } else if causes_of(status).any(<dyn StdError>::is::<TimeoutExpired>) {
        Code::DeadlineExceeded
    } else if status.source().is_some() {
        Code::Unavailable // a status of the server's has no cause
    } else {
        status.code()
    }
}

/// Whether a message was not sent or read for its length, which tonic has no type for.
fn is_too_large(status: &Status) -> bool {
    let refused = status.code() == Code::OutOfRange
        && status.details().is_empty()
        && status.message().contains("coded message length too large");
    // A request that cannot be written resets its stream; nothing but its length can be wrong with one.
    refused || reset_of(status).is_some_and(|reset| !reset.is_remote() && !reset.is_library())
}

/// How the stream was reset, if it was.
fn reset_of(status: &Status) -> Option<&h2::Error> {
    causes_of(status).find_map(|cause| cause.downcast_ref::<h2::Error>()).filter(|error| error.is_reset())
}

/// The code of a stream that was reset, as gRPC over HTTP/2 defines it.
fn code_of_reset(reset: &h2::Error) -> Code {
    match reset.reason() {
        Some(h2::Reason::REFUSED_STREAM) | None => Code::Unavailable,
        Some(h2::Reason::CANCEL) => Code::Cancelled,
        Some(h2::Reason::ENHANCE_YOUR_CALM) => Code::ResourceExhausted,
        Some(h2::Reason::INADEQUATE_SECURITY) => Code::PermissionDenied,
        Some(_) => Code::Internal,
    }
}

/// The status' own sentence, and those of its causes: tonic's own is often "transport error" alone.
fn message_of(status: &Status) -> String {
    if is_too_large(status) {
        return format!("a message is larger than the limit of {MAX_MESSAGE_BYTES} bytes");
    }
    let mut message = status.message().to_owned();
    for cause in causes_of(status) {
        let sentence = cause.to_string();
        if !message.contains(&sentence) {
            message.push_str(": ");
            message.push_str(&sentence);
        }
    }
    message
}

fn causes_of(status: &Status) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(status.source(), |&cause| cause.source())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::time::Duration;

    use tonic_types::ErrorDetails;

    use super::*;

    #[test]
    fn details_of_the_server_become_reason_violations_and_retry_hint() {
        let mut details = ErrorDetails::new();
        details
            .set_error_info("ERROR_REASON_OVERLOADED", "clag", HashMap::from([("queue".into(), "embed".into())]))
            .set_retry_info(Some(Duration::from_millis(200)))
            .add_bad_request_violation("namespace", "is too long");
        let error = Error::from(Status::with_error_details(Code::ResourceExhausted, "too much waits", details));

        assert_eq!(error.code_name(), "RESOURCE_EXHAUSTED");
        assert_eq!(error.reason(), ErrorReason::Overloaded);
        assert_eq!(error.message(), "too much waits");
        assert_eq!(error.retry_after(), Some(Duration::from_millis(200)));
        assert_eq!(error.metadata("queue"), Some("embed"));
        assert_eq!(error.violations()[0].field, "namespace");
        assert_eq!(error.to_string(), "RESOURCE_EXHAUSTED: too much waits");
    }

    #[test]
    fn a_reason_of_a_newer_server_is_unspecified_and_keeps_the_rest() {
        let mut details = ErrorDetails::new();
        details.set_error_info("ERROR_REASON_FROM_THE_FUTURE", "clag", HashMap::new());
        let error = Error::from(Status::with_error_details(Code::Aborted, "no", details));

        assert_eq!((error.code(), error.reason()), (Code::Aborted, ErrorReason::Unspecified));
    }

    #[test]
    fn a_broken_connection_is_unavailable_and_its_cause_is_told() {
        let mut status = Status::unknown("transport error");
        status.set_source(Arc::new(std::io::Error::other("the pipe broke")));
        let error = Error::from(status);

        assert_eq!(error.code(), Code::Unavailable);
        assert_eq!(error.message(), "transport error: the pipe broke");
    }

    #[test]
    fn a_deadline_that_tonic_noticed_is_one() {
        let mut status = Status::cancelled("Timeout expired");
        status.set_source(Arc::new(TimeoutExpired(())));

        assert_eq!(Error::from(status).code(), Code::DeadlineExceeded);
    }

    #[test]
    fn a_message_over_the_limit_is_resource_exhausted_and_a_sequence_gap_is_not() {
        let sentence = "Error, encoded message length too large: found 5 bytes, the limit is: 4 bytes";
        assert_eq!(Error::from(Status::out_of_range(sentence)).code(), Code::ResourceExhausted);
        assert_eq!(Error::from(Status::out_of_range("item 7 is not the next one")).code(), Code::OutOfRange);
    }
}
