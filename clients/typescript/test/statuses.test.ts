import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:http2";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { create, toBinary } from "@bufbuild/protobuf";

import { ClagClient, Code } from "../src/index.js";
import { RetrieveRequestSchema, RetrieveStreamResponseSchema } from "../src/v1.js";
import { retrieveRequest } from "../src/values.js";

/** A message as gRPC frames it: not compressed, its length in four bytes. */
function framed(message: Uint8Array): Buffer {
  const head = Buffer.alloc(5);
  head.writeUInt32BE(message.length, 1);
  return Buffer.concat([head, message]);
}

test("the status is told when the server closes the stream before the client has read and written all", async () => {
  const folder = mkdtempSync(join(tmpdir(), "clag-"));
  const server = createServer();
  const marks: unknown[] = [];
  const text = "x".repeat(5_000);
  const stage = framed(
    toBinary(
      RetrieveStreamResponseSchema,
      create(RetrieveStreamResponseSchema, { stage: { case: "context", value: { text } } }),
    ),
  );
  server.on("stream", (stream, headers) => {
    marks.push(headers["clag-call"]);
    stream.on("error", () => {});
    stream.respond({ ":status": 200, "content-type": "application/grpc" }, { waitForTrailers: true });
    stream.on("wantTrailers", () => {
      stream.sendTrailers({ "grpc-status": String(Code.Aborted), "grpc-message": "taken over" });
      setTimeout(() => stream.close(), 1); // its trailers are on their way then
    });
    stream.end(Buffer.concat(Array(60).fill(stage)));
  });
  await new Promise<void>((resolve) => server.listen(join(folder, "s"), resolve));
  using client = new ClagClient(join(folder, "s"));
  const large = { query: retrieveRequest({ namespace: "n", query: "x".repeat(500_000) }) };
  assert.ok(toBinary(RetrieveRequestSchema, large.query).length > 500_000);
  async function* endless() {
    for (;;) {
      yield { queryId: "1", action: { case: "retrieve" as const, value: large.query } };
    }
  }
  for (let round = 0; round < 20; round++) {
    const reading = async () => {
      for await (const _ of client.memory.retrieveStream(endless())) {
        await new Promise((resolve) => setTimeout(resolve, 1));
      }
    };
    await assert.rejects(reading, { code: Code.Aborted, rawMessage: "taken over" });
  }
  assert.deepEqual(new Set(marks), new Set([undefined]), "the mark of a call does not travel");
  client.close();
  await new Promise((resolve) => server.close(resolve));
  rmSync(folder, { recursive: true });
});
