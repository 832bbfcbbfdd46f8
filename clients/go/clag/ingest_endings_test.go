package clag

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clagv1 "github.com/clag-memory/clag/clients/go/clag/v1"
)

func TestAFencedStreamEndsAtOnce(t *testing.T) {
	fenced, err := status.New(codes.Aborted, "a newer opener").WithDetails(
		&errdetails.ErrorInfo{Domain: "clag", Reason: "ERROR_REASON_STREAM_FENCED"})
	if err != nil {
		t.Fatal(err)
	}
	server := &ledger{window: 64, failWith: fenced.Err(), failAfter: map[int]int{0: 1}}
	client := serve(t, &fakeMemory{ingest: server.ingest})
	_, err = client.Ingest("n", notes(100, nil)).Wait(t.Context())
	var failed *Error
	if !errors.As(err, &failed) || failed.Reason != clagv1.ErrorReason_ERROR_REASON_STREAM_FENCED {
		t.Fatal(err)
	}
	if server.connections != 1 {
		t.Fatalf("%d connections", server.connections)
	}
}

func TestAServerThatWasNeverThereEndsAtOnce(t *testing.T) {
	client := connectTo(t, socketPath(t))
	ingestion := client.Ingest("n", notes(1, nil))
	_, err := ingestion.Wait(t.Context())
	if status.Code(err) != codes.Unavailable || ingestion.Reconnects() != 0 {
		t.Fatal(err, ingestion.Reconnects())
	}
}

func TestLeavingTheLoopCancelsTheStreamAndLetsTheSourceGo(t *testing.T) {
	ended := make(chan error, 1)
	server := &ledger{window: 64}
	client := serve(t, &fakeMemory{ingest: func(stream ingestServerStream) error {
		err := server.ingest(stream)
		ended <- err
		return err
	}})
	left := make(chan struct{})
	source := func(yield func(*clagv1.MemoryInput, error) bool) {
		defer close(left)
		for yield(&clagv1.MemoryInput{Text: "again"}, nil) {
		}
	}
	ingestion := client.Ingest("n", source)
	for _, err := range ingestion.Outcomes(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	<-left
	if code := status.Code(<-ended); code != codes.Canceled {
		t.Fatalf("the server's call ended with %v", code)
	}
	for _, err := range ingestion.Outcomes(t.Context()) {
		if status.Code(err) != codes.FailedPrecondition {
			t.Fatal(err)
		}
	}
}

func TestCancellationEndsAStreamWithoutFinishingIt(t *testing.T) {
	for range 20 { // the end of the source races with the end of the connection
		server := &ledger{window: 64}
		ended := make(chan error, 1)
		client := serve(t, &fakeMemory{ingest: func(stream ingestServerStream) error {
			err := server.ingest(stream)
			ended <- err
			return err
		}})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		source := func(yield func(*clagv1.MemoryInput, error) bool) {
			yield(&clagv1.MemoryInput{Text: "one"}, nil)
			<-ctx.Done() // a source that ends with its context has not come to its end
		}
		var last error
		for _, err := range client.Ingest("n", source).Outcomes(ctx) {
			last = err
			cancel()
		}
		if !errors.Is(last, context.Canceled) {
			t.Fatal(last)
		}
		if err := <-ended; status.Code(err) != codes.Canceled {
			t.Fatalf("the server's call ended with %v", err)
		}
	}
}

func TestADeadlineEndsAStream(t *testing.T) {
	server := &ledger{window: 64, gate: make(chan struct{})}
	client := serve(t, &fakeMemory{ingest: server.ingest})
	defer close(server.gate)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := client.Ingest("n", notes(10, nil)).Wait(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

func TestAFailingSourceEndsTheStreamAfterWhatCameBefore(t *testing.T) {
	server := &ledger{window: 64}
	client := serve(t, &fakeMemory{ingest: server.ingest})
	broken := errors.New("the file is torn")
	source := func(yield func(*clagv1.MemoryInput, error) bool) {
		for n := 1; n <= 100; n++ {
			if !yield(&clagv1.MemoryInput{Text: fmt.Sprintf("note %d", n)}, nil) {
				return
			}
		}
		yield(nil, broken)
	}
	_, err := client.Ingest("n", source).Wait(t.Context())
	var failed *SourceError
	if !errors.As(err, &failed) || failed.Seq != 101 || !errors.Is(err, broken) {
		t.Fatal(err)
	}
	checkStored(t, server, 100)
}

func TestAnItemThatCannotBeSentIsNamedBeforeItIsSent(t *testing.T) {
	for _, bad := range []*clagv1.MemoryInput{nil, {Text: "\xed\xa0\x80"}} {
		server := &ledger{window: 64}
		client := serve(t, &fakeMemory{ingest: server.ingest})
		_, err := client.Ingest("n", Items(&clagv1.MemoryInput{Text: "note 1"}, bad)).Wait(t.Context())
		var failed *SourceError
		if !errors.As(err, &failed) || failed.Seq != 2 {
			t.Fatal(err)
		}
		checkStored(t, server, 1)
	}
}
