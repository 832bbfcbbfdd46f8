package clag

import clagv1 "github.com/clag-memory/clag/clients/go/clag/v1"

// Outcome is what became of an item, as far as it has come. An item may come again when it has
// come further.
type Outcome struct {
	// Seq is its number in the source, from 1.
	Seq uint64
	// Disposition is CREATED, DUPLICATE or REJECTED; UNSPECIFIED for an item that is durable but
	// whose progress was lost sight of with a connection.
	Disposition clagv1.Disposition
	// Level is the acknowledgement level that it has reached; UNSPECIFIED when rejected.
	Level clagv1.AckLevel
	// MemoryID is its memory; empty when rejected.
	MemoryID string
	// ClusterID is its cluster; empty while it has none.
	ClusterID string
	// State is its state.
	State clagv1.MemoryState
	// Error is why it was rejected or quarantined, else nil.
	Error *clagv1.ItemError
	// Final says that nothing more comes of it: it has reached the level that was asked for, or
	// never will.
	Final bool
}

// outcomeOf returns an outcome as the server reports it, to a stream that asked for a level.
func outcomeOf(result *clagv1.IngestResult, wanted clagv1.AckLevel) Outcome {
	return Outcome{
		Seq:         result.GetSeq(),
		Disposition: result.GetDisposition(),
		Level:       result.GetLevel(),
		MemoryID:    result.GetMemoryId(),
		ClusterID:   result.GetClusterId(),
		State:       result.GetState(),
		Error:       result.GetError(),
		Final: result.GetDisposition() != clagv1.Disposition_DISPOSITION_CREATED ||
			result.GetLevel() >= wanted ||
			result.GetState() == clagv1.MemoryState_MEMORY_STATE_QUARANTINED,
	}
}

// lostOutcome returns the last outcome of an item that is durable and whose progress was lost
// sight of with a connection; memoryID is empty when its report was lost too.
func lostOutcome(seq uint64, memoryID string) Outcome {
	return Outcome{Seq: seq, Level: clagv1.AckLevel_ACK_LEVEL_DURABLE, MemoryID: memoryID, Final: true}
}
