package clag

import (
	"context"
	"errors"
	"iter"

	"google.golang.org/protobuf/proto"

	clagv1 "github.com/clag-memory/clag/clients/go/clag/v1"
)

// Source gives the items of an ingestion, in order. An error ends it: what came before is stored,
// and the ingestion ends with a [*SourceError]. An item must not be changed after it was given.
//
// A source is read on a goroutine of its own. When an ingestion ends early, the goroutine ends
// with the next item: a source that may wait for long should watch the context too.
type Source = iter.Seq2[*clagv1.MemoryInput, error]

// Items makes a source of a list.
func Items(items ...*clagv1.MemoryInput) Source {
	return func(yield func(*clagv1.MemoryInput, error) bool) {
		for _, item := range items {
			if !yield(item, nil) {
				return
			}
		}
	}
}

// FromSeq makes a source of an iterator that does not fail.
func FromSeq(items iter.Seq[*clagv1.MemoryInput]) Source {
	return func(yield func(*clagv1.MemoryInput, error) bool) {
		for item := range items {
			if !yield(item, nil) {
				return
			}
		}
	}
}

// FromChannel makes a source of a channel. It ends when the channel is closed, and fails when ctx
// ends.
func FromChannel(ctx context.Context, items <-chan *clagv1.MemoryInput) Source {
	return func(yield func(*clagv1.MemoryInput, error) bool) {
		for {
			select {
			case item, open := <-items:
				if !open || !yield(item, nil) {
					return
				}
			case <-ctx.Done():
				yield(nil, context.Cause(ctx))
				return
			}
		}
	}
}

// queuedItems is two frames: one to send while the next is read.
const queuedItems = 128

// queued is an item that was read, with its encoded size.
type queued struct {
	item *clagv1.MemoryInput
	size int
}

// pump reads a source once for a whole ingestion, whatever happens to connections.
type pump struct {
	queue   chan queued
	failure *SourceError  // set before queue is closed
	left    chan struct{} // closed when nobody wants the items any more
}

func newPump() *pump {
	return &pump{queue: make(chan queued, queuedItems), left: make(chan struct{})}
}

// run fills the queue and closes it. The first skip items are left out, because the server has
// them. When ctx ends, the queue stays open: a source that was cut off, or that stopped because ctx
// ended, has no last item.
func (p *pump) run(ctx context.Context, items Source, skip uint64) {
	var seq uint64
	var buffer []byte
	for item, err := range items {
		select {
		case <-p.left:
			return
		case <-ctx.Done():
			return
		default:
		}
		seq++
		if err == nil && seq <= skip {
			continue
		}
		if err == nil {
			buffer, err = encode(buffer[:0], item)
		}
		if err != nil {
			p.failure = &SourceError{Seq: seq, Err: err}
			break
		}
		select {
		case p.queue <- queued{item, len(buffer)}:
		case <-p.left:
			return
		case <-ctx.Done():
			return
		}
	}
	if ctx.Err() == nil {
		close(p.queue)
	}
}

// encode finds out, before the item is part of a frame, whether it can be sent: text that is not
// UTF-8 would take the whole stream with it.
func encode(buffer []byte, item *clagv1.MemoryInput) ([]byte, error) {
	if item == nil {
		return nil, errors.New("it is nil")
	}
	return proto.MarshalOptions{}.MarshalAppend(buffer, item)
}
