package clag

import (
	"context"
	"errors"
	"io"
	"iter"

	"google.golang.org/grpc"

	clagv1 "github.com/clag-memory/clag/clients/go/clag/v1"
)

// Retrieve yields the stages of a retrieval as they come: clusters, memories, the context if a
// budget was given, done. Leaving the loop early cancels the call. A failure is the last thing
// that it yields.
func (c *Client) Retrieve(
	ctx context.Context, request *clagv1.RetrieveRequest,
) iter.Seq2[*clagv1.RetrieveResponse, error] {
	return frames(ctx, c, c.Memory.Retrieve, request)
}

// Answer lets the server's language model answer from what it finds, and yields the server's
// frames: clusters, memories, the context, pieces of the answer, done. Where nothing relevant is
// found there is no piece, and done says ANSWER_END_NO_EVIDENCE. Leaving the loop early ends the
// generation. A failure is the last thing that it yields.
func (c *Client) Answer(
	ctx context.Context, request *clagv1.AnswerRequest,
) iter.Seq2[*clagv1.AnswerResponse, error] {
	return frames(ctx, c, c.Memory.Answer, request)
}

// frames yields what a call streams, within the default deadline.
func frames[Request, Response any](
	ctx context.Context, client *Client,
	call func(context.Context, *Request, ...grpc.CallOption) (grpc.ServerStreamingClient[Response], error),
	request *Request,
) iter.Seq2[*Response, error] {
	return func(yield func(*Response, error) bool) {
		ctx, cancel := client.options.withDeadline(ctx)
		defer cancel()
		stream, err := call(ctx, request)
		for err == nil {
			var frame *Response
			if frame, err = stream.Recv(); err == nil && !yield(frame, nil) {
				return
			}
		}
		if !errors.Is(err, io.EOF) {
			yield(nil, err)
		}
	}
}
