package clag

import (
	"context"
	"crypto/rand"
	"errors"
	"iter"
	"sync"

	"google.golang.org/grpc/codes"

	clagv1 "github.com/clag-memory/clag/clients/go/clag/v1"
)

// IngestOption sets what an ingestion asks for.
type IngestOption func(*clagv1.IngestOpen)

// WithStreamID names the stream. With the same id and the same items again, the server's position
// is found and only the rest is sent. Without it a new name is made, which survives reconnects and
// not this process.
func WithStreamID(id string) IngestOption {
	return func(open *clagv1.IngestOpen) { open.StreamId = id }
}

// WithAckLevel says when an item counts as done; durable without it.
func WithAckLevel(level clagv1.AckLevel) IngestOption {
	return func(open *clagv1.IngestOpen) { open.AckLevel = level }
}

// WithStages says how much work the server does for the items.
func WithStages(stages clagv1.IngestStages) IngestOption {
	return func(open *clagv1.IngestOpen) { open.Stages = stages }
}

// Ingest makes an ingestion of items into a namespace, which is created if the server allows it.
// Nothing is sent before [Ingestion.Outcomes] or [Ingestion.Wait] is called.
func (c *Client) Ingest(namespace string, items Source, opts ...IngestOption) *Ingestion {
	open := &clagv1.IngestOpen{Namespace: namespace, AckLevel: clagv1.AckLevel_ACK_LEVEL_DURABLE}
	for _, apply := range opts {
		apply(open)
	}
	if open.StreamId == "" {
		open.StreamId = rand.Text()
	}
	level := max(open.AckLevel, clagv1.AckLevel_ACK_LEVEL_DURABLE)
	return &Ingestion{
		stub:   c.Memory,
		items:  items,
		open:   open,
		outage: newOutage(c.options.retry),
		state:  newIngestState(level),
		pump:   newPump(),
	}
}

// Ingestion is one resumable stream of memories: credits, batches, reconnects, outcomes. It is
// read once.
//
// The k-th item of the source has sequence number k. Items are kept until the server says that
// they are durable, so that a new connection can send them again; the server ignores what it has.
// A consumer that reads outcomes slowly stops the credit, which stops the source: memory stays
// bounded by the server's window.
type Ingestion struct {
	stub   clagv1.MemoryServiceClient
	items  Source
	open   *clagv1.IngestOpen
	outage *outage
	state  *ingestState
	pump   *pump

	mu         sync.Mutex
	started    bool
	opened     bool
	resumedAt  uint64
	reconnects int
	totals     *clagv1.IngestFinished
}

// StreamID returns the name of the stream.
func (in *Ingestion) StreamID() string { return in.open.GetStreamId() }

// ResumedAt returns the sequence number of the first item that is sent, 1 before that is known.
// Items before it were durable from an earlier run and have no outcomes.
func (in *Ingestion) ResumedAt() uint64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return max(in.resumedAt, 1)
}

// Reconnects returns how many connections were tried after the first.
func (in *Ingestion) Reconnects() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.reconnects
}

// DurableThrough returns the sequence number of the last item that is known to be on the server's
// disk, with all before it.
func (in *Ingestion) DurableThrough() uint64 { return in.state.durableThrough() }

// Totals returns the server's counts of the whole stream, earlier runs included; nil before it is
// finished.
func (in *Ingestion) Totals() *clagv1.IngestFinished {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.totals
}

// Outcomes stores the items and yields what becomes of them, until every item has reached the
// level that was asked for. A failure is the last thing that it yields: an [*Error] if the stream
// cannot be finished, a [*SourceError] if the source failed. Leaving the loop early cancels the
// stream: what was acknowledged stays, and the same stream id resumes.
func (in *Ingestion) Outcomes(ctx context.Context) iter.Seq2[Outcome, error] {
	return func(yield func(Outcome, error) bool) {
		if !in.start() {
			yield(Outcome{}, newError(codes.FailedPrecondition, "an ingestion is read once"))
			return
		}
		defer close(in.pump.left)
		err := in.run(ctx, func(outcome Outcome) bool { return yield(outcome, nil) })
		if err != nil && !errors.Is(err, errLeft) {
			yield(Outcome{}, err)
		}
	}
}

// Wait stores the items, passing over their outcomes, and returns the server's
// counts.
func (in *Ingestion) Wait(ctx context.Context) (*clagv1.IngestFinished, error) {
	if totals := in.Totals(); totals != nil {
		return totals, nil
	}
	for _, err := range in.Outcomes(ctx) {
		if err != nil {
			return nil, err
		}
	}
	return in.Totals(), nil
}

// errLeft says that the consumer left the loop.
var errLeft = errors.New("the consumer left")

func (in *Ingestion) start() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	first := !in.started
	in.started = true
	return first
}

// run opens connections until the stream is finished.
func (in *Ingestion) run(ctx context.Context, emit func(Outcome) bool) error {
	for {
		before := in.DurableThrough()
		err := in.connection(ctx, emit)
		var failed *Error
		if err == nil || !errors.As(err, &failed) || errors.As(err, new(*SourceError)) {
			return err
		}
		if !in.opened && failed.RetryAfter == nil {
			return err // it was never there
		}
		if err := in.outage.wait(ctx, failed, in.DurableThrough() > before); err != nil {
			return err
		}
		in.mu.Lock()
		in.reconnects++
		in.mu.Unlock()
	}
}
