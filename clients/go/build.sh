#!/bin/sh
# Generates, builds and tests the Go client. Needs Go, a C compiler (for the race detector) and buf:
# the one that BUF names, the checkout's own, or the one on the path.
set -eu
cd "$(dirname "$0")"
buf=${BUF:-$PWD/../../.venv/bin/buf}
[ -x "$buf" ] || buf=buf

mkdir -p build/bin
# The generators have a module of their own: users of the client do not get them.
go -C tools build -o "$PWD/build/bin/" \
    google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
"$buf" generate --clean

unformatted=$(gofmt -l clag examples internal)
if [ -n "$unformatted" ]; then
    echo "not formatted by gofmt: $unformatted" >&2
    exit 1
fi
go vet ./...
go build ./...
go build -o build/bin/conformance ./internal/conformance
go test -race -timeout=120s ./...
