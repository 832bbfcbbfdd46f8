// Command conformance is the runner of the Go client: it speaks the line protocol of
// tests/conformance/README.md on standard input and output, and wraps the client as it is.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/clag-memory/clag/clients/go/clag"
)

// version is that of the client.
const version = "0.1.0"

func main() {
	r := &runner{
		out:     json.NewEncoder(os.Stdout),
		clients: map[string]*clag.Client{},
		running: map[string]*running{},
	}
	r.out.SetEscapeHTML(false)
	r.write(map[string]any{"hello": map[string]any{
		"language": "go", "client": version, "features": []string{"tls", "unix", "surrogates", "unknown_fields"},
	}})
	if err := r.serve(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// runner has the clients by name and the commands, those that ended too, by id.
type runner struct {
	writing sync.Mutex
	out     *json.Encoder

	mu      sync.Mutex
	clients map[string]*clag.Client
	running map[string]*running
}

// running is a command at work.
type running struct {
	cancel   context.CancelFunc
	resume   func()        // closes resumed, once
	resumed  chan struct{} // closed when the driver lets it go on
	taken    atomic.Int64
	outcomes atomic.Int64
}

// object is a JSON object of the protocol.
type object = map[string]any

// operation carries out a command: its object is the "ok" of the answer, its error the "error".
type operation func(ctx context.Context, cmd *command, run *running) (object, error)

func (r *runner) serve(input io.Reader) error {
	lines := bufio.NewReaderSize(input, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 1 {
			cmd := &command{}
			if err := json.Unmarshal(line, cmd); err != nil {
				return err
			}
			r.begin(cmd)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// begin runs what is quick at once, in the order of the commands, and all else beside it.
func (r *runner) begin(cmd *command) {
	quick := map[string]operation{
		"connect": r.connect, "close": r.close, "roundtrip": r.roundtrip,
		"resume": r.resume, "progress": r.progress, "cancel": r.cancel,
	}
	slow := map[string]operation{
		"call": r.call, "text": r.text, "ingest": r.ingest, "retrieve": r.retrieve,
		"context": r.context, "watch": r.watch, "answer": r.answer,
	}
	ctx, cancel := context.WithCancel(context.Background())
	if timeout := cmd.timeout(); timeout > 0 && slow[cmd.Op] != nil {
		ctx, cancel = context.WithTimeout(context.Background(), timeout)
	}
	resumed := make(chan struct{})
	run := &running{cancel: cancel, resumed: resumed, resume: sync.OnceFunc(func() { close(resumed) })}
	if do := quick[cmd.Op]; do != nil {
		r.end(cmd, run, ctx, do)
		return
	}
	do := slow[cmd.Op]
	if do == nil {
		do = func(context.Context, *command, *running) (object, error) {
			return nil, fmt.Errorf("there is no operation %q", cmd.Op)
		}
	}
	r.mu.Lock()
	r.running[cmd.id()] = run
	r.mu.Unlock()
	go r.end(cmd, run, ctx, do)
}

// end runs an operation and answers the command.
func (r *runner) end(cmd *command, run *running, ctx context.Context, do operation) {
	defer run.cancel()
	answer, err := do(ctx, cmd, run)
	if err != nil {
		r.write(object{"id": cmd.ID, "error": errorObject(err)})
		return
	}
	if answer == nil {
		answer = object{}
	}
	r.write(object{"id": cmd.ID, "ok": answer})
}

func (r *runner) event(cmd *command, event object) {
	r.write(object{"id": cmd.ID, "event": event})
}

func (r *runner) write(line any) {
	r.writing.Lock()
	defer r.writing.Unlock()
	if err := r.out.Encode(line); err != nil {
		os.Exit(1) // the driver is gone
	}
}
