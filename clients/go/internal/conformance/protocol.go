package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/clag-memory/clag/clients/go/clag"
	clagv1 "github.com/clag-memory/clag/clients/go/clag/v1"
)

// command is one line of the driver, with the fields of all operations. Integers may come as
// strings.
type command struct {
	ID         json.RawMessage `json:"id"`
	Op         string          `json:"op"`
	Name       string          `json:"name"`
	Target     json.RawMessage `json:"target"`
	Token      string          `json:"token"`
	TLS        *tlsFiles       `json:"tls"`
	TimeoutMS  float64         `json:"timeout_ms"`
	Method     string          `json:"method"`
	Request    []byte          `json:"request"`
	Requests   [][]byte        `json:"requests"`
	HalfClose  *bool           `json:"half_close"`
	Type       string          `json:"type"`
	Data       []byte          `json:"data"`
	Value      json.RawMessage `json:"value"`
	Namespace  string          `json:"namespace"`
	StreamID   string          `json:"stream_id"`
	AckLevel   string          `json:"ack_level"`
	Stages     string          `json:"stages"`
	Items      [][]byte        `json:"items"`
	Generate   *generate       `json:"generate"`
	PauseAfter *int64          `json:"pause_after"`
	Consume    string          `json:"consume"`
	Quiet      bool            `json:"quiet"`
	Limit      int             `json:"limit"`
}

type tlsFiles struct {
	CA          string `json:"ca"`
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
}

// generate makes items; {n} counts from 1.
type generate struct {
	Count     int64  `json:"count"`
	Text      string `json:"text"`
	MemoryID  string `json:"memory_id"`
	SessionID string `json:"session_id"`
}

func (g *generate) item(n int64) *clagv1.MemoryInput {
	fill := func(template string) string {
		return strings.ReplaceAll(template, "{n}", strconv.FormatInt(n, 10))
	}
	return &clagv1.MemoryInput{MemoryId: fill(g.MemoryID), Text: fill(g.Text), SessionId: fill(g.SessionID)}
}

func (c *command) id() string { return string(c.ID) }

func (c *command) clientName() string {
	if c.Name == "" {
		return "a"
	}
	return c.Name
}

func (c *command) timeout() time.Duration {
	return time.Duration(c.TimeoutMS * float64(time.Millisecond))
}

// errorObject writes an error as a user of the client sees it.
func errorObject(err error) object {
	var failed *clag.Error
	switch {
	case errors.As(err, &failed):
	case errors.Is(err, context.Canceled):
		return object{"code": "CANCELLED", "reason": "", "message": err.Error()}
	default:
		return object{"code": "INVALID_ARGUMENT", "reason": "", "message": err.Error()}
	}
	told := object{"code": codeName(failed.Code), "reason": reasonName(failed.Reason), "message": failed.Message}
	if len(failed.Violations) > 0 {
		var violations []object
		for _, one := range failed.Violations {
			violations = append(violations, object{"field": one.Field, "description": one.Description})
		}
		told["violations"] = violations
	}
	if failed.RetryAfter != nil {
		told["retry_after_ms"] = failed.RetryAfter.Milliseconds()
	}
	return told
}

func codeName(number codes.Code) string { return code.Code(number).String() }

func reasonName(reason clagv1.ErrorReason) string {
	if reason == clagv1.ErrorReason_ERROR_REASON_UNSPECIFIED {
		return ""
	}
	return strings.TrimPrefix(reason.String(), "ERROR_REASON_")
}

// decode fills a generated message.
func decode[Message proto.Message](data []byte, message Message) (Message, error) {
	if err := proto.Unmarshal(data, message); err != nil {
		return message, fmt.Errorf("the driver's message cannot be decoded: %w", err)
	}
	return message, nil
}

// encode is what the driver gets of a message.
func encode(message proto.Message) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(message)
}

// newMessage makes an empty generated message by its full name.
func newMessage(name string) (proto.Message, error) {
	found, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(name))
	if err != nil {
		return nil, err
	}
	return found.New().Interface(), nil
}

// findMethod finds a method by "package.Service/Method".
func findMethod(name string) (protoreflect.MethodDescriptor, error) {
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(
		protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(name, "/"), "/", ".")))
	if err != nil {
		return nil, err
	}
	method, ok := found.(protoreflect.MethodDescriptor)
	if !ok {
		return nil, fmt.Errorf("%s is no method", name)
	}
	return method, nil
}
