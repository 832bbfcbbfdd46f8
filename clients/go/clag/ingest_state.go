package clag

import (
	"cmp"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"

	clagv1 "github.com/clag-memory/clag/clients/go/clag/v1"
)

const (
	// maxFrameItems: frames of 64 items cost the server 3 µs an item, single ones ten times that;
	// larger ones gain nothing.
	maxFrameItems = 64
	maxFrameBytes = 1 << 20
	// frameOverheadBytes is room for a batch's own fields, itemOverheadBytes for tag and length.
	frameOverheadBytes = 64
	itemOverheadBytes  = 6
)

// ingestState is where a stream stands, over all its connections. The reader of acknowledgements
// moves it forward while the writer takes frames from it.
type ingestState struct {
	wanted clagv1.AckLevel

	mu         sync.Mutex
	kept       []queued // items after durable, sent or not
	durable    uint64
	acked      uint64
	sent       uint64 // on this connection, and all before its first item
	window     uint64
	frameItems int
	frameBytes int
	awaited    map[uint64]string // memory ids, as far as known, of sent items without a final outcome

	// moved holds a token when credit or durability changed since the writer last looked.
	moved chan struct{}
}

func newIngestState(wanted clagv1.AckLevel) *ingestState {
	return &ingestState{wanted: wanted, awaited: map[uint64]string{}, moved: make(chan struct{}, 1)}
}

func (s *ingestState) durableThrough() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.durable
}

// open takes the server's position at the start of a connection. It returns the outcomes of items
// whose progress was lost sight of.
func (s *ingestState) open(opened *clagv1.IngestOpened, first bool) ([]Outcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if opened.GetNextSeq() == 0 {
		return nil, newError(codes.Internal, "the server named no position to start from")
	}
	through := opened.GetNextSeq() - 1
	if first {
		s.durable = through
	} else if through < s.durable || through > s.durable+uint64(len(s.kept)) {
		return nil, newError(codes.DataLoss, "the server asks for an item that this stream cannot send (again)")
	}
	s.sent = through
	var lost []Outcome
	for seq, memoryID := range s.awaited {
		if seq <= through {
			lost = append(lost, lostOutcome(seq, memoryID))
			delete(s.awaited, seq)
		}
	}
	slices.SortFunc(lost, func(a, b Outcome) int { return cmp.Compare(a.Seq, b.Seq) })
	s.window = uint64(opened.GetWindowItems())
	s.frameItems = atMost(maxFrameItems, opened.GetMaxBatchItems())
	s.frameBytes = atMost(maxFrameBytes, opened.GetMaxBatchBytes()) - frameOverheadBytes
	s.advance(through, through)
	return lost, nil
}

// acknowledge takes an acknowledgement, whose results were handed on before: a consumer that is
// slow gives no credit. Of items that this connection did not send it takes no notice: they are
// sent, and acknowledged again.
func (s *ingestState) acknowledge(ack *clagv1.IngestAck) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.window = uint64(ack.GetWindowItems())
	s.advance(min(ack.GetAckedThrough(), s.sent), min(ack.GetDurableThrough(), s.sent))
}

// outcome returns what is reported of an item, and remembers how far it has come.
func (s *ingestState) outcome(result *clagv1.IngestResult) Outcome {
	outcome := outcomeOf(result, s.wanted)
	s.mu.Lock()
	defer s.mu.Unlock()
	if outcome.Final {
		delete(s.awaited, outcome.Seq)
	} else if _, known := s.awaited[outcome.Seq]; known {
		s.awaited[outcome.Seq] = outcome.MemoryID
	}
	return outcome
}

func (s *ingestState) advance(acked, durable uint64) {
	if durable > s.durable {
		gone := min(int(durable-s.durable), len(s.kept))
		clear(s.kept[:gone])
		s.kept = s.kept[gone:]
		s.durable = durable
	}
	s.acked = max(s.acked, acked)
	select {
	case s.moved <- struct{}{}:
	default:
	}
}

// room returns how many items from following on may be sent now, at most a frame of them, and how
// many of those are there.
func (s *ingestState) room(following uint64) (credit, there int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if limit := s.acked + s.window; limit >= following {
		credit = int(min(limit-following+1, uint64(s.frameItems)))
	}
	return credit, len(s.kept) - int(following-1-s.durable)
}

func (s *ingestState) keep(item queued) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = append(s.kept, item)
}

// take returns the next frame, of at most credit items, and counts them as sent.
func (s *ingestState) take(following uint64, credit int) *clagv1.IngestBatch {
	s.mu.Lock()
	defer s.mu.Unlock()
	batch := &clagv1.IngestBatch{FirstSeq: following}
	size := 0
	for _, one := range s.kept[following-1-s.durable:] {
		size += one.size + itemOverheadBytes
		if len(batch.Items) == credit || (len(batch.Items) > 0 && size > s.frameBytes) {
			break
		}
		s.awaited[following+uint64(len(batch.Items))] = one.item.GetMemoryId()
		batch.Items = append(batch.Items, one.item)
	}
	s.sent = following + uint64(len(batch.Items)) - 1
	return batch
}

// atMost returns the smaller of our limit and the server's, which is none when 0.
func atMost(ours int, theirs uint32) int {
	if theirs == 0 {
		return ours
	}
	return min(ours, int(theirs))
}
