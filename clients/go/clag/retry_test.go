package clag

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

// clocked is an outage with a clock that only sleeping moves.
func clocked(policy RetryPolicy) (*outage, *time.Time, *[]time.Duration) {
	now := time.Unix(1000, 0)
	var pauses []time.Duration
	o := newOutage(policy)
	o.now = func() time.Time { return now }
	o.sleep = func(_ context.Context, pause time.Duration) error {
		pauses = append(pauses, pause)
		now = now.Add(pause)
		return nil
	}
	return o, &now, &pauses
}

func TestPausesGrowAndStayWithinTheBudget(t *testing.T) {
	o, now, pauses := clocked(RetryPolicy{})
	begun := *now
	away := newError(codes.Unavailable, "away")
	for o.wait(t.Context(), away, false) == nil {
	}
	if spent := now.Sub(begun); spent > 120*time.Second || spent < 110*time.Second {
		t.Fatalf("it looked for the server for %v", spent)
	}
	for i, pause := range *pauses {
		limit := min(5*time.Second, 100*time.Millisecond<<min(i, 16))
		if pause < limit/2 || pause > limit {
			t.Fatalf("pause %d is %v", i, pause)
		}
	}
}

func TestAConnectionThatBroughtTheStreamForwardEndsTheOutage(t *testing.T) {
	o, now, pauses := clocked(RetryPolicy{ReconnectBudget: time.Second})
	away := newError(codes.Unavailable, "away")
	for range 100 {
		*now = now.Add(800 * time.Millisecond)
		if err := o.wait(t.Context(), away, true); err != nil {
			t.Fatal(err)
		}
	}
	for _, pause := range *pauses {
		if pause > 100*time.Millisecond {
			t.Fatalf("a pause of %v", pause)
		}
	}
}

func TestAConnectionThatStoodForLongEndsTheOutage(t *testing.T) {
	o, now, _ := clocked(RetryPolicy{ReconnectBudget: time.Second})
	away := newError(codes.Unavailable, "away")
	for range 3 {
		o.stands()
		*now = now.Add(6 * time.Second)
		if err := o.wait(t.Context(), away, false); err != nil {
			t.Fatal(err)
		}
	}
	o.stands()
	*now = now.Add(2 * time.Second)
	if err := o.wait(t.Context(), away, false); !errors.Is(err, away) {
		t.Fatal(err)
	}
}

func TestTheServersOwnPauseIsKept(t *testing.T) {
	o, _, pauses := clocked(RetryPolicy{})
	asked := 10 * time.Second
	busy := &Error{Code: codes.ResourceExhausted, RetryAfter: &asked}
	if err := o.wait(t.Context(), busy, false); err != nil {
		t.Fatal(err)
	}
	if pause := (*pauses)[0]; pause < asked || pause > asked*12/10 {
		t.Fatal(pause)
	}
}

func TestWhatCannotBeHelpedIsNotTriedAgain(t *testing.T) {
	o, _, _ := clocked(RetryPolicy{})
	for _, code := range []codes.Code{codes.InvalidArgument, codes.Canceled, codes.Internal, codes.DataLoss} {
		if err := o.wait(t.Context(), newError(code, "no"), false); err == nil {
			t.Fatalf("%v is tried again", code)
		}
	}
}

func TestSleepEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var failed *Error
	if err := sleep(ctx, time.Hour); !errors.As(err, &failed) || failed.Code != codes.Canceled {
		t.Fatal(err)
	}
}
