package clag

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clagv1 "github.com/clag-memory/clag/clients/go/clag/v1"
)

var errAway = status.Error(codes.Unavailable, "gone for a moment")

// notes is a source of count items that counts those that were taken.
func notes(count int, taken *atomic.Int64) Source {
	return func(yield func(*clagv1.MemoryInput, error) bool) {
		for n := 1; n <= count; n++ {
			if taken != nil {
				taken.Add(1)
			}
			if !yield(&clagv1.MemoryInput{Text: fmt.Sprintf("note %d", n)}, nil) {
				return
			}
		}
	}
}

func checkStored(t *testing.T, server *ledger, count int) {
	t.Helper()
	stored, _, wrong := server.state()
	if len(wrong) > 0 {
		t.Fatalf("the server saw: %s", strings.Join(wrong, "; "))
	}
	if len(stored) != count {
		t.Fatalf("%d items are stored, not %d", len(stored), count)
	}
	for i, text := range stored {
		if text != fmt.Sprintf("note %d", i+1) {
			t.Fatalf("item %d is %q", i+1, text)
		}
	}
}

func TestAllItemsAreStoredInOrderWithinTheCredit(t *testing.T) {
	server := &ledger{window: 100}
	client := serve(t, &fakeMemory{ingest: server.ingest})
	ingestion := client.Ingest("n", notes(1000, nil))
	var seqs []uint64
	for outcome, err := range ingestion.Outcomes(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if !outcome.Final || outcome.MemoryID != fmt.Sprintf("m-%d", outcome.Seq) {
			t.Fatalf("unexpected outcome %+v", outcome)
		}
		seqs = append(seqs, outcome.Seq)
	}
	checkStored(t, server, 1000)
	if len(seqs) != 1000 || !slices.IsSorted(seqs) {
		t.Fatalf("%d outcomes", len(seqs))
	}
	if got := ingestion.Totals().GetCreated(); got != 1000 {
		t.Fatalf("totals say %d", got)
	}
	if ingestion.ResumedAt() != 1 || ingestion.Reconnects() != 0 || ingestion.DurableThrough() != 1000 {
		t.Fatalf("%d %d %d", ingestion.ResumedAt(), ingestion.Reconnects(), ingestion.DurableThrough())
	}
}

func TestAnEmptySourceIsAFinishedStream(t *testing.T) {
	server := &ledger{window: 10}
	client := serve(t, &fakeMemory{ingest: server.ingest})
	totals, err := client.Ingest("n", Items()).Wait(t.Context())
	if err != nil || totals.GetCreated() != 0 {
		t.Fatal(totals, err)
	}
	checkStored(t, server, 0)
}

func TestABrokenStreamGoesOnWhereTheServerIs(t *testing.T) {
	server := &ledger{window: 128, failWith: errAway, failAfter: map[int]int{0: 100, 1: 300, 2: 1}}
	client := serve(t, &fakeMemory{ingest: server.ingest})
	ingestion := client.Ingest("n", notes(1000, nil))
	final := map[uint64]clagv1.Disposition{}
	for outcome, err := range ingestion.Outcomes(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := final[outcome.Seq]; twice || !outcome.Final {
			t.Fatalf("unexpected outcome %+v", outcome)
		}
		final[outcome.Seq] = outcome.Disposition
	}
	checkStored(t, server, 1000)
	lost := 0
	for _, disposition := range final {
		if disposition == clagv1.Disposition_DISPOSITION_UNSPECIFIED {
			lost++
		}
	}
	if len(final) != 1000 || lost == 0 || ingestion.Reconnects() != 3 {
		t.Fatalf("%d outcomes, %d lost, %d reconnects", len(final), lost, ingestion.Reconnects())
	}
}

func TestAServerThatRestartsIsFoundAgain(t *testing.T) {
	server := &ledger{window: 64}
	path := socketPath(t)
	stop := serveAt(t, path, &fakeMemory{ingest: server.ingest})
	client := connectTo(t, path)
	resume := make(chan struct{})
	source := func(yield func(*clagv1.MemoryInput, error) bool) {
		for n := 1; n <= 200; n++ {
			if n == 101 {
				<-resume
			}
			if !yield(&clagv1.MemoryInput{Text: fmt.Sprintf("note %d", n)}, nil) {
				return
			}
		}
	}
	ingestion := client.Ingest("n", source)
	for outcome, err := range ingestion.Outcomes(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if outcome.Seq == 100 {
			stop()
			serveAt(t, path, &fakeMemory{ingest: server.ingest})
			close(resume)
		}
	}
	checkStored(t, server, 200)
	if ingestion.Reconnects() == 0 {
		t.Fatal("it did not reconnect")
	}
}

func TestAStreamResumesFromAnEarlierRun(t *testing.T) {
	server := &ledger{window: 64, stored: []string{"note 1", "note 2", "note 3"}}
	client := serve(t, &fakeMemory{ingest: server.ingest})
	ingestion := client.Ingest("n", notes(10, nil), WithStreamID("s"))
	first := uint64(0)
	for outcome, err := range ingestion.Outcomes(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if first == 0 {
			first = outcome.Seq
		}
	}
	checkStored(t, server, 10)
	if first != 4 || ingestion.ResumedAt() != 4 || ingestion.StreamID() != "s" {
		t.Fatalf("first outcome %d, resumed at %d", first, ingestion.ResumedAt())
	}
}

func TestASlowConsumerBoundsWhatIsTaken(t *testing.T) {
	server := &ledger{window: 100}
	client := serve(t, &fakeMemory{ingest: server.ingest})
	var taken atomic.Int64
	seen := 0
	for _, err := range client.Ingest("n", notes(5000, &taken)).Outcomes(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		seen++
		// Durable and seen, in flight within the window, in the queue, and one at hand; outcomes
		// of one acknowledgement are handed on before it gives credit.
		if most := int64(seen + 64 + 100 + queuedItems + 1); taken.Load() > most {
			t.Fatalf("%d items are taken after %d outcomes", taken.Load(), seen)
		}
	}
	checkStored(t, server, 5000)
}

func TestFramesOfLargeItemsStayBelowTheLimit(t *testing.T) {
	server := &ledger{window: 256}
	client := serve(t, &fakeMemory{ingest: server.ingest})
	text := strings.Repeat("x", 30_000)
	source := func(yield func(*clagv1.MemoryInput, error) bool) {
		for range 200 {
			if !yield(&clagv1.MemoryInput{Text: text}, nil) {
				return
			}
		}
	}
	if _, err := client.Ingest("n", source).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, frames, wrong := server.state()
	if len(wrong) > 0 || slices.Max(frames)*30_000 > maxFrameBytes {
		t.Fatal(wrong, frames)
	}
}

func TestAnItemComesAgainWhenItHasComeFurther(t *testing.T) {
	server := &ledger{window: 64, report: func(first uint64, items []*clagv1.MemoryInput) []*clagv1.IngestResult {
		durable, organized := durableResults(first, items), durableResults(first, items)
		for _, result := range organized {
			result.Level = clagv1.AckLevel_ACK_LEVEL_ORGANIZED
		}
		return append(durable, organized...)
	}}
	client := serve(t, &fakeMemory{ingest: server.ingest})
	ingestion := client.Ingest("n", notes(3, nil), WithAckLevel(clagv1.AckLevel_ACK_LEVEL_ORGANIZED))
	final := map[bool]int{}
	for outcome, err := range ingestion.Outcomes(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		final[outcome.Final]++
	}
	if final[true] != 3 || final[false] != 3 {
		t.Fatal(final)
	}
}
