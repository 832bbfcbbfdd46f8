package clag

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	clagv1 "github.com/clag-memory/clag/clients/go/clag/v1"
)

type ingestServerStream = grpc.BidiStreamingServer[clagv1.IngestRequest, clagv1.IngestResponse]

type retrieveServerStream = grpc.ServerStreamingServer[clagv1.RetrieveResponse]

type watchServerStream = grpc.ServerStreamingServer[clagv1.WatchResponse]

func TestATokenIsSentAndADeadlineIsSet(t *testing.T) {
	var token []string
	var left time.Duration
	client := serve(t, &fakeMemory{getContext: func(
		ctx context.Context, _ *clagv1.GetContextRequest,
	) (*clagv1.GetContextResponse, error) {
		token = metadata.ValueFromIncomingContext(ctx, "authorization")
		deadline, _ := ctx.Deadline()
		left = time.Until(deadline)
		return &clagv1.GetContextResponse{}, nil
	}}, WithToken("secret"))
	if _, err := client.GetContext(t.Context(), &clagv1.RetrieveRequest{Namespace: "n"}); err != nil {
		t.Fatal(err)
	}
	if len(token) != 1 || token[0] != "Bearer secret" {
		t.Fatal(token)
	}
	if left < DefaultTimeout/2 || left > DefaultTimeout {
		t.Fatal(left)
	}
}

func TestErrorsSayWhatTheServerSaid(t *testing.T) {
	said, err := status.New(codes.InvalidArgument, "wrong").WithDetails(
		&errdetails.ErrorInfo{
			Domain: "clag", Reason: "ERROR_REASON_INVALID_FIELD", Metadata: map[string]string{"next_seq": "7"}},
		&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: "namespace", Description: "must match"}}},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(200 * time.Millisecond)},
	)
	if err != nil {
		t.Fatal(err)
	}
	client := serve(t, &fakeMemory{
		getContext: func(context.Context, *clagv1.GetContextRequest) (*clagv1.GetContextResponse, error) {
			return nil, said.Err()
		},
		retrieve: func(*clagv1.RetrieveRequest, retrieveServerStream) error { return said.Err() },
	})
	_, unary := client.GetContext(t.Context(), &clagv1.RetrieveRequest{})
	var streamed error
	for _, err := range client.Retrieve(t.Context(), &clagv1.RetrieveRequest{}) {
		streamed = err
	}
	for _, err := range []error{unary, streamed} {
		var failed *Error
		if !errors.As(err, &failed) {
			t.Fatal(err)
		}
		if failed.Code != codes.InvalidArgument || failed.Message != "wrong" ||
			failed.Reason != clagv1.ErrorReason_ERROR_REASON_INVALID_FIELD ||
			failed.Violations[0] != (FieldViolation{"namespace", "must match"}) ||
			*failed.RetryAfter != 200*time.Millisecond || failed.Metadata["next_seq"] != "7" {
			t.Fatalf("%+v", failed)
		}
		if status.Code(err) != codes.InvalidArgument || err.Error() != "clag: InvalidArgument (INVALID_FIELD): wrong" {
			t.Fatal(status.Code(err), err)
		}
	}
}

func TestAReasonOfAnotherDomainOrANewerServerIsUnspecified(t *testing.T) {
	for _, info := range []*errdetails.ErrorInfo{
		{Domain: "example.com", Reason: "ERROR_REASON_NOT_FOUND"},
		{Domain: "clag", Reason: "ERROR_REASON_OF_TOMORROW"},
	} {
		said, err := status.New(codes.NotFound, "gone").WithDetails(info)
		if err != nil {
			t.Fatal(err)
		}
		var failed *Error
		if !errors.As(toError(said.Err()), &failed) || failed.Reason != 0 || failed.Code != codes.NotFound {
			t.Fatal(failed)
		}
	}
}

func TestTextThatIsNotUTF8IsTheCallersFault(t *testing.T) {
	client := serve(t, &fakeMemory{})
	_, err := client.GetContext(t.Context(), &clagv1.RetrieveRequest{Namespace: "\xff"})
	if status.Code(err) != codes.InvalidArgument {
		t.Fatal(err)
	}
}

func TestCancellationAndDeadlinesOfUnaryCallsAreFoundWithErrorsIs(t *testing.T) {
	client := serve(t, &fakeMemory{getContext: func(
		ctx context.Context, _ *clagv1.GetContextRequest,
	) (*clagv1.GetContextResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}, WithTimeout(20*time.Millisecond))
	_, err := client.GetContext(t.Context(), &clagv1.RetrieveRequest{})
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client.GetContext(ctx, &clagv1.RetrieveRequest{}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestLeavingARetrievalCancelsIt(t *testing.T) {
	ended := make(chan error, 1)
	client := serve(t, &fakeMemory{retrieve: func(_ *clagv1.RetrieveRequest, stream retrieveServerStream) error {
		stage := &clagv1.RetrieveResponse_Clusters{Clusters: &clagv1.ClusterSelection{}}
		if err := stream.Send(&clagv1.RetrieveResponse{Stage: stage}); err != nil {
			return err
		}
		<-stream.Context().Done()
		ended <- stream.Context().Err()
		return stream.Context().Err()
	}})
	for response, err := range client.Retrieve(t.Context(), &clagv1.RetrieveRequest{}) {
		if err != nil || response.GetClusters() == nil {
			t.Fatal(response, err)
		}
		break
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestAWatchGoesOnAfterTheLastResponse(t *testing.T) {
	starts := make(chan string, 10)
	client := serve(t, &fakeMemory{watch: func(request *clagv1.WatchRequest, stream watchServerStream) error {
		start := request.GetStartAfter().GetToken()
		starts <- start
		through := &clagv1.Revision{Token: start + "+"}
		if err := stream.Send(&clagv1.WatchResponse{Through: through}); err != nil {
			return err
		}
		return errAway
	}})
	request := &clagv1.WatchRequest{Namespace: "n", StartAfter: &clagv1.Revision{Token: "a"}}
	through := "a"
	for response, err := range client.Watch(t.Context(), request) {
		through += "+"
		if err != nil || response.GetThrough().GetToken() != through {
			t.Fatal(response, err)
		}
		if through == "a+++" {
			break
		}
	}
	if first, second := <-starts, <-starts; first != "a" || second != "a+" {
		t.Fatal(first, second)
	}
	if request.GetStartAfter().GetToken() != "a" {
		t.Fatal("the caller's request was changed")
	}
}

func TestAWatchThatCannotGoOnSaysWhy(t *testing.T) {
	client := serve(t, &fakeMemory{watch: func(*clagv1.WatchRequest, watchServerStream) error {
		return status.Error(codes.OutOfRange, "compacted")
	}})
	failures := 0
	for _, err := range client.Watch(t.Context(), &clagv1.WatchRequest{}) {
		failures++
		if status.Code(err) != codes.OutOfRange {
			t.Fatal(err)
		}
	}
	if failures != 1 {
		t.Fatal(failures)
	}
}
