package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/clag-memory/clag/clients/go/clag"
	clagv1 "github.com/clag-memory/clag/clients/go/clag/v1"
)

func (r *runner) connect(_ context.Context, cmd *command, _ *running) (object, error) {
	var target string
	if err := json.Unmarshal(cmd.Target, &target); err != nil {
		return nil, err
	}
	options := []clag.Option{clag.WithToken(cmd.Token)}
	if timeout := cmd.timeout(); timeout > 0 {
		options = append(options, clag.WithTimeout(timeout))
	}
	if files := cmd.TLS; files != nil {
		config, err := clag.TLSFromPEM([]byte(files.CA), []byte(files.Certificate), []byte(files.Key))
		if err != nil {
			return nil, err
		}
		options = append(options, clag.WithTLS(config))
	}
	client, err := clag.NewClient(target, options...)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if before := r.clients[cmd.clientName()]; before != nil {
		_ = before.Close()
	}
	r.clients[cmd.clientName()] = client
	return nil, nil
}

func (r *runner) close(_ context.Context, cmd *command, _ *running) (object, error) {
	client, err := r.client(cmd)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	delete(r.clients, cmd.clientName())
	r.mu.Unlock()
	return nil, client.Close()
}

func (r *runner) client(cmd *command) (*clag.Client, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if client := r.clients[cmd.clientName()]; client != nil {
		return client, nil
	}
	return nil, fmt.Errorf("there is no client %q", cmd.clientName())
}

// target finds the command that another one is about; nil when it has ended.
func (r *runner) target(cmd *command) *running {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running[string(cmd.Target)]
}

func (r *runner) resume(_ context.Context, cmd *command, _ *running) (object, error) {
	if run := r.target(cmd); run != nil {
		run.resume()
	}
	return nil, nil
}

func (r *runner) progress(_ context.Context, cmd *command, _ *running) (object, error) {
	run := r.target(cmd)
	if run == nil {
		return nil, errors.New("the command has ended")
	}
	return object{"taken": run.taken.Load(), "outcomes": run.outcomes.Load()}, nil
}

func (r *runner) cancel(_ context.Context, cmd *command, _ *running) (object, error) {
	if run := r.target(cmd); run != nil {
		run.cancel()
	}
	return nil, nil
}

func (r *runner) roundtrip(_ context.Context, cmd *command, _ *running) (object, error) {
	message, err := newMessage(cmd.Type)
	if err != nil {
		return nil, err
	}
	if message, err = decode(cmd.Data, message); err != nil {
		return nil, err
	}
	data, err := encode(message)
	return object{"data": data}, err
}

// call makes any call of the contract over the client's connection, as the generated stubs do.
func (r *runner) call(ctx context.Context, cmd *command, _ *running) (object, error) {
	client, err := r.client(cmd)
	if err != nil {
		return nil, err
	}
	method, err := findMethod(cmd.Method)
	if err != nil {
		return nil, err
	}
	given := cmd.Requests
	if !method.IsStreamingClient() {
		given = [][]byte{cmd.Request}
	}
	requests := make([]proto.Message, len(given))
	for i, data := range given {
		if requests[i], err = newMessage(string(method.Input().FullName())); err != nil {
			return nil, err
		}
		if _, err = decode(data, requests[i]); err != nil {
			return nil, err
		}
	}
	path := "/" + string(method.Parent().FullName()) + "/" + string(method.Name())
	if method.IsStreamingClient() || method.IsStreamingServer() {
		return nil, r.streamed(ctx, cmd, client.Conn(), method, path, requests)
	}
	response, err := newMessage(string(method.Output().FullName()))
	if err != nil {
		return nil, err
	}
	if err := client.Conn().Invoke(ctx, path, requests[0], response); err != nil {
		return nil, err
	}
	data, err := encode(response)
	return object{"response": data}, err
}

// streamed hands on the messages of a call that streams. Where the client streams too, it sends
// all requests and then says that none follows, unless the command wants it not to.
func (r *runner) streamed(
	ctx context.Context, cmd *command, conn grpc.ClientConnInterface,
	method protoreflect.MethodDescriptor, path string, requests []proto.Message,
) error {
	description := &grpc.StreamDesc{
		ServerStreams: method.IsStreamingServer(), ClientStreams: method.IsStreamingClient(),
	}
	stream, err := conn.NewStream(ctx, description, path)
	if err != nil {
		return err
	}
	for _, request := range requests {
		if err := stream.SendMsg(request); errors.Is(err, io.EOF) {
			break // the reading says why
		} else if err != nil {
			return err
		}
	}
	if cmd.HalfClose == nil || *cmd.HalfClose {
		if err := stream.CloseSend(); err != nil {
			return err
		}
	}
	for {
		response, err := newMessage(string(method.Output().FullName()))
		if err != nil {
			return err
		}
		if err := stream.RecvMsg(response); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		data, err := encode(response)
		if err != nil {
			return err
		}
		r.event(cmd, object{"response": data})
	}
}

// text sets a memory's text as a user would, and says what the server has of it.
func (r *runner) text(ctx context.Context, cmd *command, _ *running) (object, error) {
	client, err := r.client(cmd)
	if err != nil {
		return nil, err
	}
	value, err := unquote(cmd.Value)
	if err != nil {
		return nil, err
	}
	created, err := client.Memory.CreateMemory(ctx, &clagv1.CreateMemoryRequest{
		Namespace: "surrogates", Memory: &clagv1.MemoryInput{Text: value},
	})
	if err != nil {
		return nil, err
	}
	return object{"value": created.GetMemory().GetText()}, nil
}
