package clag

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"

	clagv1 "github.com/clag-memory/clag/clients/go/clag/v1"
)

// RetryPolicy says how streams that broke (Ingest, Watch) are opened again: with growing,
// jittered pauses, within a budget of time. The bound is a time and not a number of attempts: a
// server that restarts is back within half a minute, and how many attempts fit in there depends
// on the pauses.
type RetryPolicy struct {
	// ReconnectBudget is how long a server that went away is looked for; 0 is 120 s, a negative
	// one never looks.
	ReconnectBudget time.Duration
	// FirstPause is the longest first pause; 0 is 0.1 s. Pauses are a random part of their limit,
	// so that many clients of one server do not come back at the same moment.
	FirstPause time.Duration
	// LongestPause is the limit of every pause but those that the server asks for; 0 is 5 s.
	LongestPause time.Duration
}

func (p RetryPolicy) withDefaults() RetryPolicy {
	if p.ReconnectBudget == 0 {
		p.ReconnectBudget = 120 * time.Second
	}
	if p.FirstPause <= 0 {
		p.FirstPause = 100 * time.Millisecond
	}
	if p.LongestPause <= 0 {
		p.LongestPause = 5 * time.Second
	}
	return p
}

// pause returns how long to wait after a failure, and false when the failure is to be returned.
// failures counts those in a row, this one included, from 1; away is the time since the first.
func (p RetryPolicy) pause(failures int, away time.Duration, err *Error) (time.Duration, bool) {
	var pause time.Duration
	switch {
	case err.Reason == clagv1.ErrorReason_ERROR_REASON_STREAM_FENCED:
		return 0, false
	case err.RetryAfter != nil:
		pause = time.Duration(float64(*err.RetryAfter) * (1 + 0.2*rand.Float64()))
	case err.Code == codes.Unavailable:
		// Doublings are bounded, because long outages have thousands of failures.
		limit := min(p.LongestPause, p.FirstPause<<min(failures-1, 16))
		pause = limit/2 + time.Duration(rand.Float64()*float64(limit/2))
	default:
		return 0, false
	}
	return pause, away+pause <= p.ReconnectBudget
}

// outage is the failures in a row of one stream, and the waiting between them.
type outage struct {
	policy    RetryPolicy
	now       func() time.Time
	sleep     func(context.Context, time.Duration) error
	failures  int
	since     time.Time
	connected time.Time
}

func newOutage(policy RetryPolicy) *outage {
	return &outage{policy: policy.withDefaults(), now: time.Now, sleep: sleep}
}

// stands hears that a connection stands.
func (o *outage) stands() { o.connected = o.now() }

// wait waits until the next attempt, and returns an error when there is to be none.
//
// forward says whether the connection that err ended brought the stream forward. One that did, or
// that stood for longer than the longest pause (a stream may have nothing to do for hours), ends
// the outage before it.
func (o *outage) wait(ctx context.Context, err *Error, forward bool) error {
	now := o.now()
	stood := !o.connected.IsZero() && now.Sub(o.connected) > o.policy.LongestPause
	o.connected = time.Time{}
	if forward || stood || o.failures == 0 {
		o.failures, o.since = 0, now
	}
	o.failures++
	pause, again := o.policy.pause(o.failures, now.Sub(o.since), err)
	if !again {
		return err
	}
	return o.sleep(ctx, pause)
}

// sleep waits; it fails with an *Error when the context ends first.
func sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return toError(ctx.Err())
	}
}
