package clag

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// unary gives calls the default deadline and the client's errors.
func (o *options) unary(
	ctx context.Context, method string, request, reply any,
	conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	ctx, cancel := o.withDeadline(ctx)
	defer cancel()
	return sendError(request, invoke(ctx, method, request, reply, conn, opts...))
}

// stream gives streams the client's errors.
func stream(
	ctx context.Context, described *grpc.StreamDesc,
	conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	opened, err := open(ctx, described, conn, method, opts...)
	if err != nil {
		return nil, toError(err)
	}
	return erring{opened}, nil
}

// erring is a stream with the client's errors.
type erring struct{ grpc.ClientStream }

func (s erring) SendMsg(message any) error {
	return sendError(message, s.ClientStream.SendMsg(message))
}

func (s erring) RecvMsg(message any) error { return toError(s.ClientStream.RecvMsg(message)) }

func (s erring) CloseSend() error { return toError(s.ClientStream.CloseSend()) }

// sendError is toError for calls that send. gRPC says INTERNAL, a fault of the server's, of a
// message that cannot be encoded (text that is not UTF-8) and was never sent.
func sendError(sent any, err error) error {
	told := toError(err)
	var failed *Error
	if !errors.As(told, &failed) || failed.Code != codes.Internal {
		return told
	}
	if message, ok := sent.(proto.Message); ok {
		if _, wrong := proto.Marshal(message); wrong != nil {
			return newError(codes.InvalidArgument, wrong.Error())
		}
	}
	return told
}
