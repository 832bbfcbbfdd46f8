package clag

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clagv1 "github.com/clag-memory/clag/clients/go/clag/v1"
)

// fakeMemory is a memory service made of functions.
type fakeMemory struct {
	clagv1.UnimplementedMemoryServiceServer
	ingest     func(grpc.BidiStreamingServer[clagv1.IngestRequest, clagv1.IngestResponse]) error
	retrieve   func(*clagv1.RetrieveRequest, grpc.ServerStreamingServer[clagv1.RetrieveResponse]) error
	watch      func(*clagv1.WatchRequest, grpc.ServerStreamingServer[clagv1.WatchResponse]) error
	getContext func(context.Context, *clagv1.GetContextRequest) (*clagv1.GetContextResponse, error)
}

func (f *fakeMemory) Ingest(stream grpc.BidiStreamingServer[clagv1.IngestRequest, clagv1.IngestResponse]) error {
	return f.ingest(stream)
}

func (f *fakeMemory) Retrieve(
	request *clagv1.RetrieveRequest, stream grpc.ServerStreamingServer[clagv1.RetrieveResponse],
) error {
	return f.retrieve(request, stream)
}

func (f *fakeMemory) Watch(
	request *clagv1.WatchRequest, stream grpc.ServerStreamingServer[clagv1.WatchResponse],
) error {
	return f.watch(request, stream)
}

func (f *fakeMemory) GetContext(
	ctx context.Context, request *clagv1.GetContextRequest,
) (*clagv1.GetContextResponse, error) {
	return f.getContext(ctx, request)
}

// quick is a retry policy that does not make tests wait.
var quick = WithRetry(RetryPolicy{
	FirstPause: time.Millisecond, LongestPause: 2 * time.Millisecond, ReconnectBudget: 5 * time.Second,
})

// socketPath returns a path that is short enough for a socket.
func socketPath(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "clag")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	return filepath.Join(folder, "s")
}

// serveAt serves a fake at a socket until the test or the returned function ends it.
func serveAt(t *testing.T, path string, fake *fakeMemory) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	clagv1.RegisterMemoryServiceServer(server, fake)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return server.Stop
}

func connectTo(t *testing.T, path string, opts ...Option) *Client {
	t.Helper()
	client, err := NewClient(path, append([]Option{quick}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func serve(t *testing.T, fake *fakeMemory, opts ...Option) *Client {
	t.Helper()
	path := socketPath(t)
	serveAt(t, path, fake)
	return connectTo(t, path, opts...)
}

// ledger is a server of one stream that checks what clients must keep to.
type ledger struct {
	window uint32
	// failAfter breaks the k-th connection, from 0, when it has brought that many items; the last
	// frame of it is stored and not acknowledged.
	failAfter map[int]int
	failWith  error
	// gate, when set, is read once before each acknowledgement.
	gate chan struct{}
	// report makes a frame's results; all durable and created by default.
	report func(first uint64, items []*clagv1.MemoryInput) []*clagv1.IngestResult

	mu          sync.Mutex
	stored      []string
	frames      []int
	wrong       []string
	connections int
}

func (l *ledger) fault(format string, values ...any) {
	l.wrong = append(l.wrong, fmt.Sprintf(format, values...))
}

func (l *ledger) state() (stored []string, frames []int, wrong []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string{}, l.stored...), append([]int{}, l.frames...), append([]string{}, l.wrong...)
}

func (l *ledger) ingest(stream grpc.BidiStreamingServer[clagv1.IngestRequest, clagv1.IngestResponse]) error {
	request, err := stream.Recv()
	if err != nil || request.GetOpen() == nil {
		return status.Error(codes.FailedPrecondition, "no open")
	}
	l.mu.Lock()
	number := l.connections
	l.connections++
	acked := uint64(len(l.stored))
	l.mu.Unlock()
	opened := &clagv1.IngestOpened{NextSeq: acked + 1, WindowItems: l.window, MaxBatchItems: 256}
	if err := stream.Send(&clagv1.IngestResponse{
		Frame: &clagv1.IngestResponse_Opened{Opened: opened}}); err != nil {
		return err
	}
	brought := 0
	for {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		if finish := request.GetFinish(); finish != nil {
			return l.finish(stream, finish)
		}
		batch := request.GetBatch()
		l.store(batch, acked)
		brought += len(batch.GetItems())
		if limit, due := l.failAfter[number]; due && brought >= limit {
			return l.failWith
		}
		if l.gate != nil {
			<-l.gate
		}
		acked = batch.GetFirstSeq() + uint64(len(batch.GetItems())) - 1
		if err := stream.Send(l.ack(batch, acked)); err != nil {
			return err
		}
	}
}

func (l *ledger) store(batch *clagv1.IngestBatch, acked uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if batch.GetFirstSeq() != uint64(len(l.stored))+1 {
		l.fault("frame begins at %d and not at %d", batch.GetFirstSeq(), len(l.stored)+1)
	}
	if len(batch.GetItems()) > 64 || len(batch.GetItems()) == 0 {
		l.fault("a frame of %d items", len(batch.GetItems()))
	}
	for _, item := range batch.GetItems() {
		l.stored = append(l.stored, item.GetText())
	}
	if uint64(len(l.stored)) > acked+uint64(l.window) {
		l.fault("%d items are sent where %d are acknowledged", len(l.stored), acked)
	}
	l.frames = append(l.frames, len(batch.GetItems()))
}

func (l *ledger) ack(batch *clagv1.IngestBatch, acked uint64) *clagv1.IngestResponse {
	results := l.report
	if results == nil {
		results = durableResults
	}
	ack := &clagv1.IngestAck{
		AckedThrough: acked, DurableThrough: acked, WindowItems: l.window,
		Results: results(batch.GetFirstSeq(), batch.GetItems()),
	}
	return &clagv1.IngestResponse{Frame: &clagv1.IngestResponse_Ack{Ack: ack}}
}

func (l *ledger) finish(
	stream grpc.BidiStreamingServer[clagv1.IngestRequest, clagv1.IngestResponse], finish *clagv1.IngestFinish,
) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if finish.GetLastSeq() != uint64(len(l.stored)) {
		l.fault("finish says %d of %d", finish.GetLastSeq(), len(l.stored))
	}
	finished := &clagv1.IngestFinished{Created: uint64(len(l.stored))}
	return stream.Send(&clagv1.IngestResponse{Frame: &clagv1.IngestResponse_Finished{Finished: finished}})
}

func durableResults(first uint64, items []*clagv1.MemoryInput) []*clagv1.IngestResult {
	results := make([]*clagv1.IngestResult, len(items))
	for i := range items {
		results[i] = &clagv1.IngestResult{
			Seq:         first + uint64(i),
			Disposition: clagv1.Disposition_DISPOSITION_CREATED,
			Level:       clagv1.AckLevel_ACK_LEVEL_DURABLE,
			MemoryId:    fmt.Sprintf("m-%d", first+uint64(i)),
		}
	}
	return results
}
