package clag

import (
	"context"

	"google.golang.org/grpc"

	clagv1 "github.com/clag-memory/clag/clients/go/clag/v1"
)

// Client is a connection to a CLAG server. It is safe for concurrent use.
type Client struct {
	// Memory, Clusters and Admin are the generated stubs of all calls. They share connection,
	// token, default deadline and errors with the client's methods.
	Memory   clagv1.MemoryServiceClient
	Clusters clagv1.ClusterServiceClient
	Admin    clagv1.AdminServiceClient

	conn    *grpc.ClientConn
	options options
}

// NewClient makes a client of the server at target: "unix:PATH", a path that begins with "/", or
// "host:port". It connects with the first call; a server that is not there is an error of that
// call. NewClient fails when the target is malformed, or when a token would cross a network in
// plain text.
func NewClient(target string, opts ...Option) (*Client, error) {
	made := defaultOptions()
	for _, apply := range opts {
		apply(&made)
	}
	if err := checkTarget(target, made.token, made.tls != nil); err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(address(target), made.dial(target)...)
	if err != nil {
		return nil, err
	}
	return &Client{
		Memory:   clagv1.NewMemoryServiceClient(conn),
		Clusters: clagv1.NewClusterServiceClient(conn),
		Admin:    clagv1.NewAdminServiceClient(conn),
		conn:     conn,
		options:  made,
	}, nil
}

// Conn returns the connection, for other generated stubs (health, reflection).
func (c *Client) Conn() grpc.ClientConnInterface { return c.conn }

// Close cancels what is running and closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// GetContext retrieves everything in one response.
func (c *Client) GetContext(
	ctx context.Context, request *clagv1.RetrieveRequest,
) (*clagv1.GetContextResponse, error) {
	return c.Memory.GetContext(ctx, &clagv1.GetContextRequest{Retrieve: request})
}
