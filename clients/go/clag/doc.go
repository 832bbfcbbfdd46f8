// Package clag is the client of CLAG, a memory sidecar for small-language-model agents.
//
// A [Client] is one connection, safe for concurrent use:
//
//	client, err := clag.NewClient("unix:/run/user/1000/clag/clag.sock")
//
// [Client.Ingest] stores a stream of memories, [Client.Retrieve] finds them again in stages,
// [Client.GetContext] does the same in one answer, [Client.Watch] follows changes, and
// [Client.Answer] lets the server's language model answer. Every other call goes through the
// generated stubs [Client.Memory], [Client.Clusters] and [Client.Admin], which share the
// connection, the token, the default deadline and the errors.
//
// # Iterators
//
// Sources and results are iterators (iter.Seq2 of a value and an error), not channels. A range
// loop that is left early, by break, return or panic, cancels the call and frees what it held;
// a channel that nobody reads any more would leave a goroutine behind. A failure comes where the
// next value would have come, and a consumer that is slow is felt by the producer without a
// buffer in between. [FromChannel] makes a source of a channel.
//
// # Errors
//
// Every call fails with an [*Error], also those of the generated stubs; find it with errors.As.
// errors.Is matches context.Canceled and context.DeadlineExceeded by the status code.
package clag
