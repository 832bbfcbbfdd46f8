package clag

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	clagv1 "github.com/clag-memory/clag/clients/go/clag/v1"
)

const (
	// goodbye is how long the server may take to close after its last frame.
	goodbye = 2 * time.Second
	// linger is how long a frame that is not full waits for more items: a source that makes them
	// one by one would have a frame for each, which costs the server ten times as much.
	linger = time.Millisecond
)

type ingestStream = grpc.BidiStreamingClient[clagv1.IngestRequest, clagv1.IngestResponse]

// connection works over one connection until the stream is finished. It fails with an *Error when
// the connection breaks.
func (in *Ingestion) connection(ctx context.Context, emit func(Outcome) bool) error {
	pumping := ctx // the pump outlives the connection
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := in.stub.Ingest(ctx)
	if err != nil {
		return err
	}
	open := &clagv1.IngestRequest{Frame: &clagv1.IngestRequest_Open{Open: in.open}}
	if err := stream.Send(open); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	response, err := receive(stream)
	if err != nil {
		return err
	}
	if err := in.begin(pumping, response, emit); err != nil {
		return err
	}

	writing := make(chan error, 1)
	go func() {
		err := in.write(ctx, stream)
		if err != nil {
			cancel() // the reader has nothing to wait for
		}
		writing <- err
	}()
	err = in.readAcks(stream, cancel, emit)
	cancel()
	written := <-writing
	if written != nil && err != nil && !errors.Is(err, errLeft) {
		return written // it is why the reader failed
	}
	return err
}

// begin takes the server's answer to open.
func (in *Ingestion) begin(ctx context.Context, response *clagv1.IngestResponse, emit func(Outcome) bool) error {
	opened := response.GetOpened()
	if opened == nil {
		return newError(codes.Internal, "the server did not answer open with opened")
	}
	in.outage.stands()
	first := !in.opened
	lost, err := in.state.open(opened, first)
	if err != nil {
		return err
	}
	if first {
		in.opened = true
		in.mu.Lock()
		in.resumedAt = opened.GetNextSeq()
		in.mu.Unlock()
		go in.pump.run(ctx, in.items, opened.GetNextSeq()-1)
	}
	for _, outcome := range lost {
		if !emit(outcome) {
			return errLeft
		}
	}
	return nil
}

// readAcks hands on outcomes until the stream is finished.
func (in *Ingestion) readAcks(stream ingestStream, cancel func(), emit func(Outcome) bool) error {
	for {
		response, err := receive(stream)
		if err != nil {
			return err
		}
		switch frame := response.GetFrame().(type) {
		case *clagv1.IngestResponse_Finished:
			in.mu.Lock()
			in.totals = frame.Finished
			in.mu.Unlock()
			// Let the server close, so that it does not see a cancelled call.
			defer time.AfterFunc(goodbye, cancel).Stop()
			_, _ = receive(stream) // the end; whatever it is, the stream is finished
			return nil
		case *clagv1.IngestResponse_Ack:
			for _, result := range frame.Ack.GetResults() {
				if !emit(in.state.outcome(result)) {
					return errLeft
				}
			}
			in.state.acknowledge(frame.Ack)
		}
	}
}

// write sends what the credit allows, oldest first, then finish. It returns nil when the
// connection ends: the reader meets the same end and says what it was.
func (in *Ingestion) write(ctx context.Context, stream ingestStream) error {
	following := in.state.durableThrough() + 1
	for {
		credit, more := in.fill(ctx, following)
		if ctx.Err() != nil {
			return nil
		}
		request := &clagv1.IngestRequest{}
		if more {
			batch := in.state.take(following, credit)
			following += uint64(len(batch.Items))
			request.Frame = &clagv1.IngestRequest_Batch{Batch: batch}
		} else {
			if failure := in.pump.failure; failure != nil {
				if in.untilDurable(ctx, following-1) {
					return failure
				}
				return nil
			}
			finish := &clagv1.IngestFinish{LastSeq: following - 1}
			request.Frame = &clagv1.IngestRequest_Finish{Finish: finish}
		}
		if err := stream.Send(request); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if !more {
			return nil
		}
	}
}

// fill waits until there are items to send from following on, and credit for them. It returns how
// many may be sent, and false when there are no more. It returns early when ctx ends.
func (in *Ingestion) fill(ctx context.Context, following uint64) (credit int, more bool) {
	var late <-chan time.Time
	for {
		credit, there := in.state.room(following)
		if credit > 0 && there >= credit {
			return credit, true
		}
		if late == nil && credit > 0 && there > 0 {
			late = time.After(linger)
		}
		queue := in.pump.queue
		if credit == 0 && there > 0 {
			queue = nil // room for one item before there is credit: the source's end must be seen
		}
		select {
		case item, open := <-queue:
			if open {
				in.state.keep(item)
			} else if credit > 0 || there == 0 {
				return credit, there > 0
			}
		case <-in.state.moved:
		case <-late:
			return credit, true
		case <-ctx.Done():
			return 0, false
		}
	}
}

// untilDurable waits until an item is durable; false when ctx ends first.
func (in *Ingestion) untilDurable(ctx context.Context, seq uint64) bool {
	for in.state.durableThrough() < seq {
		select {
		case <-in.state.moved:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// receive is Recv, where the end of the stream is a failure: it ends with finished.
func receive(stream ingestStream) (*clagv1.IngestResponse, error) {
	response, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		return nil, newError(codes.Unavailable, "the server ended the stream before it was finished")
	}
	return response, err
}
