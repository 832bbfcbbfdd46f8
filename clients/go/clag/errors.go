package clag

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clagv1 "github.com/clag-memory/clag/clients/go/clag/v1"
)

// errorDomain is the domain of the google.rpc.ErrorInfo whose reasons are clag.v1.ErrorReason.
const errorDomain = "clag"

const reasonPrefix = "ERROR_REASON_"

// FieldViolation is one wrong field of a request.
type FieldViolation struct {
	// Field is its path, for example "memory.tags[2]".
	Field string
	// Description says what is wrong with it.
	Description string
}

// Error is the failure of a call.
type Error struct {
	// Code is the canonical status code.
	Code codes.Code
	// Reason is for programs. It is unspecified when the failure did not come from the server's
	// own code, for example when the server cannot be reached.
	Reason clagv1.ErrorReason
	// Message is a sentence for people.
	Message string
	// Violations are the wrong fields of the request, if that was it.
	Violations []FieldViolation
	// RetryAfter is how long to wait before trying again; nil when trying again cannot help by
	// itself.
	RetryAfter *time.Duration
	// Metadata has facts by name, for example "next_seq" or "incident_id".
	Metadata map[string]string

	status *status.Status
}

// Error returns the code and the message.
func (e *Error) Error() string {
	if e.Reason != clagv1.ErrorReason_ERROR_REASON_UNSPECIFIED {
		return fmt.Sprintf("clag: %s (%s): %s", e.Code, strings.TrimPrefix(e.Reason.String(), reasonPrefix), e.Message)
	}
	return fmt.Sprintf("clag: %s: %s", e.Code, e.Message)
}

// Is makes errors.Is find context.Canceled and context.DeadlineExceeded by the code.
func (e *Error) Is(target error) bool {
	switch target {
	case context.Canceled:
		return e.Code == codes.Canceled
	case context.DeadlineExceeded:
		return e.Code == codes.DeadlineExceeded
	}
	return false
}

// GRPCStatus lets status.FromError and status.Code work on it.
func (e *Error) GRPCStatus() *status.Status {
	if e.status != nil {
		return e.status
	}
	return status.New(e.Code, e.Message)
}

// SourceError says that an item handed to Ingest could not be read or sent. What came before it
// was stored.
type SourceError struct {
	// Seq is the sequence number that the item would have had, from 1.
	Seq uint64
	// Err is why.
	Err error
}

// Error returns the number of the item and why it could not be sent.
func (e *SourceError) Error() string {
	return fmt.Sprintf("clag: item %d cannot be sent: %v", e.Seq, e.Err)
}

// Unwrap returns why.
func (e *SourceError) Unwrap() error { return e.Err }

// newError makes an error of the client's own.
func newError(code codes.Code, message string) *Error {
	return &Error{Code: code, Message: message}
}

// toError turns what gRPC returns into an *Error; nil and io.EOF stay as they are. Details that
// cannot be decoded are left out: the code and the message still say what happened.
func toError(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	var known *Error
	if errors.As(err, &known) {
		return err
	}
	// Not status.Convert: of a context's own error it would make UNKNOWN.
	said, ok := status.FromError(err)
	if !ok {
		said = status.FromContextError(err)
	}
	told := &Error{Code: said.Code(), Message: said.Message(), status: said}
	for _, detail := range said.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if detail.GetDomain() == errorDomain {
				told.Reason = reasonNamed(detail.GetReason())
				told.Metadata = detail.GetMetadata()
			}
		case *errdetails.BadRequest:
			for _, one := range detail.GetFieldViolations() {
				told.Violations = append(told.Violations, FieldViolation{one.GetField(), one.GetDescription()})
			}
		case *errdetails.RetryInfo:
			delay := detail.GetRetryDelay().AsDuration()
			told.RetryAfter = &delay
		}
	}
	return told
}

// reasonNamed returns a reason by name; one that only a newer server knows is unspecified.
func reasonNamed(name string) clagv1.ErrorReason {
	return clagv1.ErrorReason(clagv1.ErrorReason_value[name])
}
