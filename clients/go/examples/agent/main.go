// Command agent is the loop of a small agent: it recalls what helps with each observation, acts,
// and remembers it. Type observations, one a line.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"log"
	"os"

	"github.com/clag-memory/clag/clients/go/clag"
	clagv1 "github.com/clag-memory/clag/clients/go/clag/v1"
)

func main() {
	target := flag.String("target", "127.0.0.1:7077", "unix:PATH or host:port")
	token := flag.String("token", os.Getenv("CLAG_TOKEN"), "bearer token of a TCP server")
	flag.Parse()
	client, err := clag.NewClient(*target, clag.WithToken(*token))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	// One stream takes everything that the agent remembers, for as long as it runs.
	ctx := context.Background()
	remember := make(chan *clagv1.MemoryInput)
	remembered := make(chan clag.Outcome)
	go func() {
		defer close(remembered)
		searchable := clag.WithAckLevel(clagv1.AckLevel_ACK_LEVEL_SEARCHABLE)
		stream := client.Ingest("go-agent", clag.FromChannel(ctx, remember), searchable)
		for outcome, err := range stream.Outcomes(ctx) {
			if err != nil {
				log.Fatal(err)
			}
			if outcome.Final {
				remembered <- outcome
			}
		}
	}()

	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		observation := lines.Text()
		found, err := client.GetContext(ctx, &clagv1.RetrieveRequest{
			Namespace: "go-agent", Query: &clagv1.Query{Text: observation}, ContextTokens: 256,
		})
		if err != nil {
			fmt.Println("nothing recalled:", err) // the first time there is no namespace yet
		}
		fmt.Printf("recalled:\n%s\n", found.GetContext().GetText())
		// Here a language model would decide, with the context in its prompt.
		remember <- &clagv1.MemoryInput{Text: observation, Speaker: "user", SessionId: "console"}
		<-remembered // what comes next may be about it
	}
	close(remember)
	<-remembered // the stream is finished
}
