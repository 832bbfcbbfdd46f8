package main

import (
	"context"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/clag-memory/clag/clients/go/clag"
	clagv1 "github.com/clag-memory/clag/clients/go/clag/v1"
)

func (r *runner) ingest(ctx context.Context, cmd *command, run *running) (object, error) {
	client, err := r.client(cmd)
	if err != nil {
		return nil, err
	}
	items, err := source(ctx, cmd, run)
	if err != nil {
		return nil, err
	}
	var options []clag.IngestOption
	if cmd.StreamID != "" {
		options = append(options, clag.WithStreamID(cmd.StreamID))
	}
	if cmd.AckLevel != "" {
		level := clagv1.AckLevel_value["ACK_LEVEL_"+cmd.AckLevel]
		options = append(options, clag.WithAckLevel(clagv1.AckLevel(level)))
	}
	if cmd.Stages != "" {
		stages := clagv1.IngestStages_value["INGEST_STAGES_"+cmd.Stages]
		options = append(options, clag.WithStages(clagv1.IngestStages(stages)))
	}
	ingestion := client.Ingest(cmd.Namespace, items, options...)
	outcomes := map[string]int{}
	final := 0
	for outcome, err := range ingestion.Outcomes(ctx) {
		if err != nil {
			return nil, err
		}
		if cmd.Consume == "slow" {
			select {
			case <-run.resumed:
			case <-ctx.Done():
			}
		}
		run.outcomes.Add(1)
		if outcome.Final {
			outcomes[dispositionName(outcome)]++
			final++
		}
		if !cmd.Quiet {
			r.event(cmd, outcomeObject(outcome))
		}
	}
	return object{
		"outcomes":   outcomes,
		"final":      final,
		"resumed_at": ingestion.ResumedAt(),
		"reconnects": ingestion.Reconnects(),
		"taken":      run.taken.Load(),
	}, nil
}

// source gives the command's items, counts those that were taken, and stops where it is told to.
func source(ctx context.Context, cmd *command, run *running) (clag.Source, error) {
	count := int64(len(cmd.Items))
	decoded := make([]*clagv1.MemoryInput, len(cmd.Items))
	for i, data := range cmd.Items {
		var err error
		if decoded[i], err = decode(data, &clagv1.MemoryInput{}); err != nil {
			return nil, err
		}
	}
	item := func(n int64) *clagv1.MemoryInput { return decoded[n-1] }
	if cmd.Generate != nil {
		count, item = cmd.Generate.Count, cmd.Generate.item
	}
	return func(yield func(*clagv1.MemoryInput, error) bool) {
		for n := int64(1); n <= count; n++ {
			if cmd.PauseAfter != nil && n == *cmd.PauseAfter+1 {
				select {
				case <-run.resumed:
				case <-ctx.Done():
					return
				}
			}
			run.taken.Add(1)
			if !yield(item(n), nil) {
				return
			}
		}
	}, nil
}

func (r *runner) retrieve(ctx context.Context, cmd *command, _ *running) (object, error) {
	client, err := r.client(cmd)
	if err != nil {
		return nil, err
	}
	request, err := decode(cmd.Request, &clagv1.RetrieveRequest{})
	if err != nil {
		return nil, err
	}
	for response, err := range client.Retrieve(ctx, request) {
		if err := r.hand(cmd, response, err); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func (r *runner) answer(ctx context.Context, cmd *command, _ *running) (object, error) {
	client, err := r.client(cmd)
	if err != nil {
		return nil, err
	}
	request, err := decode(cmd.Request, &clagv1.AnswerRequest{})
	if err != nil {
		return nil, err
	}
	for response, err := range client.Answer(ctx, request) {
		if err := r.hand(cmd, response, err); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func (r *runner) watch(ctx context.Context, cmd *command, _ *running) (object, error) {
	client, err := r.client(cmd)
	if err != nil {
		return nil, err
	}
	request, err := decode(cmd.Request, &clagv1.WatchRequest{})
	if err != nil {
		return nil, err
	}
	seen := 0
	for response, err := range client.Watch(ctx, request) {
		if err := r.hand(cmd, response, err); err != nil {
			return nil, err
		}
		if seen++; seen == cmd.Limit {
			break
		}
	}
	return nil, nil
}

func (r *runner) context(ctx context.Context, cmd *command, _ *running) (object, error) {
	client, err := r.client(cmd)
	if err != nil {
		return nil, err
	}
	request, err := decode(cmd.Request, &clagv1.GetContextRequest{})
	if err != nil {
		return nil, err
	}
	response, err := client.GetContext(ctx, request.GetRetrieve())
	if err != nil {
		return nil, err
	}
	data, err := encode(response)
	return object{"response": data}, err
}

func dispositionName(outcome clag.Outcome) string {
	return strings.TrimPrefix(outcome.Disposition.String(), "DISPOSITION_")
}

func outcomeObject(outcome clag.Outcome) object {
	told := object{
		"seq":         outcome.Seq,
		"disposition": dispositionName(outcome),
		"level":       strings.TrimPrefix(outcome.Level.String(), "ACK_LEVEL_"),
		"state":       strings.TrimPrefix(outcome.State.String(), "MEMORY_STATE_"),
		"final":       outcome.Final,
	}
	if outcome.MemoryID != "" {
		told["memory_id"] = outcome.MemoryID
	}
	if outcome.ClusterID != "" {
		told["cluster_id"] = outcome.ClusterID
	}
	if wrong := outcome.Error; wrong != nil {
		told["error"] = object{
			"reason": reasonName(wrong.GetReason()), "field": wrong.GetField(), "message": wrong.GetMessage(),
		}
	}
	return told
}

// hand hands on a message that a call streamed, with the name of its stage where it has one.
func (r *runner) hand(cmd *command, response proto.Message, err error) error {
	if err != nil {
		return err
	}
	data, err := encode(response)
	if err != nil {
		return err
	}
	event := object{"response": data}
	message := response.ProtoReflect()
	if stages := message.Descriptor().Oneofs(); stages.Len() == 1 {
		if stage := message.WhichOneof(stages.Get(0)); stage != nil {
			event["stage"] = string(stage.Name())
		}
	}
	r.event(cmd, event)
	return nil
}
