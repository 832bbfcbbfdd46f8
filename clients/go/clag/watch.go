package clag

import (
	"context"
	"errors"
	"io"
	"iter"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	clagv1 "github.com/clag-memory/clag/clients/go/clag/v1"
)

// Watch yields changes as they happen, from request.StartAfter on (the through of a response seen
// before; nil begins now). A broken connection is opened again after the last response, so that
// nothing is missed or doubled. It goes on until ctx ends or the loop is left; a failure is the
// last thing that it yields, for example that the log no longer reaches back that far.
func (c *Client) Watch(
	ctx context.Context, request *clagv1.WatchRequest,
) iter.Seq2[*clagv1.WatchResponse, error] {
	return func(yield func(*clagv1.WatchResponse, error) bool) {
		w := &watching{client: c, outage: newOutage(c.options.retry)}
		w.request, _ = proto.Clone(request).(*clagv1.WatchRequest)
		if w.request == nil {
			w.request = &clagv1.WatchRequest{}
		}
		if err := w.run(ctx, yield); err != nil && !errors.Is(err, errLeft) {
			yield(nil, err)
		}
	}
}

// watching is a watch over its connections.
type watching struct {
	client  *Client
	request *clagv1.WatchRequest // its start moves with what was handed out
	outage  *outage
	ever    bool
}

func (w *watching) run(ctx context.Context, yield func(*clagv1.WatchResponse, error) bool) error {
	for {
		forward, err := w.connection(ctx, yield)
		var failed *Error
		if !errors.As(err, &failed) {
			return err
		}
		if !w.ever && failed.RetryAfter == nil {
			return err // it was never there
		}
		if err := w.outage.wait(ctx, failed, forward); err != nil {
			return err
		}
	}
}

// connection watches over one connection until it ends, which is always a failure.
func (w *watching) connection(
	ctx context.Context, yield func(*clagv1.WatchResponse, error) bool,
) (forward bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := w.client.Memory.Watch(ctx, w.request)
	if err != nil {
		return false, err
	}
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return forward, newError(codes.Unavailable, "the server ended the watch")
		}
		if err != nil {
			return forward, err
		}
		if !forward {
			w.outage.stands()
		}
		forward, w.ever = true, true
		w.request.StartAfter = response.GetThrough()
		if !yield(response, nil) {
			return forward, errLeft
		}
	}
}
