package clag

import (
	"context"
	"crypto/tls"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// MaxMessageBytes is the server's limit of a message, in both directions.
const MaxMessageBytes = 4 << 20

// DefaultTimeout is the deadline of unary calls, retrievals and answers whose context has none.
const DefaultTimeout = 30 * time.Second

// Option sets how a client reaches its server.
type Option func(*options)

type options struct {
	token     string
	tls       *tls.Config
	timeout   time.Duration
	retry     RetryPolicy
	keepalive time.Duration
	extra     []grpc.DialOption
}

func defaultOptions() options { return options{timeout: DefaultTimeout} }

// WithToken sends a bearer token with every call. TCP servers ask for one.
func WithToken(token string) Option { return func(o *options) { o.token = token } }

// WithTLS encrypts the connection. Without it the client speaks plain text, which servers accept
// on Unix sockets and loopback addresses. See [TLSFromPEM].
func WithTLS(config *tls.Config) Option { return func(o *options) { o.tls = config } }

// WithTimeout replaces [DefaultTimeout]; 0 sets no deadline.
func WithTimeout(timeout time.Duration) Option { return func(o *options) { o.timeout = timeout } }

// WithRetry replaces how broken streams are resumed.
func WithRetry(policy RetryPolicy) Option { return func(o *options) { o.retry = policy } }

// WithKeepalive pings a quiet connection with open calls at this interval, at least 10 s, and
// gives it up when no answer comes. Without it, a network that swallows everything is noticed by
// deadlines only.
func WithKeepalive(interval time.Duration) Option {
	return func(o *options) { o.keepalive = interval }
}

// WithDialOptions adds options of gRPC's own, after the client's.
func WithDialOptions(extra ...grpc.DialOption) Option {
	return func(o *options) { o.extra = append(o.extra, extra...) }
}

func (o *options) dial(target string) []grpc.DialOption {
	transport := insecure.NewCredentials()
	if o.tls != nil {
		transport = credentials.NewTLS(o.tls)
	}
	// A server that restarts is back within half a minute: gRPC's own pauses of up to two minutes
	// would miss that by far.
	pauses := backoff.Config{
		BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second,
	}
	dial := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: pauses, MinConnectTimeout: 20 * time.Second}),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(MaxMessageBytes), grpc.MaxCallSendMsgSize(MaxMessageBytes)),
		grpc.WithUnaryInterceptor(o.unary),
		grpc.WithStreamInterceptor(stream),
		grpc.WithDisableServiceConfig(),
	}
	if isLocal(target) {
		// A proxy of the environment would get what must not leave this machine, the token with it.
		dial = append(dial, grpc.WithNoProxy())
	}
	if o.token != "" {
		dial = append(dial, grpc.WithPerRPCCredentials(bearer{token: o.token, encrypted: o.tls != nil}))
	}
	if o.keepalive > 0 {
		dial = append(dial, grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: o.keepalive}))
	}
	return append(dial, o.extra...)
}

// withDeadline gives a context the default deadline if it has none.
func (o *options) withDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has || o.timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, o.timeout)
}

// bearer is a token as gRPC's credentials of each call.
type bearer struct {
	token     string
	encrypted bool
}

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}

// RequireTransportSecurity is false for local targets only: checkTarget refuses all others.
func (b bearer) RequireTransportSecurity() bool { return b.encrypted }
